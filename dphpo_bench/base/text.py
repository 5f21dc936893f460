"""Texts for people: one line, limits, close names, values of records."""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context
from typing import Any

MAX_LINE = 300
MAX_VALUE = 80
MAX_LISTED = 600
_LONG_INTEGER_BITS = 1000


def unknown_name_message(kind: str, name: str, available: Iterable[str]) -> str:
    """Return one line that names the unknown name, its kind, such as "task", a close name, and the names that exist."""
    names, name = sorted(available), str(name)  # a stranger's name may be anything
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if not close:
        close = [candidate for candidate in names if candidate.startswith(name.lower())][:1]
    hint = f" Did you mean {shown(close[0], form=repr)}?" if close else ""
    listed = shown(", ".join(names) or "none", MAX_LISTED)
    return f"Unknown {shown(kind)} {shown(name, form=repr)}.{hint} Available: {listed}."


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Return a stranger's text as one line of at most `limit` printable characters."""
    text = escaped(" ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shown(value: object, limit: int = MAX_VALUE, form: Callable[[Any], str] = str) -> str:
    """Return a stranger's value as one line of at most `limit` printable characters; `repr` puts texts in quotes.

    Python refuses to write very long integers and deeply nested values; these are described instead.
    """
    if isinstance(value, int) and value.bit_length() > _LONG_INTEGER_BITS:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = form(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__} that is too long or too deep to show"
    return one_line(text, limit)


def escaped(text: str) -> str:
    """Return the text with each unprintable character escaped as in Python: no line breaks, no terminal's controls."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def count(number: int, noun: str) -> str:
    """Return such as "1 record" or "1,200 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def varying_names(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose values differ between the settings, or that some settings lack; sorted."""
    names = {name for setting in settings for name in setting}
    return sorted(name for name in names if len({setting.get(name) for setting in settings}) > 1)


def value_text(value: Any) -> str:
    """Return a parameter's value as it is shown: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else compact_json(value)


def rounded_up(value: float, digits: int) -> str:
    """Return a number ≥ 0 with so many significant digits, never below it but for rounding errors."""
    cautious = Context(prec=digits, rounding=ROUND_CEILING)
    return f"{cautious.create_decimal_from_float(value * (1 - 1e-9)):f}"


def rounded_down(value: float) -> str:
    """Return a bound from below with two digits after the point."""
    return f"{math.floor(value * 100) / 100:.2f}"


def compact_json(value: Any) -> str:
    """Return JSON text without spaces, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def finite_json(value: Any) -> Any:
    """Return the JSON value with texts for what JSON lacks: "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: finite_json(item) for name, item in value.items()}
    return [finite_json(item) for item in value] if isinstance(value, list | tuple) else value


def duration_text(seconds: float) -> str:
    """Return such as "45 s", "3 min" or "2 h 10 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
