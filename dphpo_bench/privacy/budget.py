"""The one privacy budget of a run: it covers tuning and training together."""

import math
from dataclasses import dataclass

from dphpo_bench.errors import InvalidValueError


@dataclass(frozen=True)
class PrivacyBudget:
    """An (ε, δ) budget under add-or-remove-one-record adjacency.

    Attributes:
        epsilon: target ε, finite and positive (natural logarithm).
        delta: target δ in (0, 1).

    Raises:
        InvalidValueError: if a value is out of range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InvalidValueError(f"Expected a finite epsilon > 0, got epsilon={self.epsilon}.")
        if not 0 < self.delta < 1:
            raise InvalidValueError(f"Expected 0 < delta < 1, got delta={self.delta}.")
