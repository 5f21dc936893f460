"""The ledger: releases are charged first, counted right, bounded by the plan, and read back with suspicion."""

import json
from collections import Counter
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from dphpo_bench.base.errors import InvalidValueError, OverBudgetError, UnsupportedEventError
from dphpo_bench.contract.method import Cost, Plan
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.event_trees import MAX_NODES, describe, frozen, multiset, simplify
from dphpo_bench.privacy.events import (
    BestOfDpEvent,
    best_of,
    compose,
    gaussian,
    laplace,
    non_private,
    on_part,
    one_of,
    poisson_sampled,
    repeat,
)
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import UniformCount

GRADIENT, LOSS = gaussian(2.0), gaussian(31.0)
STEP = poisson_sampled(0.1, GRADIENT)
LOSS_STEP = poisson_sampled(0.1, compose(GRADIENT, repeat(LOSS, 3)))
PLAN = compose(repeat(STEP, 3), repeat(LOSS_STEP, 2))


def step(ledger: Ledger, *releases: DpEvent, rate: float = 0.1) -> None:
    """One batch that is asked all that it was opened for."""
    batch = ledger.open_batch(rate, compose(*releases))
    for release in releases:
        batch.charge(release)


class TestCounting:
    def test_equal_batches_are_counted_whatever_the_order_of_their_releases(self) -> None:
        ledger = Ledger()
        step(ledger, GRADIENT, repeat(LOSS, 3))
        step(ledger, LOSS, GRADIENT, repeat(LOSS, 2))
        step(ledger, GRADIENT)
        assert dict(ledger.entries) == {LOSS_STEP: 2, STEP: 1}
        assert describe(ledger.event).startswith("2 × Poisson")

    def test_a_batch_of_a_batch_is_refused(self) -> None:
        with pytest.raises(UnsupportedEventError, match="Cannot sample from a sample"):
            Ledger().open_batch(0.1, GRADIENT).open_batch(0.1, GRADIENT)

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


class TestAllowance:
    def test_the_plan_itself_is_covered_in_any_order(self) -> None:
        ledger = Ledger(PLAN)
        for losses in (False, True, False, True, False):
            step(ledger, GRADIENT, *[LOSS] * (3 if losses else 0))
        assert ledger.event == compose(repeat(LOSS_STEP, 2), repeat(STEP, 3))
        assert ledger.refused is None
        with pytest.raises(OverBudgetError, match="still covers nothing"):
            step(ledger, GRADIENT)

    def test_a_batch_does_not_grow(self) -> None:
        """The plan has two batches with losses left, and this was not opened as one of them."""
        ledger = Ledger(PLAN)
        batch = ledger.open_batch(0.1, GRADIENT)
        batch.charge(GRADIENT)
        before = ledger.event
        with pytest.raises(OverBudgetError, match=r"not opened for .* is nothing\. A batch does not grow .* plan for"):
            batch.charge(LOSS)
        assert ledger.event == before
        assert ledger.refused == batch.refused is not None

    @pytest.mark.parametrize(
        ("rate", "release"),
        [(0.1, gaussian(1.9)), (0.2, GRADIENT), (0.1, repeat(GRADIENT, 2)), (0.1, laplace(2))],
    )
    def test_other_releases_are_refused(self, rate: float, release: DpEvent) -> None:
        with pytest.raises(OverBudgetError):
            step(Ledger(PLAN), release, rate=rate)
        with pytest.raises(OverBudgetError):
            Ledger(PLAN).charge(release)  # of all records

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

    @pytest.mark.parametrize("plan", [non_private(), None])
    def test_a_plan_without_privacy_or_none_covers_everything(self, plan: DpEvent | None) -> None:
        ledger = Ledger(plan)
        ledger.charge(non_private())
        step(ledger, GRADIENT)
        assert ledger.refused is None

    @settings(derandomize=True, max_examples=100, deadline=None)
    @given(st.data())
    def test_what_is_charged_is_part_of_the_plan_and_holds_all_that_was_answered(self, data: st.DataObject) -> None:
        """Whatever is opened and asked, in any order, each choice after all that was answered or refused."""
        kinds = [compose(GRADIENT, repeat(LOSS, n)) for n in range(4)]
        planned = data.draw(st.lists(st.sampled_from(range(4)), max_size=6))
        ledger = Ledger(compose(*(poisson_sampled(0.1, kinds[n]) for n in planned)))
        batches: list[tuple[int, Ledger, list[DpEvent]]] = []
        for _ in range(data.draw(st.integers(0, 25))):
            try:
                if not batches or data.draw(st.booleans()):
                    n = data.draw(st.sampled_from(range(4)))
                    batches.append((n, ledger.open_batch(0.1, kinds[n]), []))
                else:
                    _, batch, answered = data.draw(st.sampled_from(batches))
                    release = data.draw(st.sampled_from([GRADIENT, LOSS]))
                    batch.charge(release)
                    answered.append(release)
            except OverBudgetError:
                assert ledger.refused
        opened = Counter(n for n, _, _ in batches)
        assert opened <= Counter(planned)
        assert ledger.event == frozen(compose(*(poisson_sampled(0.1, kinds[n]) for n in opened.elements())))
        for n, _, answered in batches:
            assert multiset(compose(*answered)) <= multiset(kinds[n])


# What an attacker asks of every batch, what it asks of those that seem to hold the record, and the ε that this has
# at δ = 1e-5, at least: the likelihood ratio of "grow where the first answer is large", by convolution.
ADAPTIVE_GROWTH = [
    (0.002, 1.0, 0.6, 300, 2, 2.99),
    (0.02, 1.8786, 3.0, 500, 25, 1.072),
]


@pytest.mark.parametrize(("rate", "first", "second", "steps", "grown", "truth"), ADAPTIVE_GROWTH)
class TestAdaptiveGrowth:
    def event(self, rate: float, first: float, second: float, steps: int, grown: int) -> DpEvent:
        plain, full = (poisson_sampled(rate, compose(*map(gaussian, kind))) for kind in ([first], [first, second]))
        return compose(repeat(plain, steps - grown), repeat(full, grown))

    def test_is_refused(self, rate: float, first: float, second: float, steps: int, grown: int, truth: float) -> None:
        ledger = Ledger(self.event(rate, first, second, steps, grown))
        for index in range(steps - grown):
            batch = ledger.open_batch(rate, gaussian(first))
            batch.charge(gaussian(first))
            if index % 50 == 0:  # the answer was large
                with pytest.raises(OverBudgetError, match="does not grow"):
                    batch.charge(gaussian(second))
        with pytest.raises(OverBudgetError):  # the others are of another kind, known before they answer
            ledger.open_batch(rate, gaussian(first))

    def test_costs_its_truth_where_it_is_planned(
        self, rate: float, first: float, second: float, steps: int, grown: int, truth: float
    ) -> None:
        """Batches that may all be asked both: enough for the attack, unlike what was quoted for it."""
        quoted = epsilon(self.event(rate, first, second, steps, grown), 1e-5).epsilon
        ledger = Ledger(self.event(rate, first, second, steps, steps))
        for index in range(steps):
            batch = ledger.open_batch(rate, compose(gaussian(first), gaussian(second)))
            batch.charge(gaussian(first))
            if index % 50 == 0:
                batch.charge(gaussian(second))
        assert quoted < truth < epsilon(ledger.event, 1e-5).epsilon


class TestLock:
    def test_a_locked_account_refuses_itself_and_its_batches(self) -> None:
        ledger = Ledger()
        batch = ledger.open_batch(0.1, repeat(GRADIENT, 2))
        batch.charge(GRADIENT)
        for account in (ledger, batch):
            with batch.locked(), pytest.raises(OverBudgetError, match="account that is locked"):
                account.charge(GRADIENT)
        with ledger.locked(), pytest.raises(OverBudgetError, match="account that is locked"):
            ledger.open_batch(0.1, GRADIENT)
        batch.charge(GRADIENT)
        assert ledger.event == poisson_sampled(0.1, repeat(GRADIENT, 2))

    def test_a_closed_account_closes_its_batches(self) -> None:
        ledger = Ledger()
        batch = ledger.open_batch(0.1, GRADIENT)
        ledger.close()
        with pytest.raises(OverBudgetError, match="comes too late"):
            batch.charge(GRADIENT)


class TestOneOf:
    """The whole choice is charged; the account of the event that is taken covers this one alone."""

    STEPS = repeat(poisson_sampled(0.1, gaussian(2)), 2)
    CHOICE = one_of([STEPS, gaussian(3)])

    def test_the_choice_is_charged_and_one_event_is_allowed(self) -> None:
        ledger = Ledger(self.CHOICE)
        branch = ledger.open_one_of(frozen(self.CHOICE), 0)
        assert ledger.event == frozen(self.CHOICE)
        step(branch, gaussian(2))
        with pytest.raises(OverBudgetError):
            branch.charge(gaussian(3))
        step(branch, gaussian(2))
        with pytest.raises(OverBudgetError):
            step(branch, gaussian(2))
        assert ledger.refused
        assert ledger.event == frozen(self.CHOICE)

    def test_another_choice_is_not_covered(self) -> None:
        ledger = Ledger(self.CHOICE)
        for other in (
            one_of([gaussian(3), self.STEPS]),
            one_of([self.STEPS]),
            one_of([self.STEPS, gaussian(3)], [1, 1]),
        ):
            with pytest.raises(OverBudgetError):
                ledger.open_one_of(frozen(other), 0)
        ledger.open_one_of(frozen(self.CHOICE), 1)
        with pytest.raises(OverBudgetError):  # a second choice
            ledger.open_one_of(frozen(self.CHOICE), 0)

    def test_a_branch_is_locked_and_closed_with_the_run(self) -> None:
        ledger = Ledger(self.CHOICE)
        branch = ledger.open_one_of(frozen(self.CHOICE), 1)
        with ledger.locked(), pytest.raises(OverBudgetError, match="locked"):
            branch.charge(gaussian(3))
        ledger.close()
        with pytest.raises(OverBudgetError, match="over"):
            branch.charge(gaussian(3))

    def test_within_a_batch_and_within_a_part(self) -> None:
        ledger = Ledger(poisson_sampled(0.1, one_of([gaussian(2), gaussian(3)])))
        batch = ledger.open_batch(0.1, one_of([gaussian(2), gaussian(3)]))
        branch = batch.open_one_of(frozen(one_of([gaussian(2), gaussian(3)])), 1)
        with pytest.raises(UnsupportedEventError, match="sample from a sample"):
            branch.open_batch(0.1, gaussian(3))
        branch.charge(gaussian(3))
        scope = (("split", "a"),)
        ledger = Ledger(on_part("split", "a", self.CHOICE))
        branch = ledger.open_one_of(frozen(self.CHOICE), 1, scope)
        with pytest.raises(OverBudgetError):
            branch.charge(gaussian(3))  # of all records
        branch.charge(gaussian(3), scope)


class TestExactTypes:
    """What is charged is what was allowed, whatever the objects say of themselves."""

    def test_a_plan_and_an_account_of_an_event_that_grows_later(self) -> None:
        parts = [GRADIENT]
        event = dp_event.ComposedDpEvent(parts)
        plan, ledger = Plan(PrivacyBudget(1.0, 1e-5), event, event, None, (), Cost(1, 1, 1.0)), Ledger(event)
        parts.append(gaussian(0.1))
        assert plan.event == plan.training_event == GRADIENT
        with pytest.raises(OverBudgetError):
            ledger.charge(gaussian(0.1))

    def test_an_event_or_a_number_of_runs_of_an_unknown_class_is_refused(self) -> None:
        """Its answers could differ from what it was quoted for."""

        class Unknown(dp_event.DpEvent):
            pass

        class OwnCount(UniformCount):
            pass

        for ask in (Ledger, lambda event: epsilon(event, 1e-5)):
            with pytest.raises(UnsupportedEventError, match="Unknown is no event"):
                ask(Unknown())
        with pytest.raises(InvalidValueError, match="got a OwnCount"):
            best_of(gaussian(5.0), OwnCount(1, 99))
        with pytest.raises(InvalidValueError, match="got a OwnCount"):
            epsilon(BestOfDpEvent(gaussian(5.0), OwnCount(1, 99)), 1e-5)


class TestJson:
    def ledger(self) -> Ledger:
        ledger = Ledger(PLAN)
        step(ledger, GRADIENT, repeat(LOSS, 3))
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
        assert "failed" not in ledger.to_json()  # older versions read it

    def test_a_failure_makes_the_round_trip_and_is_no_empty_ledger(self) -> None:
        ledger = Ledger(PLAN)
        assert ledger.untouched
        ledger.fail("It raised on private records.")
        copy = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
        assert (copy.entries, copy.failed, copy.untouched) == ((), ledger.failed, False)

    def test_what_a_plan_may_hold_is_read_back(self) -> None:
        ledger = Ledger()
        ledger.charge(compose(*(gaussian(1e3 + step) for step in range(MAX_NODES - 1))))
        assert Ledger.from_json(ledger.to_json()).entries == ledger.entries

    @pytest.mark.parametrize(
        "tamper",
        [
            lambda obj: obj.update(version=2),
            lambda obj: obj.update(extra=1),
            lambda obj: obj.update(refused="x" * 10_000),
            lambda obj: obj.update(entries=obj["entries"] * 20_000),
            lambda obj: obj["entries"][0].update(count=-1),
            lambda obj: obj["entries"][0].pop("count"),
            lambda obj: obj["entries"][0]["event"].update(type="subprocess.Popen"),
            lambda obj: obj.update(entries=[dict(obj["entries"][0], count=10**9)] * 2),
        ],
    )
    def test_tampering_is_noticed(self, tamper: Any) -> None:
        obj = json.loads(json.dumps(self.ledger().to_json()))
        tamper(obj)
        with pytest.raises(InvalidValueError, match="Expected"):
            Ledger.from_json(obj)


def test_a_part_within_a_part_of_the_same_partition_is_refused() -> None:
    """It would concern records in two parts of one partition: nobody, at no cost."""
    inner = {"type": "part", "partition": "p", "part": "a", "event": {"type": "non_private"}}
    entry = {"count": 1, "event": {"type": "part", "partition": "p", "part": "b", "event": inner}}
    with pytest.raises(InvalidValueError, match="within one part of a partition"):
        Ledger.from_json({"version": 1, "refused": None, "entries": [entry]})
    entry["event"]["partition"] = "q"
    assert Ledger.from_json({"version": 1, "refused": None, "entries": [entry]}).entries
