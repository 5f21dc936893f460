"""One training in several processes: what the first decides, all do."""

from collections.abc import Callable
from typing import Any, TypeVar

from dphpo_bench.base.errors import DphpoBenchError

T = TypeVar("T")


def process_count() -> int:
    """Return how many processes of `torch.distributed` train together; 1 without it."""
    from torch import distributed

    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def in_first_process(make: Callable[[], T]) -> T:
    """Make a value in the first process of `torch.distributed`, and return it in all; an error is raised in all.

    Without several processes, only make it.
    """
    from torch import distributed

    if process_count() == 1:
        return make()
    answer: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            answer = [make()]
        except DphpoBenchError as error:
            answer = [error]
    distributed.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], DphpoBenchError):
        raise answer[0]
    value: T = answer[0]
    return value
