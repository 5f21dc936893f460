"""The caller's records behind a session: it samples, bounds, noises and charges as it does for a method.

In a group of processes (torch.distributed) each holds all data. All draw the same batch, since they have the seed in
common, compute their share of it, and add up: each release is the same in all of them, and its noise is drawn once.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.external.processes import added, place_in_group
from dphpo_bench.external.rows import Rows, form_of, like, parts_of
from dphpo_bench.recipes.array_checks import inputs_of
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.functional import copied
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.model_checks import refuse_unfit
from dphpo_bench.training.randomness import global_randomness
from dphpo_bench.training.structure import content, weights_hash
from dphpo_bench.training.values import Query

Losses = Callable[[nn.Module, Any], Tensor]
"""(model, batch) → each record's loss, shape (n,)."""

_HINTS = {
    "depend on the weights": "Do the losses call the model that they get, and no other?",
}

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
        if isinstance(losses, nn.Module):
            raise InvalidValueError(
                f"Expected losses as a function (model, batch) → each record's loss, got {type(losses).__name__}. "
                "Write lambda model, batch: criterion(model(batch[0]), batch[1]), with reduction='none'."
            )
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
            try:
                self.own_model().check(scores=False)
            except InvalidValueError as error:
                hints = [hint for part, hint in _HINTS.items() if part in str(error)]
                raise InvalidValueError(" ".join([str(error), *hints])) from None

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
            for key in [key for key, hook in hooks.items() if _is_of_opacus(hook)]:
                del hooks[key]
        yield
    finally:
        for hooks, all_hooks in before:
            hooks.clear()
            hooks.update(all_hooks)


def _is_of_opacus(hook: Any) -> bool:
    return (getattr(getattr(hook, "func", hook), "__module__", None) or "").partition(".")[0] == "opacus"
