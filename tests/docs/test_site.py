"""The site builds without a warning: links, anchors, pictures and docstrings are in order. No address is visited."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
    pages = [*site.glob("*.html"), *site.glob("docs/*.html"), *site.glob("leaderboard/**/*.html")]
    assert {place for page in pages for place in missing(page)} == set()


def missing(page: Path) -> list[str]:
    """What a page refers to and the site has not: files of its own, and any picture, script or style of others."""
    text = re.sub(r"<script(?![^>]* src=).*?</script>", "", page.read_text(), flags=re.DOTALL)
    places = re.findall(r"<a [^>]*href=\"(?!https?:|mailto:|#)([^\"#?]+)", text)
    places += re.findall(r"<(?:img|script|link)\b[^>]*(?:src|href)=\"(?!data:)([^\"#?]+)", text)
    return [place for place in places if not (page.parent / place).exists()]
