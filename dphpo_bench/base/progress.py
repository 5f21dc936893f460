"""Report progress of long work; the caller decides how to show it."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dphpo_bench.base.text import duration_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class Meter:
    """Counter of example passes, the unit of a plan's cost. It is public: batches count with their expected sizes.

    Args:
        total: how many are planned; 0 if nobody knows, or may know. Nothing is counted then.
        until: what follows and is not counted, such as "the test".
    """

    def __init__(self, total: float = 0.0, until: str = "the end") -> None:
        self.total, self.until = total, until
        self.done = 0.0
        self._first: tuple[float, float] | None = None  # when the first report came, and how much was done then

    def advance(self, examples: float) -> None:
        """Count some more."""
        if self.total:
            self.done += examples
            self._first = self._first or (time.monotonic(), self.done)

    def seconds_left(self) -> float | None:
        """Return the seconds for the rest at the rate since the first report; None if that is not known."""
        if self._first is None or self.total <= 0:
            return None
        since, before = self._first
        counted = self.done - before
        return (time.monotonic() - since) * max(self.total - self.done, 0.0) / counted if counted else None


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
SHORT_SECONDS, PHASE_SECONDS = 1.0, 30.0
"""A log names a phase that takes longer than the first, and names it again each time the second has passed."""

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
        """Write a line."""
        _write(text)

    def _advance(self, task: "TaskID") -> Advance:
        bars = self._bars
        assert bars is not None

        def advance(amount: int = 1) -> None:
            bars.update(task, advance=amount)
            if self._meter is not None and self._meter.done:  # its bar is the first one
                bars.update(bars.task_ids[0], completed=self._meter.done, total=self._meter.total or None)

        return advance

    def _left(self, todo: int, done: int, seconds: float) -> str:
        """Return how long the rest takes, at the rate of these seconds; nothing if that is not known."""
        if self._meter is not None and (left := self._meter.seconds_left()) is not None:
            return f"about {duration_text(left)} left until {self._meter.until}"
        return f"about {duration_text(todo * seconds / done)} left" if todo > 0 and done > 0 else ""

    @contextmanager
    def _bar(self, description: str, total: int) -> Iterator[Advance]:
        if self._bars is not None:
            task = self._bars.add_task(description, total=total or None)
            try:
                yield self._advance(task)
            finally:
                self._bars.remove_task(task)
            return
        with _new_bars() as self._bars:
            task = self._bars.add_task(description, total=total or None)
            try:
                yield self._advance(task)
                if not total:
                    self._bars.update(task, total=1, completed=1)
            finally:
                self._bars = None

    @contextmanager
    def _phase(self, description: str, total: int) -> Iterator[Advance]:
        del total
        start, over = time.monotonic(), threading.Event()

        def tell() -> None:
            if not over.wait(SHORT_SECONDS):
                _write(description)
                while not over.wait(PHASE_SECONDS):
                    _write(f"{description}: {time.monotonic() - start:.0f} s so far")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield _ignore
        finally:
            over.set()
            teller.join()

    @contextmanager
    def _lines(self, description: str, total: int) -> Iterator[Advance]:
        start = last = time.monotonic()
        done = 0
        first: tuple[float, int] | None = None  # when the first report came, and how much was done then

        def advance(amount: int = 1) -> None:
            nonlocal done, first, last
            now = time.monotonic()
            done += amount
            first = first or (now, done)
            if now - last >= LOG_SECONDS:
                last = now
                left = self._left(total - done, done - first[1], now - first[0])
                _write(f"{description}: {done:,} of {total:,} after {now - start:.0f} s{left and ', ' + left}")

        if self._depth == 1:
            _write(f"{description}: {total:,}")
        yield advance
        if self._depth == 1:
            _write(f"{description}: done in {time.monotonic() - start:.1f} s")


def _new_bars() -> "Bars":
    """Return bars with a count and the time left; without a known end, or at the end, with the time it took."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if (task.total or 1) == 1 else f"{task.completed:,.0f} of {task.total:,.0f}")

    class Time(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            if task.total is None or task.finished:
                return Text(duration_text(task.elapsed or 0))
            return Text("" if task.time_remaining is None else f"about {duration_text(task.time_remaining)} left")

    columns = (TextColumn("{task.description}"), BarColumn(30), Count(), Time())
    return Progress(*columns, console=Console(stderr=True), speed_estimate_period=_ALWAYS)


def _write(line: str) -> None:
    """Write a line to the log. A log that is closed or full ends no run, whose budget is spent by then."""
    with suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
