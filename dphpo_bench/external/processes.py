"""One training in several processes: what the first decides, all do."""

from collections.abc import Callable
from typing import Any, TypeVar

from dphpo_bench.base.errors import DphpoBenchError

T = TypeVar("T")


def place_in_group() -> tuple[int, int]:
    """Return the number of this process in its group, from 0, and the size of the group; (0, 1) without a group."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def in_first_process(make: Callable[[], T]) -> T:
    """Make a value in the first process of `torch.distributed`, and return it in all; an error is raised in all.

    Without several processes, only make it.
    """
    from torch import distributed

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
