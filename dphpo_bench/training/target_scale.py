"""The declared scale of a regression's targets: a network learns numbers of about 1."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

if TYPE_CHECKING:
    from torch import Tensor

    from dphpo_bench.training.losses import PerRecord

RULE = (
    "Expected target_scale to be (typical, spread) with a spread above 0, a bench.Number without missing values, or a "
    "list of these with an entry for each value of a target"
)


@dataclass(frozen=True)
class TargetScale:
    """Targets as (value − typical) / spread, by constants from public knowledge.

    Losses are those of scaled targets. Scores, metrics, predictions and `error_bound` are in the caller's units.
    """

    typical: tuple[float, ...]  # of each value of a target, or a single number for all of them
    spread: tuple[float, ...]  # how far typical values lie apart; as many
    logarithmic: tuple[bool, ...]  # whether the logarithm log(1 + value) is taken first; as many

    def __post_init__(self) -> None:
        sizes = {len(self.typical), len(self.spread), len(self.logarithmic)}
        finite = all(math.isfinite(value) for value in (*self.typical, *self.spread))
        if len(sizes) > 1 or 0 in sizes or not finite or min(self.spread) <= 0:
            raise InvalidValueError(f"{RULE}, got typical={self.typical} and spread={self.spread}.")
        for typical, spread in zip(self.typical, self.spread, strict=True):
            if abs(typical) > 2**20 * spread:
                raise InvalidValueError(
                    f"Expected typical of target_scale within 2^20 spreads of 0, got {typical:g} and {spread:g}: "
                    "labels are float32, which rounds what is learned away. Subtract typical from the labels before."
                )

    @classmethod
    def of(cls, declared: Any, kind: str = "regression") -> "TargetScale | None":
        """Return the scale of a pair (typical, spread), a `Number`, or a list with either for each target value."""
        if declared is not None and kind != "regression":
            raise InvalidValueError(f"Expected target_scale of a regression, got kind={kind!r}.")
        if declared is None or isinstance(declared, cls):
            return declared
        declared = declared.tolist() if hasattr(declared, "tolist") else declared  # NumPy's, pandas'
        several = isinstance(declared, Sequence) and not isinstance(declared, str) and not _is_pair(declared)
        parts = [_part(part, declared) for part in (declared if several else [declared])]
        if not parts:
            raise InvalidValueError(f"{RULE}, got {shown(declared, form=repr)}.")
        typical, spread, logarithmic = zip(*parts, strict=True)
        return cls(typical, spread, logarithmic)

    def apply(self, targets: "Tensor") -> "Tensor":
        """Return targets in the units that the network learns, in their shape (n,) or (n, values)."""
        import torch

        typical, spread, logarithmic = self._constants(targets)
        return (torch.where(logarithmic, targets.log1p(), targets) - typical) / spread

    def invert(self, outputs: Any) -> Any:
        """Return a network's outputs in the caller's units; of several by name, the "logits"."""
        import torch

        if isinstance(outputs, Mapping):
            return {**outputs, "logits": self.invert(outputs["logits"])}
        typical, spread, logarithmic = self._constants(outputs)
        values = outputs * spread + typical
        return torch.where(logarithmic, values.expm1(), values)

    def losses(self, losses: "PerRecord") -> "PerRecord":
        """Return losses of scaled targets."""
        return lambda outputs, targets: losses(outputs, self.apply(targets))

    def scores(self, scores: "PerRecord") -> "PerRecord":
        """Return scores of outputs in the caller's units."""
        return lambda outputs, targets: scores(self.invert(outputs), targets)

    def check(self, targets: "Tensor", which: str) -> None:
        """Reject targets that have no place on the scale."""
        if not bool(self.apply(targets).isfinite().all()):
            reason = "above -1, of which target_scale takes log(1 + label), got others. Leave out logarithmic"
            if not any(self.logarithmic):
                reason = "that float32 holds once scaled, got others. Check the constants of target_scale"
            raise InvalidValueError(f"Expected labels of {which} {reason}.")

    def to_json(self) -> list[dict[str, Any]]:
        """Return the constants as JSON values: part of a run's identity."""
        parts = zip(self.typical, self.spread, self.logarithmic, strict=True)
        return [
            {"typical": typical, "spread": spread, **({"logarithmic": True} if logarithmic else {})}
            for typical, spread, logarithmic in parts
        ]

    def _constants(self, like: "Tensor") -> "tuple[Tensor, Tensor, Tensor]":
        import torch

        if len(self.typical) > 1 and (like.ndim < 2 or like.shape[-1] != len(self.typical)):
            raise InvalidValueError(
                f"Expected targets of shape (n, {len(self.typical)}), as target_scale has {len(self.typical)} entries, "
                f"got {tuple(like.shape)}."
            )
        shape = () if len(self.typical) == 1 else (len(self.typical),)
        columns = (self.typical, self.spread, self.logarithmic)
        dtypes = (like.dtype, like.dtype, torch.bool)
        typical, spread, logarithmic = (
            torch.tensor(values, dtype=dtype, device=like.device).reshape(shape)
            for values, dtype in zip(columns, dtypes, strict=True)
        )
        return typical, spread, logarithmic


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_pair(declared: Any) -> bool:
    return len(declared) == 2 and all(map(_is_number, declared))


def _part(part: Any, declared: Any) -> tuple[float, float, bool]:
    """Return typical value, spread and whether logarithms are taken, of an entry of what was declared."""
    if isinstance(part, Sequence) and not isinstance(part, str) and _is_pair(part):
        return float(part[0]), float(part[1]), False
    typical, spread = getattr(part, "typical", None), getattr(part, "spread", None)
    if not (_is_number(typical) and _is_number(spread)) or getattr(part, "missing", None) is not None:
        raise InvalidValueError(f"{RULE}, got {shown(declared, form=repr)}.")
    return float(typical), float(spread), bool(getattr(part, "logarithmic", False))  # type: ignore[arg-type]
