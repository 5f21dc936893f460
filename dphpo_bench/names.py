"""Help with names that do not exist."""

import difflib
from collections.abc import Iterable

from dphpo_bench.display import shown

MAX_LISTED = 600


def unknown_name_message(kind: str, name: str, available: Iterable[str]) -> str:
    """One line that says what is unknown, what was probably meant, and what exists.

    Args:
        kind: what the name should denote, such as "task".
        name: the name given.
        available: the names that exist.
    """
    names = sorted(available)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if not close:
        close = [candidate for candidate in names if candidate.startswith(name.lower())][:1]
    hint = f" Did you mean {shown(close[0], form=repr)}?" if close else ""
    listed = shown(", ".join(names) or "none", MAX_LISTED)
    return f"Unknown {shown(kind)} {shown(name, form=repr)}.{hint} Available: {listed}."
