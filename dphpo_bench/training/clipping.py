"""Clipping rules: factors of per-sample gradients, as functions of their norms.

A record whose gradient norm is not finite gets the factor 0. The engines make sure that such a record then
adds exactly nothing, although 0 · inf is not 0 in floating point.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.checks import bound, positive
from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import shown, unknown_name_message

if TYPE_CHECKING:
    from torch import Tensor


SMALLEST_FACTOR = 2.0**-126
"""Smaller factors are 0: float32 rounds them by half their size or more, which would break the sensitivity."""

_BY_NAME: "dict[str, type[Clipping]]" = {}


class Clipping(ABC):
    """A clipping rule: a frozen dataclass without a field, or with a single positive number.

    A new rule is one class. It sets `interpolated`; with a `name` it can be written as text, too.

    Attributes:
        name: of the rule in texts, as in "abadi:0.5"; empty if it has no text.
        interpolated: True: a session asks the rule about norms in advance and interpolates between its factors, so
            the rule sees no norm of a record. False: a session asks it about each batch; only rules of this module may.
        sensitivity: upper bound of the L2 norm of factor · gradient, for any gradient.

    Raises:
        InvalidValueError: if another rule has the name already.
    """

    name: ClassVar[str] = ""
    interpolated: ClassVar[bool]
    sensitivity: float

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = vars(cls).get("name", "")
        other = _BY_NAME.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidValueError(f"Expected a new name for the clipping rule {cls.__name__}, got {name!r}.")
        if name:
            _BY_NAME[name] = cls

    @abstractmethod
    def factors(self, norms: "Tensor") -> "Tensor":
        """Return the factor of each gradient. Engines ask at most once for each record of a batch.

        Args:
            norms: shape (n,), L2 norms of per-sample gradients; may hold inf and nan.

        Returns:
            Shape (n,), finite and non-negative; 0 where the norm is not finite.
        """


@dataclass(frozen=True)
class Abadi(Clipping):
    """Scaling of gradients longer than C = `max_grad_norm` to that length (Abadi et al. 2016, Algorithm 1)."""

    name = "abadi"
    interpolated = False
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_grad_norm", positive("max_grad_norm", self.max_grad_norm))

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        """C."""
        return self.max_grad_norm

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return min(1, C / norm)."""
        return _zero_unless_finite((self.max_grad_norm / norms).clamp(max=1.0))


@dataclass(frozen=True)
class AutoS(Clipping):
    """Automatic clipping (Bu et al. 2023, "Automatic Clipping", AUTO-S, Theorem 3) with a stability constant γ.

    The sensitivity is 1, since norm / (norm + γ) stays below it.

    Raises:
        InvalidValueError: if γ is not in [1e-30, 1e30].
    """

    name = "auto_s"
    interpolated = False
    sensitivity = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "stability", bound("stability", self.stability))

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return 1 / (norm + γ)."""
        return _zero_unless_finite(1.0 / (norms + self.stability))


@dataclass(frozen=True)
class AutoV(Clipping):
    """Scaling of every gradient to length 1 (Bu et al. 2023, "Automatic Clipping", AUTO-V).

    Gradients shorter than `smallest_norm` are dropped: there squares underflow, a norm can come out far too small, and
    its reciprocal would break the sensitivity.
    """

    name = "auto_v"
    interpolated = False
    sensitivity = 1.0
    smallest_norm: ClassVar[float] = 1e-12

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return 1 / norm."""
        return _zero_unless_finite(1.0 / norms) * (norms > self.smallest_norm)


@dataclass(frozen=True)
class Psac(Clipping):
    """Scaling by 1 / (norm + r / (norm + r)) (Xia et al. 2023, arXiv:2212.00328, per-sample adaptive clipping).

    Long gradients get length 1 as with `AutoV`; short ones keep theirs, where `AutoS` multiplies them by 1 / γ. The
    sensitivity is 1: r / (norm + r) is positive, so norm / (norm + r / (norm + r)) stays below 1, for a bound of the
    norm in place of the norm too.

    Raises:
        InvalidValueError: if r is not in [1e-30, 1e30].
    """

    name = "psac"
    interpolated = False
    sensitivity = 1.0
    r: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", bound("r", self.r))

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return 1 / (norm + r / (norm + r))."""
        return _zero_unless_finite(1.0 / (norms + self.r / (norms + self.r)))


def parse_clipping(text: str) -> Clipping:
    """Return the clipping rule of a text, as given on a command line.

    Args:
        text: a rule's name, such as "abadi", "auto_s" or "auto_v"; with a number after a colon, as in "abadi:0.5", if
            the rule takes one.

    Raises:
        UnknownNameError: if there is no such rule.
        InvalidValueError: if what follows the colon is not a positive number, or the rule takes none.
    """
    name, colon, number = text.strip().lower().replace("-", "_").partition(":")
    if name not in _BY_NAME:
        raise UnknownNameError(unknown_name_message("clipping", name, _BY_NAME))
    rule: Callable[..., Clipping] = _BY_NAME[name]
    if not colon:
        return rule()
    if not signature(rule).parameters:
        raise InvalidValueError(f"Expected {name!r} without a number, got {shown(text, form=repr)}.")
    try:
        value = float(number)
    except ValueError:
        raise InvalidValueError(
            f"Expected a number after the colon, such as '{name}:0.5', got {shown(text, form=repr)}."
        ) from None
    return rule(value)


def _zero_unless_finite(factors: "Tensor") -> "Tensor":
    """Return the factors, and 0 in place of infinite, NaN and too small ones; that of an infinite norm is 0 before."""
    import torch  # not above: a plan names a clipping rule and must not wait for torch

    # Comparisons are single operations, and false of NaN; `isfinite` takes four.
    return torch.where((factors < math.inf) & (factors >= SMALLEST_FACTOR), factors, 0.0)
