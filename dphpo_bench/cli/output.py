"""Commands print results on standard output, and lines for whoever watches on standard error."""

import json
import os
import sys
from typing import Any

from dphpo_bench.base.text import finite_json, one_line

MAX_COMPLAINT = 4000
UNLIMITED_WIDTH = 1000


def show(*renderables: Any) -> None:
    """Print tables."""
    from rich.console import Console

    # A file or a pipe has no width, unless somebody says so: nothing is cut there, nor broken over lines.
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(markup=False, width=None if limited else UNLIMITED_WIDTH)
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
