"""What is said of a sweep where nobody looks at a terminal."""

import pytest

from dphpo_bench.cli import sweep_progress as display
from dphpo_bench.cli.sweep_progress import SweepDisplay, stock_text
from dphpo_bench.sweep.driver import Stock


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
        "Preparing the data of cifar10, mnist. 60 s",
        "Preparing the data of cifar10, mnist. 2 min",
    ]


def test_damaged_records_are_named_and_counted(clock, capsys) -> None:
    damaged = [f"record {number} is \x1b[31mno record." for number in range(23)]
    SweepDisplay(workers=2, quiet=True).stock(Stock(damaged=damaged))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"record 0 is \x1b[31mno record. The cell runs again."
    assert lines[20:] == ["3 more records are damaged."]


def test_what_there_is_to_do(blobs) -> None:
    one, two, three, four = blobs('"auto_clipping", "faulty"')
    assert stock_text(Stock([one], [two], [three, four])) == "4 cells: 1 finished, 1 failed before, 2 to run."
    again = stock_text(Stock([one], [], [two, three, four], {two.key: None}))
    assert again == "4 cells: 1 finished, 3 to run (1 of them failed before)."
