"""Figures are what their script draws from the board's table, and all of them are."""

import re
from pathlib import Path

import pytest

from tests.docs.scripts import script

DOCS = Path(__file__).parents[2] / "docs"
pytest.importorskip("vl_convert")
draw = script("docs/figures/draw")


@pytest.mark.parametrize("name", draw.FIGURES)
def test_figures_show_the_board_of_today(name: str) -> None:
    shown = (DOCS / f"figures/{name}.svg").read_text(encoding="utf-8")
    assert shown == draw.FIGURES[name](), "Draw the figures again: python docs/figures/draw.py"


def test_every_chart_of_the_pages_is_drawn_by_the_script() -> None:
    pages = (DOCS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.parent.glob("research/*.md"))
    texts = [path.read_text() for path in pages]
    shown = {name for text in texts for name in re.findall(r"!\[[^]]*\]\((?:\.\./)?(?:docs/)?figures/([\w.]+)\)", text)}
    drawn = {f"{name}.svg" for name in draw.FIGURES}
    assert shown == drawn | {"flow.svg"} == {path.name for path in DOCS.glob("figures/*.svg")}
