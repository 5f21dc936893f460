"""The private records of one run, and the models that meet them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dphpo_bench.contract.task import Split, Task
from dphpo_bench.training.modes import evaluating
from dphpo_bench.training.own_model import OwnModel, check_classes
from dphpo_bench.training.stacked import StackedLinear, can_stack

if TYPE_CHECKING:
    from torch import Tensor, nn

MICRO_BATCH = 1024
"""How many records are scored at once."""


class RawRecords:
    """The private records, and models of the engine's own; one for all sessions of a run.

    Args:
        task: where models come from.
        train: the private records.
        device: where models and batches live.
    """

    def __init__(self, task: Task, train: Split, device: "torch.device | str") -> None:
        self.facts = task.facts
        self.train = train
        self.device = torch.device(device)
        self._task = task
        self._lent: list[Split] = []
        self._own_models: list[OwnModel] = []
        self._stacks: dict[tuple[tuple[bool, ...], ...], StackedLinear | None] = {}

    def build_model(self, seed: int) -> "nn.Module":
        """The task's model with the initial weights of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._task.build_model().to(self.device)

    def own_model(self, number: int = 0) -> OwnModel:
        """The engine's own models. The first serves one query at a time, all of them together a stack."""
        while len(self._own_models) <= number:
            self._own_models.append(OwnModel(lambda: self.build_model(0), self.train))
        return self._own_models[number]

    def stacked(self, models: "Sequence[nn.Module]") -> StackedLinear | None:
        """Several linear models at these weights as one; None if they cannot be stacked."""
        own = [self.own_model(number).like(model) for number, model in enumerate(models)]
        trained = tuple(tuple(parameter.requires_grad for parameter in model.parameters()) for model in own)
        if trained not in self._stacks:
            self._stacks[trained] = StackedLinear(own) if can_stack(own) else None
        return self._stacks[trained]

    def count_correct(self, own: "nn.Module", rows: "Tensor | None") -> int:
        """How many of these records one of our own models classifies correctly. A prediction of NaN is wrong."""
        correct = 0
        with evaluating(own):
            for start in range(0, len(self.train) if rows is None else len(rows), MICRO_BATCH):
                some: Any = slice(start, start + MICRO_BATCH)
                some = some if rows is None else rows[some]
                outputs = own(self.train.inputs[some].to(self.device).float())
                labels = self.train.targets[some].to(self.device)
                check_classes(outputs, len(labels))
                correct += int(((outputs.argmax(dim=1) == labels) & outputs.isfinite().all(dim=1)).sum())
        return correct

    def lend(self, rows: "Tensor | None") -> Split:
        """A copy of these records, for as long as the run lasts."""
        some: Any = slice(None) if rows is None else rows
        self._lent.append(Split(self.train.inputs[some], self.train.targets[some]))
        return self._lent[-1]

    def take_back(self) -> None:
        """Empty the tensors that were lent."""
        for split in self._lent:
            for tensor in (split.inputs, split.targets):
                tensor.data = tensor.new_empty(0)
