"""Follow the links inside a built site: `python docs/site_links.py FOLDER`. No address outside of it is visited."""

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The places of a page, and what it refers to.

    Attributes:
        anchors: what a link to the page may name after "#".
        links: targets of its links.
        parts: pictures, scripts and styles, which must lie in the site.
    """

    def __init__(self) -> None:
        super().__init__()
        self.anchors, self.links, self.parts = {""}, list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("img", "script", "link"):
            self.parts += [values[name] for name in ("src", "href") if name in values]


@cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def targets(path: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield each reference to the site, with its file and its anchor; a part from elsewhere has a file that is none."""
    page = read(path)
    for reference in (*page.links, *page.parts):
        address = urlsplit(reference)
        if not address.scheme and not address.netloc:
            target = (path.parent / unquote(address.path) if address.path else path).resolve()
            yield reference, target / "index.html" if target.is_dir() else target, unquote(address.fragment)
        elif reference in page.parts and address.scheme != "data":
            yield reference, path / "outside", ""


def pages(site: Path) -> list[Path]:
    """Return the pages of a site; what a theme keeps in _static is none."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


def broken(site: Path) -> list[str]:
    """Return the references inside a site that lead nowhere: to no file of it, or to no place in a page."""
    faults = []
    for path in pages(site):
        for reference, target, anchor in targets(path):
            if not (target.is_relative_to(site.resolve()) and target.is_file()):
                faults.append(f"{path.relative_to(site)}: {reference}")
            elif anchor and target.suffix == ".html" and not anchored(path, target, anchor):
                faults.append(f"{path.relative_to(site)}: {reference}: no such place")
    return faults


def anchored(path: Path, target: Path, anchor: str) -> bool:
    """Return whether a page has a place; the board's own links may name a state, such as #epsilon=1."""
    return anchor in read(target).anchors or (path.resolve() == target and "=" in anchor)


def unlinked(site: Path) -> list[str]:
    """Return which of site and board does not lead to the other."""
    board = (site / "leaderboard/index.html").resolve()
    linked = {path.resolve(): {target for _, target, _ in targets(path)} for path in pages(site)}
    faults = []
    if not any(board in to for page, to in linked.items() if page != board):
        faults.append("No page of the site links to leaderboard/index.html.")
    if not any(target in linked for target in linked.get(board, ()) if target != board):
        faults.append("leaderboard/index.html links to no page of the site.")
    return faults


if __name__ == "__main__":
    problems = [*broken(Path(sys.argv[1])), *unlinked(Path(sys.argv[1]))]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems) or "All links inside the site lead somewhere.\n")
    sys.exit(bool(problems))
