"""Tables of labels by attributes: noisy counts of records in public bins.

An attribute is a number or a category of a record. One release counts the records of each label in each bin of each
attribute (docs/accounting.md, tables of counts). All else is post-processing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Cost, Plan, Release
from dphpo_bench.contract.task import Input, Kind, TaskFacts

if TYPE_CHECKING:
    from typing import Self

    from dp_accounting.dp_event import DpEvent
    from torch import Tensor

    from dphpo_bench.privacy.budget import PrivacyBudget
    from dphpo_bench.recipes.bins import NaiveBayes
    from dphpo_bench.session.session import Session
    from dphpo_bench.training.values import Values

LABELS_NOISE = 7.0
"""Noise multiplier of the counts of labels, relative to that of the tables: they take a fiftieth of μ²."""

_KINDS: tuple[Kind, ...] = ("classification", "binary", "regression")
_LEAST, _MOST = 2, 7  # bins of a number, as powers of two
_NOISE, _RECORDS = 8, 30  # standard deviations of noise, and records, in a mean cell of the rarest label


@dataclass(frozen=True)
class NoisyReleases(ABC):
    """Gaussian releases of sums over all records, in proportion to one noise multiplier.

    Attributes:
        noise_multiplier: to which those of all releases are proportional.
    """

    noise_multiplier: float

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
        cell = counts.min().item() / max(_NOISE * deviation, _RECORDS)
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
        values: of a record.
        bound: on the norm.
        noise_multiplier: noise standard deviation / bound, of each sum.
        count: number of values of a record.
        purpose: names the random stream.
    """
    import torch

    means = session.release(
        session.build_model(), values, bound, noise_multiplier, count=count, together=True, purpose=purpose
    )
    return session.expected_records * torch.tensor(means, dtype=torch.float64)
