"""Assertions of contracts; their messages say the value, the rule and the way out."""

import re
from typing import Any

from dphpo_bench.base.text import shown

NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")


class ContractError(AssertionError):
    """A plug-in breaks its contract."""


def expect(condition: bool, message: str) -> None:
    """Raise a `ContractError` with this message unless the condition holds; `assert` would be lost under `-O`."""
    if not condition:
        raise ContractError(message)


def shortened(value: object, width: int = 200) -> str:
    return shown(value, width, repr)


def expect_name_and_version(plug_in: Any, option: str) -> None:
    """Expect a name that the command line and folders can carry, and an integer version from 1."""
    expect(
        isinstance(plug_in.name, str) and NAME.fullmatch(plug_in.name) is not None,
        f"Expected a name of lower-case letters, digits and underscores that starts with a letter, got "
        f"{plug_in.name!r}. It is used by {option}, in suites and in the folders of records.",
    )
    expect(
        type(plug_in.version) is int and plug_in.version >= 1,
        f"Expected version to be an integer >= 1, got {shortened(plug_in.version)}. It is part of a run's identity: "
        "raise it when results change.",
    )


def expect_line(name: str, value: object) -> None:
    ok = isinstance(value, str) and value.strip() == value != "" and "\n" not in value
    expect(ok, f"Expected {name} to be one line of text, got {shortened(value)}.")
