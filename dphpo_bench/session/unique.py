"""What must not be copied."""

from typing import NoReturn

from dphpo_bench.base.errors import InvalidValueError


class Unique:
    """What releases: a copy would release again, with the same noise, and charge somebody else."""

    def __copy__(self) -> NoReturn:
        raise InvalidValueError(
            f"Expected one {type(self).__name__} and no copy of it: its noise would repeat, and its releases would "
            "be charged to nobody. Use Session.fork for other random streams."
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
