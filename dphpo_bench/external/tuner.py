"""HyFreeDP in a loop of the caller: no learning rate to choose. A session asks the records of the caller for it."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import TensorDataset, default_collate

from dphpo_bench.base.checks import number, ranged, short_text, typed, whole
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.arrays import as_tensor, items_stay, refuse_other_order, unwritten
from dphpo_bench.data.source import DataSource
from dphpo_bench.external.declared import DeclaredRun, Finished
from dphpo_bench.external.opacus import CallersOptimizer, forget_records, note, refuse_several_processes
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.array_task import inputs_of
from dphpo_bench.recipes.dp_sgd import trainable
from dphpo_bench.recipes.noise_law import Looked, dummy_weights
from dphpo_bench.recipes.tuned_training import TunedTraining
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import open_session
from dphpo_bench.training.clipping import Clipping, parse_clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.functional import copied
from dphpo_bench.training.local_steps import Local
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.model_checks import refuse_unfit
from dphpo_bench.training.optimizers import UpdateRule, WeightAverage
from dphpo_bench.training.randomness import Streams, global_randomness
from dphpo_bench.training.values import Query

_TOGETHER = 16
"""Records that are read once, to see that they make a batch."""

FORMS = "a map-style Dataset, a tensor, a pair or a dictionary of tensors, or arrays in their place"


class Rows:
    """The records of a data set, read when they are asked for.

    Args:
        data: see `FORMS`; each tensor has one row for each record.
    """

    def __init__(self, data: Any) -> None:
        try:
            self._read(data)
        except InvalidValueError:
            raise
        except Exception as error:  # whatever a length or an item raises
            raise InvalidValueError(
                f"Expected {FORMS}, got a {type(data).__name__}, which raises {type(error).__name__}. Of a DataLoader "
                "pass loader.dataset."
            ) from error

    def _read(self, data: Any) -> None:
        refuse_other_order(data)
        if isinstance(data, TensorDataset):
            data = data.tensors
        parts = [*data.values()] if isinstance(data, Mapping) else data if isinstance(data, tuple | list) else [data]
        # Other arrays, such as those of HDF5, are read by item.
        whole = (isinstance(part, Tensor | np.ndarray) or hasattr(part, "to_numpy") for part in parts)
        self._is_table = len(parts) > 0 and all(whole)
        sizes = {len(part) for part in parts} if self._is_table else {len(data)}
        if len(sizes) != 1 or 0 in sizes:
            raise InvalidValueError(f"Expected {FORMS}, with one row for each record, got {sorted(sizes)} rows.")
        (self._length,) = sizes
        self._data = tree_map(_dense, data) if self._is_table else data
        if not self._is_table and not items_stay(data, self._length):
            raise InvalidValueError(
                "Expected a Dataset whose items stay, but two reads of one differ: a query would compare losses of "
                "different inputs. Pass the data without the random transform, and transform in the loop."
            )
        self.batch(range(0, self._length, 1 + self._length // _TOGETHER))  # an error comes before anything is counted

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Sequence[int] | Tensor) -> Any:
        """Return some records as one batch."""
        rows = torch.as_tensor(indices)
        if self._is_table:
            return tree_map(lambda part: part[rows.to(part.device)], self._data)
        return default_collate([self._data[index] for index in rows.tolist()])


def _dense(part: Any) -> Tensor:
    """Return a tensor of the same memory where there is one; reject what would lose values."""
    is_tensor, is_array = isinstance(part, Tensor), type(part) in (np.ndarray, np.memmap)
    shares = part.layout == torch.strided if is_tensor else is_array and part.dtype.kind in "biufc"
    return unwritten(part) if shares else as_tensor(part, "data")


Losses = Callable[[nn.Module, Any], Tensor]
"""(model, batch) → each record's loss, shape (n,)."""

_AT_ONCE = 512
"""Records that are read at once."""


class WithLosses(nn.Module):
    """A model that returns its losses: parts of a batch by name in, one loss for each record out.

    Args:
        example: a batch, in whose form the losses expect others.
    """

    def __init__(self, model: nn.Module, losses: Losses, example: Any) -> None:
        super().__init__()
        self.model = model
        if hasattr(model, "rows_at_once"):
            self.rows_at_once = model.rows_at_once
        _, form = tree_flatten(example)

        def losses_of(model: nn.Module, parts: Mapping[str, Tensor]) -> Tensor:
            return losses(model, tree_unflatten([parts[str(place)] for place in range(len(parts))], form))

        self._losses_of = losses_of  # a function: copies of this module share it, with all that the caller's holds

    def forward(self, /, **parts: Tensor) -> Tensor:
        """Return the losses."""
        losses = self._losses_of(self.model, parts)
        n = len(next(iter(parts.values())))
        if not isinstance(losses, Tensor) or losses.shape != (n,):
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidValueError(
                f"Expected losses(model, batch) to return one loss for each record, shape ({n},), got {got}: write "
                "reduction='none', and average over whatever else a record has."
            )
        return losses


class CallersTask(Task):
    """The caller's model and losses, as a session asks for them."""

    name, summary, models = "declared", "Training code of the caller.", ("declared",)

    def __init__(self, whole: WithLosses, example: Records, n_records: int) -> None:
        super().__init__()
        self.model, self._example, self._n_records = whole, example, n_records

    @property
    def facts(self) -> TaskFacts:
        """Public facts; the schedule is the caller's and not stated here."""
        n = self._n_records
        return TaskFacts("declared", "declared", n, inputs_of(self._example), n, 1.0, "AdamW", 1.0, "own")

    def load_train(self, source: DataSource) -> Records:
        """Return records of the form of the caller's; a session reads the caller's own."""
        del source
        return self._example

    load_test = load_train

    def build_model(self) -> nn.Module:
        """Return a copy of the caller's model, without the hooks of Opacus, which would keep what they see."""
        model = copied(self.model)
        for module in model.modules():
            for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
                hooks = getattr(module, kind)
                for key, hook in [*hooks.items()]:
                    home = getattr(getattr(hook, "func", hook), "__module__", None) or ""
                    if home.partition(".")[0] == "opacus":
                        del hooks[key]
        return model

    def objective(self) -> Objective:
        """Return the outputs, which are the losses."""
        return Objective(lambda outputs, _: outputs, lambda outputs, _: outputs)


class CallersRecords(RawRecords):
    """The caller's records."""

    def __init__(self, rows: Rows, model: nn.Module, losses: Losses) -> None:
        refuse_unfit(model)
        batch = rows.batch([0])
        self.whole = WithLosses(model, losses, batch)
        self._rows = rows
        device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
        example = _records(batch).each(torch.zeros_like)  # of its form only
        super().__init__(CallersTask(self.whole, example, len(rows)), example, device)
        with global_randomness(0, device):
            self.own_model().check(scores=False)

    @property
    def n_units(self) -> int:
        """The number of records."""
        return len(self._rows)

    def clipped_sum(
        self,
        engine: GradientEngine,
        clipping: Clipping,
        numbers: Tensor | None,
        generator: torch.Generator | None,
        local: Local = None,
    ) -> list[Tensor]:
        """Return the sum of clipped gradients of these records."""
        del generator, local  # of augmentations, which are the caller's, and of units, which there are none of
        total = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in engine.parameters]
        for some in self._pieces(numbers):
            torch._foreach_add_(total, engine.clipped_sum(some.inputs, some.targets, clipping))
        return total

    def total(self, model: nn.Module, query: Query, numbers: Tensor | None) -> Tensor:
        """Return the sum of these records' values."""
        total = torch.zeros(query.count, dtype=torch.float64, device=self.device)
        for some in self._pieces(numbers):
            total += query.total(model, self.objective, some)
        return total

    def _pieces(self, numbers: Tensor | None) -> Iterator[Records]:
        """Yield these records, a few at a time."""
        numbers = torch.arange(self.n_units) if numbers is None else numbers.cpu()
        for some in torch.split(numbers, _AT_ONCE):
            if len(some):
                yield _records(self._rows.batch(some))


def _records(batch: Any) -> Records:
    """Return the tensors of a batch by number; targets are not used, since the losses find theirs among the inputs."""
    parts = tree_leaves(batch)
    for part in parts:
        if not isinstance(part, Tensor) or part.ndim == 0:
            raise InvalidValueError(
                "Expected batches of tensors with one row for each record, a tensor, several, or a dictionary; one "
                f"part is of type {type(part).__name__}. Leave it out."
            )
    return Records({str(place): part for place, part in enumerate(parts)}, torch.zeros(len(parts[0])))


_MAX_STEPS = 10**6

_CLIPPING, _AVERAGING, _SHARE = "auto_s", 0.99, 0.025
"""Defaults of the method: how `backward` clips, the decay of averaged weights, about twice the queries' share of ε."""

_INNER = ("_module", "_orig_mod", "module")
"""Names by which wrappers hold a model."""


class Tuner:
    """The method `hyfreedp` in a loop of yours, which needs no learning rate.

    The gradients are yours: of an Opacus `DPOptimizer` that the tuner is attached to, or of `backward`. The tuner sets
    the length of steps from a few noisy queries to the records, as the method does (docs/hyfreedp.md; docs/own_loop.md
    has loops). Its releases and the gradients are one event within the budget.

    The end of the block calls `finish`; an exception that leaves it ends the training with a record of status "failed".
    Nothing is counted before the first step. From there on the training counts as a whole, whether it is finished or
    not. The loop is yours, so a training that was interrupted cannot go on: a second one is a second release.

    Args:
        model: on its device, before or after `make_private`. Its weights are moved in place.
        data: the private records that the loop trains on: a map-style Dataset, a tensor, a pair or a dictionary of
            tensors. Queries read a few hundred of them by index.
        losses: (model, batch) → each record's loss, shape (n,), a function of that record alone. A batch has the form
            of `data`, with tensors of n rows, on the model's device.
        sample_rate: rate q of the Poisson batches, public.
        steps: T, public.
        budget: (ε, δ) of the whole training.
        name: of this training, in account and record: letters, digits, _ . and -.
        results_dir: folder of the record and the account; None: nothing is written or counted, with a warning.
        account: which account of the folder counts the training; None: "main".
        regression: whether losses grow with the square of the outputs.

    Attributes:
        planned: what the training releases, and when.
        event: of the whole training: gradients and queries.
        steps: T.
        noise_multiplier: of the gradients, for `make_private`.
        learning_rate: NaN before the first step.
        steps_taken: number of steps so far.
        finished: as `finish` returned it; None before.

    Raises:
        InvalidValueError: if an argument is out of range, losses or model are unfit, or there are several processes.
        BudgetTooSmallError: if no noise within reach meets the budget.
    """

    @typed
    def __init__(
        self,
        model: nn.Module,
        data: Any,
        losses: Losses,
        *,
        sample_rate: float,
        steps: int,
        budget: PrivacyBudget,
        name: str,
        results_dir: Path | str | None = None,
        account: str | None = None,
        regression: bool = False,
    ) -> None:
        refuse_several_processes()
        sample_rate = float(ranged("sample_rate", sample_rate, float, Interval(gt=0, le=1)))
        steps = whole("steps", steps, low=1, high=_MAX_STEPS)
        self._clipping = parse_clipping(_CLIPPING)
        self._records = CallersRecords(Rows(data), _unwrapped(model), losses)
        self._weights = trainable(self._records.whole)
        self._average = WeightAverage(self._weights, _AVERAGING)
        n = self._records.n_units
        self.planned = Looked.calibrated(
            budget, sample_rate, steps, n, share=_SHARE, regression=regression, optimizer="SGD", scaled=True
        )
        self.event, self.steps, self.noise_multiplier = self.planned.event, steps, self.planned.noise_multiplier
        self._run = DeclaredRun(
            self.event,
            budget,
            name=name,
            results_dir=results_dir,
            account=account,
            n_records=n,
            method="hyfreedp",
            parameters={
                **{name: getattr(self.planned, name) for name in ("sample_rate", "steps", "noise_multiplier")},
                **{"share": _SHARE, "averaging": _AVERAGING, "clipping": _CLIPPING, "regression": regression},
            },
            training_event=self.planned.training,
        )
        self._optimizer: CallersOptimizer | None = None
        self._accountant: Any = None
        self._streams: Streams | None = None  # of somebody else's, to compare with the method
        self._gradient: list[Tensor] | None = None  # of `backward`
        self._is_over = self._is_under_way = False
        self.finished: Finished | None = None
        self.steps_taken = 0

    @property
    def learning_rate(self) -> float:
        """See above."""
        return self._tuned.learning_rate if self.steps_taken else float("nan")

    def attach(self, optimizer: Any, loader: Any = None, accountant: Any = None) -> None:
        """Take the optimiser of the loop, whose `step` the tuner replaces.

        Directions are those of the optimiser. Its learning rate does not count, but for the ratios of groups at the
        first step; schedulers have no effect.

        Args:
            optimizer: SGD, Adam, AdamW, NAdam, RAdam or RMSprop of torch, or the DPOptimizer of `make_private`.
            loader: that the loop runs over, to check its rate; None: of `backward`, which draws its own batches.
            accountant: of Opacus. At the first step it takes in all queries of the plan. None: there is none.

        Raises:
            InvalidValueError: if one of them does not do what was declared.
        """
        if self._optimizer or "_tuned" in vars(self):  # which an accountant attached later would not take in
            raise InvalidValueError("Expected one attach() before the first backward() or step(). Make another tuner.")
        takes_batches = self._records.own_model().takes_batches
        self._optimizer = CallersOptimizer(
            optimizer, loader, accountant, self._weights, self.planned, takes_batches=takes_batches
        )
        self._accountant = accountant

    def backward(self) -> None:
        """Draw a Poisson batch of the data, and put its noisy mean gradient, clipped record by record, into `grad`.

        Raises:
            InvalidValueError: if a DPOptimizer is attached, which makes gradients itself, or no step is left.
        """
        if self._optimizer and self._optimizer.is_private:
            raise InvalidValueError(
                "Expected loss.backward() with an optimizer of Opacus, which adds the noise. For tuner.backward() "
                "attach the optimizer of torch, or none."
            )
        if self._gradient is not None:
            raise InvalidValueError("Expected tuner.step() between two calls of tuner.backward().")
        self._check_open()
        session, kind = self._tuned.session, self.planned.step
        note(self._accountant, kind)
        self._gradient = session.sample(kind).gradient(self._records.whole, self._clipping, self.noise_multiplier)
        for weight, part in zip(self._weights, self._gradient, strict=True):
            weight.grad = part

    def step(self) -> None:
        """Move the weights by the gradients of this step, in place of `optimizer.step()`; then clear the gradients.

        Raises:
            InvalidValueError: if there is no noisy gradient, no step is left, or optimiser and loop do not do what was
                declared. Nothing has been released then.
        """
        self._check_open()
        private = self._optimizer if self._optimizer and self._optimizer.is_private else None
        if private:
            private.check()
            private.check_gradients()
        elif self._gradient is None:
            raise InvalidValueError(
                "Expected gradients with noise: call tuner.backward() before each tuner.step(), or attach the "
                "DPOptimizer of Opacus."
            )
        tuned = self._tuned  # counted from here on
        self._is_under_way = True
        tuned.step(private.noisy_gradient() if private else self._gradient or [])
        self._average.update()
        self.steps_taken += 1
        self._gradient, self._is_under_way = None, False
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Clear the gradients, as `step` does by itself. A noisy gradient of `backward` still counts for its step."""
        if self._optimizer and self._optimizer.is_private:
            self._optimizer.outer.zero_grad()
            return
        for weight in self._weights:
            weight.grad = None

    def finish(self, *, metrics: Mapping[str, float] = MappingProxyType({})) -> Finished | None:
        """Average the weights, scale the last layer, and return the record.

        Args:
            metrics: of public test records, for the record.

        Raises:
            InvalidValueError: if no step was taken, this is the second call, or a metric is no number.
        """
        numbers = {short_text("metric", name): number(name, value, low=-1e300) for name, value in metrics.items()}
        if self._is_over or not self.steps_taken:
            raise InvalidValueError("Expected finish() once, after the last step.")
        if self.steps_taken < self.steps:
            warnings.warn(
                f"The training ends after {self.steps_taken} of {self.steps} planned steps; ε stays that of all.",
                stacklevel=2,
            )
        self._average.copy_to(self._weights)
        self._end(released=self._tuned.results(), metrics=numbers)
        return self.finished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish; if an exception leaves the block, write that the training failed."""
        if kind is None and not self._is_over:
            self.finish()
        elif kind is not None and not self._is_over:
            with suppress(DphpoBenchError):  # the exception says more
                self._end(status="failed", error=f"{kind.__name__} ended the loop.")

    def _end(self, **how: Any) -> None:
        """Let go of optimizer and records; write the record, if the training was counted."""
        self._is_over = True
        if self._optimizer:
            self._optimizer.release()
        forget_records(self._records.whole)
        if "_tuned" in vars(self):
            self._tuned.session.close()
            self.finished = self._run.finish(**how)

    def _check_open(self) -> None:
        if self._is_over or self.steps_taken >= self.steps:
            raise InvalidValueError(
                f"Expected at most steps={self.steps} steps, as declared: the budget covers no other. Call finish(), "
                "once; another training needs a tuner and a budget of its own."
            )
        if self._is_under_way:
            raise InvalidValueError(
                "An error or Ctrl-C ended a step in the middle, after gradients were released: to go on would release "
                "more than was declared. Train anew, with a new tuner, name and budget; this one stays counted."
            )
        if [id(weight) for weight in trainable(self._records.whole)] != [id(weight) for weight in self._weights]:
            raise InvalidValueError(
                "Expected a model that trains the weights of the start; some were frozen, unfrozen or replaced since. "
                "Do so before the tuner is made."
            )

    @cached_property
    def _tuned(self) -> TunedTraining:
        """The training, which is counted when it begins."""
        optimizer = self._optimizer
        refuse_several_processes()  # a group may be newer than the tuner
        streams = self._run.open().streams
        session = open_session(self._records, Ledger(self.event), self._streams or streams)
        # All at once: with releases of other kinds in between, Opacus' PRV accountant takes ten times as long.
        for kind in self.planned.around:
            note(self._accountant, kind)
        other = dummy_weights(self._records.whole)
        update = optimizer.update_rule() if optimizer else UpdateRule("SGD", self._weights)
        simulated = optimizer.rule_of(other) if optimizer else UpdateRule("SGD", other)
        noise = self.noise_multiplier * self._clipping.sensitivity / self.planned.batch_size
        if optimizer and optimizer.is_private:
            noise = optimizer.noise
        return TunedTraining(self.planned, session, self._records.whole, update, simulated, noise)


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of Opacus, of the compiler, and of `DataParallel`."""
    while type(model).__module__.partition(".")[0] in ("opacus", "torch"):
        inside = [part for name in _INNER if isinstance(part := getattr(model, name, None), nn.Module)]
        if not inside:
            break
        model = inside[0]
    return model
