"""Clipping rules held to the sensitivity they state, those of plug-ins too."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dphpo_bench.base.checks import bound
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import plain
from dphpo_bench.training.clipping import SMALLEST_FACTOR, Abadi, Clipping, is_built_in

if TYPE_CHECKING:
    from torch import Tensor


class HeldRule(Clipping):
    """A clipping rule held to the sensitivity that it states.

    Raises:
        InvalidValueError: if the rule does not say whether it is interpolated, or the sensitivity is out of range; see
            `Clipping` and `bound`.
    """

    def __init__(self, rule: Clipping) -> None:
        interpolated = getattr(rule, "interpolated", None) if isinstance(rule, Clipping) else None
        if interpolated is not True and not (interpolated is False and is_built_in(rule)):
            raise InvalidValueError(
                f"Expected a built-in clipping rule, or one that derives from Clipping and sets interpolated = True, "
                f"got {type(rule).__name__}: a session asks it about norms in advance, never about those of records."
            )
        self.sensitivity = bound("sensitivity", getattr(rule, "sensitivity", None))
        # A new rule: a plug-in may have attached functions to the other.
        self._factors = _interpolated(rule, self.sensitivity) if interpolated else replace(rule).factors  # type: ignore[type-var]

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return the rule's factors, reduced to keep the sensitivity; 0 where a factor or a norm is not a number."""
        largest = torch.where(norms.isfinite(), self.sensitivity / norms, 0.0)
        factors = torch.minimum(self._factors(norms).nan_to_num(nan=0.0), largest).clamp_(min=0.0)
        return torch.where(factors >= SMALLEST_FACTOR, factors, 0.0)


class CountingRule(HeldRule):
    """Clipping to a threshold that counts the gradients it does not shorten; engines ask once about every record.

    Whoever holds it knows numbers of records. So a session makes its own, and takes none from a method.
    """

    def __init__(self, max_grad_norm: float) -> None:
        super().__init__(Abadi(max_grad_norm))
        self.seen = 0
        self.unclipped = 0

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return min(1, C / norm), and 0 where a norm is not a number."""
        self.seen += len(norms)
        self.unclipped += int((norms <= self.sensitivity).sum())
        return super().factors(norms)


def _interpolated(rule: Clipping, sensitivity: float) -> Any:
    """Return a plug-in's factors as a function that interpolates in a table, so that the rule sees no norm of a batch.

    The rule is asked in advance about norms that are 1.4 % apart. So it learns nothing about the records, and the
    factor of one record does not depend on the others.
    """
    at = torch.logspace(-12, 12, 4097)
    answer = plain(torch.as_tensor(rule.factors(at.clone()), dtype=at.dtype)).detach().cpu().expand_as(at)
    table = torch.minimum(answer.nan_to_num(nan=0.0), sensitivity / at).clamp(min=0.0)
    last = len(table) - 1

    def factors(norms: "Tensor") -> "Tensor":
        places = ((norms.log10() + 12) * (last / 24)).nan_to_num(nan=0.0).clamp(0, last)
        below = places.long().clamp(max=last - 1)
        values = table.to(norms)
        return torch.lerp(values[below], values[below + 1], places - below)

    return factors
