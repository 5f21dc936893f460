"""The contract of sealed utilities: see `Session.sealed_utilities`."""

from abc import ABC, abstractmethod


class SealedUtilities(ABC):
    """Utilities of candidates that can be compared with thresholds, privately, and not read."""

    @abstractmethod
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


class UtilityTest(ABC):
    """One AboveThreshold over sealed utilities, open until it names a candidate."""

    @abstractmethod
    def first(self, threshold: float) -> int | None:
        """The first candidate whose noisy utility reaches the noisy threshold; its index ends the test.

        Args:
            threshold: public; it may depend on earlier answers.

        Returns:
            The candidate's index, or None if there is none, which costs nothing.

        Raises:
            InvalidValueError: if an index was given before, or the threshold is not finite.
            OverBudgetError: if the run is over, or another account is in use.
        """
