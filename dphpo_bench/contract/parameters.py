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

from dataclasses import fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval, Len

from dphpo_bench.base.checks import MAX_NAME, ranged, short_text
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
"""Metadata of a field that was added when the method had records: identities omit its default, so that those records
stay the method's own."""


def check_fields(instance: Any) -> None:
    """Check the fields of a frozen dataclass by what their annotations declare; for `__post_init__`.

    Checked are `Literal[...]`, `Annotated[float, Interval(...)]`, the same with int, and `Annotated[str, rule]`,
    where `rule` raises if the text is wrong. None is accepted where the annotation allows it. Other fields may
    hold anything.

    A declared field becomes exactly a float, an int or a str: a subclass of one could change its value later.

    Raises:
        InvalidValueError: if a value breaks its rule.
        DphpoBenchError: raised by a rule for texts.
    """
    cls: Any = type(instance)
    for name, declared in _declarations(cls):
        object.__setattr__(instance, name, _checked(name, declared, getattr(instance, name)))


@cache
def _declarations(cls: type) -> tuple[tuple[str, Any], ...]:
    types = {field.name: field.type for field in fields(cls)}
    if any(isinstance(annotation, str) for annotation in types.values()):
        hints = get_type_hints(cls, include_extras=True)
        types = {name: hints[name] for name in types}
    return tuple((name, annotation) for name, annotation in types.items() if _is_declared(annotation))


def _is_declared(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_is_declared, get_args(annotation)))
    return get_origin(annotation) in (Annotated, Literal)


def _checked(name: str, declared: Any, value: Any) -> Any:
    if get_origin(declared) in (Union, UnionType):
        if value is None and NoneType in get_args(declared):
            return None
        (declared,) = (part for part in get_args(declared) if part is not NoneType)
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
    return ranged(name, value, kind, interval)
