"""Additive models, boosted on noisy sums of residuals; see `NoisyBoosting`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dphpo_bench.contract.method import Release
from dphpo_bench.recipes.moments import held_to, outputs_of, targets_of
from dphpo_bench.recipes.tables import NoisyReleases, released

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from dphpo_bench.contract.task import TaskFacts
    from dphpo_bench.session.session import Session
    from dphpo_bench.training.values import RecordModel, Values

COUNTS_NOISE = 3.0
"""Noise multiplier of the counts of bins, relative to that of all rounds together: they take a tenth of μ²."""

_LEAVES = 3
_NOISE, _SHARE = 32, 1 / 32  # standard deviations of noise, and share of the records, in a leaf at least


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
        least = max(_SHARE * session.expected_records, _NOISE * norm * bound * self.noise_multiplier)
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


def residual_bound(facts: "TaskFacts") -> float:
    """Return the bound that the norm of a record's residuals is held to; for classes it is never above."""
    return {"regression": held_to(facts), "binary": 1.0}.get(facts.kind, math.sqrt(2))


def curvature(facts: "TaskFacts") -> float:
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


def residuals(facts: "TaskFacts", counts: "Values", scores: "Tensor", leaves: "Tensor") -> "Values":
    """Return a function of a record: its residuals, of each output, in each leaf that holds it, else 0.

    Args:
        counts: of the bins that hold a record.
        scores: what each bin adds to the outputs, shape (bins, outputs).
        leaves: see `random_leaves`.
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
