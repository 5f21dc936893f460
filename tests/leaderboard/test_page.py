"""The page: what it holds, and how it behaves in a real browser that reads it from disk."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.columns import MARKS, Column, row_columns, varying
from dphpo_bench.leaderboard.links import Paths
from dphpo_bench.leaderboard.page import MOST_REFUSED, to_html
from dphpo_bench.leaderboard.rows import Row
from dphpo_bench.leaderboard.sentences import sentences
from dphpo_bench.records.measure import ACCURACY
from tests.leaderboard import boards

ROOT = Path(__file__).parents[2]
BESIDE = Paths(frozenset({"../docs/scoring.md", "../methods/dp_sgd.py"}))
BUILDERS = {
    "sample": boards.sample_board,
    "crowded": boards.crowded_board,
    "hostile": boards.hostile_board,
    "empty": boards.empty_board,
}


@cache
def board(name: str) -> Board:
    return BUILDERS[name]()


@cache
def html(name: str) -> str:
    return to_html(board(name), BESIDE)


# --------------------------------------------------------------------------------------------- the text


@pytest.mark.parametrize("name", BUILDERS)
def test_nothing_comes_from_elsewhere(name: str) -> None:
    page = html(name)
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page
    assert not re.findall(r"""(?:src|action)\s*=\s*["']?\s*(?:https?:|//)""", page)
    assert all(link.startswith("https://arxiv.org/abs/") for link in re.findall('href="(http[^"]*)"', page))
    assert "@import" not in page
    assert "url(" not in page


def test_no_text_of_a_record_ends_a_script_or_starts_a_tag() -> None:
    page = html("hostile")
    assert len(re.findall("<script", page, re.IGNORECASE)) == len(re.findall("</script", page, re.IGNORECASE)) == 1
    assert page.count("<!--") == 0
    assert not re.findall("<(?:img|iframe|svg on)", page)
    for text in boards.HOSTILE[:4]:
        assert text not in page


def test_rows_lead_to_the_paper_the_source_the_records_and_the_command() -> None:
    card = re.search(r'<details class="card" id="m\d+" data-name="dp_sgd">.*?</details>', html("sample"), re.DOTALL)
    assert card
    assert '<a href="https://arxiv.org/abs/1607.00133">Abadi et al. 2016' in card[0]
    assert '<a href="../methods/dp_sgd.py">source</a>' in card[0]
    assert card[0].count('<a href="results/some/dp_sgd/') == 9 * 5
    assert "<pre><code>dphpo-bench run -m &#39;dp_sgd&#39;</code></pre>" in card[0]
    assert (card[0].count("<em>best</em>"), card[0].count("<em>worst</em>")) == (1, 1)
    strangers = to_html(board("sample"))
    assert not re.findall('href="\\.\\./', strangers)  # there are no documents beside a stranger's board
    assert "Scoring rule" not in strangers


def test_everything_on_the_board_is_on_the_page() -> None:
    page = html("sample")
    for finding in board("sample").findings:
        assert finding.title in page
        assert finding.text in page
    for mark, meaning in MARKS:
        assert f"<dt>{mark}</dt>\n<dd>{meaning}</dd>" in page
    assert "../docs/scoring.md" in page
    assert 'href="leaderboard.csv"' in page
    assert "recomputed from the ledger of what each run released, never taken from the method" in page
    assert "these tables do not count yet: fashion_mnist (linear), ε = 1; fashion_mnist (linear), ε = 3." in page
    assert "Of 500 records that were read, 3 are superseded" in page
    assert page.count("<li><code>") == 2 * MOST_REFUSED
    for answer in board("sample").answers:
        assert " ".join(sentences(answer)) in page
    assert page.count("And 20 more.") == 2


# --------------------------------------------------------------------------------------------- in a browser


def chromium() -> str | None:
    """The browser named by DPHPO_BENCH_CHROMIUM, or one of the usual names."""
    named = os.environ.get("DPHPO_BENCH_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass
class Visit:
    """A page that was opened, and what went wrong or outside since."""

    page: Page
    complaints: list[str]
    requests: list[str]

    def rows(self, table: str, body: int = 0) -> list[str]:
        """Labels of the visible rows of a table's body, without marks."""
        found: list[str] = self.page.eval_on_selector_all(
            f"#{table} tbody:nth-of-type({body + 1}) tr[data-name]",
            "rows => rows.filter(row => row.offsetParent !== null).map(row => row.dataset.name)",
        )
        return found

    def tables(self) -> list[str]:
        """Captions of the visible tables by task and ε."""
        found: list[str] = self.page.eval_on_selector_all(
            ".result caption", "all => all.filter(one => one.offsetParent !== null).map(one => one.innerText)"
        )
        return found

    def header(self, table: str, column: int) -> Any:
        return self.page.locator(f"#{table} thead th").nth(column)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("no browser found: install chromium or set DPHPO_BENCH_CHROMIUM")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name in BUILDERS:
        (folder / f"{name}.html").write_text(html(name), encoding="utf-8")
    return folder


Open = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser, files: Path) -> Iterator[Open]:
    """Opens a page; at the end of the test nothing may have been complained about or asked for."""
    visits: list[Visit] = []

    def open_page(
        name: str = "sample", fragment: str = "", width: int = 1280, height: int = 800, scheme: str = "light"
    ) -> Visit:
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        page.set_default_timeout(100_000)
        one = Visit(page, [], [])
        page.on("console", lambda message: one.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: one.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (one.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: one.requests.append(request.url))
        page.goto((files / f"{name}.html").as_uri() + fragment)
        visits.append(one)
        return one

    yield open_page
    for one in visits:
        one.page.close()
        assert one.complaints == []
        assert all(url.startswith(files.as_uri()) for url in one.requests)
        assert len({url.partition("#")[0] for url in one.requests}) == 1


def until(page: Page, condition: str) -> None:
    """Wait for a condition; Playwright's own way of waiting evaluates a text, which the page forbids."""
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"waited in vain for {condition}")


ANSWER = ".answer:not([hidden])"


def choose(page: Page, epsilon: str) -> None:
    page.locator("#controls label", has_text=re.compile(f"^{epsilon}$")).click()


# --------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_shipped_board_fits_the_first_screen(browser: Browser, width: int, height: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto((ROOT / "leaderboard" / "index.html").as_uri())
    for epsilon in ("1", "8", "all", "3"):
        choose(page, epsilon)
        bottom = page.locator(f"{ANSWER} .sentence").evaluate("node => node.getBoundingClientRect().bottom")
        assert bottom <= height
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


def test_picture_and_sentence_follow_the_selection(visit: Open) -> None:
    page = visit().page
    choose(page, "8")
    page.locator("#controls select").select_option("mnist (linear)")
    wanted = next(one for one in board("sample").answers if (one.subject, one.epsilon) == ("mnist (linear)", 8.0))
    assert page.locator(f"{ANSWER} .sentence").inner_text() == " ".join(sentences(wanted))
    assert page.locator(f"{ANSWER} caption strong").inner_text() == "mnist (linear), ε = 8."
    choose(page, "all")
    assert page.locator(f"{ANSWER} caption strong").inner_text() == "mnist (linear), all ε."
    assert page.evaluate("location.hash") == "#epsilon=&task=mnist+%28linear%29&method="


def test_a_link_opens_the_card_of_a_method(visit: Open) -> None:
    page = visit().page
    link = page.locator(f"{ANSWER} tbody a", has_text="linear_scaling")
    card = page.locator(link.get_attribute("href") or "")
    assert card.get_attribute("open") is None
    link.click()
    until(page, "document.querySelector('details[open]')?.dataset.name === 'linear_scaling'")
    assert card.locator("pre").first.inner_text() == "dphpo-bench run -m 'linear_scaling'"
    assert page.locator(f"{ANSWER} caption strong").inner_text() == "all tasks, ε = 3."  # the view is as it was


# --------------------------------------------------------------------------------------------- sorting


def shown_columns(number: int) -> list[Column]:
    """The columns of a table by task and ε; those that are the same for all are not there."""
    return varying(row_columns(ACCURACY), board("sample").tables[number].rows)[0]


COLUMN = {column.key: number for number, column in enumerate(shown_columns(0))}


def order(rows: tuple[Row, ...], key: str, descending: bool) -> list[str]:
    """The labels sorted by a column's values, missing last; ties as they were."""
    column = shown_columns(0)[COLUMN[key]]
    known = [row for row in rows if column.value(row) is not None]
    missing = [row for row in rows if column.value(row) is None]
    known = sorted(known, key=lambda row: float(column.value(row)) * (-1 if descending else 1))  # type: ignore[arg-type]
    return [row.contestant.label for row in (*known, *missing)]


@pytest.mark.parametrize(
    ("key", "first"),
    [("metric", "descending"), ("audited", "ascending")],
)
def test_sorting_both_ways(visit: Open, key: str, first: str) -> None:
    one = visit(fragment="#epsilon=1")
    table = board("sample").tables[0]
    second = {"ascending": "descending", "descending": "ascending"}[first]
    header = one.header("table-1", COLUMN[key])
    assert header.get_attribute("aria-sort") is None
    for direction in (first, second, first):
        header.get_by_role("button").click()
        assert header.get_attribute("aria-sort") == direction
        assert one.rows("table-1") == order(table.rows, key, direction == "descending")
        assert one.rows("table-1", 1) == order(table.references, key, direction == "descending")
    assert one.page.locator("#table-1 [aria-sort]").count() == 1
    choose(one.page, "3")
    assert one.rows("table-2") == [row.contestant.label for row in board("sample").tables[1].rows]  # left alone


# --------------------------------------------------------------------------------------------- filters


def test_tables_follow_the_selection(visit: Open) -> None:
    one = visit()
    page = one.page
    count = page.locator("#count")
    assert count.get_attribute("role") == "status"
    assert [caption.partition(", δ")[0] for caption in one.tables()] == [
        "cifar10 (linear), ε = 3", "digits (linear), ε = 3", "mnist (linear), ε = 3"
    ]  # fmt: skip
    visible = ".overall:not([hidden]) caption"
    assert page.locator(visible).all_inner_texts()[0].startswith("ε = 3: 3 tables that count.")
    page.locator("#controls select").select_option("digits (linear)")
    assert [caption.partition(", δ")[0] for caption in one.tables()] == ["digits (linear), ε = 3"]
    assert (len(one.rows("table-5")), one.rows("table-5", 1)) == (8, ["grid_oracle", "nonprivate"])
    choose(page, "all")
    assert len(one.tables()) == 3
    assert page.locator(visible).all_inner_texts()[0].startswith("All ε: 9 tables that count.")

    page.locator("#controls input[type=search]").fill("Liu_Talwar")
    assert one.rows("table-5") == ["liu_talwar (threshold=none)", "liu_talwar (threshold=0.7)"]
    assert len(page.locator(f"{ANSWER} tbody tr").filter(visible=True).all()) == 2
    assert count.inner_text() == "6 of 30 rows, in 3 of 9 tables, as chosen above."
    page.locator("#controls input[type=search]").fill("nobody")
    assert count.inner_text() == "0 of 30 rows, in 3 of 9 tables, as chosen above."


def test_a_view_can_be_linked_to(visit: Open) -> None:
    one = visit()
    one.page.locator("#controls select").select_option("mnist (linear)")
    choose(one.page, "8")
    one.page.locator("#controls input[type=search]").fill("auto & more")
    one.page.locator("#controls input[type=search]").fill("auto")
    before = (one.tables(), one.rows("table-9"))
    assert before[0][0].startswith("mnist (linear), ε = 8, δ = 1e-05.")
    assert before[1] == ["auto_clipping"]
    one.page.reload()
    assert (one.tables(), one.rows("table-9")) == before
    assert one.page.locator("#controls input[type=search]").input_value() == "auto"

    # A link within the page leaves the view as it is; a view that is not there shows the first.
    one.page.get_by_role("link", name="Legend").click()
    assert one.tables() == before[0]
    other = visit(fragment=f"#task={quote('</script>')}&epsilon=4")
    assert other.page.locator(f"{ANSWER} caption strong").inner_text() == "all tasks, ε = 3."


# --------------------------------------------------------------------------------------------- for everyone


@pytest.mark.parametrize("name", ["sample", "hostile", "empty"])
def test_a_phone_does_not_scroll_sideways(visit: Open, name: str) -> None:
    page = visit(name, width=360).page
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    if name == "empty":
        return
    region = page.locator(".overall:not([hidden]) .scroll")
    assert region.evaluate("node => node.scrollWidth > node.clientWidth")
    first = region.locator("tbody th[scope=row]").first
    left = first.bounding_box()
    region.evaluate("node => { node.scrollLeft = 150 }")
    assert first.bounding_box() == left  # the method stays in sight
    assert left is not None
    assert left["width"] < 180


def test_names_landmarks_and_focus(visit: Open) -> None:
    page = visit().page
    nameless = page.evaluate("""() => [...document.querySelectorAll(
        "a, button, select, input, summary, [tabindex='0']")]
      .filter(node => !(node.textContent.trim() && !node.matches("select, input, [tabindex='0']"))
        && !(node.getAttribute("aria-label") || "").trim()
        && !(node.labels?.length && node.labels[0].textContent.trim())
        && !(node.getAttribute("aria-labelledby") || "").split(" ").some(id => document.getElementById(id)?.innerText))
      .map(node => node.outerHTML.slice(0, 80))""")
    assert [one for one in nameless if 'id="overall-' not in one] == []
    dangling = page.evaluate("""() => [...document.querySelectorAll(
        "[aria-describedby], [aria-labelledby], a[href^='#']")]
      .flatMap(node => [node.getAttribute("aria-describedby"), node.getAttribute("aria-labelledby"),
        node.getAttribute("href")?.startsWith("#") ? node.getAttribute("href").slice(1) : null])
      .filter(id => id && !document.getElementById(id))""")
    assert dangling == []
    assert (
        page.evaluate("(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(n => n.id))")
        == 0
    )
    assert page.get_attribute("html", "lang") == "en"
    for landmark in ("banner", "main", "contentinfo", "search"):
        assert page.get_by_role(landmark).count() == 1  # type: ignore[arg-type]
    page.keyboard.press("Tab")
    focus = "getComputedStyle(document.activeElement)"
    assert page.evaluate("document.activeElement.innerText") == "Skip to the results"
    assert page.evaluate(f"[{focus}.outlineStyle, {focus}.outlineWidth]") == ["solid", "2px"]
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_tables_say_what_they_are(visit: Open) -> None:
    page = visit(fragment="#epsilon=1").page
    columns = shown_columns(0)
    headers = page.locator("#table-1 thead th")
    assert headers.all_inner_texts() == [column.header for column in columns]
    for number, column in enumerate(columns):
        button = headers.nth(number).get_by_role("button")
        assert button.get_attribute("title") == column.explanation
        described = page.locator(f"#{button.get_attribute('aria-describedby')}")
        assert described.inner_text() == column.explanation
    first = board("sample").tables[0].rows[0]
    cells = page.locator("#table-1 tbody tr").first.locator("th, td")
    assert cells.all_inner_texts() == [column.text(first) for column in columns]


def test_everything_is_there_without_javascript(browser: Browser, files: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((files / "sample.html").as_uri())
    sample = board("sample")
    assert page.locator(".scroll table").filter(visible=True).count() == len(sample.tables) + len(sample.overalls)
    assert page.locator(".forest").filter(visible=True).count() == len(sample.answers)
    assert not page.locator("#controls select").is_visible()
    context.close()


# --------------------------------------------------------------------------------------------- strangers


def test_strangers_texts_are_shown_and_do_nothing(visit: Open) -> None:
    one = visit("hostile", fragment=f"#method={quote(boards.HOSTILE[0])}&task={quote(boards.HOSTILE[1])}&epsilon=1")
    page = one.page
    assert one.rows("table-3") == [f"{boards.HOSTILE[0]} ({boards.HOSTILE[0]})"]
    page.locator("#controls input[type=search]").fill("")
    assert set(one.rows("table-3")) == {f"{text} ({text})" for text in boards.HOSTILE}
    for place in (page.locator("#table-3"), page.locator(ANSWER), page.locator("#methods ~ .card").first):
        shown = place.text_content() or ""
        assert "<" in shown or "window" in shown
    assert all(text in (page.locator(ANSWER).text_content() or "") for text in boards.HOSTILE)
    for mark in page.locator("#table-3 thead button").all()[:3]:
        mark.click()
    page.locator(f"{ANSWER} tbody a").first.click()
    assert page.evaluate("[window.pwned, document.querySelectorAll('main img').length]") == [None, 0]
