"""The one privacy budget of a run: it covers tuning and training together."""

import numbers
import sys
from dataclasses import dataclass
from typing import Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown


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
        if not (_is_number(self.epsilon) and 0 < self.epsilon <= sys.float_info.max):
            raise InvalidValueError(f"Expected a finite epsilon > 0, got epsilon={shown(self.epsilon)}.")
        if not (_is_number(self.delta) and 0 < self.delta < 1):
            raise InvalidValueError(f"Expected 0 < delta < 1, got delta={shown(self.delta)}.")
        for name in ("epsilon", "delta"):
            if type(getattr(self, name)) not in (int, float):
                object.__setattr__(self, name, float(getattr(self, name)))


def _is_number(value: Any) -> bool:
    """Whether it is one, as `epsilon` and `delta` are compared and written as given: no text, no boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
