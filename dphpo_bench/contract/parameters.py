"""Parameters whose types and ranges are declared on their fields, and checked in one place.

>>> @dataclass(frozen=True)
... class Widths:
...     width: Annotated[float, Interval(gt=0, lt=1)] = 0.5
...     def __post_init__(self) -> None:
...         check_fields(self)
>>> Widths(2)  # doctest: +IGNORE_EXCEPTION_DETAIL
Traceback (most recent call last):
InvalidValueError: Expected 0 < width < 1, got width=2.
"""

import math
from dataclasses import fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval, Len

from dphpo_bench.base.checks import MAX_NAME, exact_int, short_text, told
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

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
"""Metadata of a field that a method got when there were records of it: its default is not written into identities, so
that those records stay the method's own."""


def check_fields(made: Any) -> None:
    """Check the fields of a frozen dataclass by what their annotations declare; for `__post_init__`.

    Checked are `Literal[...]`, `Annotated[float, Interval(...)]`, the same with int, and `Annotated[str, rule]`,
    where `rule` raises if the text is wrong. None is accepted where the annotation allows it. Other fields may
    hold anything.

    A declared field becomes exactly a float, an int or a str: a subclass of one could change its value later.

    Raises:
        InvalidValueError: if a value breaks its rule.
        DphpoBenchError: raised by a rule for texts.
    """
    cls: Any = type(made)
    for name, declared in _declarations(cls):
        object.__setattr__(made, name, _checked(name, declared, getattr(made, name)))


@cache
def _declarations(cls: type) -> tuple[tuple[str, Any], ...]:
    types = {field.name: field.type for field in fields(cls)}
    if any(isinstance(one, str) for one in types.values()):
        hints = get_type_hints(cls, include_extras=True)
        types = {name: hints[name] for name in types}
    return tuple((name, one) for name, one in types.items() if _is_declared(one))


def _is_declared(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_is_declared, get_args(annotation)))
    return get_origin(annotation) in (Annotated, Literal)


def _checked(name: str, declared: Any, value: Any) -> Any:
    if get_origin(declared) in (Union, UnionType):
        if value is None and NoneType in get_args(declared):
            return None
        (declared,) = (one for one in get_args(declared) if one is not NoneType)
    if get_origin(declared) is Literal:
        options = get_args(declared)
        if value not in options:
            listed = ", ".join(map(str, options))
            raise InvalidValueError(f"Expected {name} in {listed}, got {name}={shown(value, form=repr)}.")
        return options[options.index(value)]
    kind, *rules = get_args(declared)
    if kind is str:
        text = short_text(name, value)
        for rule in rules:
            if callable(rule):
                rule(text)
        return text
    (interval,) = rules
    number = _exact(kind, value)
    if number is None or not _within(number, interval):
        raise InvalidValueError(f"Expected {_rule(name, kind, interval)}, got {name}={told(value)}.")
    return number


def _exact(kind: type, value: Any) -> Any:
    """`value` as exactly this type; None if it is not a finite number."""
    if kind is int:
        return exact_int(value)
    if isinstance(value, bool | str):
        return None
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _within(number: Any, interval: Interval) -> bool:
    return (
        (interval.gt is None or number > interval.gt)
        and (interval.ge is None or number >= interval.ge)
        and (interval.lt is None or number < interval.lt)
        and (interval.le is None or number <= interval.le)
    )


def _rule(name: str, kind: type, interval: Interval) -> str:
    """Such as "0 < share < 1"."""
    low = interval.ge if interval.gt is None else interval.gt
    high = interval.le if interval.lt is None else interval.lt
    above, below = "<=" if interval.gt is None else "<", "<=" if interval.lt is None else "<"
    if low is not None and high is not None:
        return f"{low} {above} {name} {below} {high}"
    finite = "a finite " if kind is float else ""
    if low is not None:
        return f"{finite}{name} {above.replace('<', '>')} {low}"
    return f"{finite}{name}" if high is None else f"{finite}{name} {below} {high}"
