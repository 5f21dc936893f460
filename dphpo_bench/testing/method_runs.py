"""Tests of a method's runs: what they leave behind, and what must not change them."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.method import Method
from dphpo_bench.testing.expectations import ContractError, expect, shortened
from dphpo_bench.testing.new_process import ask_new_process
from dphpo_bench.testing.runs import EPSILON, Bench, difference, other_global_randomness, recorded, threads
from dphpo_bench.testing.small_tasks import Blobs

NEVER = "Draw from session.uniform, session.candidate and the session's releases only, and keep nothing between runs."

MOST_WINNERS = 64
"""Largest number of sets of winners to try in a run with several selections."""


class MethodRuns:
    """Tests of runs, a part of `MethodContract`.

    Attributes:
        epsilons: at which plans and runs are made.
    """

    epsilons: ClassVar[tuple[float, ...]] = (1.0, EPSILON, 8.0)

    def test_run_ends_with_a_model(self, method: Method) -> None:
        """A run ends with a finite model and released values that JSON holds."""
        attempt = Bench(method, Blobs()).run()
        expect(
            attempt.status in ("ok", "over_budget"),  # the latter is another test's
            f"Expected a finished run on {Blobs.summary.lower()} Got: {attempt.status}: {attempt.error}",
        )

    def test_run_releases_only_what_the_plan_says(self, method: Method) -> None:
        """Every release is in the plan."""
        from dphpo_bench.privacy.events import repeat
        from dphpo_bench.privacy.ledger import Ledger

        bench = Bench(method, Blobs())
        checked = bench.planned()
        attempt = bench.run(checked=checked)
        expect(attempt.status != "over_budget", str(attempt.error))
        expect(attempt.ledger.refused is None, str(attempt.ledger.refused))
        covered = Ledger(allowance=checked.plan.event)
        for event, count in attempt.ledger.entries:
            covered.charge(repeat(event, count))

    def test_record_comes_back_from_json(self, method: Method) -> None:
        """The record of a run comes back from its JSON form as the same record."""
        from dphpo_bench.records.record import RunRecord

        try:
            record = recorded(method)
        except ValueError as error:
            raise ContractError(f"The run cannot be recorded: {error}") from None
        again = RunRecord.model_validate_json(record.to_json())
        for what, first, second in (
            ("identity", record.identity.model_dump(), again.identity.model_dump()),
            ("ledger", record.privacy and record.privacy.ledger, again.privacy and again.privacy.ledger),
            ("released values", record.released, again.released),
        ):
            expect(
                json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True),
                f"The record's {what} {shortened(first)} come back from JSON as {shortened(second)}. JSON holds "
                "finite numbers, texts, lists, and dictionaries whose keys are texts.",
            )

    def test_seed_repeats_a_run(self, method: Method) -> None:
        """A seed repeats a run exactly."""
        bench = Bench(method, Blobs())
        change = difference(bench.seen(3), bench.seen(3))
        expect(change is None, f"Two runs at one seed differ: {change}. {NEVER}")

    def test_global_randomness_and_threads_change_nothing(self, method: Method) -> None:
        """Neither the global random generators nor the number of threads changes a run."""
        bench = Bench(method, Blobs())
        with other_global_randomness(11), threads(1):
            first = bench.seen()
        with other_global_randomness(12), threads(2):
            second = bench.seen()
        change = difference(first, second)
        expect(change is None, f"With other global random states and threads a run differs: {change}. {NEVER}")

    def test_order_of_trials_changes_nothing(self, method: Method) -> None:
        """The independent trials of a selection may run forwards or backwards; that changes nothing."""
        bench = Bench(method, Blobs())
        checked = bench.planned()
        for seed in range(6):
            counts, order = _counting()
            first = bench.seen(seed, checked=checked, order=order)
            if not counts:  # it has no such trials
                return
            change = difference(first, bench.seen(seed, checked=checked, order=lambda count: range(count)[::-1]))
            expect(
                change is None,
                f"With its {max(counts)} trials in reverse order a run differs: {change}. The proofs of private "
                "selection take independent trials: draw from the trial's own session, and keep nothing between them.",
            )
            if max(counts) > 2:
                return

    def test_trials_that_lost_change_nothing(self, method: Method) -> None:
        """A run lets out the same as if the winner of its selection had been the only trial."""
        bench = Bench(method, Blobs())
        checked = bench.planned()
        for seed in range(6):
            counts, order = _counting()
            whole = bench.seen(seed, checked=checked, order=order)
            if not counts or (len(counts) > 1 and math.prod(counts) > MOST_WINNERS):  # none, or too many could have won
                return
            if min(counts) > 2:
                break
        change = None
        for winners in itertools.product(*map(range, counts)):
            change = difference(whole, bench.seen(seed, checked=checked, order=_only(winners)))
            if change is None:
                return
        expect(
            change is None,
            f"No trial alone leads to what all {sum(counts)} of them release: {change}. Scores, losers, their number "
            "and what was learned from them are secret: release the winner's outcome and nothing else.",
        )

    def test_earlier_runs_change_nothing(self, method: Method) -> None:
        """Earlier runs in this process, on other records and at another ε, change nothing."""
        bench = Bench(method, Blobs())
        first = bench.seen()
        Bench(method, Blobs(), self.epsilons[0]).run(1)
        bench.run(2, Blobs(draw=2))
        change = difference(first, bench.seen())
        expect(
            change is None,
            f"After a run on other records a run differs: {change}. Anything that a run leaves behind is a release "
            f"that nobody accounts for. {NEVER}",
        )

    def test_new_process_gives_the_same_run(self, method: Method) -> None:
        """A new process, in which nothing ran before, gives the same run."""
        bench = Bench(method, Blobs())
        bench.run(2, Blobs(draw=2))
        change = difference(bench.seen(), ask_new_process(type(method), "run", parameters=method.parameters))
        expect(
            change is None,
            f"Here, after a run on other records, and in a new process a run differs: {change}. {NEVER} Sets of texts "
            "have another order in every process: sort them.",
        )

    def test_killed_run_continues_to_the_same_model(self, method: Method) -> None:
        """A run that is killed and continues from its checkpoint is the run that was not killed."""
        from dphpo_bench.privacy.event_kinds import has_selection
        from dphpo_bench.testing.killing import NO_STATE, checkpoints_in, killed

        bench = Bench(method, Blobs())
        checked = bench.planned()
        if checked.plan.cost.runs != 1 or has_selection(checked.plan.event):  # it has no checkpoints
            return
        with TemporaryDirectory(prefix="dphpo-bench-check-") as folder:
            try:
                if not killed(bench, Path(folder)):
                    return
            except InvalidValueError as error:
                if str(error) == NO_STATE:  # it says so to whoever asks for checkpoints
                    return
                raise
            change = difference(bench.seen(), bench.seen(**checkpoints_in(Path(folder))))
        expect(
            change is None,
            f"Killed in the middle of its steps and continued from a checkpoint, a run differs: {change}. Name all "
            "that the training loop changes: training_steps(state=...).",
        )


def _counting() -> tuple[list[int], Callable[[int], Sequence[int]]]:
    """Return an order that changes nothing, and a list that it fills with the number of trials per selection."""
    counts: list[int] = []

    def order(count: int) -> Sequence[int]:
        counts.append(count)
        return range(count)

    return counts, order


def _only(winners: Sequence[int]) -> Callable[[int], Sequence[int]]:
    """Return an order that runs a single trial in each selection."""
    rest = iter(winners)

    def order(count: int) -> Sequence[int]:
        index = next(rest, count)
        return [index] if index < count else []

    return order
