"""Check parameters by the types and ranges that their fields declare.

>>> @dataclass(frozen=True)
... class Widths:
...     width: Annotated[float, Interval(gt=0, lt=1)] = 0.5
...     def __post_init__(self) -> None:
...         check_fields(self)
>>> Widths(2)  # doctest: +IGNORE_EXCEPTION_DETAIL
Traceback (most recent call last):
InvalidValueError: Expected 0 < width < 1, got width=2.
"""

from types import MappingProxyType
from typing import Annotated

from annotated_types import Interval, Len

from dphpo_bench.base.checks import MAX_NAME

Share = Annotated[float, Interval(gt=0, lt=1)]
"""0 < share < 1."""

Positive = Annotated[float, Interval(gt=0)]
"""A finite number above 0."""

Count = Annotated[int, Interval(ge=1)]
"""A whole number from 1."""

Decay = Annotated[float, Interval(ge=0, lt=1)]
"""0 <= decay < 1; of a moving average."""

Name = Annotated[str, Len(1, MAX_NAME)]
"""A short text."""

LATER = MappingProxyType({"later": True})
"""Metadata of a field that was added when the method had records: identities omit its default, so that those records
stay the method's own."""
