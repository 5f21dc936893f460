"""How a contract complains: an assertion whose message says the value, the rule and the way out."""

from typing import Any


class ContractError(AssertionError):
    """A plug-in breaks its contract."""


def expect(condition: bool, message: str) -> None:
    """Go on if the condition holds.

    Not the statement `assert`, which Python leaves out when it optimises.

    Args:
        condition: what the contract says.
        message: what to tell the plug-in's author otherwise.

    Raises:
        ContractError: if it does not hold.
    """
    if not condition:
        raise ContractError(message)


def shortened(value: object, width: int = 200) -> str:
    """A value as part of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def expect_version(cls: Any) -> None:
    """The version of a method or a task is an integer from 1.

    Raises:
        ContractError: if it is not.
    """
    expect(
        type(cls.version) is int and cls.version >= 1,
        f"Expected version to be an integer >= 1, got {shortened(cls.version)}. It is part of a run's identity: raise "
        "it when results change.",
    )
