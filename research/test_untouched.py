"""The report of the untouched tables is what the records say."""

from pathlib import Path

from research.untouched import report, untouched

ROOT = Path(__file__).parents[1]


def test_the_report_is_that_of_the_records() -> None:
    page = (ROOT / "research" / "untouched.md").read_text(encoding="utf-8")
    lines = report(untouched(ROOT / "leaderboard")).splitlines()
    assert [line for line in lines if line not in page] == []
