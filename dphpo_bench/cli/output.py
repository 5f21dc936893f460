"""Commands print results on standard output, and lines for whoever watches on standard error."""

import json
import sys
from typing import Any

from dphpo_bench.base.text import finite_json, one_line

MAX_COMPLAINT = 4000


def show(*renderables: Any) -> None:
    """Print tables."""
    from rich.console import Console

    console = Console(markup=False)
    for renderable in renderables:
        console.print(renderable)


def show_json(value: Any) -> None:
    """Print JSON, with infinities as texts, as in records."""
    say(json.dumps(finite_json(value), indent=1))


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(one_line(message, MAX_COMPLAINT) + "\n")
