"""How a contract complains: an assertion whose message says the value, the rule and the way out."""


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
