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
    with SweepDisplay(workers=2) as shown:
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


def test_what_is_left_is_known_from_earlier_runs_and_shrinks_while_others_run(clock, capsys, blobs) -> None:
    one, two, three = blobs('"auto_clipping"', seeds=3)
    stock = Stock([one], [], [two, three])
    stock.times.add(make_record(seconds={"train": 60.0}).model_copy(update={"identity": one.identity}))
    with SweepDisplay(workers=2) as shown:
        shown.stock(stock)
        shown.preparing(["blobs"])
        clock.now += 60
        shown.tick()
        shown.started(two)
        for _ in range(2):
            clock.now += 20
            shown.tick()
    lines = capsys.readouterr().err.splitlines()
    assert lines[2] == "Preparing the data of blobs. 60 s so far; the runs after it: about 60 s."
    assert [line.rpartition(", ")[2] for line in lines[3:]] == ["about 60 s left", "about 60 s left"]


def test_no_time_is_promised_where_nothing_is_known(clock, capsys, blobs) -> None:
    """A single long run of a new kind was "about 2 s left" for two minutes, or an eighth of it on eight workers."""
    quick, later = blobs('"auto_clipping"', seeds=2)
    (long,) = blobs('"noiseless"', seeds=1)
    with SweepDisplay(workers=8) as shown:
        shown.stock(Stock([], [], [quick, later, long]))
        for cell in (quick, long):
            shown.started(cell)
        for finished in (quick, None, later, None):
            clock.now += 20
            if finished:
                record = make_record(seconds={"train": 20.0})
                shown.finished(finished, record.model_copy(update={"identity": finished.identity}), False)
            shown.tick()
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("a minute")[2] for line in lines[1:]] == [*2 * [", more than 20 s left"], "", ""]


def test_on_a_terminal_one_line_changes_in_its_place(clock, monkeypatch) -> None:
    terminal = StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    with SweepDisplay(workers=2) as shown:
        shown.preparing(["digits"])
        for _ in range(2):
            clock.now += 1
            shown.tick()
        shown.note("A note.")
    said = "Preparing the data of digits. 1 s so far.\r\x1b[KPreparing the data of digits. 2 s so far.\r\x1b[KA note.\n"
    assert terminal.getvalue() == f"Preparing the data of digits.\n{said}"
