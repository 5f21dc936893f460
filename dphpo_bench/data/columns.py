"""Kinds of columns of a table, each encoded by constants that are known without looking at private records."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime, tzinfo
from decimal import Decimal
from numbers import Real
from typing import Any, Literal
from zoneinfo import ZoneInfo

from dphpo_bench.base.checks import exact_int, quoted
from dphpo_bench.base.errors import InvalidValueError

CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}
"""Cycles of a calendar, in days."""

TOO_LARGE = "number that its float type rounds"
_EXACT = {2: 2**11, 4: 2**24}
"""Floats of so many bytes may stand for several whole numbers from here on; those of Python from 2^53."""

ZONE_WAY_OUT = 'declare Date(…, zone="UTC"), or another zone whose clock counts'


@dataclass(frozen=True, repr=False)
class Number:
    """A numeric column as (value − typical) / spread.

    Attributes:
        typical: a value that is known to be typical, from outside of the records.
        spread: how far typical values lie apart; above 0.
        logarithmic: take log(1 + value) first; for amounts of money, of which many are 0. `typical` and `spread` are
            then of the logarithm.
        missing: the value that stands for missing ones, or "typical". None: missing values are refused.
        indicator: add an input that is 1 where the value is missing and 0 elsewhere.

    Raises:
        InvalidValueError: if a constant is no finite number, or `spread` is not above 0.
    """

    typical: float
    spread: float
    logarithmic: bool = False
    missing: float | Literal["typical"] | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        _set(self, typical=_constant(self, "typical"), spread=_constant(self, "spread", positive=True))
        if self.missing not in (None, "typical"):
            _set(self, missing=_constant(self, "missing"))
            if self.logarithmic and float(self.missing or 0) <= -1:
                raise InvalidValueError(f"Expected missing above -1 of a logarithmic Number, got {self.missing}.")
        _check_flags(self, "logarithmic", "indicator")

    def __repr__(self) -> str:
        return _code(self, "typical", "spread", "logarithmic")  # of which the fingerprint of `adult` is a hash

    @property
    def size(self) -> int:
        """Number of inputs that it becomes."""
        return 1 + self.indicator


@dataclass(frozen=True, repr=False)
class Category:
    """A column of categories as one input each, of which one is 1 and the others are 0.

    Texts, whole numbers and booleans are different categories: "1" and True are not 1. A whole number may come as a
    float, as in pandas' columns with missing values.

    Attributes:
        values: all that are documented.
        other: whether a last input stands for all other values, and for missing ones. Otherwise these are refused.

    Raises:
        InvalidValueError: if `values` is no collection of different texts, whole numbers or booleans.
    """

    values: tuple[str | int | bool, ...]
    other: bool = False

    def __post_init__(self) -> None:
        values = self.values
        if isinstance(values, str | bytes) or not (isinstance(values, Sequence) or hasattr(values, "__array__")):
            raise InvalidValueError(
                f"Expected values to be a tuple of categories, in an order that stays, such as ('a',), got a "
                f"{type(values).__name__} {quoted(values)}."
            )
        values = tuple(map(_category, values))
        counts = Counter((type(value), value) for value in values)
        twice = [value for (_, value), times in counts.items() if times > 1]
        if twice or not values:
            got = f"{quoted(twice[0])} twice" if twice else "none"
            raise InvalidValueError(f"Expected at least one category in values, each once, got {got}.")
        _set(self, values=values)
        _check_flags(self, "other")

    def __repr__(self) -> str:
        return _code(self, "values")

    @property
    def size(self) -> int:
        """Number of inputs that it becomes."""
        return len(self.values) + self.other


@dataclass(frozen=True, repr=False)
class Date:
    """A column of dates or times as (days since `typical`) / spread.

    Values are dates or times of Python, NumPy or pandas, or texts in ISO's form, such as "2024-03-01" or
    "2024-03-01T12:30+01:00".

    Attributes:
        typical: a date that is known to be typical, from outside of the records; kept as a text in ISO's form.
        spread: how many days typical dates lie apart; above 0.
        cycles: of "day", "week" and "year": each adds sine and cosine of the part of it that is over.
        zone: name of the time zone, such as "Europe/Paris", whose clock counts. Values with another zone are converted;
            those without one are of this clock. None: values with a zone are refused.
        missing: "typical", or the date that stands for missing ones. None: missing values are refused. Cycles of
            missing values are 0.
        indicator: add an input that is 1 where the value is missing and 0 elsewhere.

    Raises:
        InvalidValueError: if a constant is no date, `spread` is not above 0, or there is no such cycle or zone.
    """

    typical: str
    spread: float
    cycles: tuple[str, ...] = ()
    zone: str | None = None
    missing: str | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        _set(self, spread=_constant(self, "spread", positive=True))
        cycles = self.cycles
        is_list = isinstance(cycles, list | tuple)
        if not is_list or any(name not in list(CYCLES) for name in cycles) or len({*cycles}) < len(cycles):
            raise InvalidValueError(
                f"Expected cycles to be a tuple of {', '.join(map(repr, CYCLES))}, each once, such as ('week',), got "
                f"{quoted(cycles)}."
            )
        _set(self, cycles=tuple(cycles))
        zone = self.clock()
        for name in ("typical", "missing"):
            value = getattr(self, name)
            if name == "missing" and value in (None, "typical"):
                continue
            try:
                moment = moment_of(value, zone)
            except ValueError as error:
                raise InvalidValueError(
                    f"Expected {name} to be a date, such as '2024-03-01', got {quoted(value)}: {error}."
                ) from None
            text = moment.isoformat()
            _set(self, **{name: text.removesuffix("T00:00:00")})
        _check_flags(self, "indicator")

    def __repr__(self) -> str:
        return _code(self, "typical", "spread")

    @property
    def size(self) -> int:
        """Number of inputs that it becomes."""
        return 1 + 2 * len(self.cycles) + self.indicator

    def clock(self) -> ZoneInfo | None:
        try:
            return None if self.zone is None else ZoneInfo(self.zone)
        except (TypeError, ValueError, OSError, KeyError):
            raise InvalidValueError(
                f"Expected zone to be the name of a time zone, such as 'Europe/Paris', got {quoted(self.zone)}."
            ) from None


Column = Number | Category | Date


def sort_of(value: Any) -> str:
    """Return the sort of a value that may be a category: texts, whole numbers and booleans are never equal."""
    if isinstance(value, str):
        return "text"
    if hasattr(value, "detach"):  # a tensor, which equals no other as a key
        return type(value).__name__
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return "boolean"
    if exact_int(value) is not None:
        return "whole number"
    if not isinstance(value, Real | Decimal):
        return type(value).__name__
    number: Any = value
    if not abs(number) < _EXACT.get(getattr(number, "itemsize", 8), 2**53):
        return TOO_LARGE
    return "whole number" if number == int(number) else "number"


def _category(value: Any) -> str | int | bool:
    """Return a declared category as Python's text, boolean or integer; reject anything else."""
    if isinstance(value, str) and value:
        return str(value)
    if sort_of(value) == "boolean":
        return bool(value)
    whole = exact_int(value)
    if whole is None:
        raise InvalidValueError(
            f"Expected categories to be texts, whole numbers or booleans, got {type(value).__name__} {quoted(value)}; "
            "other=True has an input for missing and for all other values."
        )
    return whole


def moment_of(value: Any, zone: tzinfo | None) -> datetime:
    """Return a date or a time as that of the zone's clock.

    Raises:
        ValueError: with the way out, if it is no date, or has a zone where none is declared.
    """
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":  # NumPy's
        value = value.astype("datetime64[us]").item()
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(
                "write dates as 2024-03-01 and missing ones as None, or parse them by pandas.to_datetime(…, format=…)"
            ) from None
    if not isinstance(value, date):
        raise ValueError("declare years and counts of days as Number; parse others by pandas.to_datetime")
    if value != value:  # pandas' NaT
        raise ValueError("write it as 2024-03-01")
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    if moment.tzinfo is not None and zone is None:
        raise ValueError(ZONE_WAY_OUT)
    try:
        return moment if moment.tzinfo is None else moment.astimezone(zone).replace(tzinfo=None)
    except OverflowError:  # before the year 1, or after 9999
        raise ValueError("mend the value, or drop the record") from None


def _set(column: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(column, name, value)


def _constant(column: Any, name: str, *, positive: bool = False) -> float:
    """Return a constant as Python's int or float."""
    value = getattr(column, name)
    is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max or (positive and value <= 0):  # NaN is not, either
        rule = "a finite number above 0" if positive else "a finite number"
        rule += ' or "typical"' if name == "missing" else ""
        raise InvalidValueError(
            f"Expected {name} of {type(column).__name__} to be {rule}, known without looking at the private "
            f"records, got {quoted(value)}."
        )
    whole = exact_int(value)
    return float(value) if whole is None else whole


def _check_flags(column: Any, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(column, name), bool):
            raise InvalidValueError(f"Expected {name} to be True or False, got {quoted(getattr(column, name))}.")
    if "indicator" in names and column.indicator and column.missing is None:
        raise InvalidValueError(
            'Expected missing= with indicator=True: the value that stands for missing ones, such as missing="typical".'
        )


def stated_constants(column: Any, *always: str) -> dict[str, Any]:
    """Return the constants of a column by name: some always, the others if they differ from their defaults."""
    values = {field.name: (getattr(column, field.name), field.default) for field in fields(column)}
    return {name: value for name, (value, default) in values.items() if name in always or value != default}


def _code(column: Any, *always: str) -> str:
    """Return the column as Python code; see `stated_constants`."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in stated_constants(column, *always).items())
    return f"{type(column).__name__}({arguments})"
