"""Tables of labels by attributes: noisy counts of records in public bins, and the naive Bayes model of them.

An attribute is a number or a category of a record. One release counts the records of each label in each bin of each
attribute (docs/accounting.md, tables of counts). All else is post-processing.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.base.text import shown
from dphpo_bench.contract.method import Release
from dphpo_bench.contract.task import Input, Kind, TaskFacts
from dphpo_bench.data.columns import Category

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench.session.session import Session
    from dphpo_bench.training.values import RecordModel, Values

LABELS_NOISE = 7.0
"""Noise multiplier of the counts of labels, relative to that of the tables: they take a fiftieth of μ²."""

TARGET_BINS = 8
"""Bins of a regression's targets."""

_LEAST, _MOST = 2, 7  # bins of a number, as powers of two
_NOISE, _RECORDS = 8, 30  # standard deviations of noise, and records, in a mean cell of the rarest label
_NEVER = 1e6  # no input is above it
_STEEP = 6 * 2.0**18  # slope of the units that stand for edges of bins


@dataclass(frozen=True, eq=False)
class Bins:
    """Public bins of a task's labels and attributes.

    The edges of a number's k bins are ln(u / (1 − u)), u = 1/k, ..., (k − 1)/k: bins are equally likely if the number
    is logistic, with the declared typical value and spread. A category has a bin for each of its inputs.

    Attributes:
        labels: edges of the labels' bins, shape (labels − 1,).
        edges: of the bins of each input, shape (inputs, k − 1).
        attributes: the bins of each attribute, as places among the k bins of all inputs.
        are_categories: whether an attribute is a category.
    """

    labels: Tensor
    edges: Tensor
    attributes: tuple[Tensor, ...]
    are_categories: tuple[bool, ...]

    @classmethod
    def of(cls, session: "Session", k: int) -> "Bins":
        """Return k > 2 bins of each number; inputs of which no table is declared are numbers."""
        facts = session.facts
        n_inputs = NoisyTables.inputs_of(facts, [facts.kind], "")
        columns = [column for column in (session.columns or {}).values() if column is not None]
        kinds = [(column.size, isinstance(column, Category)) for column in columns] or [(n_inputs, False)]
        edges, attributes, place = quantiles(k).repeat(n_inputs, 1), list[Tensor](), 0
        for size, is_category in kinds:
            places = torch.arange(place, place + size)
            if is_category:
                edges[places] = torch.tensor([0.5] + [_NEVER] * (k - 2))
                attributes.append(k * places + 1)
            else:
                attributes += (k * places[:, None] + torch.arange(k)).unbind()
            place += size
        are_categories = tuple(is_category for size, is_category in kinds for _ in range(1 if is_category else size))
        return cls(labels_of(facts), edges, tuple(attributes), are_categories)

    @property
    def k(self) -> int:
        """Number of bins of a number."""
        return self.edges.shape[1] + 1

    def values(self, device: torch.device) -> "Values":
        """Return a function of a record: 1 for each cell of labels × bins that holds it, else 0."""
        labels, places = label_values(self.labels.to(device)), torch.cat(self.attributes).to(device)
        ends = [end.flatten()[places] for end in _ends(self.edges.to(device))]
        columns = places // self.k

        def values(model: "RecordModel", inputs: Tensor, targets: Tensor) -> Tensor:
            rows, cells = labels(model, inputs, targets), _inside(inputs[:, columns], *ends)
            return (rows[:, :, None] * cells[:, None]).flatten(1)

        return values


def label_values(labels: Tensor) -> "Values":
    """Return a function of a record: 1 for the bin of its label, else 0."""
    ends = _ends(labels)
    return lambda _, inputs, targets: _inside(targets.reshape(len(inputs), -1), *ends)


def quantiles(k: int) -> Tensor:
    """Return the edges of k bins that are equally likely under the standard logistic distribution."""
    return (torch.arange(1, k) / k).logit()


def labels_of(facts: TaskFacts) -> Tensor:
    """Return the edges of a task's labels: one bin for each class, or `TARGET_BINS` of a regression's targets."""
    if facts.kind == "regression":
        edges = quantiles(TARGET_BINS)
        return edges if facts.target_scale is None else facts.target_scale.invert(edges)
    return torch.arange(1, facts.n_classes or 2) - 0.5


def _ends(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper ends of bins."""
    end = torch.full_like(edges[..., :1], math.inf)
    return torch.cat([-end, edges], -1), torch.cat([edges, end], -1)


def _inside(numbers: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return 1 where a number is above the lower end and not above the upper, else 0, as where it is NaN."""
    return ((numbers > lower) & ~(numbers > upper)).double()


@dataclass(frozen=True, eq=False)
class NaiveBayes:
    """A model in which attributes are independent, given the label.

    Attributes:
        bins: public.
        shares: of the labels, shape (labels,).
        probabilities: of the bins of each attribute, given the label, shape (labels, bins).
    """

    bins: Bins
    shares: Tensor
    probabilities: tuple[Tensor, ...]

    def session(self, session: "Session", n: int) -> "Session":
        """Return a session on n records drawn from the model, which answers at no ε: they are post-processing."""
        from dphpo_bench.session.made_up import session_on_made_up

        generator = torch.Generator().manual_seed(int(session.uniform("made-up records") * 2**53))
        return session_on_made_up(session, self.records(session.facts, n, generator))

    def records(self, facts: TaskFacts, n: int, generator: torch.Generator) -> Records:
        """Return n records drawn from the model: a label, then a bin of each attribute, then a number of the bin.

        Numbers are as likely within a bin as the logistic distribution says, no further out than half of the first and
        of the last bin.
        """

        def numbers(bins: Tensor, k: int) -> Tensor:
            u = (bins + torch.rand(n, generator=generator)) / k
            return u.clamp(0.5 / k, 1 - 0.5 / k).logit()

        labels = torch.multinomial(self.shares, n, replacement=True, generator=generator)
        inputs, k = torch.zeros(n, len(self.bins.edges)), self.bins.k
        drawn = zip(self.bins.attributes, self.bins.are_categories, self.probabilities, strict=True)
        for places, is_category, probabilities in drawn:
            bins = torch.multinomial(probabilities[labels], 1, generator=generator).squeeze(1)
            columns = places[bins] // k
            inputs[torch.arange(n), columns] = torch.ones(n) if is_category else numbers(bins, k)
        if facts.kind == "regression":
            targets = numbers(labels, len(self.shares))
            return Records(inputs, targets if facts.target_scale is None else facts.target_scale.invert(targets))
        return Records(inputs, labels.float() if facts.kind == "binary" else labels)

    def network(self, *, binary: bool) -> nn.Module:
        """Return the logarithm of P(label, inputs) as a network of torch's layers; of a binary task, the difference.

        A steep unit for each edge says whether the input lies above it.
        """
        labels, (inputs, edges) = len(self.shares), self.bins.edges.shape
        table = torch.zeros(labels, inputs * self.bins.k, dtype=torch.float64)
        for places, probabilities in zip(self.bins.attributes, self.probabilities, strict=True):
            table[:, places] = probabilities.log()
        table = table.view(labels, inputs, self.bins.k)
        weight, bias = table.diff(dim=2).flatten(1) / 6, self.shares.log() + table[:, :, 0].sum(1)
        if binary:
            weight, bias = weight.diff(dim=0), bias.diff()
        above = nn.Conv1d(inputs, inputs * edges, 1, groups=inputs)
        head = nn.Linear(inputs * edges, len(bias))
        network = nn.Sequential(nn.Unflatten(1, (inputs, 1)), above, nn.ReLU6(), nn.Flatten(), head)
        slopes = torch.full_like(self.bins.edges, _STEEP)
        with torch.no_grad():
            for parameter, value in zip(
                network.parameters(), (slopes, -slopes * self.bins.edges, weight, bias), strict=True
            ):
                parameter.copy_(value.view_as(parameter))
        return network


@dataclass(frozen=True)
class NoisyTables:
    """A release of the counts of labels, and of the tables of labels by attributes with the bins that follow.

    Attributes:
        noise_multiplier: of the tables.
        bins: of a number; None: as many as leave enough records and little noise in a mean cell of the rarest label.
    """

    noise_multiplier: float
    bins: int | None = None

    @property
    def event(self) -> "DpEvent":
        """The event of both releases."""
        from dphpo_bench.privacy.events import compose, gaussian

        return compose(gaussian(LABELS_NOISE * self.noise_multiplier), gaussian(self.noise_multiplier))

    @property
    def releases(self) -> tuple[Release, ...]:
        """Both releases."""
        return (
            Release("counts of labels", 1, LABELS_NOISE * self.noise_multiplier, 1.0),
            Release("tables of labels by attributes", 1, self.noise_multiplier, 1.0),
        )

    @staticmethod
    def inputs_of(facts: TaskFacts, kinds: Collection[Kind], method: str) -> int:
        """Return the number of a task's inputs; reject a task whose records have no attributes to count.

        Raises:
            InvalidValueError: if the inputs are no vector of numbers, or the task is of another kind.
        """
        inputs = facts.inputs
        if facts.kind in kinds and isinstance(inputs, Input) and inputs.dtype == "float" and len(inputs.shape) == 1:
            return inputs.shape[0]
        raise InvalidValueError(
            f"Expected vectors of numbers in a task of kind {' or '.join(kinds)}, got task {facts.task} of kind "
            f"{facts.kind} with inputs {shown(inputs)}: {method} counts values of single columns, which texts and "
            "pictures do not have. Use another method, such as hyfreedp."
        )

    def fit(self, session: "Session") -> NaiveBayes:
        """Release the counts, and return the model of them.

        Counts are held to 0 or more. Each cell gets (1 + deviation of its noise) / 2 more, times the label's share
        relative to the mean share, so that a cell of nothing but noise says nothing about the label.
        """
        labels, sigma = labels_of(session.facts).to(session.device), self.noise_multiplier
        n_labels = len(labels) + 1
        counts = _released(session, label_values(labels), 1.0, LABELS_NOISE * sigma, n_labels)
        bins = Bins.of(session, 4)  # which fixes the number of attributes
        bound = math.sqrt(len(bins.attributes))
        deviation = sigma * bound
        cell = counts.min().item() / max(_NOISE * deviation, _RECORDS)
        bins = Bins.of(session, self.bins or 2 ** min(max(math.floor(math.log2(max(cell, 1))), _LEAST), _MOST))
        sizes = [len(places) for places in bins.attributes]
        flat = _released(session, bins.values(session.device), bound, sigma, n_labels * sum(sizes))
        tables = torch.split(flat.view(n_labels, -1), sizes, dim=1)
        # Each table has all labels, too: the mean with the least variance.
        precisions = [(LABELS_NOISE * sigma) ** -2, *(1 / (size * deviation**2) for size in sizes)]
        totals = [counts, *(table.sum(1) for table in tables)]
        mean = torch.tensor(precisions, dtype=torch.float64) @ torch.stack(totals) / sum(precisions)
        shares = mean.clamp(min=1) / mean.clamp(min=1).sum()
        more = (1 + deviation) / 2 * n_labels * shares[:, None]
        smooth = [table.clamp(min=0) + more for table in tables]
        return NaiveBayes(bins, shares, tuple(table / table.sum(1, keepdim=True) for table in smooth))


def _released(session: "Session", values: "Values", bound: float, noise_multiplier: float, count: int) -> Tensor:
    """Return noisy sums over all records of values that are a vector of a norm of at most `bound`."""
    means = session.release(
        session.build_model(), values, bound, noise_multiplier, count=count, together=True, purpose="tables"
    )
    return session.expected_records * torch.tensor(means, dtype=torch.float64)
