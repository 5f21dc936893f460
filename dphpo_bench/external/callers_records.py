"""The caller's records behind a session: it samples, bounds, noises and charges as it does for a method.

In a group of processes (torch.distributed) each holds all data. All draw the same batch, since they have the seed in
common, compute their share of it, and add up: each release is the same in all of them, and its noise is drawn once.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import TensorDataset, default_collate

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.base.text import shown
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.arrays import items_stay
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.array_task import inputs_of
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.functional import copied
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.model_checks import refuse_unfit
from dphpo_bench.training.randomness import global_randomness
from dphpo_bench.training.structure import content, weights_hash
from dphpo_bench.training.values import Query

T = TypeVar("T")


def place_in_group() -> tuple[int, int]:
    """Return the number of this process in its group, from 0, and the size of the group; (0, 1) without a group."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def in_first_process(make: Callable[[], T]) -> T:
    """Make a value in the first process, and return it in all; an error is raised in all."""
    rank, size = place_in_group()
    if size == 1:
        return make()
    answer: list[Any] = [None]
    if rank == 0:
        try:
            answer = [make()]
        except DphpoBenchError as error:
            answer = [error]
    distributed.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], DphpoBenchError):
        raise answer[0]
    value: T = answer[0]
    return value


def added(tensors: list[Tensor]) -> list[Tensor]:
    """Return sums of tensors over all processes, in place; exact where all but one of them have zeros."""
    if place_in_group()[1] > 1:
        for tensor in tensors:
            distributed.all_reduce(tensor)
    return tensors


def check_equal(hashes: Callable[[], Mapping[str, str]]) -> None:
    """Reject processes of a group that have other data or other weights than the first.

    Args:
        hashes: by what they are of.

    Raises:
        InvalidValueError: in all processes.
    """
    rank, size = place_in_group()
    if size == 1:
        return
    answers: list[Any] = [None] * size
    distributed.all_gather_object(answers, hashes())
    for what in answers[rank]:
        if len({answer[what] for answer in answers}) > 1:
            raise InvalidValueError(
                f"Expected the same {what} in each process, got others: each makes its tuner of all data, and of a "
                "model at the same weights. Leave it to the loader to split the data, and broadcast the weights."
            )


Collate = Callable[[list[Any]], Any]

_TOGETHER = 16
"""Records that are collated once, to see that they can be."""

FORMS = "a map-style Dataset, a tensor, a pair or a dictionary of tensors"


class Rows:
    """The records of a data set, read when they are asked for.

    Args:
        data: see `FORMS`; each tensor has one row for each record.
        collate: items of a Dataset → a batch; None: torch's default.

    Raises:
        InvalidValueError: if the data have another form, or a read of an item is unlike the last.
    """

    def __init__(self, data: Any, collate: Collate | None = None) -> None:
        if isinstance(data, TensorDataset) and collate is None:
            data = data.tensors
        self._collate, self._data, self._tensors = collate or default_collate, data, _tensors(data)
        parts = [] if self._tensors is None else parts_of(self._tensors).values()
        sizes = {len(part) for part in parts} or {len(data)}
        if len(sizes) != 1 or 0 in sizes:
            raise InvalidValueError(f"Expected {FORMS}, with one row for each record, got {sorted(sizes)} rows.")
        (self._length,) = sizes
        if self._tensors is None and not items_stay(data, self._length):
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
        if self._tensors is None:
            return self._collate([self._data[index] for index in rows.tolist()])
        some = {name: part[rows.to(part.device)] for name, part in parts_of(self._tensors).items()}
        return like(form_of(self._tensors), some)


def parts_of(batch: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch by name, or by number.

    Raises:
        InvalidValueError: if it holds something else.
    """
    if isinstance(batch, Mapping):
        parts = {str(name): part for name, part in batch.items()}
    else:
        parts = {str(place): part for place, part in enumerate(batch if isinstance(batch, tuple | list) else [batch])}
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.ndim == 0:
            raise InvalidValueError(
                f"Expected batches of tensors with one row for each record, a tensor, several, or a dictionary; part "
                f"{shown(name)} is of type {type(part).__name__}. Leave it out, or pass collate_fn."
            )
    return parts


def form_of(batch: Any) -> Any:
    """Return the form of a batch without its tensors, for `like`."""
    if isinstance(batch, Mapping):
        return dict.fromkeys(batch)
    if hasattr(batch, "_make"):  # a named tuple
        return batch._make([None] * len(batch))
    return [None] * len(batch) if isinstance(batch, tuple | list) else None


def like(form: Any, parts: Mapping[str, Tensor]) -> Any:
    """Return tensors by name in the form of a batch; see `parts_of`."""
    if isinstance(form, Mapping):
        return {name: parts[str(name)] for name in form}
    if form is None:
        return parts["0"]
    some = [parts[str(place)] for place in range(len(form))]
    return form._make(some) if hasattr(form, "_make") else some


def _tensors(data: Any) -> Any:
    """Return data that are arrays or tensors as tensors; None for anything else."""
    is_several = isinstance(data, Mapping | tuple | list)
    items = dict(data if isinstance(data, Mapping) else enumerate(data if is_several else [data]))
    if not items or not all(isinstance(item, Tensor | np.ndarray) for item in items.values()):
        return None
    return like(form_of(data), {str(name): torch.as_tensor(item) for name, item in items.items()})


Losses = Callable[[nn.Module, Any], Tensor]
"""(model, batch) → each record's loss, shape (n,)."""

_AT_ONCE = 512
"""Records that are read at once."""


class WithLosses(nn.Module):
    """A model that returns its losses: parts of a batch by name in, one loss for each record out.

    Args:
        model: the caller's.
        losses: of the caller.
        example: a batch, whose form the losses expect.
    """

    def __init__(self, model: nn.Module, losses: Losses, example: Any) -> None:
        super().__init__()
        self.model = model
        if hasattr(model, "rows_at_once"):
            self.rows_at_once = model.rows_at_once
        form = form_of(example)

        def losses_of(model: nn.Module, parts: Mapping[str, Tensor]) -> Tensor:
            return losses(model, like(form, parts))

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

    def load_test(self, source: DataSource) -> Records:
        """Return no records."""
        del source
        return self._example.rows(slice(0))

    def build_model(self) -> nn.Module:
        """Return a copy of the caller's model, without the hooks of Opacus, which would keep what they see."""
        with _without_hooks_of_opacus(self.model):
            return copied(self.model)

    def objective(self) -> Objective:
        """Return the outputs, which are the losses."""
        return Objective(lambda outputs, _: outputs, lambda outputs, _: outputs)


class CallersRecords(RawRecords):
    """The caller's records, of which each process of a group reads and passes its share.

    Args:
        rows: the records.
        model: the caller's, in its present form.
        losses: of the caller.

    Raises:
        InvalidValueError: if losses or model do not treat each record alone, or fail on made-up records.
    """

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

    def hashes(self) -> dict[str, str]:
        """Return hashes of the data, by their number and some rows, and of the weights."""
        some = parts_of(self._rows.batch([0, self.n_units // 2, self.n_units - 1]))
        data = hashlib.sha256(f"{self.n_units}".encode() + b"".join(content(part) for part in some.values()))
        return {"data": data.hexdigest(), "weights": weights_hash(self.whole)}

    def clipped_sum(
        self,
        engine: GradientEngine,
        clipping: Clipping,
        numbers: Tensor | None,
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        """Return the sum of clipped gradients of these records, over all processes."""
        del generator  # of augmentations, which are the caller's
        total = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in engine.parameters]
        for some in self._pieces(numbers):
            torch._foreach_add_(total, engine.clipped_sum(some.inputs, some.targets, clipping))
        return added(total)

    def total(self, model: nn.Module, query: Query, numbers: Tensor | None) -> Tensor:
        """Return the sum of these records' values, over all processes."""
        total = torch.zeros(query.count, dtype=torch.float64, device=self.device)
        for some in self._pieces(numbers):
            total += query.total(model, self.objective, some)
        return added([total])[0]

    def _pieces(self, numbers: Tensor | None) -> Iterator[Records]:
        """Yield this process's share of these records, a few at a time."""
        numbers = torch.arange(self.n_units) if numbers is None else numbers.cpu()
        rank, size = place_in_group()
        for start in range(rank, len(numbers), size * _AT_ONCE):
            places = torch.arange(start, min(start + size * _AT_ONCE, len(numbers)), size)
            yield _records(self._rows.batch(numbers[places]))


def _records(batch: Any) -> Records:
    """Return a batch as records whose targets are not used: the losses find theirs among the inputs."""
    parts = parts_of(batch)
    return Records(parts, torch.zeros(len(next(iter(parts.values())))))


@contextmanager
def _without_hooks_of_opacus(model: nn.Module) -> Iterator[None]:
    """Take the hooks of Opacus off a model while it is copied."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    before = [(getattr(module, kind), dict(getattr(module, kind))) for module in model.modules() for kind in kinds]
    try:
        for hooks, _ in before:
            for key, hook in list(hooks.items()):
                module = getattr(getattr(hook, "func", hook), "__module__", None) or ""
                if module.partition(".")[0] == "opacus":
                    del hooks[key]
        yield
    finally:
        for hooks, all_hooks in before:
            hooks.clear()
            hooks.update(all_hooks)
