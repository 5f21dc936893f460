"""Noisy second moments of records, and the linear model that follows from them; see `NoisyMoments`."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dphpo_bench.contract.method import Release
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.data.columns import Category
from dphpo_bench.recipes.tables import NoisyReleases, released

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.session.session import Session
    from dphpo_bench.training.values import RecordModel, Values

_HELD = 2.0  # a regression's targets are held to this, in the units that a network learns, if no bound is declared


@dataclass(frozen=True)
class NoisyMoments(NoisyReleases):
    """A release of Σ zzᵀ and Σ ztᵀ at once: all of the records that ridge regression knows.

    z are a record's inputs x with a constant 1, scaled to norm 1. t is a row with a 1 at the class; 1 or −1 of a binary
    task; or a regression's target, divided by its bound and scaled like z.

    Attributes:
        noise_multiplier: of the release.
        penalty: the ridge penalty lifts the least eigenvalue to this, relative to the norm of the noise.
    """

    penalty: float

    @property
    def releases(self) -> tuple[Release, ...]:
        """The release."""
        return (Release("second moments", 1, self.noise_multiplier, 1.0),)

    def fit(self, session: "Session") -> "nn.Linear":
        """Release the moments, and return the layer W of the ridge regression, with outputs as the task's model has.

        The penalty is max(0, penalty · ‖noise‖ − least eigenvalue), as in AdaSSP, with the noisy eigenvalue itself.
        Outputs of k classes are k times the fitted shares: the logarithm of a share near 1/k, but for a constant.
        """
        import torch
        from torch import nn

        facts, norm = session.facts, input_norm(session)
        outputs = outputs_of(facts)
        (d,) = facts.inputs.shape  # type: ignore[union-attr]
        size, values = d + 1, moments(facts, norm)
        rows, columns = torch.triu_indices(size, size)
        count = len(rows) + size * outputs
        sums = released(session, values, math.sqrt(2), self.noise_multiplier, count, "moments")
        square = torch.zeros(size, size, dtype=torch.float64)
        square[rows, columns] = sums[: len(rows)] / _weights(rows, columns)
        square = square + square.triu(1).T
        deviation = math.sqrt(2) * self.noise_multiplier
        lifted = self.penalty * deviation * math.sqrt(2 * size)
        ridge = max(0.0, lifted - torch.linalg.eigvalsh(square)[0].item())
        weights = torch.linalg.solve(square + ridge * torch.eye(size), sums[len(rows) :].view(size, outputs)).T
        factor = held_to(facts) if facts.kind == "regression" else max(outputs, 2)
        layer = nn.Linear(d, outputs)
        with torch.no_grad():
            for parameter, part in zip(layer.parameters(), (weights[:, :-1], weights[:, -1]), strict=True):
                parameter.copy_(factor / norm * part)
        return layer.to(session.device)


def input_norm(session: "Session") -> float:
    """Return √(A + 1), the norm of a record with A attributes of typical size and the constant; public."""
    (d,) = session.facts.inputs.shape  # type: ignore[union-attr]
    columns = [column for column in (session.columns or {}).values() if column is not None]
    return math.sqrt(1 + (sum(1 if isinstance(column, Category) else column.size for column in columns) or d))


def moments(facts: TaskFacts, norm: float) -> "Values":
    """Return a function of a record: the upper triangle of zzᵀ, with weights that keep its norm, and ztᵀ.

    Each part has a norm of 1 at most.

    Args:
        facts: of the task.
        norm: typical norm of inputs with a constant 1, to which regressions are scaled.
    """
    import torch

    def values(_: "RecordModel", inputs: "Tensor", targets: "Tensor") -> "Tensor":
        whole = torch.cat([inputs.double(), torch.ones_like(inputs[:, :1]).double()], 1)
        norms = whole.norm(dim=1, keepdim=True)
        z, t = whole / norms, targets_of(facts, targets.reshape(len(inputs), -1).double())
        if facts.kind == "regression":
            t = (norm / norms * t / held_to(facts)).clamp(-1, 1)
        elif facts.kind == "binary":
            t = 2 * t - 1
        rows, columns = torch.triu_indices(z.shape[1], z.shape[1], device=z.device)
        square = z[:, rows] * z[:, columns] * _weights(rows, columns)
        return torch.cat([square, (z[:, :, None] * t[:, None]).flatten(1)], 1)

    return values


def outputs_of(facts: TaskFacts) -> int:
    """Return the number of outputs: one for each class, else 1."""
    return facts.n_classes if facts.kind == "classification" and facts.n_classes else 1


def targets_of(facts: TaskFacts, targets: "Tensor") -> "Tensor":
    """Return targets, shape (n, 1), as rows with a 1 at the class, as 0 or 1, or in the units that a network learns."""
    import torch

    if facts.kind == "regression":
        return facts.target_scale.apply(targets) if facts.target_scale else targets
    if facts.kind == "binary":
        return (targets > 0.5).double()
    return (targets == torch.arange(facts.n_classes or 0, device=targets.device)).double()


def _weights(rows: "Tensor", columns: "Tensor") -> "Tensor":
    """Return √2 off the diagonal, where an entry stands for two, and 1 on it."""
    return 1 + (math.sqrt(2) - 1) * (rows != columns).double()


def held_to(facts: TaskFacts) -> float:
    """Return the public bound that a regression's targets are held to, in the units that a network learns."""
    return _HELD if facts.target_scale or not facts.error_bound else facts.error_bound
