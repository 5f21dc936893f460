"""The recipes of change in CONTRIBUTING.md: the files that they name, and no others, hold their examples."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Recipes of change\n")[1].split("\n## ")[0]
ROWS = [row.strip("|").split("|") for row in SECTION.splitlines() if row.startswith("| a") or row.startswith("| check")]
USERS = {
    "peak_memory_bytes": {"dphpo_bench/sweep/cells.py"},
}
"""Files of the package that use an example; a new one of its kind does not need them."""


def test_every_kind_of_change_has_a_row() -> None:
    assert len(ROWS) == 6


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_a_recipe_names_all_files_that_hold_its_example(row: list[str]) -> None:
    _, example, *places = row
    name = example.strip().strip("`")
    listed = set(re.findall(r"`([\w/]+\.\w+)`", " ".join(places)))
    word = re.compile(rf"\b{name}\b")
    assert [path for path in listed if not word.search((ROOT / path).read_text(encoding="utf-8"))] == []
    package = (ROOT / "dphpo_bench").rglob("*.py")
    holders = {path.relative_to(ROOT).as_posix() for path in package if word.search(path.read_text(encoding="utf-8"))}
    in_package = {path for path in listed if path.startswith("dphpo_bench/") and path.endswith(".py")}
    assert holders - USERS.get(name, set()) == in_package
