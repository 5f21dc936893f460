"""Utilities of candidates that stay hidden, and private tests of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dphpo_bench.base.checks import positive, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.sealed import SealedUtilities, UtilityTest
from dphpo_bench.privacy.events import no_op, pure
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.access import Access
from dphpo_bench.session.trials import MakeSession
from dphpo_bench.session.unique import Unique
from dphpo_bench.training.noise import AboveThreshold

MAX_PARTITIONS = 10**6


def hidden_utilities(
    access: Access, make_session: MakeSession, runs: Sequence[Any], partitions: int, validation: float
) -> "HiddenUtilities":
    """See `Session.sealed_utilities`."""
    partitions, runs = whole("partitions", partitions, low=2, high=MAX_PARTITIONS), list(runs)
    train = access.own_code.training(runs)
    if train is None:
        # Code of a plug-in would see gradients without noise.
        raise InvalidValueError("Expected candidates of type DpSgd, with optimisers that are given by name.")
    with access.guard.alone():
        training, validating = access.holdout(validation)
    totals = [0.0] * len(runs)
    try:
        with access.progress.track("Candidates on parts of the data", partitions) as advance:
            for index in range(partitions):
                with access.guard.alone():
                    start, end = index / partitions, (index + 1) / partitions
                    part = training.on_part(f"{partitions} parts", str(index), start, end)
                streams = access.streams.within("part", str(index))
                # The ledgers are thrown away: what is computed here stays sealed until `open_test`.
                sessions = [
                    make_session(replace(part.unseen(), ledger=Ledger(), streams=streams.within(str(number))), None)
                    for number in range(len(runs))
                ]
                for number, model in enumerate(train(sessions)):
                    with access.guard.alone():
                        score = validating.total_score(access.raw.own_model().scored(model))
                    share = score / validating.expected_records
                    totals[number] += min(share, 1.0) / partitions
                advance()
    except BaseException as error:
        # The parts' own ledgers are thrown away, and what is computed is free: nobody may try this again.
        access.ledger.fail(f"The training of candidates on parts of the records ended with {type(error).__name__}.")
        raise
    return HiddenUtilities(access, totals, max(1 / partitions, 1 / validating.expected_records))


class HiddenUtilities(Unique, SealedUtilities):
    """Utilities that only a test reads.

    Args:
        access: whose account tests are charged to.
        values: the utilities.
        sensitivity: of each utility.
    """

    def __init__(self, access: Access, values: Sequence[float], sensitivity: float) -> None:
        self._access = access
        self.__sealed = (tuple(values), float(sensitivity))

    def open_test(self, epsilon: float) -> "AboveThresholdTest":
        event = pure(positive("epsilon", epsilon))
        self._access.charge(event)
        values, sensitivity = self.__sealed
        generator = self._access.generator("noise", "above threshold")
        return AboveThresholdTest(self._access, AboveThreshold(sensitivity, event.epsilon, generator), values)


class AboveThresholdTest(Unique, UtilityTest):
    """One AboveThreshold over hidden utilities."""

    def __init__(self, access: Access, mechanism: AboveThreshold, values: tuple[float, ...]) -> None:
        self.__access, self.__mechanism, self.__values = access, mechanism, values

    def first(self, threshold: float) -> int | None:
        threshold = float(threshold)
        with self.__access.guard.alone():
            self.__access.charge(no_op())
            return self.__mechanism.first(self.__values, threshold)
