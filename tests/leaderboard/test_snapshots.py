"""Snapshots: each page of a small board is what it was. `DPHPO_BENCH_SNAPSHOTS=write` writes them again."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from dphpo_bench.leaderboard import build, sentences
from dphpo_bench.leaderboard import pages as page_files
from dphpo_bench.leaderboard.answers import Claims, Pair
from dphpo_bench.leaderboard.build import render
from dphpo_bench.leaderboard.means import Mean
from dphpo_bench.leaderboard.sentences import About
from dphpo_bench.leaderboard.written import Finding
from dphpo_bench.records.measure import ACCURACY
from tests.leaderboard import boards

FOLDER = Path(__file__).parent / "snapshots"
PAGES = ("README.md", "claims.md", "queries.md", "tables/overall.md", "tables/cifar10-linear.md", "index.html")


@cache
def pages() -> Mapping[str, str]:
    tables = [boards.table(boards.TASK_MODELS[0], epsilon, boards.METHODS[:3]) for epsilon in (1.0, 3.0)]
    finding = Finding("A title", "It is 3 or 4.", (("3", "ask 3"), ("4", "ask 4")), "It may be 5.")
    board = boards.with_sizes(boards.board(tables, [finding, Finding("Another", "So.")]))
    first, second, third = (row.entry for row in tables[0].rows)
    pairs = (Pair(first, second, Mean(0.1, 0.02, 4.0), 0.01, 1, 2), Pair(first, third, Mean(0.1, 0.2, 4.0), 0.5, 1, 2))
    claims = Claims("all tasks", 1.0, ACCURACY, 2, (first, second, third), (), pairs)

    def about(method: str) -> About:
        """Return not what this project says of its methods today."""
        return About("What it does.", "Somebody 2024", None)

    with (
        patch.object(build, "charts", boards.blank_charts),
        patch.object(sentences, "about", about),
        patch.object(page_files, "about", about),
    ):
        return render(replace(board, claims=(claims,)), Path("nowhere/board"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_it_was(name: str) -> None:
    text = re.sub("<(style|script|svg).*?</\\1>\n?", "", pages()[name], flags=re.DOTALL)
    place = FOLDER / name.replace("/", "-")
    if os.environ.get("DPHPO_BENCH_SNAPSHOTS") == "write":
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
    assert text == place.read_text(encoding="utf-8"), "Read the difference; DPHPO_BENCH_SNAPSHOTS=write accepts it."


def test_nothing_else_is_made() -> None:
    written = {name for name in pages() if name.endswith((".md", ".html"))}
    assert written == set(PAGES)
