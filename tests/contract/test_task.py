"""Public facts, and the search space tuning methods draw from."""

from dataclasses import replace

import pytest

from dphpo_bench.base.errors import InvalidValueError


def test_schedule_from_facts(tiny_task) -> None:
    facts = tiny_task.facts
    assert (facts.sample_rate, facts.steps) == (100 / 600, 30)
    other = facts.with_schedule(batch_size=60, epochs=0.5)
    assert (other.sample_rate, other.steps) == (0.1, 5)
    assert facts.with_schedule() == facts


def test_default_delta_is_below_one_over_n(tiny_task) -> None:
    assert tiny_task.facts.default_delta == pytest.approx(600**-1.1)
    assert replace(tiny_task.facts, n_records=345).default_delta == 1e-3  # the most that a board takes
    assert replace(tiny_task.facts, n_records=50_000).default_delta == pytest.approx(6.78e-6, rel=1e-3)


@pytest.mark.parametrize(
    "change", [{"batch_size": 0}, {"batch_size": 601}, {"epochs": 0}, {"epochs": float("nan")}, {"n_records": 0}]
)
def test_facts_out_of_range(tiny_task, change: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError, match=r"batch_size|epochs|n_records"):
        replace(tiny_task.facts, **change)
