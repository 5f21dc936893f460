"""Progress for people: bars inside bars on a terminal, few lines in a log."""

import io
import sys
from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench.base import progress as display
from dphpo_bench.base.progress import TerminalProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def nested(progress: TerminalProgress) -> None:
    with progress.track("Trials", 2) as advance:
        for _ in range(2):
            with progress.track("Training", 3) as step:
                step(3)
            advance()
    with progress.track("Final run", 1) as advance:
        advance()


def test_bars_stand_below_one_another_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich allows one live display at a time: a second one would raise."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    nested(TerminalProgress())
    progress = TerminalProgress()
    with progress.track("Preparing", 0), progress.track("Decoding", 2) as advance:
        advance(2)
    for text in ("Trials", "Final run", "Preparing", "Decoding"):
        assert text in terminal.getvalue()


def test_a_log_shows_the_outermost_work(capsys: pytest.CaptureFixture[str]) -> None:
    nested(TerminalProgress())
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" done")[0] for line in lines] == ["Trials: 2", "Trials:", "Final run: 1", "Final run:"]


def test_a_log_that_nobody_reads_any_more_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private records have been paid for by then."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    progress = TerminalProgress()
    progress.note("a line")
    with progress.track("Training", 3) as advance:
        advance()


def test_python_shows_long_work_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_task: Any, budget: Any, fixed_noise: Any
) -> None:
    monkeypatch.setattr(display, "SHORT_SECONDS", 0.0)
    for progress, shown in ((None, True), (bench.NullProgress(), False)):
        bench.run(fixed_noise(), tiny_task, budget, seed=0, progress=progress)
        assert ("Planning fixed_noise on tiny" in capsys.readouterr().err) is shown
