"""The caller's records behind a session: it samples, bounds, noises and charges as it does for a method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import TensorDataset, default_collate

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
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
from dphpo_bench.training.values import Query

_TOGETHER = 16
"""Records that are read once, to see that they make a batch."""

FORMS = "a map-style Dataset, a tensor, a pair or a dictionary of tensors"


class Rows:
    """The records of a data set, read when they are asked for.

    Args:
        data: see `FORMS`; each tensor has one row for each record.

    Raises:
        InvalidValueError: if the data have another form, or a read of an item is unlike the last.
    """

    def __init__(self, data: Any) -> None:
        if isinstance(data, TensorDataset):
            data = data.tensors
        parts = [*data.values()] if isinstance(data, Mapping) else data if isinstance(data, tuple | list) else [data]
        self._is_table = len(parts) > 0 and all(isinstance(part, Tensor | np.ndarray) for part in parts)
        sizes = {len(part) for part in parts} if self._is_table else {len(data)}
        if len(sizes) != 1 or 0 in sizes:
            raise InvalidValueError(f"Expected {FORMS}, with one row for each record, got {sorted(sizes)} rows.")
        (self._length,) = sizes
        self._data = tree_map(torch.as_tensor, data) if self._is_table else data
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


def parts_of(batch: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch by number.

    Raises:
        InvalidValueError: if it holds something else.
    """
    parts = tree_leaves(batch)
    for part in parts:
        if not isinstance(part, Tensor) or part.ndim == 0:
            raise InvalidValueError(
                "Expected batches of tensors with one row for each record, a tensor, several, or a dictionary; one "
                f"part is of type {type(part).__name__}. Leave it out."
            )
    return {str(place): part for place, part in enumerate(parts)}


Losses = Callable[[nn.Module, Any], Tensor]
"""(model, batch) → each record's loss, shape (n,)."""

_AT_ONCE = 512
"""Records that are read at once."""


class WithLosses(nn.Module):
    """A model that returns its losses: parts of a batch by name in, one loss for each record out.

    Args:
        model: the caller's.
        losses: of the caller.
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

    def load_test(self, source: DataSource) -> Records:
        """Return no records."""
        del source
        return self._example.rows(slice(0))

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
    """The caller's records.

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

    def clipped_sum(
        self,
        engine: GradientEngine,
        clipping: Clipping,
        numbers: Tensor | None,
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        """Return the sum of clipped gradients of these records."""
        del generator  # of augmentations, which are the caller's
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
    """Return a batch as records whose targets are not used: the losses find theirs among the inputs."""
    parts = parts_of(batch)
    return Records(parts, torch.zeros(len(next(iter(parts.values())))))
