"""The ledger: releases are charged first, counted right, bounded by the plan, and read back with
suspicion."""

import json
from typing import Any

import pytest
from dp_accounting.dp_event import DpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from dphpo_bench.errors import InvalidValueError, OverBudgetError
from dphpo_bench.privacy.accountants import epsilon
from dphpo_bench.privacy.events import (
    compose,
    describe,
    gaussian,
    laplace,
    no_op,
    non_private,
    poisson_sampled,
    repeat,
    simplify,
)
from dphpo_bench.privacy.ledger import Ledger

GRADIENT, LOSS = gaussian(2.0), gaussian(31.0)
STEP = poisson_sampled(0.1, GRADIENT)
LOSS_STEP = poisson_sampled(0.1, compose(GRADIENT, repeat(LOSS, 3)))
PLAN = compose(repeat(STEP, 3), repeat(LOSS_STEP, 2))


def step(ledger: Ledger, *releases: DpEvent, rate: float = 0.1) -> None:
    batch = ledger.open_batch(rate)
    for release in releases:
        batch.charge(release)


class TestCounting:
    def test_releases_of_one_batch_are_composed_before_they_are_sampled(self) -> None:
        ledger = Ledger()
        step(ledger, GRADIENT, LOSS, LOSS, LOSS)
        assert simplify(ledger.event) == simplify(LOSS_STEP)
        assert ledger.event == poisson_sampled(0.1, compose(GRADIENT, repeat(LOSS, 3)))

    def test_equal_batches_are_counted_whatever_the_order_of_their_releases(self) -> None:
        ledger = Ledger()
        step(ledger, GRADIENT, repeat(LOSS, 3))
        step(ledger, LOSS, GRADIENT, repeat(LOSS, 2))
        step(ledger, GRADIENT)
        assert dict(ledger.entries) == {LOSS_STEP: 2, STEP: 1}
        assert describe(ledger.event).startswith("2 × Poisson")

    def test_interleaved_batches_do_not_mix(self) -> None:
        ledger = Ledger()
        first, second = ledger.open_batch(0.1), ledger.open_batch(0.1)
        first.charge(GRADIENT)
        second.charge(GRADIENT)
        first.charge(repeat(LOSS, 3))
        assert dict(ledger.entries) == {LOSS_STEP: 1, STEP: 1}

    def test_an_unused_batch_costs_nothing(self) -> None:
        ledger = Ledger()
        ledger.open_batch(0.1)
        assert ledger.event == no_op()
        assert epsilon(ledger.event, 1e-5).epsilon == 0

    def test_a_batch_of_everybody_is_no_sample(self) -> None:
        ledger = Ledger(repeat(gaussian(5), 2))
        step(ledger, gaussian(5), rate=1.0)
        ledger.charge(gaussian(5))
        assert ledger.event == repeat(gaussian(5), 2)

    def test_raw_access_makes_epsilon_infinite(self) -> None:
        ledger = Ledger()
        step(ledger, GRADIENT)
        ledger.charge(non_private())
        assert epsilon(ledger.event, 1e-5).epsilon == float("inf")

    def test_many_batches_take_little_room(self) -> None:
        ledger = Ledger(repeat(STEP, 5000))
        for _ in range(5000):
            step(ledger, GRADIENT)
        assert ledger.event == repeat(STEP, 5000)
        assert len(json.dumps(ledger.to_json())) < 300

    def test_a_bad_rate_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="sample_rate"):
            Ledger().open_batch(1.5)


class TestAllowance:
    def test_the_plan_itself_is_covered_in_any_order(self) -> None:
        ledger = Ledger(PLAN)
        for losses in (False, True, False, True, False):
            batch = ledger.open_batch(0.1)
            batch.charge(GRADIENT)
            for _ in range(3 if losses else 0):
                batch.charge(LOSS)
        assert ledger.event == compose(repeat(LOSS_STEP, 2), repeat(STEP, 3))
        assert ledger.refused is None
        with pytest.raises(OverBudgetError, match="still covers nothing"):
            step(ledger, GRADIENT)

    def test_less_than_the_plan_is_covered(self) -> None:
        ledger = Ledger(PLAN)
        for _ in range(5):
            step(ledger, GRADIENT)  # the last two within the batches that also allow losses
        with pytest.raises(OverBudgetError):
            step(ledger, GRADIENT)

    def test_a_batch_cannot_grow_beyond_what_is_left(self) -> None:
        ledger = Ledger(PLAN)
        for _ in range(2):
            step(ledger, GRADIENT, LOSS, LOSS)
        batch = ledger.open_batch(0.1)
        batch.charge(GRADIENT)
        before = ledger.event
        with pytest.raises(OverBudgetError, match=r"does not cover .*Poisson.*it still covers 2 × Poisson"):
            batch.charge(LOSS)
        assert ledger.event == before

    @pytest.mark.parametrize(
        ("rate", "release"),
        [(0.1, gaussian(1.9)), (0.2, GRADIENT), (0.1, repeat(GRADIENT, 2)), (0.1, laplace(2))],
    )
    def test_other_releases_are_refused(self, rate: float, release: DpEvent) -> None:
        with pytest.raises(OverBudgetError):
            step(Ledger(PLAN), release, rate=rate)

    def test_an_unsampled_release_is_not_covered_by_a_batch(self) -> None:
        with pytest.raises(OverBudgetError):
            Ledger(PLAN).charge(GRADIENT)

    def test_a_refusal_is_remembered_and_leaves_the_rest_alone(self) -> None:
        ledger = Ledger(compose(STEP, laplace(3)))
        step(ledger, GRADIENT)
        with pytest.raises(OverBudgetError) as error:
            ledger.charge(non_private())
        assert ledger.refused == str(error.value)
        assert "non-private access" in ledger.refused
        assert "still covers Laplace b=3" in ledger.refused
        ledger.charge(laplace(3))
        assert ledger.refused == str(error.value)
        assert simplify(ledger.event) == simplify(compose(STEP, laplace(3)))

    def test_a_plan_without_privacy_covers_everything(self) -> None:
        ledger = Ledger(non_private())
        ledger.charge(non_private())
        step(ledger, GRADIENT)
        assert ledger.refused is None

    def test_without_a_plan_there_is_no_bound(self) -> None:
        ledger = Ledger()
        ledger.charge(non_private())
        assert ledger.refused is None

    @settings(derandomize=True, max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(0, 3), max_size=6),
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from([GRADIENT, LOSS])), max_size=15),
    )
    def test_what_is_covered_never_costs_more_than_the_plan(
        self, planned: list[int], charges: list[tuple[int, DpEvent]]
    ) -> None:
        # Batches plan one gradient and some losses; charges arrive at batches in any order. Of the joint
        # multiplier's μ² = Σ 1/σ², a sorted list of what is spent must lie below the sorted list of the plan.
        plan = compose(*(poisson_sampled(0.1, compose(GRADIENT, repeat(LOSS, n))) for n in planned))
        ledger = Ledger(plan)
        batches = [ledger.open_batch(0.1) for _ in range(6)]
        for index, event in charges:
            try:
                batches[index].charge(event)
            except OverBudgetError:
                assert ledger.refused
        allowed = sorted((1 / 4 + n / 31**2 for n in planned), reverse=True)
        spent = sorted(
            (simplify(event).event.noise_multiplier ** -2 for event, count in ledger.entries for _ in range(count)),
            reverse=True,
        )
        assert len(spent) <= len(allowed)
        assert all(used <= limit + 1e-12 for used, limit in zip(spent, allowed, strict=False))


class TestJson:
    def ledger(self) -> Ledger:
        ledger = Ledger(PLAN)
        step(ledger, GRADIENT, LOSS)
        step(ledger, GRADIENT)
        with pytest.raises(OverBudgetError):
            ledger.charge(laplace(1))
        return ledger

    def test_round_trip(self) -> None:
        ledger = self.ledger()
        copy = Ledger.from_json(json.loads(json.dumps(ledger.to_json(), allow_nan=False)))
        assert copy.event == ledger.event
        assert copy.entries == ledger.entries
        assert copy.refused == ledger.refused

    @pytest.mark.parametrize(
        "tamper",
        [
            lambda obj: obj.update(version=2),
            lambda obj: obj.update(version=True),
            lambda obj: obj.update(extra=1),
            lambda obj: obj.pop("refused"),
            lambda obj: obj.update(refused=1),
            lambda obj: obj.update(refused="x" * 10_000),
            lambda obj: obj.update(entries={}),
            lambda obj: obj.update(entries=obj["entries"] * 10_000),
            lambda obj: obj["entries"][0].update(count=-1),
            lambda obj: obj["entries"][0].update(count=1.0),
            lambda obj: obj["entries"][0].update(count="1"),
            lambda obj: obj["entries"][0].update(note=""),
            lambda obj: obj["entries"][0].pop("count"),
            lambda obj: obj["entries"][0]["event"].update(type="subprocess.Popen"),
            lambda obj: obj["entries"][0]["event"].update(sample_rate=7),
            lambda obj: obj["entries"].append([]),
            lambda obj: obj.update(entries=[dict(obj["entries"][0], count=10**9)] * 2),
        ],
    )
    def test_tampering_is_noticed(self, tamper: Any) -> None:
        obj = json.loads(json.dumps(self.ledger().to_json()))
        tamper(obj)
        with pytest.raises(InvalidValueError, match="Expected"):
            Ledger.from_json(obj)

    @pytest.mark.parametrize("obj", [None, [], "ledger", {}])
    def test_anything_else_is_refused(self, obj: object) -> None:
        with pytest.raises(InvalidValueError, match="Expected a ledger"):
            Ledger.from_json(obj)


def test_a_part_within_a_part_of_the_same_partition_is_refused() -> None:
    """It would concern records in two parts of one partition: nobody, at no cost."""
    inner = {"type": "part", "partition": "p", "part": "a", "event": {"type": "non_private"}}
    entry = {"count": 1, "event": {"type": "part", "partition": "p", "part": "b", "event": inner}}
    with pytest.raises(InvalidValueError, match="within one part of a partition"):
        Ledger.from_json({"version": 1, "refused": None, "entries": [entry]})
    entry["event"]["partition"] = "q"
    assert Ledger.from_json({"version": 1, "refused": None, "entries": [entry]}).entries
