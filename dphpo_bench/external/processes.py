"""One training in several processes (torch.distributed): what the first decides, all do."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, distributed

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError

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
