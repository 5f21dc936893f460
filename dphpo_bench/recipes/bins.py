"""Public bins of attributes and labels, and the naive Bayes model of counts in them; see `NoisyTables`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, TaskFacts
from dphpo_bench.data.columns import Category
from dphpo_bench.session.session import Session, session_on_made_up
from dphpo_bench.training.values import Values

TARGET_BINS = 8
"""Bins of a regression's targets."""

_NEVER = 1e6  # no input is above it
_STEEP = 6 * 2.0**18  # slope of the units that stand for edges of bins


@dataclass(frozen=True, eq=False)
class Bins:
    """Public bins of a task's labels and attributes.

    The edges of a number's k bins are ln(u / (1 − u)), u = 1/k, ..., (k − 1)/k: bins are equally likely if the number
    is logistic, with the declared typical value and spread. A category has a bin for each of its inputs.
    """

    labels: Tensor  # edges of the labels' bins, shape (labels − 1,)
    edges: Tensor  # of the bins of each input, shape (inputs, k − 1)
    attributes: tuple[Tensor, ...]  # the bins of each attribute, as places among the k bins of all inputs
    are_categories: tuple[bool, ...]  # whether an attribute is a category

    @classmethod
    def of(cls, session: Session, k: int) -> "Bins":
        """Return k > 2 bins of each number; inputs of which no table is declared are numbers."""
        facts = session.facts
        assert isinstance(facts.inputs, Input)
        (n_inputs,) = facts.inputs.shape
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

    def counts(self, device: torch.device) -> Values:
        """Return a function of a record: 1 for each bin that holds it, else 0."""
        places = torch.cat(self.attributes).to(device)
        ends = [end.flatten()[places] for end in _ends(self.edges.to(device))]
        columns = places // self.k
        return lambda _, inputs, _targets: _inside(inputs[:, columns], *ends)

    def values(self, device: torch.device) -> Values:
        """Return a function of a record: 1 for each cell of labels × bins that holds it, else 0."""
        labels, counts = label_values(self.labels.to(device)), self.counts(device)
        return lambda *record: (labels(*record)[:, :, None] * counts(*record)[:, None]).flatten(1)


def label_values(labels: Tensor) -> Values:
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
    """A model in which attributes are independent, given the label."""

    bins: Bins  # public
    shares: Tensor  # of the labels, shape (labels,)
    probabilities: tuple[Tensor, ...]  # of the bins of each attribute, given the label, shape (labels, bins)

    def session(self, session: Session, n: int) -> Session:
        """Return a session on n records drawn from the model, which answers at no ε: they are post-processing."""
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
        """Return the logarithm of P(label, inputs) as a network of torch's layers; of a binary task, the difference."""
        tables, bias = [table.log() for table in self.probabilities], self.shares.log()
        if binary:
            tables, bias = [table.diff(dim=0) for table in tables], bias.diff()
        return additive(self.bins, tables, bias)


def additive(bins: Bins, tables: Sequence[Tensor], bias: Tensor) -> nn.Module:
    """Return a network of torch's layers whose outputs are a sum of a number for each attribute's bin, and a bias.

    A steep unit for each edge says whether the input lies above it.

    Args:
        tables: the numbers of each attribute, shape (outputs, bins).
    """
    inputs, edges = bins.edges.shape
    table = torch.zeros(len(bias), inputs * bins.k, dtype=torch.float64)
    for places, numbers in zip(bins.attributes, tables, strict=True):
        table[:, places] = numbers
    table = table.view(len(bias), inputs, bins.k)
    weight, bias = table.diff(dim=2).flatten(1) / 6, bias + table[:, :, 0].sum(1)
    above = nn.Conv1d(inputs, inputs * edges, 1, groups=inputs)
    head = nn.Linear(inputs * edges, len(bias))
    network = nn.Sequential(nn.Unflatten(1, (inputs, 1)), above, nn.ReLU6(), nn.Flatten(), head)
    slopes = torch.full_like(bins.edges, _STEEP)
    values = (slopes, -slopes * bins.edges, weight, bias)
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), values, strict=True):
            parameter.copy_(value.view_as(parameter))
    return network
