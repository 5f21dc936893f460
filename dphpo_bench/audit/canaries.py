"""Canaries, which coins put among the records or leave out, and the attacker's scores for them.

Where units of the task hold several records, a canary is a unit of one record, put in the place of a whole unit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.base.errors import AuditError
from dphpo_bench.base.tensors import Records, single
from dphpo_bench.contract.task import Input, Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.training.augmentation import Augmentation, augmentation_of
from dphpo_bench.training.evaluation import all_outputs
from dphpo_bench.training.linear import linear_layer
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.randomness import Streams
from dphpo_bench.training.units import Units

LABELS = "black box: loss of wrong labels"
MODEL, GRADIENTS = "white box: released model", "white box: released gradients"
TAG = 10.0  # value of a canary's input, so large that its gradient lies almost wholly in the weights of this input


class Transcript:
    """A `session.Observer` that adds up how far released gradients point along the gradients of canaries.

    In Gaussian noise, the sum of ⟨gradient, direction⟩ · length / deviation² is the log-likelihood ratio of a canary,
    but for terms that all canaries share. The deviation is measured, not taken from the ledger. `tags` selects the
    part of a gradient that belongs to the canaries' inputs, shape (classes, m).
    """

    def __init__(self, canaries: Records, tags: Callable[[Sequence[Tensor]], Tensor]) -> None:
        self._canaries = canaries
        self._tags = tags
        self.scores = torch.zeros(len(canaries), dtype=torch.float64)
        self.releases = 0

    def gradient(self, model: nn.Module, released: Sequence[Tensor], share: float) -> None:
        with torch.no_grad():
            labels, outputs = single(self._canaries.targets), all_outputs(model, self._canaries)
            slopes = functional.softmax(outputs, dim=1) - functional.one_hot(labels, outputs.shape[1])
            directions = functional.normalize(slopes.nan_to_num(nan=0.0), dim=1)
            tags = self._tags(released).detach().cpu().double().nan_to_num(nan=0.0).T
            along = (tags * directions).sum(dim=1)
            # Across the canaries' gradients there is nothing but noise. A release that has less of it says more.
            across = (tags.square().sum() - along.square().sum()).clamp(min=0.0) / (tags.numel() - len(tags))
        self.scores += along * share / max(across.item(), (1e-3 * share) ** 2)
        self.releases += 1

    def trial(self) -> "Transcript":
        return Transcript(self._canaries, self._tags)

    def won(self, trial: Any) -> None:
        self.scores += trial.scores
        self.releases += trial.releases


@dataclass(frozen=True)
class Experiment:
    task: Task
    records: Records  # the training records, canaries included
    canaries: Records  # all of them, in or out
    members: NDArray[np.bool_]  # shape (m,), whether each is in
    transcript: Transcript | None = None  # of the releases; None if the attacker does not see them

    def scores(self, model: nn.Module) -> dict[str, NDArray[np.float64]]:
        """Return by attack a score for each canary, higher if it seems to be in."""
        labels = single(self.canaries.targets)
        losses = functional.cross_entropy(all_outputs(model, self.canaries), labels, reduction="none")
        if self.transcript is None:
            return {LABELS: -losses.double().numpy()}
        without = Records(torch.zeros_like(single(self.canaries.inputs)), labels)
        base = functional.cross_entropy(all_outputs(model, without), labels, reduction="none")
        # A run without releases has scores of zero, so that the number of canaries is as planned.
        return {MODEL: (base - losses).double().numpy(), GRADIENTS: self.transcript.scores.numpy()}


def classified(task: Task) -> tuple[Input, int]:
    """Return the form of an input, and the number of classes; reject other tasks than classifications of such."""
    facts = task.facts
    if facts.kind != "classification" or not isinstance(facts.inputs, Input) or facts.inputs.dtype == "bool":
        raise AuditError(
            f"Expected a classification of single inputs to audit, got {task.name} of kind {facts.kind!r}."
        )
    return facts.inputs, facts.n_classes or 0


def _black_box(task: Task, train: Records, m: int, streams: Streams) -> Experiment:
    generator = streams.generator("canaries")
    units = _units(train)
    order = torch.randperm(len(units), generator=generator)
    _, n_classes = classified(task)
    heads = units.some(order[:m]).heads
    inputs, chosen = single(train.inputs)[heads], single(train.targets)[heads]
    wrong = (chosen + torch.randint(1, n_classes, (m,), generator=generator)) % n_classes
    canaries = Records(inputs, wrong)
    members = _coins(m, streams)
    return Experiment(task, _joined(train, units.some(order[m:]).rows, canaries, members), canaries, members)


def _white_box(task: Task, train: Records, m: int, streams: Streams) -> Experiment:
    generator = streams.generator("canaries")
    units = _units(train)
    rest = train.rows(units.some(torch.randperm(len(units), generator=generator)[m // 2 :]).rows)
    flat = single(rest.inputs).flatten(1)
    base = replace(rest, inputs=torch.cat([flat, flat.new_zeros(len(flat), m)], dim=1))
    tagged = flat.new_zeros(m, flat.shape[1] + m)
    tagged[:, flat.shape[1] :].fill_diagonal_(TAG)
    labels = torch.randint(classified(task)[1], (m,), generator=generator)
    canaries = Records(tagged, labels)
    members = _coins(m, streams)
    records = _joined(base, torch.arange(len(base)), canaries, members)
    seen = Records(tagged.float() if tagged.is_floating_point() else tagged, labels)
    transcript = Transcript(seen, lambda tensors: tensors[0][:, -m:])
    return Experiment(_TaggedTask(task, m), records, seen, members, transcript)


SETUPS = {"black_box": _black_box, "white_box": _white_box}


def _coins(m: int, streams: Streams) -> NDArray[np.bool_]:
    coins = torch.rand(m, dtype=torch.float64, generator=streams.generator("coins")) < 0.5
    return coins.numpy()


def _units(train: Records) -> Units:
    return Units.of(torch.arange(len(train)) if train.units is None else train.units)


def _joined(base: Records, rows: Tensor, canaries: Records, members: NDArray[np.bool_]) -> Records:
    some, inside = base.rows(rows), canaries.rows(torch.from_numpy(members).nonzero().squeeze(1))
    units = None
    if base.units is not None and some.units is not None:  # each canary is a new unit
        units = torch.cat([some.units, base.units.max() + 1 + torch.arange(len(inside))])
    inputs = torch.cat([single(some.inputs), single(inside.inputs)])
    targets = torch.cat([single(some.targets), single(inside.targets)])
    return Records(inputs, targets, units=units)


class _TaggedTask(Task):
    """A task whose model has additional inputs for canaries; see `_white_box`."""

    summary = "A task under attack."

    def __init__(self, task: Task, tags: int) -> None:
        self.name, self.model_name, self.public = task.name, task.model_name, task.public
        self._task = task
        self._tags = tags
        self._inputs, self._n_classes = classified(task)
        if augmentation := augmentation_of(task.augment):
            self.augment = replace(augmentation, transform=_BesideTags(augmentation, self._inputs.shape, tags))

    @property
    def facts(self) -> TaskFacts:
        vocabulary = self._inputs.vocabulary and max(self._inputs.vocabulary, int(TAG) + 1)
        shape = (math.prod(self._inputs.shape) + self._tags,)
        inputs = replace(self._inputs, shape=shape, vocabulary=vocabulary)
        return replace(self._task.facts, inputs=inputs)

    @property
    def sibling(self) -> Task | None:
        return self._task.sibling

    def load_train(self, source: DataSource) -> Records:
        raise NotImplementedError

    def load_test(self, source: DataSource) -> Records:
        raise NotImplementedError

    def build_model(self) -> nn.Module:
        """Return the task's model with weights of zero for the canaries' inputs, which are the first parameter."""
        model = self._task.build_model()
        layer = linear_layer(model)
        if layer is None or not all(parameter.requires_grad for parameter in layer.parameters()):
            return _Tagged(model, self._inputs.shape, nn.Linear(self._tags, self._n_classes, bias=False))
        wide = nn.Linear(layer.in_features + self._tags, layer.out_features, bias=layer.bias is not None)
        with torch.no_grad():
            wide.weight.zero_()[:, : layer.in_features] = layer.weight
            if layer.bias is not None:
                wide.bias.copy_(layer.bias)
        return wide

    def objective(self) -> Objective:
        return self._task.objective()

    def data_fingerprint(self, source: DataSource) -> str:
        return self._task.data_fingerprint(source)


@dataclass(frozen=True)
class _BesideTags:
    """An augmentation of inputs that are flat and followed by tags, which stay."""

    augmentation: Augmentation
    shape: tuple[int, ...]
    tags: int

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return a variant of each record."""
        variants = single(self.augmentation(inputs[:, : -self.tags].reshape(-1, *self.shape), generator))
        return torch.cat([variants.flatten(1), inputs[:, -self.tags :]], dim=1)


class _Tagged(nn.Module):
    def __init__(self, model: nn.Module, shape: tuple[int, ...], tags: nn.Linear) -> None:
        super().__init__()
        nn.init.zeros_(tags.weight)
        self.tags = tags
        self.model = model
        if hasattr(model, "rows_at_once"):
            self.rows_at_once = model.rows_at_once
        self._shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        count = self.tags.in_features
        outputs: Tensor = self.model(inputs[:, :-count].reshape(-1, *self._shape))
        tagged: Tensor = self.tags(inputs[:, -count:].to(outputs.dtype))
        return outputs + tagged
