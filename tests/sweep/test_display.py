"""What is said of a sweep where nobody looks at a terminal."""

from io import StringIO

import pytest

from dphpo_bench.sweep import running as display
from dphpo_bench.sweep.driver import Stock
from dphpo_bench.sweep.running import SweepDisplay
from tests.records.test_tables import make_record


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    made = Clock()
    monkeypatch.setattr(display, "time", made)
    return made


def test_long_preparations_are_not_silent(clock, capsys) -> None:
    with SweepDisplay() as shown:
        shown.stock(Stock())
        shown.preparing(["mnist", "mnist", "cifar10"])
        for _ in range(5):
            clock.now += 30
            shown.tick()
    assert capsys.readouterr().err.splitlines() == [
        "0 cells: 0 finished, 0 to run.",
        "Preparing the data of cifar10, mnist.",
        "Preparing the data of cifar10, mnist. 60 s so far.",
        "Preparing the data of cifar10, mnist. 2 min so far.",
    ]


def test_a_line_says_what_is_done_and_how_fast(clock, capsys, blobs) -> None:
    one, two = blobs('"auto_clipping"', seeds=2)
    with SweepDisplay() as shown:
        shown.stock(Stock([], [], [one, two]))
        for cell in (one, two):
            shown.started(cell)
        clock.now += 20
        shown.finished(one, make_record(status="ok"), False)
        shown.tick()
    assert capsys.readouterr().err.splitlines()[1:] == ["1 of 2 done, 1 running, 0 failed, 3 a minute"]


def test_on_a_terminal_one_line_changes_in_its_place(clock, monkeypatch) -> None:
    terminal = StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    with SweepDisplay() as shown:
        shown.preparing(["digits"])
        for _ in range(2):
            clock.now += 1
            shown.tick()
        shown.note("A note.")
    said = "Preparing the data of digits. 1 s so far.\r\x1b[KPreparing the data of digits. 2 s so far.\r\x1b[KA note.\n"
    assert terminal.getvalue() == f"Preparing the data of digits.\n{said}"
