"""Choosing some of many runs by name: `--only method=hyfreedp,task=mnist`."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import shown, unknown_name_message


@dataclass(frozen=True)
class Only:
    """What is wanted: for each field, the values that will do.

    Attributes:
        wanted: field → values. Of one field any value will do; all fields must agree. Numbers are compared as
            numbers, so that 1, 1.0 and 1e0 are the same.
    """

    wanted: Mapping[str, frozenset[str | float]]

    @classmethod
    def parse(cls, texts: Sequence[str], available: Mapping[str, Collection[str | float | None]]) -> "Only":
        """Read texts such as "method=hyfreedp,method=liu_talwar,task=mnist".

        Args:
            texts: field=value pairs, separated by commas; all texts count together.
            available: the fields there are, and the values that occur.

        Raises:
            InvalidValueError: if a text is not of this form.
            UnknownNameError: if there is no such field, or none of that value.
        """
        wanted: dict[str, set[str | float]] = {}
        for pair in (pair.strip() for text in texts for pair in text.split(",")):
            field, equals, text = (part.strip() for part in pair.partition("="))
            if not (field and equals and text):
                raise InvalidValueError(f"Expected --only FIELD=VALUE,FIELD=VALUE, got {shown(pair, form=repr)}.")
            if field not in available:
                raise UnknownNameError(unknown_name_message("field", field, available))
            values = {_comparable(value) for value in available[field]}
            if _comparable(text) not in values:
                raise UnknownNameError(unknown_name_message(field, text, map(_shown, available[field])))
            wanted.setdefault(field, set()).add(_comparable(text))
        return cls({field: frozenset(values) for field, values in wanted.items()})

    def accepts(self, field: str, value: str | float | None) -> bool:
        """Whether runs of this value are wanted, as far as this field goes."""
        return field not in self.wanted or _comparable(value) in self.wanted[field]

    def matches(self, values: Mapping[str, str | float | None]) -> bool:
        """Whether a run with these values is wanted."""
        return all(self.accepts(field, values[field]) for field in self.wanted)


def _comparable(value: str | float | None) -> str | float:
    """Numbers, also as texts, as numbers; integers exactly."""
    if isinstance(value, str):
        for read in (int, float):
            with contextlib.suppress(ValueError):
                value = read(value)
                break
    return str(value) if value is None or value != value else value


def _shown(value: str | float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value)
