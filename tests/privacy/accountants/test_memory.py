"""Accountants never ask for more memory than a bound that is known beforehand, or say so in one line."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, pld

from dphpo_bench.base.errors import UnsupportedEventError
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.accountants import long_compositions, refusals, report
from dphpo_bench.privacy.accountants import pld as distributions
from dphpo_bench.privacy.events import compose, gaussian, poisson_sampled, repeat


@pytest.mark.parametrize(
    ("rate", "count", "known"),
    [
        (1e-6, 10**6, 1.9948484703),
        (1e-4, 10**6, 28.552534751),
        pytest.param(1e-8, 10**7, 0.0262797080, marks=pytest.mark.slow),
    ],
)
def test_rare_large_losses_are_bounded_on_a_grid_that_fits_into_memory(rate: float, count: int, known: float) -> None:
    """The first case asked for 54 GiB, the last for 118. Known is a bound by an exponentially tilted transform."""
    event = repeat(poisson_sampled(rate, gaussian(0.35)), count)
    found = report.epsilon(event, 1e-5).by_accountant
    assert found["pld"] == pytest.approx(known, rel=1e-2, abs=3e-3)  # both are upper bounds
    assert found["pld"] < found["rdp"]


NOISES = (
    gaussian(1.3),
    poisson_sampled(0.01, gaussian(0.8)),
    dp_event.LaplaceDpEvent(5.0),
    dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(2.0)),
)


@pytest.mark.parametrize("parts", [*itertools.combinations(NOISES, 1), *itertools.combinations(NOISES, 3)])
def test_distributions_are_the_librarys_to_the_last_bit(parts: Any) -> None:
    """They are composed here, since the library does not tell beforehand how many points it will ask for."""
    multiset = dict(zip(parts, (30, 2, 700), strict=False))
    ours = distributions._native(tuple(sorted(multiset.items(), key=repr)), 3e-3)
    accountant = pld.PLDAccountant(value_discretization_interval=3e-3)
    theirs = accountant.compose(event_trees.from_multiset(multiset))._pld
    for one, two in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        assert type(one) is type(two)
        assert one._infinity_mass == two._infinity_mass
        one, two = one.to_dense_pmf(), two.to_dense_pmf()
        assert one._lower_loss == two._lower_loss
        assert np.array_equal(one._probs, two._probs)


def forget() -> None:
    """Let no answer from here be known elsewhere, or the other way round."""
    for known in (report._report, report._of_tree):
        known.cache_clear()


class TestRefusals:
    """With a lower bound than the real one, which nothing within reach of a test exceeds."""

    @pytest.fixture(autouse=True)
    def _few_points(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for module in (refusals, long_compositions):
            monkeypatch.setattr(module, "MOST_POINTS", 2000)
        forget()
        yield
        forget()

    @pytest.mark.parametrize(
        "event",
        [
            repeat(poisson_sampled(0.1, gaussian(1.0)), 1_000_000),
            compose(gaussian(1.0), poisson_sampled(0.1, gaussian(1.0)), dp_event.LaplaceDpEvent(2.0)),
        ],
    )
    def test_other_accountants_answer(self, event: dp_event.DpEvent) -> None:
        found = report.epsilon(event, 1e-5)
        assert "would need a grid of" in found.refused["pld"]
        assert found.quoted == "rdp"
        with pytest.raises(UnsupportedEventError, match=r"pld would need a grid of [\d,]+ privacy losses") as error:
            report.epsilon(event, 1e-5, accountant="pld")
        assert "\n" not in str(error.value)
