"""The report of the untouched tables is what the records say."""

from pathlib import Path

from research.untouched import report, untouched

ROOT = Path(__file__).parents[1]


def test_the_report_is_that_of_the_records() -> None:
    page = (ROOT / "research" / "untouched.md").read_text(encoding="utf-8")
    for block in report(untouched(ROOT / "leaderboard")).split("\n\n"):
        assert f"\n\n{block}\n\n" in page
