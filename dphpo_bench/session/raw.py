"""The private records of one run, and the models that meet them."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract import metrics
from dphpo_bench.contract.task import Task
from dphpo_bench.training.augmentation import augmentation_of, augmented_sum
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.gradients import can_be_closed
from dphpo_bench.training.linear import LinearEngine
from dphpo_bench.training.local_steps import Local
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.own_model import OwnModel
from dphpo_bench.training.randomness import global_randomness
from dphpo_bench.training.units import Units
from dphpo_bench.training.values import Query


class RawRecords:
    """The private records, and models of the engine, shared by all sessions of a run.

    Sessions and batches hold numbers of units, in the order of their ids; without units, numbers of records.
    """

    def __init__(self, task: Task, train: Records, device: torch.device | str) -> None:
        self.facts = copy(task.facts)
        self.columns = task.columns
        train.check_unit(self.facts.unit)
        self.objective = task.objective()
        self.train = train
        self._units = None if train.units is None else Units.of(train.units.cpu())
        self.device = torch.device(device)
        self.augmentation = augmentation_of(task.augment)
        if self.augmentation:
            self.augmentation.check(train.inputs, self.device)
        self._dtype = torch.get_default_dtype()  # of the run, whatever its method sets later
        self._task = task
        self._lent: list[Records] = []
        self._own_models: list[OwnModel] = []

    def on(self, records: Records) -> "RawRecords":
        """Return made-up records of the same task, each a unit of its own."""
        units = None if self._units is None else torch.arange(len(records))
        return RawRecords(self._task, replace(records, units=units), self.device)

    @property
    def n_units(self) -> int:
        """The number of units; private."""
        return len(self.train) if self._units is None else len(self._units)

    def members(self, numbers: Tensor | None) -> tuple[Tensor | None, Units | None]:
        """Return the rows of these units' records, None for all, and the units if they hold several records."""
        if self._units is None:
            return numbers, None
        units = self._units if numbers is None else self._units.some(numbers)
        return units.rows, units

    def clipped_sum(
        self,
        engine: GradientEngine,
        clipping: Clipping,
        numbers: Tensor | None,
        generator: torch.Generator | None,
        local: Local = None,
    ) -> list[Tensor]:
        """Return the sum of clipped gradients of these units; `generator` draws the variants of an augmentation.

        With `local`, gradients are `GradientEngine.clipped_update_sum`'s.
        """
        rows, units = self.members(numbers)
        if local and units is not None:
            return engine.clipped_update_sum(self.train.inputs, self.train.targets, clipping, units, local)
        if self.augmentation and generator:
            if units is None:
                rows = torch.arange(len(self.train)) if rows is None else rows
                units = Units(rows, torch.ones_like(rows))
            return augmented_sum(engine, self.train, clipping, units, self.augmentation, generator)
        if units is not None:
            return engine.clipped_unit_sum(self.train.inputs, self.train.targets, clipping, units)
        return engine.clipped_sum(self.train.inputs, self.train.targets, clipping, indices=rows)

    def total(self, model: nn.Module, query: Query, numbers: Tensor | None) -> Tensor:
        """Return the sum of these units' values under a model of the engine; a unit's are the mean of its records'."""
        rows, units = self.members(numbers)
        return query.total(model, self.objective, self.train, rows, None if units is None else units.shares)

    def build_model(self, seed: int) -> nn.Module:
        """Return the task's model with the initial weights of this seed."""
        with global_randomness(seed, self.device):
            before = torch.get_default_dtype()
            torch.set_default_dtype(self._dtype)
            try:
                return self._task.build_model().to(self.device)
            finally:
                torch.set_default_dtype(before)

    def own_model(self, number: int = 0) -> OwnModel:
        """Return a model of the engine. The first serves one query at a time, all of them together a stack."""
        while len(self._own_models) <= number:
            build = partial(self.build_model, 0)
            self._own_models.append(OwnModel(build, self.train, self.objective, self._task.example))
        return self._own_models[number]

    def engine(self, model: nn.Module, local: Local = None) -> GradientEngine:
        """Return the engine of a method's model."""
        if local is None:
            return self.own_model().engine(model)
        if self._units is None or self.augmentation:
            raise InvalidValueError(
                f"Expected a task whose unit holds several records, without augmentation, got local_steps={local[0]} "
                "on another. Name the unit in the task's facts, or take one step."
            )
        return self.own_model().engine_of_updates(model, local)

    @property
    def has_closed_form(self) -> bool:
        """True if gradients have a closed form, so that full batches share a product; never for means of several."""
        of_records = self._units is None and self.augmentation is None
        return of_records and can_be_closed(self.own_model().model, self.objective.losses, self.train.are_named)

    def stacked(self, models: Sequence[nn.Module]) -> list[LinearEngine] | None:
        """Return engines of linear models at these weights, for `clipped_sums`; None if they cannot be stacked."""
        if not self.has_closed_form:
            return None
        engines = [self.own_model(number).engine(model) for number, model in enumerate(models)]
        trained = {tuple(parameter.requires_grad for parameter in engine.model.parameters()) for engine in engines}
        linear = [engine for engine in engines if isinstance(engine, LinearEngine)]
        return linear if len(linear) == len(engines) and len(trained) == 1 else None

    @property
    def public_objective(self) -> Objective:
        """The losses, the scores and the first metric, for a run without privacy."""
        if not self._lent:
            raise InvalidValueError(
                "Expected losses and scores to be asked for after nonprivate(), which has no privacy."
            )
        quality_of = partial(metrics.quality, self._task.metrics[0], self.facts.target_scale)
        return replace(self.objective, quality=quality_of)

    def lend(self, numbers: Tensor | None) -> Records:
        """Lend copies of the records of these units, until the run ends."""
        rows, _ = self.members(numbers)
        self._lent.append(self.train.copied() if rows is None else self.train.rows(rows))
        return self._lent[-1]

    def take_back(self) -> None:
        """Empty the tensors that were lent."""
        for records in self._lent:
            for tensor in records.named().values():
                tensor.data = tensor.new_empty(0)
