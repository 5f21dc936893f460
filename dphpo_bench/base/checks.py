"""Check numbers and names from outside, and turn them into the types that everything else relies on."""

import builtins
import dataclasses
import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

P = ParamSpec("P")
R = TypeVar("R")

MAX_NAME = 64
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # on every file system, and never hidden

SMALLEST_BOUND, LARGEST_BOUND = 1e-30, 1e30
"""Bounds on what one record adds to a sum, far from where numbers become 0 or infinite."""


def number(name: str, value: Any, *, low: float, high: float = math.inf) -> float:
    """Return `value` as a finite float in [low, high]; reject anything else, such as a text or a boolean."""
    return float(ranged(name, value, float, Interval(ge=low, le=None if high == math.inf else high)))


def positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0; reject anything else."""
    return float(ranged(name, value, float, Interval(gt=0)))


def bound(name: str, value: Any) -> float:
    """Return `value` as a float in [1e-30, 1e30]; reject anything else.

    For sensitivities, and bounds that values are clipped to. Beyond, a sum of a few records is infinite whatever noise
    is added to it, or the noise is rounded to 0.
    """
    return number(name, value, low=SMALLEST_BOUND, high=LARGEST_BOUND)


def inside(name: str, value: Any) -> float:
    """Return `value` as a float above 0 and below 1; reject anything else."""
    return float(ranged(name, value, float, Interval(gt=0, lt=1)))


def ranged(name: str, value: Any, kind: type, interval: Interval) -> Any:
    """Return `value` as exactly a finite float or an int, whichever `kind` is, within an interval."""
    exact = exact_int(value) if kind is int else _finite(value)
    above, over, below, under = (getattr(interval, side) for side in ("gt", "ge", "lt", "le"))
    if (
        exact is None
        or (above is not None and exact <= above)
        or (over is not None and exact < over)
        or (below is not None and exact >= below)
        or (under is not None and exact > under)
    ):
        raise InvalidValueError(f"Expected {rule(name, kind, interval)}, got {name}={quoted(value)}.")
    return exact


def _finite(value: Any) -> float | None:
    if isinstance(value, bool | str):
        return None
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if math.isfinite(converted) else None


def rule(name: str, kind: type, interval: Interval) -> str:
    """Return a rule such as "0 < share < 1" or "a finite width > 0"."""
    low = interval.ge if interval.gt is None else interval.gt
    high = interval.le if interval.lt is None else interval.lt
    above, below = "<=" if interval.gt is None else "<", "<=" if interval.lt is None else "<"
    if low is not None and high is not None:
        return f"{low} {above} {name} {below} {high}"
    finite = "a finite " if kind is float else ""
    if low is not None:
        return f"{finite}{name} {above.replace('<', '>')} {low}"
    return f"{finite}{name}" if high is None else f"{finite}{name} {below} {high}"


def whole(name: str, value: Any, *, low: int, high: int) -> int:
    """Return `value` as an int in [low, high]; reject anything else, such as a float with a whole value."""
    exact = exact_int(value)
    if exact is None or not low <= exact <= high:
        raise InvalidValueError(f"Expected a whole {name} from {low} to {high}, got {name}={quoted(value)}.")
    return exact


def exact_int(value: Any) -> int | None:
    """Return `value` as an int if its type is an integer of Python, NumPy or torch; None for anything else."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")) or getattr(value, "ndim", 0) > 0:
        return None
    try:
        return int(operator.index(value))
    except (TypeError, RuntimeError):  # the second: a tensor without a value
        return None


def quoted(value: Any) -> str:
    """Return a value for a message; a text in quotes."""
    return shown(value, form=repr if isinstance(value, str) else str)


def unexpected(rule: str, value: object, way_out: str = "") -> InvalidValueError:
    """Return the error for an argument of another kind, of which only texts and numbers are quoted.

    Args:
        rule: such as "Expected a task or the name of one".
        value: the argument; it may hold records.
        way_out: a sentence.
    """
    if value is None or isinstance(value, str | int | float):
        got = shown(value, form=repr)
    else:
        got = f"the class {shown(value.__name__)}" if isinstance(value, type) else f"a {shown(type(value).__name__)}"
    return InvalidValueError(f"{rule}, got {got}. {way_out}".rstrip())


def short_text(name: str, value: Any) -> str:
    """Return `value` if it is a text of 1 to `MAX_NAME` printable characters; reject anything else."""
    if not (isinstance(value, str) and 1 <= len(value) <= MAX_NAME and value.isprintable()):
        raise InvalidValueError(
            f"Expected {name} to be a text of 1 to {MAX_NAME} printable characters, got {shown(value, form=repr)}."
        )
    return str.__str__(value)  # a subclass could claim to equal another


def check_file_name(what: str, name: object) -> None:
    """Reject a name that cannot name a file or a folder everywhere."""
    if not (isinstance(name, str) and FILE_NAME.fullmatch(name)):
        raise InvalidValueError(
            f"Expected {what} of at most {MAX_NAME} letters (a to z), digits, _ . and -, the first a letter or a "
            f"digit, got {shown(name, form=repr)}: files are named so."
        )


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Check a public function's arguments by its annotations, before it runs; reject others in a line.

    Numbers of NumPy and torch become Python's. Arguments that may be of several classes are left to the function.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        rules = _rules(function)
        for name, value in bound.arguments.items():
            if name in rules:
                bound.arguments[name] = _taken(name, value, rules[name])
        return function(*bound.args, **bound.kwargs)

    return checked


def check_fields(instance: Any) -> None:
    """Check the fields of a frozen dataclass by what their annotations declare; for `__post_init__`.

    Checked are `Literal[...]`, `Annotated[float, Interval(...)]`, `Annotated[int, Interval(...)]`, and
    `Annotated[str, rule]`, where `rule` raises if the text is wrong. None is accepted where the annotation allows it.
    Other fields may hold anything.

    A declared field becomes exactly a float, an int or a str: a subclass of one could change its value later.

    Raises:
        InvalidValueError: if a value breaks its rule.
        DphpoBenchError: raised by a rule for texts.
    """
    cls: Any = type(instance)
    for name, kinds in _declarations(cls):
        object.__setattr__(instance, name, _taken(name, getattr(instance, name), kinds))


class _Unknown(dict[str, Any]):
    """Names of an annotation; those for type checkers only mean anything."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins).get(name, Any)


@cache
def _rules(function: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Return by argument the types that it may have, where these can be checked."""
    names = _Unknown(getattr(function, "__globals__", {}))
    rules = {}
    for name, hint in function.__annotations__.items():
        try:
            kinds = _alternatives(eval(hint, {}, names) if isinstance(hint, str) else hint)
        except (AttributeError, TypeError):
            continue
        if name != "return" and all(_is_simple(kind, len({*kinds} - {NoneType})) for kind in kinds):
            rules[name] = kinds
    return rules


@cache
def _declarations(cls: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Return name and types of each field whose annotation declares a rule."""
    types = {field.name: field.type for field in dataclasses.fields(cls)}
    if any(isinstance(annotation, str) for annotation in types.values()):
        hints = get_type_hints(cls, include_extras=True)
        types = {name: hints[name] for name in types}
    several = [(name, _alternatives(kind)) for name, kind in types.items()]
    return tuple(pair for pair in several if any(get_origin(kind) in (Annotated, Literal) for kind in pair[1]))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_simple(kind: Any, alternatives: int) -> bool:
    simple, origins = (NoneType, bool, int, float, str, Path), (Annotated, Literal, Mapping, Callable)
    if kind in simple or get_origin(kind) in origins:
        return True
    return isinstance(kind, type) and kind is not Any and alternatives == 1


def _taken(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """Return a value that is of one of the kinds, as Python's type of it."""
    for kind in kinds:
        if get_origin(kind) is Annotated and not (value is None and NoneType in kinds):
            base, *rules = get_args(kind)
            if base is not str:
                return ranged(name, value, base, *rules)
            text = short_text(name, value)
            for rule in filter(callable, rules):
                rule(text)
            return text
        fits, exact = _as_kind(kind, value)
        if fits:
            return exact
    named = {NoneType: "None", float: "a finite number", int: "a whole number"}
    words = [
        ", ".join(map(repr, get_args(kind)))
        if get_origin(kind) is Literal
        else named.get(kind) or str(getattr(get_origin(kind) or kind, "__name__", kind))
        for kind in kinds
    ]
    raise unexpected(f"Expected {name} to be {' or '.join(words)}", value)


def _as_kind(kind: Any, value: Any) -> tuple[bool, Any]:
    """Return whether a value is of a kind, and the value as Python's type of it."""
    if kind is NoneType:
        return value is None, value
    if kind is bool:
        flag = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
        return isinstance(flag, bool), flag
    if kind is int:
        whole = exact_int(value)
        return whole is not None, whole
    if kind is float:
        real = None if isinstance(value, type) or getattr(value, "ndim", None) else _finite(value)
        return real is not None, value if type(value) is int else real
    if kind is Path:
        return isinstance(value, os.PathLike), value
    if get_origin(kind) is Literal:
        options = get_args(kind)
        is_option = isinstance(value, str) and value in options
        return is_option, options[options.index(value)] if is_option else None
    base = get_origin(kind) or kind
    return callable(value) if base is Callable else isinstance(value, base), value
