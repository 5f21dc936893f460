"""Reasons of failures, in one line."""

import logging
import traceback
from pathlib import Path

from dphpo_bench.base.errors import DphpoBenchError, TableValueError

logger = logging.getLogger(__name__)

MAX_REASON = 2000
_PACKAGE = Path(__file__).parents[1]


def reason_of(error: BaseException, hide: bool = False) -> str:
    """Return one line for a record, with the place where an exception that is not the engine's was raised.

    With `hide`, the text of a `TableValueError`, and of an exception that the engine did not raise, is left out: it may
    quote private records.
    """
    logger.debug("A run failed.", exc_info=error)
    frames = traceback.extract_tb(error.__traceback__)
    file = Path(frames[-1].filename) if frames else Path()
    # In a wheel the built-in methods and tasks lie within the package.
    inside = file.relative_to(_PACKAGE).parts if file.is_relative_to(_PACKAGE) else ("methods",)
    raised_here = inside[0] not in ("methods", "tasks")
    where = f"{file.name}:{frames[-1].lineno}" if frames else ""
    is_plain = isinstance(error, DphpoBenchError) and not isinstance(error, TableValueError) and raised_here
    if hide and not is_plain:
        named = f"{type(error).__name__}{where and f' at {where}'}"
        return f"{named}; its text is left out, since it may quote private records. On public data, a seed shows it."
    try:
        text = str(error)
        if not isinstance(error, DphpoBenchError):
            text = f"{type(error).__name__}: {text}{where and f' ({where})'}"
    except Exception:  # a plug-in's error that cannot be printed
        text = type(error).__name__
    return " ".join(text.split())[:MAX_REASON].encode(errors="replace").decode()
