"""Utilities and votes on parts of the records, which nobody can read, and what is released of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dphpo_bench.base.checks import inside, number, positive, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.privacy.events import gaussian, no_op, pure_dp
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
    access, partitions = session._access, _checked(session, runs, partitions)
    training, validating = access.holdout(validation)
    silent, totals = [run.with_noise(0.0) for run in runs], [0.0] * len(runs)

    def judge(part: Access) -> None:
        for place, score in enumerate(_scores(session, part, validating, silent)):
            totals[place] += min(score / validating.expected_records, 1.0) / partitions

    _on_parts(access, training, partitions, judge)
    return SealedUtilities(access, totals, max(1 / partitions, 1 / validating.expected_records))


def noisy_votes(
    session: "Session", runs: Sequence[Any], partitions: int, validation: float, noise_multiplier: float
) -> list[float]:
    """Return how many parts of the records vote for each candidate, with Gaussian noise.

    Coins split the records into parts, and each part into records that train and records that judge. Each part trains
    every candidate, with the noise of the runs, and votes for the best mean score; candidates that tie share the vote.
    A record changes one vote, so the counts have the L2 sensitivity √2, however many candidates there are
    (docs/accounting.md, noisy counts of parts).

    Args:
        session: whose records vote.
        runs: the candidates, each of type `DpSgd`.
        partitions: number of parts.
        validation: expected share of a part's records that judges.
        noise_multiplier: noise standard deviation / √2, of each count.

    Returns:
        One noisy count for each candidate, of votes whose sum is `partitions`.

    Raises:
        InvalidValueError: if a candidate is of another type, or a number is out of range.
        ModelFailedError: if a model raised an exception on the records, which ends the run.
        OverBudgetError: if the plan does not cover the release; nothing is released then.
    """
    access, partitions = session._access, _checked(session, runs, partitions)
    validation, noise_multiplier = inside("validation", validation), number("noise_multiplier", noise_multiplier, low=0)
    access.charge(gaussian(noise_multiplier))
    votes = torch.zeros(len(runs), dtype=torch.float64)

    def judge(part: Access) -> None:
        training, validating = part.holdout(validation)
        scores = torch.tensor(_scores(session, training, validating, runs), dtype=torch.float64)
        best = scores == scores.max()
        votes.add_(best.double() / best.sum())

    _on_parts(access, access, partitions, judge)
    (noisy,) = access.with_noise([votes], noise_multiplier, math.sqrt(2), "votes")
    return list(map(float, noisy))


def _checked(session: "Session", runs: Sequence[Any], partitions: int) -> int:
    session._access.guard.check()
    if not runs or not all(is_of_recipes(run) and hasattr(run, "train_together") for run in runs):
        # Code of a plug-in would see gradients without noise.
        raise InvalidValueError("Expected candidates of type DpSgd, with optimisers that are given by name.")
    return whole("partitions", partitions, low=2, high=MAX_PARTITIONS)


def _on_parts(outer: Access, access: Access, partitions: int, judge: Callable[[Access], None]) -> None:
    """Call a function with each part of the records of `access`, which lets nothing out; `outer` is the run's."""
    try:
        with outer.progress.track("Candidates on parts of the data", partitions) as advance:
            for index in range(partitions):
                with outer.guard.alone():
                    start, end = index / partitions, (index + 1) / partitions
                    part = access.on_part(f"{partitions} parts", str(index), start, end)
                # Their ledgers are thrown away: what is computed here stays sealed until it is asked for, with noise.
                streams = outer.streams.within("part", str(index))
                judge(replace(part, progress=NullProgress(), observer=None, releases=None, streams=streams))
                advance()
    except BaseException as error:
        # The parts' own ledgers are thrown away, and what is computed is free: nobody may try this again.
        outer.ledger.fail(f"The training of candidates on parts of the records ended with {type(error).__name__}.")
        raise


def _scores(session: "Session", training: Access, validating: Access, runs: Sequence[Any]) -> list[float]:
    """Train every candidate on some records, and return the sum of the scores of others under each model."""
    streams = [training.streams.within(str(number)) for number in range(len(runs))]
    sessions = [type(session)(replace(training, ledger=Ledger(), streams=source)) for source in streams]
    totals = []
    for model in runs[0].train_together(sessions, runs):
        with validating.guard.alone():
            with evaluating(model):
                ours = validating.raw.own_model().asked(model, SCORES)
            totals.append(validating.total(ours, SCORES, validating.rows, validating.expected_records).item())
    return totals


class SealedUtilities(Unique):
    """Utilities of candidates that can be compared with thresholds, privately, and not read."""

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
