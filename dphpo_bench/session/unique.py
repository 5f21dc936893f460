"""Objects that must not be copied."""

from typing import NoReturn

from dphpo_bench.base.errors import InvalidValueError


class Unique:
    """An object that releases values: a copy would repeat its noise and charge nobody."""

    __slots__ = ()

    def __copy__(self) -> NoReturn:
        raise InvalidValueError(
            f"Expected one {type(self).__name__} and no copy of it: its noise would repeat, and its releases would "
            "be charged to nobody. Use Session.fork for other random streams."
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
