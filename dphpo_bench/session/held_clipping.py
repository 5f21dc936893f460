"""Clipping rules held to the sensitivity they state, those of plug-ins too."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dphpo_bench.base.checks import bound
from dphpo_bench.base.tensors import plain
from dphpo_bench.training.clipping import SMALLEST_FACTOR, Abadi, AutoS, AutoV

if TYPE_CHECKING:
    from torch import Tensor

    from dphpo_bench.training.clipping import Clipping


class TabulatedRule:
    """A plug-in's rule as a table, so that it never sees the norms of a batch.

    The rule is asked in advance about norms that are 1.4 % apart; its factors are interpolated between them. So it
    learns nothing about the records, and the factor of one record does not depend on the others.
    """

    def __init__(self, rule: "Clipping", sensitivity: float) -> None:
        norms = torch.logspace(-12, 12, 4097)
        found = plain(torch.as_tensor(rule.factors(norms.clone()), dtype=norms.dtype)).detach().cpu().expand_as(norms)
        self._factors = torch.minimum(found.nan_to_num(nan=0.0), sensitivity / norms).clamp(min=0.0)

    def factors(self, norms: "Tensor") -> "Tensor":
        """The factor of each norm."""
        last = len(self._factors) - 1
        at = ((norms.log10() + 12) * (last / 24)).nan_to_num(nan=0.0).clamp(0, last)
        below = at.long().clamp(max=last - 1)
        factors = self._factors.to(norms)
        return torch.lerp(factors[below], factors[below + 1], at - below)


class HeldRule:
    """A clipping rule held to the sensitivity that it states.

    Raises:
        InvalidValueError: if that is out of range; see `bound`.
    """

    def __init__(self, rule: "Clipping") -> None:
        self.sensitivity = bound("sensitivity", rule.sensitivity)
        self._rule: Clipping | TabulatedRule
        if isinstance(rule, Abadi | AutoS | AutoV) and type(rule) in (Abadi, AutoS, AutoV):
            self._rule = replace(rule)  # a new one: a plug-in may have attached functions to the other
        else:
            self._rule = TabulatedRule(rule, self.sensitivity)

    def factors(self, norms: "Tensor") -> "Tensor":
        """The rule's factors, reduced where a gradient would exceed the sensitivity; 0 where one is not a number."""
        largest = torch.where(norms.isfinite(), self.sensitivity / norms, 0.0)
        factors = torch.minimum(self._rule.factors(norms).nan_to_num(nan=0.0), largest).clamp_(min=0.0)
        return torch.where(factors >= SMALLEST_FACTOR, factors, 0.0)


class CountingRule(HeldRule):
    """Clipping to a threshold that counts the gradients it does not shorten; it is asked once about every record.

    Whoever holds it knows numbers of records. So a session makes its own, and trusts none that it is given.
    """

    def __init__(self, max_grad_norm: float) -> None:
        super().__init__(Abadi(max_grad_norm))
        self.seen = 0
        self.unclipped = 0

    def factors(self, norms: "Tensor") -> "Tensor":
        """min(1, C / norm), and 0 where a norm is not a number."""
        self.seen += len(norms)
        self.unclipped += int((norms <= self.sensitivity).sum())
        return super().factors(norms)
