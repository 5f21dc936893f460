"""The board's short page: its sections, its figures, its size; and all links between the pages."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from dphpo_bench.leaderboard import build
from dphpo_bench.leaderboard.build import render
from dphpo_bench.leaderboard.means import Rate
from dphpo_bench.leaderboard.pages import to_markdown
from dphpo_bench.leaderboard.sentences import Paths
from dphpo_bench.leaderboard.tables import Board
from dphpo_bench.leaderboard.written import Finding
from tests.leaderboard import boards

ROOT = Path(__file__).parents[2]
LEADERBOARD = ROOT / "leaderboard"
PARSER = MarkdownIt("commonmark").enable("table")
MOST_LINES = 150
MOST_CHARACTERS = 1000
"""Of a line; a picture's description is no line that anyone reads."""


def wide_board() -> Board:
    """More task–model pairs, ε, methods and findings than a short page can hold, each finding with an objection."""
    task_models = [(f"task_{at} (linear)", f"task_{at}", 0.9) for at in range(20)]
    methods = [(f"method_{at:02d}", "", 0.002 * at, 0.01 * at, 1.0 + at) for at in range(40)]
    findings = [Finding(f"Finding {at}", "It is 3.", (("3", "SELECT 3"),), "It may be 4.") for at in range(20)]
    epsilons = (1.0, 3.0, 8.0)
    tables = [boards.table(task_model, epsilon, methods) for task_model in task_models for epsilon in epsilons]
    return boards.board(tables, findings)


BOARDS = {
    "sample": boards.sample_board,
    "hostile": boards.hostile_board,
    "crowded": boards.crowded_board,
    "wide": wide_board,
    "empty": boards.empty_board,
}


def too_long(page: str) -> list[str]:
    lines = [re.sub(' alt="[^"]*"', "", line) for line in page.splitlines()]
    return [line for line in lines if len(line) > MOST_CHARACTERS]


@pytest.mark.parametrize("name", BOARDS)
def test_the_page_is_short_whatever_the_board(name: str) -> None:
    page = to_markdown(BOARDS[name](), [], Paths.beside(LEADERBOARD))["README.md"]
    assert len(page.splitlines()) <= MOST_LINES
    assert too_long(page) == []


def test_who_beats_the_oracle_is_what_the_table_says() -> None:
    rows = pd.read_csv(LEADERBOARD / "leaderboard.csv").query("not reference and gap_to_oracle_high < 0")
    beaten, labels = rows.groupby(["task", "model", "epsilon_target"]).ngroups, rows["label"].value_counts()
    page = (LEADERBOARD / "README.md").read_text(encoding="utf-8")
    assert f"in {beaten} by more than its interval: `{labels.index[0]}` in {labels.iloc[0]}, " in page


def test_the_page_of_this_repository_is_short() -> None:
    page = (LEADERBOARD / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= MOST_LINES
    assert too_long(page) == []


def cells_of(page: str, heading: str) -> list[list[str]]:
    section = page.partition(f"\n{heading}\n")[2]
    lines = section.lstrip("\n").partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_figures_of_the_methods_are_those_of_their_rows() -> None:
    sample = boards.sample_board()
    first = sample.tables[1]  # at ε = 3
    worse = replace(first.rows[0], worst=0.2, collapsed=2, failed=0, collapses=Rate(2, 7))
    sample = replace(
        sample, tables=(sample.tables[0], replace(first, rows=(worse, *first.rows[1:])), *sample.tables[2:])
    )
    header, _, *rows = cells_of(to_markdown(sample, [])["README.md"], "## Methods at each ε")
    assert header == ["method", "ε = 1", "ε = 3", "ε = 8", "worst run", "collapses", "cost"]
    line = next(row for row in rows if row[0] == "`hyfreedp`")
    place = sample.answers[1].places[0]
    assert place.entry.label == "hyfreedp"
    assert line[2] == f"−{-100 * place.lead.mean:.1f} \\[−{-100 * place.lead.low:.1f}, −{-100 * place.lead.high:.1f}\\]"
    oracle = next(row.utility.mean for row in first.references if row.entry == first.oracle)
    assert line[4] == f"−{100 * (oracle - 0.2):.1f}, cifar10 (linear), ε = 3"
    runs = sum(row.seeds + row.failed for table in sample.tables for row in table.rows if row.entry.label == "hyfreedp")
    assert line[5:] == [f"2 of {runs}; 2 of 7 on cifar10 (linear)", "1.0"]


def test_an_epsilon_of_fewer_task_models_says_so_and_hides_no_row() -> None:
    tables = [table for table in boards.sample_board().tables if table.epsilon != 1 or table.task == "cifar10"]
    worst = replace(tables[-1].rows[0], worst=0.1)  # on mnist, which is not at ε = 1
    tables[-1] = replace(tables[-1], rows=(worst, *tables[-1].rows[1:]))
    page = to_markdown(boards.board(tables), [])["README.md"]
    header, _, *rows = cells_of(page, "## Methods at each ε")
    assert header[1:4] == ["ε = 1 (1 pair)", "ε = 3 (3 pairs)", "ε = 8 (3 pairs)"]
    line = next(row for row in rows if row[0] == "`hyfreedp`")
    assert line[4].endswith(f", {tables[-1].title}")
    runs = sum(row.seeds + row.failed for table in tables for row in table.rows if row.entry.label == "hyfreedp")
    assert line[5] == f"0 of {runs}; 1 of 15 on cifar10 (linear)"
    assert "a mean over the task–model pairs at each ε, with 95 % intervals" in page


def targets(page: str) -> Iterator[str]:
    for token in PARSER.parse(page):
        for child in token.children or ():
            if child.type == "link_open":
                yield str(child.attrs["href"])
    yield from re.findall('<img src="([^"]*)"', page)


def anchors(page: str) -> set[str]:
    headings = re.findall("^#+ (.*)", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(files: Mapping[str, str], folder: Path) -> list[str]:
    """Links of the pages that lead nowhere: neither to a file of the board, nor to one beside it, nor to a heading."""
    found = []
    for name, page in files.items():
        for target in targets(page) if name.endswith(".md") else ():
            place, _, anchor = target.partition("#")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), place)) if place else name
            there = path in files or (path.startswith("../") and (folder / path).is_file())
            if not there or (anchor and anchor not in anchors(files[path])):
                found.append(f"{name}: {target}")
    return found


@pytest.mark.parametrize(
    ("name", "folder"), [("sample", LEADERBOARD), ("hostile", ROOT / "nowhere" / "board"), ("empty", LEADERBOARD)]
)
def test_every_link_leads_somewhere(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "charts", boards.blank_charts)
    files = render(BOARDS[name](), folder)
    assert dead(files, folder) == []
    linked = {target.partition("#")[0] for target in targets(files["README.md"])}
    behind = {each for each in files if each.endswith(".md")} - {"README.md"}
    assert behind <= linked
    assert ("../CONTRIBUTING.md" in linked) == (folder == LEADERBOARD)


def test_every_link_of_this_repository_leads_somewhere() -> None:
    files = {
        path.relative_to(LEADERBOARD).as_posix(): path.read_text(encoding="utf-8")
        for pattern in ("*.*", "plots/*.svg", "tables/*.md")
        for path in LEADERBOARD.glob(pattern)
    }
    assert dead(files, LEADERBOARD) == []


def test_links_into_the_board_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in targets(page.read_text(encoding="utf-8")):
            place, _, anchor = target.partition("#")
            if "leaderboard/" in place and "://" not in place:
                path = page.parent / place
                assert path.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), f"{page.name}: {target}"
