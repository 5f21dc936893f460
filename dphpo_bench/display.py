"""Progress for people: a live bar on a terminal, a few plain lines in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from dphpo_bench.progress import Advance

LOG_SECONDS = 10.0


class TerminalProgress:
    """Reports to standard error: a bar if it is a terminal, else a line every ten seconds."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Open a display of `total` units."""
        return _bar(description, total) if sys.stderr.isatty() else _lines(description, total)


@contextmanager
def _bar(description: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)

        def advance(amount: int = 1) -> None:
            progress.update(task, advance=amount)

        yield advance


@contextmanager
def _lines(description: str, total: int) -> Iterator[Advance]:
    start = last = time.monotonic()
    done = 0

    def advance(amount: int = 1) -> None:
        nonlocal done, last
        done += amount
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            sys.stderr.write(f"{description}: {done:,} of {total:,} after {last - start:.0f} s\n")
            sys.stderr.flush()

    sys.stderr.write(f"{description}: {total:,}\n")
    yield advance
    sys.stderr.write(f"{description}: done in {time.monotonic() - start:.1f} s\n")
