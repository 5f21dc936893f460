"""Processes that train one model together (torch.distributed), of which the first counts and records."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, distributed

from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.external.declaration import Declaration
from dphpo_bench.external.declared import DeclaredRun
from dphpo_bench.external.processes import in_first_process, place_in_group
from dphpo_bench.training.randomness import Streams


def added(tensors: list[Tensor]) -> list[Tensor]:
    """Return sums of tensors over all processes, in place; exact where all but one of them have zeros."""
    if place_in_group()[1] > 1:
        for tensor in tensors:
            distributed.all_reduce(tensor)
    return tensors


def check_alike(hashes: Callable[[], Mapping[str, str]]) -> None:
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


def open_in_group(declaration: Declaration, **options: Any) -> tuple[DeclaredRun | None, Streams]:
    """Count a training once, and return it, in the first process only, with the random streams of all.

    Args:
        declaration: of the training.
        options: of `DeclaredRun.open`.

    Raises:
        AccountError: in all processes, and likewise what else `DeclaredRun.open` raises in the first.
        RecordError: in all processes, if an earlier training of this name was interrupted.
    """
    run: DeclaredRun | None = None

    def opened() -> Streams:
        nonlocal run
        run = _opened(declaration, options)
        return run.streams

    streams = in_first_process(opened)
    return run, streams


def _opened(declaration: Declaration, options: dict[str, Any]) -> DeclaredRun:
    run = DeclaredRun.open(declaration, **options)
    if not run.resumed:
        return run
    run.release()
    raise RecordError(
        f"An earlier training named {declaration.name} was interrupted, and a loop of yours cannot go on in the "
        "middle: to train again is a second release. Name it anew; the earlier one stays counted."
    )
