"""A choice of some runs by name: `--only method=hyfreedp,task=mnist`."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import shown, unknown_name_message


@dataclass(frozen=True)
class Only:
    """The values that each field may have. Numbers are compared as numbers: 1, 1.0 and 1e0 are the same."""

    accepted: Mapping[str, frozenset[str | float]]

    @classmethod
    def parse(cls, texts: Sequence[str], available: Mapping[str, Collection[str | float | None]]) -> "Only":
        """Read texts such as "method=hyfreedp,method=liu_talwar,task=mnist"; `available` has the values that occur, by
        field.
        """
        accepted: dict[str, set[str | float]] = {}
        for pair in (pair.strip() for text in texts for pair in text.split(",")):
            field, equals, text = (part.strip() for part in pair.partition("="))
            if not (field and equals and text):
                raise InvalidValueError(
                    f"Expected --only FIELD=VALUE,FIELD=VALUE, got {shown(pair, form=repr)}. Each value has its field."
                )
            if field not in available:
                raise UnknownNameError(unknown_name_message("field", field, available))
            values = {_comparable(value) for value in available[field]}
            if _comparable(text) not in values:
                raise UnknownNameError(unknown_name_message(field, text, map(_shown, available[field])))
            accepted.setdefault(field, set()).add(_comparable(text))
        return cls({field: frozenset(values) for field, values in accepted.items()})

    def accepts(self, field: str, value: str | float | None) -> bool:
        return field not in self.accepted or _comparable(value) in self.accepted[field]

    def matches(self, values: Mapping[str, str | float | None]) -> bool:
        return all(self.accepts(field, values[field]) for field in self.accepted)


def _comparable(value: str | float | None) -> str | float:
    """Return a number for a number or its text, else a text."""
    if isinstance(value, str):
        for read in (int, float):
            with contextlib.suppress(ValueError):
                value = read(value)
                break
    return str(value) if value is None or value != value else value


def _shown(value: str | float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value)
