"""Report progress of long work; the caller decides how to show it."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dphpo_bench.base.text import duration_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


class Meter:
    """Counter of example passes, the unit of a plan's cost. It is public: batches count with their expected sizes.

    Args:
        total: how many are planned; 0 if nobody knows, or may know. Nothing is counted then.
        until: what follows and is not counted, such as "the test".
    """

    def __init__(self, total: float = 0.0, until: str = "") -> None:
        self.total, self.until = total, until
        self.done: float = 0
        self._first: tuple[float, float] | None = None  # when the first report came, and how much was done then

    def advance(self, examples: float) -> None:
        """Count some more."""
        if self.total:
            self.done += examples
            self._first = self._first or (time.monotonic(), self.done)

    def left(self) -> str:
        """Return how long the rest takes at the rate since the first report; empty if that is not known."""
        if self._first is None or self.done <= self._first[1] or self.done >= self.total:
            return ""
        since, before = self._first
        seconds = (time.monotonic() - since) * (self.total - self.done) / (self.done - before)
        return f"about {duration_text(seconds)} left{self.until and ' until ' + self.until}"


class Advance(Protocol):
    """Callback that moves a progress display forward."""

    def __call__(self, amount: int = 1) -> None: ...


@runtime_checkable
class Progress(Protocol):
    """Receiver of reports on long work."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Open a display of `total` units, 0 if nobody knows how many; the context yields an `Advance`."""
        ...

    def whole(self, meter: Meter) -> AbstractContextManager[Meter]:
        """Show how long all the work takes that is counted while the context lasts.

        The context yields the meter to count with: of long work inside other long work, it is the outer one's.
        """
        ...

    def note(self, text: str) -> None:
        """Say something once."""


class NullProgress:
    """Progress that shows nothing."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Open nothing."""
        del description, total
        return nullcontext(_ignore)

    def whole(self, meter: Meter) -> AbstractContextManager[Meter]:
        """Count all the same."""
        return nullcontext(meter)

    def note(self, text: str) -> None:
        """Say nothing."""
        del text


def _ignore(amount: int = 1) -> None:
    del amount


LOG_SECONDS = 10.0
SHORT_SECONDS = 1.0
"""A log names a phase that takes longer."""

_ALWAYS = 10.0**9  # seconds; a rate over Rich's half a minute is none where a report takes longer


def make_progress(quiet: bool) -> Progress:
    """Return a display of progress for people, or none."""
    return NullProgress() if quiet else TerminalProgress()


class TerminalProgress:
    """Reports to standard error: bars if it is a terminal, else a line every ten seconds.

    Work inside other work, such as the training of one of many trials, has a bar below the other's. In a log it is
    silent unless it is long. Both forms show how long the rest takes, at the rate since the first report, since what
    comes before it is often done once. While the whole is metered, they show it for the whole.
    """

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._depth = 0
        self._meter: Meter | None = None

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Advance]:
        """Open a display of `total` units; 0 for a phase whose length nobody knows, and what is shown inside it."""
        show = self._bar if sys.stderr.isatty() else self._lines if total else self._phase
        self._depth += total > 0
        try:
            with show(description, total) as advance:
                yield advance
        finally:
            self._depth -= total > 0

    @contextmanager
    def whole(self, meter: Meter) -> Iterator[Meter]:
        """Show how long the rest of the whole takes: a bar above the others, or the end of each line in a log."""
        if self._meter is not None or self._bars is not None:  # of other work, or inside it
            yield self._meter or meter
            return
        self._meter = meter
        try:
            with self._bar(f"Until {meter.until}", 0) if sys.stderr.isatty() else nullcontext():
                yield meter
        finally:
            self._meter = None

    def note(self, text: str) -> None:
        """Write a line. A log that is closed or full ends no run, whose budget is spent by then."""
        with suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    @contextmanager
    def _bar(self, description: str, total: int) -> Iterator[Advance]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        texts, times = TextColumn("{task.description}"), (TimeElapsedColumn(), TimeRemainingColumn())
        columns = texts, BarColumn(30), MofNCompleteColumn(), *times
        outer = self._bars
        bars = outer or Bars(*columns, console=Console(stderr=True), speed_estimate_period=_ALWAYS)
        task = bars.add_task(description, total=total or None)

        def advance(amount: int = 1) -> None:
            bars.update(task, advance=amount)
            if self._meter is not None and self._meter.done:  # its bar is the first one
                bars.update(bars.task_ids[0], completed=self._meter.done, total=self._meter.total or None)

        with nullcontext() if outer else bars:
            self._bars = bars
            try:
                yield advance
            finally:
                self._bars = outer
                if outer:
                    bars.remove_task(task)
                elif not total:
                    bars.update(task, total=1, completed=1)

    @contextmanager
    def _phase(self, description: str, total: int) -> Iterator[Advance]:
        """Name a phase once it takes long."""
        del total
        timer = threading.Timer(SHORT_SECONDS, self.note, [description])
        timer.daemon = True
        timer.start()
        try:
            yield _ignore
        finally:
            timer.cancel()

    @contextmanager
    def _lines(self, description: str, total: int) -> Iterator[Advance]:
        start = last = time.monotonic()
        this = Meter(total)

        def advance(amount: int = 1) -> None:
            nonlocal last
            this.advance(amount)
            now = time.monotonic()
            if now - last >= LOG_SECONDS:
                last = now
                outer = self._meter and self._meter.left()
                left = outer or this.left()
                self.note(f"{description}: {this.done:,} of {total:,} after {now - start:.0f} s{left and ', ' + left}")

        if self._depth == 1:
            self.note(f"{description}: {total:,}")
        yield advance
        if self._depth == 1:
            self.note(f"{description}: done in {time.monotonic() - start:.1f} s")
