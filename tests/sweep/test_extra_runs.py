"""A loss in two parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.sweep.extra_runs import Split, counterpart

VALUES = st.floats(-100, 100)


@given(VALUES, VALUES, st.none() | VALUES, VALUES)
def test_the_parts_add_up_to_the_loss(own: float, oracle: float, at_full: float | None, at_left: float) -> None:
    split = Split(own, oracle, at_full, at_left)
    assert split.noise + split.choice == pytest.approx(oracle - own, abs=1e-9)
    assert split.loss == oracle - own


@given(VALUES, VALUES, VALUES, VALUES)
def test_effects_that_do_not_depend_on_each_other_are_found(
    base: float, noise: float, choice: float, more: float
) -> None:
    """What each costs, and a part that both together cost, of which each gets half."""
    split = Split(base - noise - choice - more, base, base - choice, base - noise)
    assert split.noise == pytest.approx(noise + more / 2, abs=1e-9)
    assert split.choice == pytest.approx(choice + more / 2, abs=1e-9)


def test_the_counterpart_has_the_same_seed_if_there_is_one() -> None:
    assert counterpart({1: "a", 3: "b"}, 3) == "b"
    assert counterpart({3: "b", 1: "a"}, 7) == "a"
    assert counterpart({}, 7) is None
