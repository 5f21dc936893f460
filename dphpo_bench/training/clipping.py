"""Clipping: how much of one record's gradient enters the sum, as a function of its norm alone.

A record whose gradient norm is not finite gets the factor 0. The engines make sure that such a record then
adds exactly nothing, although 0 · inf is not 0 in floating point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from dphpo_bench.base.checks import bound, positive
from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import shown, unknown_name_message

if TYPE_CHECKING:
    from torch import Tensor


SMALLEST_FACTOR = 2.0**-126
"""Smaller factors are 0: float32 rounds them by half their size or more, which would break the sensitivity."""


class Clipping(Protocol):
    """What the engines ask of a clipping rule."""

    @property
    def sensitivity(self) -> float:
        """Upper bound of the L2 norm of factor · gradient, for any gradient."""

    def factors(self, norms: "Tensor") -> "Tensor":
        """The factor of each gradient. Engines ask at most once for each record of a batch.

        Args:
            norms: shape (n,), L2 norms of per-sample gradients; may hold inf and nan.

        Returns:
            Shape (n,), finite and non-negative; 0 where the norm is not finite.
        """


@dataclass(frozen=True)
class Abadi:
    """Scale gradients longer than the threshold C = `max_grad_norm` to that length (Abadi et al. 2016, Algorithm 1)."""

    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_grad_norm", positive("max_grad_norm", self.max_grad_norm))

    @property
    def sensitivity(self) -> float:
        """C."""
        return self.max_grad_norm

    def factors(self, norms: "Tensor") -> "Tensor":
        """min(1, C / norm)."""
        return _zero_unless_finite((self.max_grad_norm / norms).clamp(max=1.0), norms)


@dataclass(frozen=True)
class AutoS:
    """Automatic clipping (Bu et al. 2023, "Automatic Clipping", AUTO-S, Theorem 3) with a stability constant γ.

    Raises:
        InvalidValueError: if γ is not in [1e-30, 1e30].
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "stability", bound("stability", self.stability))

    @property
    def sensitivity(self) -> float:
        """1: norm / (norm + γ) stays below it."""
        return 1.0

    def factors(self, norms: "Tensor") -> "Tensor":
        """1 / (norm + γ)."""
        return _zero_unless_finite(1.0 / (norms + self.stability), norms)


@dataclass(frozen=True)
class AutoV:
    """Every gradient scaled to length 1 (Bu et al. 2023, "Automatic Clipping", AUTO-V).

    Gradients shorter than `smallest_norm` are dropped: there squares underflow, a norm can come out far too small, and
    its reciprocal would break the sensitivity.
    """

    smallest_norm: ClassVar[float] = 1e-12

    @property
    def sensitivity(self) -> float:
        """1."""
        return 1.0

    def factors(self, norms: "Tensor") -> "Tensor":
        """1 / norm."""
        return _zero_unless_finite(1.0 / norms, norms) * (norms > self.smallest_norm)


def parse_clipping(text: str) -> Clipping:
    """A clipping rule from its name, as given on a command line.

    Args:
        text: "abadi", "auto_s" or "auto_v"; the first two take a number after a colon, as in "abadi:0.5".

    Raises:
        UnknownNameError: if there is no such rule.
        InvalidValueError: if what follows the colon is not a positive number, or the rule takes none.
    """
    rules: dict[str, Callable[..., Clipping]] = {"abadi": Abadi, "auto_s": AutoS, "auto_v": AutoV}
    name, colon, number = text.strip().lower().replace("-", "_").partition(":")
    if name not in rules:
        raise UnknownNameError(unknown_name_message("clipping", name, rules))
    rule = rules[name]
    if not colon:
        return rule()
    if rule is AutoV:
        raise InvalidValueError(f"Expected 'auto_v' without a number, got {shown(text, form=repr)}.")
    try:
        value = float(number)
    except ValueError:
        raise InvalidValueError(
            f"Expected a number after the colon, such as '{name}:0.5', got {shown(text, form=repr)}."
        ) from None
    return rule(value)


def _zero_unless_finite(factors: "Tensor", norms: "Tensor") -> "Tensor":
    import torch  # not above: a plan names a clipping rule and must not wait for torch

    return torch.where(norms.isfinite() & factors.isfinite() & (factors >= SMALLEST_FACTOR), factors, 0.0)
