"""The site builds without a warning: links, anchors, pictures and docstrings are in order. No address is visited."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.scripts import script

ROOT = Path(__file__).parents[2]
site_links = script("docs/site_links")


@pytest.mark.slow  # CI builds the site beside the other tests
def test_the_site_builds_and_all_its_links_lead_somewhere(tmp_path: Path) -> None:
    for needed in ("sphinx", "myst_parser", "pydata_sphinx_theme"):
        pytest.importorskip(needed)
    command = (sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", "-d", str(tmp_path / "cache"))
    site = tmp_path / "site"
    done = subprocess.run(
        [*command, "-c", "docs", ".", str(site)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (site / "index.html").read_bytes() == (site / "README.html").read_bytes()
    assert 'id="dphpo_bench.harness.run.run"' in (site / "docs/api.html").read_text()
    assert 'id="dphpo-bench-leaderboard-build"' in (site / "docs/command_line.html").read_text()
    assert site_links.broken(site) == []
    assert site_links.unlinked(site) == []


def written(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        path = folder / f"{name.replace('__', '/')}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_links_that_lead_nowhere_are_noticed(tmp_path: Path) -> None:
    site = written(
        tmp_path,
        index='<a href="leaderboard/">board</a><a href="a.html#here">a</a><a href="#there">x</a><a href="b.html">b</a>',
        a='<p id="here"><a href="../outside.html">o</a><a href="https://example.org/">e</a><img src="https://x.org/y.png">',
        leaderboard__index='<a href="../a.html#away">a</a><a href="#epsilon=1">1</a>',
    )
    (tmp_path.parent / "outside.html").write_text("")
    assert site_links.broken(site) == [
        "a.html: ../outside.html", "a.html: https://x.org/y.png", "index.html: #there: no such place",
        "index.html: b.html", "leaderboard/index.html: ../a.html#away: no such place",
    ]  # fmt: skip
    assert site_links.unlinked(site) == []


def test_a_site_and_a_board_that_do_not_know_each_other_are_noticed(tmp_path: Path) -> None:
    site = written(tmp_path, index='<a href="a.html">a</a>', a="", leaderboard__index='<a href="data.csv">csv</a>')
    assert len(site_links.unlinked(site)) == 2
