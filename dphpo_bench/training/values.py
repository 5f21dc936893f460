"""Sums of values of records: each record's are computed alone and held to a bound, so that it moves a sum by as much.

A function of values gets a `RecordModel` and one record at a time. It never sees another record, and keeps nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, each, length
from dphpo_bench.training.alone import Alone
from dphpo_bench.training.evaluation import evaluating, pieces_of
from dphpo_bench.training.functional import call_with
from dphpo_bench.training.losses import Objective, PerRecord, of_one

_ROWS = 1024
_MOST_VALUES = 2**22
"""Values of all records of a piece: 32 MiB in float64."""


@dataclass(frozen=True)
class RecordModel:
    """A task's model as a function of values gets it: outputs, losses and scores of the records that it is given."""

    model: nn.Module  # one of the engine's own
    objective: Objective
    weights: dict[str, Tensor] | None = None  # by name, in place of those that the model has

    def __call__(self, inputs: Tensors) -> Any:
        """Return the outputs."""
        return call_with(self.model, self.weights, inputs) if self.weights else call(self.model, inputs)

    def losses(self, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the losses, shape (n,)."""
        return of_one(self.objective.losses, "loss")(self(inputs), targets)

    def scores(self, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the scores, shape (n,)."""
        return of_one(self.objective.scores, "score")(self(inputs), targets)

    def losses_along(
        self, direction: Sequence[Tensor], steps: Sequence[float], inputs: Tensors, targets: Tensors
    ) -> Tensor:
        """Return the losses at w − h · direction for each h of `steps`: float64, shape (n, len(steps)).

        Args:
            direction: one tensor for each trained parameter.
            steps: h₁, ..., h_k.
        """
        trained = [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]
        pairs = [(*named, part.to(named[1])) for named, part in zip(trained, direction, strict=True)]
        lines = [
            # Where h is 0 the direction must not matter, even if it is not finite.
            {name: weight if step == 0 else torch.add(weight, part, alpha=-step) for name, weight, part in pairs}
            for step in steps
        ]
        losses = [
            # A model or a loss may write to its arguments.
            replace(self, weights=weights).losses(*(each(Tensor.clone, part) for part in (inputs, targets)))
            for weights in lines
        ]
        return torch.stack(losses, dim=1).double()


Values = Callable[[RecordModel, Any, Any], Tensor]
"""(model, inputs, targets) → the values of each record, shape (n, count)."""


def scores(model: RecordModel, inputs: Any, targets: Any) -> Tensor:
    """Return the scores, each held to [0, 1]; NaN counts as 0."""
    return model.scores(inputs, targets).nan_to_num(nan=0.0).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Query:
    """A sum over records."""

    values: Values  # of each record, a function of that record alone
    bound: float  # each value is held to ±bound; NaN counts as the bound
    count: int = 1
    # Whether the values of a record are a vector, which is scaled to an L2 norm of `bound` at most.
    together: bool = False

    def total(
        self,
        model: nn.Module,
        objective: Objective,
        records: Records,
        rows: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Return the sum, float64 of shape (count,), on the device of the model.

        Args:
            model: in the mode that it computes in; see `outputs_of`.
            rows: of the records that count; None: all.
            shares: weights of these records, float64 of shape (n,); see `Units.shares`. None: 1.
        """
        compute = Alone(lambda model, x, y: self.values(RecordModel(model, objective), x, y), model)
        total = torch.zeros(self.count, dtype=torch.float64, device=next(model.parameters()).device)
        for places, some in pieces_of(model, records, rows, min(_ROWS, max(1, _MOST_VALUES // self.count))):
            with torch.no_grad():
                values = compute(some.inputs, some.targets)
                if not isinstance(values, Tensor) or values[0].numel() != self.count:
                    got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                    raise InvalidValueError(
                        f"Expected {self.count} values of each record, shape ({length(some.inputs)}, {self.count}), "
                        f"got {got}."
                    )
                held = values.view(-1, self.count).double()
                held = held.nan_to_num(nan=self.bound, posinf=self.bound, neginf=-self.bound)
                held.clamp_(-self.bound, self.bound)
                if self.together:
                    held *= (self.bound / held.norm(dim=1, keepdim=True)).clamp(max=1)  # of a vector of zeros: inf
                total += (held if shares is None else held * shares[places].to(held.device)[:, None]).sum(0)
        return total


SCORES = Query(scores, 1.0)
"""The sum of the task's scores."""


def total_score(
    model: nn.Module, scores_of: PerRecord, records: Records, rows: Tensor | None = None, shares: Tensor | None = None
) -> float:
    """Return the sum of all scores, each held to [0, 1], so that a record changes it by at most 1; NaN counts as 0.

    Args:
        model: see `outputs_of`; it is put in the mode of evaluation.
        scores_of: (outputs, targets) → each record's score.
        records: the records.
        rows: of the records that count; None: all.
        shares: weights of these records, float64 of shape (n,); see `Units.shares`. None: 1.

    Raises:
        InvalidValueError: if there is not one score for each record.
    """
    with evaluating(model):
        return SCORES.total(model, Objective(scores_of, scores_of), records, rows, shares).item()
