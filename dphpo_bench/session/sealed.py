"""Utilities of trials that nobody sees, and tests of them."""

import math
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.privacy.events import no_op, pure
from dphpo_bench.session.batch import _Unique
from dphpo_bench.training.noise import AboveThreshold

if TYPE_CHECKING:
    from dphpo_bench.session.session import Session


class SealedUtilities(_Unique):
    """Utilities of candidates that can be compared with thresholds, privately, and not read."""

    def __init__(self, session: "Session", values: list[float], sensitivity: float) -> None:
        self._session = session
        self.__sealed = (tuple(values), float(sensitivity))

    @property
    def _sensitivity(self) -> float:
        """Of each utility; read-only, as noise is drawn for it after it was charged."""
        return self.__sealed[1]

    def open_test(self, epsilon: float) -> "UtilityTest":
        """One AboveThreshold over these utilities, charged here and now (Dwork and Roth 2014, Theorem 3.23).

        The smaller noise for monotone queries does not apply: a record can raise the utility of one candidate and
        lower that of another.

        Args:
            epsilon: ε of all that this test answers.

        Raises:
            InvalidValueError: if ε is not positive and finite.
            OverBudgetError: if the plan does not cover the test; there is none then.
        """
        if not 0 < epsilon < math.inf:
            raise InvalidValueError(f"Expected epsilon > 0, got {epsilon}.")
        session = self._session
        event = pure(epsilon)
        session._ledger.charge(event, session._scope)
        values, sensitivity = self.__sealed
        generator = session._generator("noise", "above threshold", "cpu")
        return UtilityTest(session, AboveThreshold(sensitivity, event.epsilon, generator), values)


class UtilityTest(_Unique):
    """One AboveThreshold over sealed utilities, open until it names a candidate; see `SealedUtilities.open_test`."""

    def __init__(self, session: "Session", mechanism: AboveThreshold, values: tuple[float, ...]) -> None:
        self.__session, self.__mechanism, self.__values = session, mechanism, values

    def first(self, threshold: float) -> int | None:
        """The first candidate whose noisy utility reaches the noisy threshold; its index ends the test.

        Args:
            threshold: public; it may depend on earlier answers.

        Returns:
            The candidate's index, or None if there is none, which costs nothing.

        Raises:
            InvalidValueError: if an index was given before, or the threshold is not finite.
            OverBudgetError: if the account that paid for the test answers no more.
        """
        self.__session._ledger.charge(no_op(), self.__session._scope)
        return self.__mechanism.first(self.__values, float(threshold))
