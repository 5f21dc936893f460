"""Utilities of candidates that nobody can read, and private tests of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dphpo_bench.base.checks import positive, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.privacy.events import no_op, pure_dp
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.access import Access, as_before, is_of_recipes
from dphpo_bench.session.interfaces import Unique
from dphpo_bench.training.evaluation import evaluating
from dphpo_bench.training.noise import AboveThreshold
from dphpo_bench.training.values import SCORES

if TYPE_CHECKING:
    from dphpo_bench import Session

MAX_PARTITIONS = 10**6


def sealed_utilities(session: "Session", runs: Sequence[Any], partitions: int, validation: float) -> "SealedUtilities":
    """Evaluate candidates on disjoint parts; see `Session.sealed_utilities`."""
    access = session._access
    partitions = whole("partitions", partitions, low=2, high=MAX_PARTITIONS)
    access.guard.check()
    if not runs or not all(is_of_recipes(run) and hasattr(run, "train_together") for run in runs):
        # Code of a plug-in would see gradients without noise.
        raise InvalidValueError("Expected candidates of type DpSgd, with optimisers that are given by name.")
    silent = [run.with_noise(0.0) for run in runs]
    training, validating = access.holdout(validation)
    totals = [0.0] * len(silent)
    try:
        with access.progress.track("Candidates on parts of the data", partitions) as advance:
            for index in range(partitions):
                with access.guard.alone():
                    start, end = index / partitions, (index + 1) / partitions
                    part = training.on_part(f"{partitions} parts", str(index), start, end)
                # The ledgers are thrown away: what is computed here stays sealed until `open_test`.
                unseen = replace(part, progress=NullProgress(), observer=None, releases=None)
                streams = access.streams.within("part", str(index))
                sessions = [
                    type(session)(replace(unseen, ledger=Ledger(), streams=streams.within(str(number))))
                    for number in range(len(silent))
                ]
                for number, model in enumerate(silent[0].train_together(sessions, silent)):
                    with access.guard.alone():
                        with evaluating(model):
                            ours = access.raw.own_model().asked(model, SCORES)
                        total = validating.total(ours, SCORES, validating.rows, validating.expected_records)
                    share = total.item() / validating.expected_records
                    totals[number] += min(share, 1.0) / partitions
                advance()
    except BaseException as error:
        # The parts' own ledgers are thrown away, and what is computed is free: nobody may try this again.
        access.ledger.fail(f"The training of candidates on parts of the records ended with {type(error).__name__}.")
        raise
    return SealedUtilities(access, totals, max(1 / partitions, 1 / validating.expected_records))


class SealedUtilities(Unique):
    """Utilities of candidates that can be compared with thresholds, privately, and not read.

    Args:
        access: the account that pays for tests.
        values: the utilities.
        sensitivity: of each utility.
    """

    def __init__(self, access: Access, values: Sequence[float], sensitivity: float) -> None:
        self._access = access
        self._values, self._sensitivity = tuple(values), float(sensitivity)

    def open_test(self, epsilon: float) -> "UtilityTest":
        """Open one AboveThreshold over these utilities, charged here and now (Dwork and Roth 2014, Theorem 3.23).

        The smaller noise for monotone queries does not apply: a record can raise the utility of one candidate and
        lower that of another.

        Args:
            epsilon: ε of all that this test answers.

        Raises:
            InvalidValueError: if ε is not positive and finite.
            OverBudgetError: if the plan does not cover the test; there is none then.
        """
        event = pure_dp(positive("epsilon", epsilon))
        self._access.charge(event)
        generator = self._access.generator("noise", "above threshold")
        return UtilityTest(self._access, AboveThreshold(self._sensitivity, event.epsilon, generator), self._values)


class UtilityTest(Unique):
    """One AboveThreshold over sealed utilities, open until it names a candidate."""

    def __init__(self, access: Access, mechanism: AboveThreshold, values: tuple[float, ...]) -> None:
        self._access, self._mechanism, self._values = access, mechanism, values

    def first(self, threshold: float) -> int | None:
        """Return the first candidate whose noisy utility reaches the noisy threshold; its index ends the test.

        Args:
            threshold: public; it may depend on earlier answers.

        Returns:
            The candidate's index, or None if there is none, which costs nothing.

        Raises:
            InvalidValueError: if an index was given before, or the threshold is not finite.
            OverBudgetError: if the run is over, or another account is in use.
        """
        threshold = float(threshold)
        with self._access.guard.alone():
            self._access.charge(no_op())
            first = self._mechanism.first(self._values, threshold)
            # Another question may get the same answer, so the question counts, too.
            asked = [*self._values, threshold, -1 if first is None else first]
            as_before(self._access, [torch.tensor(asked, dtype=torch.float64)])
            return first
