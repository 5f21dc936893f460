"""Gaussian sums over all records, each in one release, and the models that follow from them.

- `NoisyTables`: counts of records in public bins, for naive Bayes. An attribute is a number or a category of a record;
  one release counts the records of each label in each bin of each attribute (docs/accounting.md, tables of counts).
- `NoisyMoments`: second moments of records, for ridge regression.
- `NoisyBoosting`: sums of residuals, round by round, for an additive model.

All else is post-processing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Cost, Plan, Release
from dphpo_bench.contract.task import Input, Kind, TaskFacts
from dphpo_bench.data.columns import Category

if TYPE_CHECKING:
    from typing import Self

    from dp_accounting.dp_event import DpEvent
    from torch import Generator, Tensor, nn

    from dphpo_bench.privacy.budget import PrivacyBudget
    from dphpo_bench.recipes.bins import NaiveBayes
    from dphpo_bench.session.session import Session
    from dphpo_bench.training.values import RecordModel, Values

LABELS_NOISE = 7.0
"""Noise multiplier of the counts of labels, relative to that of the tables: they take a fiftieth of μ²."""

_KINDS: tuple[Kind, ...] = ("classification", "binary", "regression")
_LEAST, _MOST = 2, 7  # bins of a number, as powers of two
_CELL_NOISE, _CELL_RECORDS = 8, 30  # standard deviations of noise, and records, in a mean cell of the rarest label


@dataclass(frozen=True)
class NoisyReleases(ABC):
    """Gaussian releases of sums over all records, in proportion to one noise multiplier."""

    noise_multiplier: float  # to which those of all releases are proportional

    @property
    @abstractmethod
    def releases(self) -> tuple[Release, ...]:
        """The releases."""

    @property
    def event(self) -> "DpEvent":
        """The event of all releases."""
        from dphpo_bench.privacy.events import compose, gaussian, repeat

        return compose(*(repeat(gaussian(release.noise_multiplier), release.count) for release in self.releases))

    def plan(self, facts: TaskFacts, budget: "PrivacyBudget") -> "Plan[Self]":
        """Plan these releases at the smallest noise that meets the budget."""
        from dphpo_bench.privacy.calibration import calibrate

        if facts.class_weights:
            raise InvalidValueError(
                f"Expected a task without class_weights, got {facts.class_weights!r} of task {facts.task}: what is "
                "fitted to sums over all records has no weights of classes. Leave it out, or use another method, such "
                "as hyfreedp."
            )
        noise = calibrate(lambda noise: replace(self, noise_multiplier=noise).event, budget)
        planned = replace(self, noise_multiplier=noise)
        counts = [release.count for release in planned.releases]
        cost = Cost(runs=1, steps=max(counts), examples=float(facts.n_records * sum(counts)))
        return Plan(budget, planned.event, planned.event, planned, planned.releases, cost)


@dataclass(frozen=True)
class NoisyTables(NoisyReleases):
    """A release of the counts of labels, and of the tables of labels by attributes with the bins that follow.

    Attributes:
        noise_multiplier: of the tables.
        bins: of a number; None: as many as leave enough records and little noise in a mean cell of the rarest label.
    """

    bins: int | None = None

    @property
    def releases(self) -> tuple[Release, ...]:
        """Both releases."""
        return (
            Release("counts of labels", 1, LABELS_NOISE * self.noise_multiplier, 1.0),
            Release("tables of labels by attributes", 1, self.noise_multiplier, 1.0),
        )

    @staticmethod
    def check_inputs(
        facts: TaskFacts, method: str, *, kinds: Collection[Kind] = _KINDS, most: int | None = None
    ) -> None:
        """Reject a task whose records have no attributes to count, or too many.

        Raises:
            InvalidValueError: if the inputs are no vector of `most` numbers or fewer, or the task is of another kind.
        """
        inputs = facts.inputs
        if facts.kind in kinds and isinstance(inputs, Input) and inputs.dtype == "float" and len(inputs.shape) == 1:
            if most is None or inputs.shape[0] <= most:
                return
            raise InvalidValueError(
                f"Expected at most {most:,} inputs, got {inputs.shape[0]:,} of task {facts.task}: {method} would take "
                "too much time or memory. Use another method, such as objective_perturbation."
            )
        raise InvalidValueError(
            f"Expected vectors of numbers in a task of kind {' or '.join(kinds)}, got task {facts.task} of kind "
            f"{facts.kind} with inputs {shown(inputs)}: {method} reads single columns, which texts and pictures "
            "do not have. Use another method, such as hyfreedp."
        )

    def fit(self, session: "Session") -> "NaiveBayes":
        """Release the counts, and return the model of them.

        Counts are held to 0 or more. Each cell gets (1 + deviation of its noise) / 2 more, times the label's share
        relative to the mean share, so that a cell of nothing but noise says nothing about the label.
        """
        import torch

        from dphpo_bench.recipes.bins import Bins, NaiveBayes, label_values, labels_of

        labels, sigma = labels_of(session.facts).to(session.device), self.noise_multiplier
        n_labels = len(labels) + 1
        counts = released(session, label_values(labels), 1.0, LABELS_NOISE * sigma, n_labels)
        bins = Bins.of(session, 4)  # which fixes the number of attributes
        bound = math.sqrt(len(bins.attributes))
        deviation = sigma * bound
        cell = counts.min().item() / max(_CELL_NOISE * deviation, _CELL_RECORDS)
        bins = Bins.of(session, self.bins or 2 ** min(max(math.floor(math.log2(max(cell, 1))), _LEAST), _MOST))
        sizes = [len(places) for places in bins.attributes]
        flat = released(session, bins.values(session.device), bound, sigma, n_labels * sum(sizes))
        tables = torch.split(flat.view(n_labels, -1), sizes, dim=1)
        # Each table has all labels, too: the mean with the least variance.
        precisions = [(LABELS_NOISE * sigma) ** -2, *(1 / (size * deviation**2) for size in sizes)]
        totals = [counts, *(table.sum(1) for table in tables)]
        mean = torch.tensor(precisions, dtype=torch.float64) @ torch.stack(totals) / sum(precisions)
        shares = mean.clamp(min=1) / mean.clamp(min=1).sum()
        more = (1 + deviation) / 2 * n_labels * shares[:, None]
        smooth = [table.clamp(min=0) + more for table in tables]
        return NaiveBayes(bins, shares, tuple(table / table.sum(1, keepdim=True) for table in smooth))


def released(
    session: "Session", values: "Values", bound: float, noise_multiplier: float, count: int, purpose: str = "tables"
) -> "Tensor":
    """Return noisy sums over all records of values that are a vector of a norm of at most `bound`.

    Args:
        noise_multiplier: noise standard deviation / bound, of each sum.
        purpose: names the random stream.
    """
    import torch

    from dphpo_bench.training.evaluation import evaluating

    model, facts = session.build_model(), session.facts
    if facts.kind == "regression" and isinstance(facts.inputs, Input):
        with evaluating(model):
            weight = next(model.parameters())
            outputs = model(torch.zeros(1, *facts.inputs.shape, dtype=weight.dtype, device=weight.device)).numel()
        if outputs != 1:
            raise InvalidValueError(
                f"Expected a regression of one number, got {outputs} outputs of the model of task {facts.task}. Use "
                "another method, such as hyfreedp: what is fitted to sums over all records predicts one."
            )
    means = session.release(model, values, bound, noise_multiplier, count=count, together=True, purpose=purpose)
    return session.expected_records * torch.tensor(means, dtype=torch.float64)


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


COUNTS_NOISE = 3.0
"""Noise multiplier of the counts of bins, relative to that of all rounds together: they take a tenth of μ²."""

_LEAVES = 3
_LEAF_NOISE, _LEAF_SHARE = 32, 1 / 32  # standard deviations of noise, and share of the records, in a leaf at least


@dataclass(frozen=True)
class NoisyBoosting(NoisyReleases):
    """A release of the counts of records in bins, and one of sums of residuals in each round.

    Attributes:
        noise_multiplier: of the sums of all rounds together.
        rounds: number of rounds.
        step: of all rounds together; see `fit`.
        bins: of a number, at least 3.
    """

    rounds: int
    step: float
    bins: int

    @property
    def releases(self) -> tuple[Release, ...]:
        """The counts, and a vector of sums in each round."""
        return (
            Release("counts of bins", 1, COUNTS_NOISE * self.noise_multiplier, 1.0),
            Release("sums of residuals", self.rounds, math.sqrt(self.rounds) * self.noise_multiplier, 1.0),
        )

    def fit(self, session: "Session") -> "nn.Module":
        """Release the counts, then sums of residuals in the leaves of each round, and return the additive model.

        A leaf's outputs move by its noisy sum, divided by its noisy count and by the largest curvature of the loss,
        times step/rounds, at most 1/attributes. A count is taken for at least 1/32 of the records, and for 32 standard
        deviations of a sum's noise, were it released once.
        """
        import torch

        from dphpo_bench.recipes.bins import Bins, additive

        facts, bins, outputs = session.facts, Bins.of(session, self.bins), outputs_of(session.facts)
        sizes = [len(places) for places in bins.attributes]
        norm, bound = math.sqrt(len(sizes)), residual_bound(facts)
        counts_noise, sums_noise = (release.noise_multiplier for release in self.releases)
        in_bins = bins.counts(session.device)
        counts = released(session, in_bins, norm, counts_noise, sum(sizes), "counts")
        least = max(_LEAF_SHARE * session.expected_records, _LEAF_NOISE * norm * bound * self.noise_multiplier)
        rate = min(self.step / self.rounds, 1 / len(sizes)) / curvature(facts)
        generator = torch.Generator().manual_seed(int(session.uniform("leaves") * 2**53))
        scores = torch.zeros(sum(sizes), outputs, dtype=torch.float64)
        for _ in range(self.rounds):
            leaves = random_leaves(sizes, bins.are_categories, generator)
            values, count = residuals(facts, in_bins, scores, leaves), leaves.shape[1] * outputs
            sums = released(session, values, norm * bound, sums_noise, count, "residuals").view(-1, outputs)
            scores += rate * leaves @ (sums / (counts @ leaves).clamp(min=least)[:, None])
        tables = torch.split(scores.T, sizes, dim=1)
        return additive(bins, tables, torch.zeros(outputs)).to(session.device)


def residual_bound(facts: TaskFacts) -> float:
    """Return the bound that the norm of a record's residuals is held to; for classes it is never above."""
    return {"regression": held_to(facts), "binary": 1.0}.get(facts.kind, math.sqrt(2))


def curvature(facts: TaskFacts) -> float:
    """Return the second derivative of the loss in an output: where all classes are equally likely, for classes."""
    classes = max(outputs_of(facts), 2)
    return 1.0 if facts.kind == "regression" else (classes - 1) / classes**2


def random_leaves(sizes: Sequence[int], are_categories: Sequence[bool], generator: "Generator") -> "Tensor":
    """Return which leaf holds which bin: 1, else 0, shape (bins, leaves).

    The bins of an attribute are cut at two random places, in their order; those of a category in a random order.
    """
    import torch

    leaves = []
    for size, is_category in zip(sizes, are_categories, strict=True):
        order = torch.randperm(size, generator=generator) if is_category else torch.arange(size)
        first = 1 + torch.randperm(size - 1, generator=generator)[: _LEAVES - 1].sort().values
        leaves.append(torch.nn.functional.one_hot(torch.bucketize(order, first, right=True)).double())
    return torch.block_diag(*leaves)  # type: ignore[no-any-return, no-untyped-call]


def residuals(facts: TaskFacts, counts: "Values", scores: "Tensor", leaves: "Tensor") -> "Values":
    """Return a function of a record: its residuals, of each output, in each leaf that holds it, else 0.

    Args:
        counts: of the bins that hold a record.
        scores: what each bin adds to the outputs, shape (bins, outputs).
    """
    leaf, no_leaf = leaves.argmax(1), leaves.new_zeros(1, leaves.shape[1])  # not a product with zeros for the most part

    def values(model: "RecordModel", inputs: "Tensor", targets: "Tensor") -> "Tensor":
        in_bins = counts(model, inputs, targets)
        outputs = in_bins @ scores.to(inputs.device)
        inside = no_leaf.to(inputs.device).index_add(1, leaf.to(inputs.device), in_bins)
        if facts.kind == "binary":
            outputs = outputs.sigmoid()
        elif facts.kind == "classification":
            outputs = outputs.softmax(1)
        difference = targets_of(facts, targets.reshape(len(inputs), -1).double()) - outputs
        return (inside[:, :, None] * difference[:, None]).flatten(1)

    return values
