"""The paper and the README say what the board says: each value has a query, and is that of today."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.scripts import script

ROOT = Path(__file__).parents[2]
paper_values = script("research/paper_values")
PAPER = paper_values.PAPER.read_text(encoding="utf-8")
BOARD = "label,gap\nhyfreedp,-0.025\nrecommended,0.0125\nzero,-0.0001\n"
QUERIES = {
    "values": {"lead": ["SELECT 100 * gap FROM board WHERE label = 'hyfreedp'", "{:.1f}"]},
    "tables": {
        "gaps": {
            "query": "SELECT label, 100 * gap FROM board",
            "header": ["method", "gap"],
            "forms": ["`{}`", "{:.1f}"],
        }
    },
}
TEXT = "It is <!--lead-->9.9<!----> points.\n\n<!--table gaps-->\n\n| old |\n\n<!---->\n"


def test_every_value_is_that_of_the_board() -> None:
    for path, text in paper_values.of_today().items():
        assert path.read_text(encoding="utf-8") == text, "Put today's values in: python research/paper_values.py"


def test_results_hold_no_value_without_a_query() -> None:
    results = PAPER.partition("## 5. Results")[2].partition("## 6.")[0]
    for pattern in (paper_values.VALUE, paper_values.ROWS):
        results = pattern.sub("", results)
    assert set(re.findall(r"\d+(?:\.\d+)? (?:points|%)|\d\.\d+", results)) <= {"0.01"}  # a first rate, not a result


def test_no_line_begins_with_a_comment_which_would_end_its_paragraph() -> None:
    assert re.findall(r"^<!--(?!table |-->)", PAPER, flags=re.MULTILINE) == []


def test_it_has_four_pages_and_the_packages_version() -> None:
    words = len(re.sub(r"<!--[^>]*-->|\([^)]*\)|^\|.*$", "", PAPER, flags=re.MULTILINE).split())
    assert 1900 < words < 2450
    assert 3 <= len(re.findall(r"!\[", PAPER)) <= 4
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Version {project['version']}." in PAPER


def test_stale_values_and_tables_are_replaced() -> None:
    (text,) = paper_values.refreshed([TEXT], QUERIES, BOARD)
    assert "It is <!--lead-->−2.5<!----> points." in text
    assert "| `recommended` | 1.2 |\n| `zero` | 0.0 |\n\n<!---->" in text
    assert "old" not in text
    assert paper_values.refreshed([text], QUERIES, BOARD) == [text]


@pytest.mark.parametrize(("old", "new"), [("lead", "leed"), ("<!--lead-->9.9<!---->", "9.9")])
def test_a_value_without_a_query_and_a_query_without_a_place_are_noticed(old: str, new: str) -> None:
    with pytest.raises(ValueError, match="lead"):
        paper_values.refreshed([TEXT.replace(old, new)], QUERIES, BOARD)


@pytest.mark.parametrize(
    "query", ["SELECT gap FROM board WHERE label = 'x'", "SELECT AVG(gap) FROM board WHERE label = 'x'"]
)
def test_a_query_without_an_answer_is_named(query: str) -> None:
    with pytest.raises(ValueError, match="Expected one value"):
        paper_values.refreshed([TEXT], QUERIES | {"values": {"lead": [query, "{:.1f}"]}}, BOARD)
