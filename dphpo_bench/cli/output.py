"""How commands print: results on standard output, one line for whoever watches on standard error."""

import json
import math
import sys
from typing import Any

from dphpo_bench.base.text import one_line

MAX_COMPLAINT = 4000


def show(*renderables: Any) -> None:
    """Print tables."""
    from rich.console import Console

    console = Console(markup=False)
    for renderable in renderables:
        console.print(renderable)


def show_json(value: Any) -> None:
    """Print JSON; infinities are texts, as in records."""

    def plain(item: Any) -> Any:
        if isinstance(item, float) and not math.isfinite(item):
            return "Infinity" if item > 0 else str(item)
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        return item

    sys.stdout.write(json.dumps(plain(value), indent=1) + "\n")


def complain(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(one_line(message, MAX_COMPLAINT) + "\n")
