"""Events of `dp_accounting` as Python prints them; nothing of the text is run."""

import ast
import math
from typing import Any

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy.event_kinds import KINDS

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (dp_event.RepeatAndSelectDpEvent, *(kind.type for kind in KINDS.values()))
    if kind.__module__ == dp_event.__name__
}


def event_of_text(text: str) -> DpEvent:
    """Read the text of an event, such as `SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)`.

    Raises:
        InvalidValueError: if it is another text.
        UnsupportedEventError: if a kind of event in it has no rule here; the message names the kind.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise InvalidValueError("The text is no event of dp_accounting.") from None
    event = _value(tree)
    if not isinstance(event, DpEvent):
        raise InvalidValueError(f"Expected an event of dp_accounting, got {shown(text)}.")
    return event


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[], keywords=keywords):
            if name not in _CLASSES:
                raise UnsupportedEventError(f"{shown(name)} is no kind of event that is read: {', '.join(_CLASSES)}.")
            try:
                return _CLASSES[name](**{str(keyword.arg): _value(keyword.value) for keyword in keywords})
            except TypeError as error:
                raise InvalidValueError(f"{name} cannot be made: {shown(error, 200)}.") from None
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id="inf"):
            return math.inf
    raise InvalidValueError(f"Expected an event of dp_accounting, got {shown(ast.unparse(node), form=repr)}.")
