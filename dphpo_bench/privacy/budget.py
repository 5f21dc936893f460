"""The one privacy budget of a run: it covers tuning and training together."""

import numbers
from dataclasses import dataclass

from dphpo_bench.base.checks import inside, positive
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
        for name, check in (("epsilon", positive), ("delta", inside)):
            value = getattr(self, name)
            exact = check(
                name, value if value is None or isinstance(value, numbers.Real | str) else shown(value, form=repr)
            )
            if type(value) not in (int, float):  # these are written as they were given
                object.__setattr__(self, name, exact)
