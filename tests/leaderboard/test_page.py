"""The page: what it holds, and how it behaves in a real browser that reads it from disk."""

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dphpo_bench.leaderboard.board import Board, Row
from dphpo_bench.leaderboard.charts.collection import charts
from dphpo_bench.leaderboard.charts.frame import Chart
from dphpo_bench.leaderboard.columns import MARKS, overall_columns, row_columns
from dphpo_bench.leaderboard.page import MOST_REFUSED, sort_value, to_html
from dphpo_bench.records.measure import ACCURACY
from tests.leaderboard import boards

ROOT = Path(__file__).parents[2]
BUILDERS = {"sample": boards.sample_board, "hostile": boards.hostile_board, "empty": boards.empty_board}


@cache
def board(name: str) -> Board:
    return BUILDERS[name]()


@cache
def html(name: str) -> str:
    return to_html(board(name), charts(board(name)))


def without_library(page: str) -> str:
    """The page but for Vega, which is ours as little as it is the board's."""
    head, _, tail = page.rpartition("<script>\n")
    return head + tail[tail.index("</script>") :] if len(tail) > 100_000 else page


# --------------------------------------------------------------------------------------------- the text


def test_the_page_is_a_function_of_the_board() -> None:
    code = (
        "import hashlib; from tests.leaderboard import boards; from dphpo_bench.leaderboard.page import to_html\n"
        "from dphpo_bench.leaderboard.charts.collection import charts\n"
        "board = boards.board([boards.table(boards.SETTINGS[0], 3.0)])\n"
        "print(hashlib.sha256(to_html(board, charts(board)).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    one = boards.board([boards.table(boards.SETTINGS[0], 3.0)])
    assert done.stdout.strip() == hashlib.sha256(to_html(one, charts(one)).encode()).hexdigest()


def test_the_command_line_does_not_import_what_draws() -> None:
    code = (
        "import sys; import dphpo_bench.cli.commands\n"
        "print({'altair', 'vl_convert', 'jinja2'} & set(sys.modules) or 'none')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "none", done.stdout + done.stderr


@pytest.mark.parametrize("name", BUILDERS)
def test_nothing_comes_from_elsewhere(name: str) -> None:
    page = without_library(html(name))
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["']?\s*(?:https?:|//)""", page)
    assert "@import" not in page
    assert "url(" not in page


def test_no_text_of_a_record_ends_a_script_or_starts_a_tag() -> None:
    page = html("hostile")
    assert len(re.findall("<script", page, re.IGNORECASE)) == len(re.findall("</script", page, re.IGNORECASE)) == 3
    assert page.count("<!--") == 0
    assert not re.findall("<(?:img|svg|iframe)", without_library(page))
    assert "\u2028" not in page[page.index('id="chart-data"') :]
    for text in boards.HOSTILE[:4]:
        assert text not in without_library(page)


def test_data_of_charts_survives_escaping() -> None:
    text = html("hostile").split('id="chart-data">')[1].split("</script>")[0]
    assert not set("<>&'") & set(text)
    specs = json.loads(text)["specs"]
    for chart in charts(board("hostile")):
        expected = {key: part for key, part in chart.spec.items() if key != "title"}
        assert specs[chart.name] == json.loads(json.dumps(expected))


def test_a_number_that_json_lacks_is_refused() -> None:
    chart = Chart("x", "x", "x", {"title": {"subtitle": ""}, "data": math.nan})
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_html(board("empty"), [chart])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (math.nan, None),
        (math.inf, "Infinity"),
        (0.1, "0.1"),
        (3, "3.0"),
        ("pld", "pld"),
        (1e-20, "1e-20"),
    ],
)
def test_sort_value(value: float | str | None, expected: str | None) -> None:
    assert sort_value(value) == expected


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
    assert page.count("And 20 more.") == 2


def test_an_empty_board_has_a_page() -> None:
    page = html("empty")
    assert "There are no verified records yet." in page
    assert len(page) < 40_000  # no library without charts


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
        page = html(name)
        # Names for the tables, so that tests can point at them.
        page = re.sub(r'(<table)(>\n<caption id="([a-z]+-\d+)-caption")', r'\1 id="\3"\2', page)
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return folder


Open = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser, files: Path) -> Iterator[Open]:
    """Opens a page; at the end of the test nothing may have been complained about or asked for."""
    visits: list[Visit] = []

    def open_page(name: str = "sample", fragment: str = "", width: int = 1280, scheme: str = "light") -> Visit:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
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


def draw_all(page: Page) -> None:
    """Scroll past every chart, and wait until each is drawn."""
    for place in page.query_selector_all("[data-chart]"):
        place.scroll_into_view_if_needed()
    until(
        page,
        "document.querySelectorAll('[data-chart]').length === document.querySelectorAll('.chart.drawn > svg').length",
    )


def test_charts_are_drawn_when_they_come_near(visit: Open) -> None:
    page = visit().page
    assert page.locator(".chart svg").count() == 0
    draw_all(page)
    assert page.locator(".chart svg").count() == len(charts(board("sample"))) == 14
    drawn = page.locator('[data-chart="ranks-all"]')
    assert "hyfreedp" in drawn.inner_text()
    assert drawn.get_attribute("aria-label") == charts(board("sample"))[0].description
    assert drawn.evaluate("node => node.querySelector('svg').getBoundingClientRect().width") > 400


def test_charts_follow_the_theme_and_show_tooltips(visit: Open) -> None:
    page = visit().page
    place = page.locator('[data-chart="ranks-all"]')
    place.scroll_into_view_if_needed()
    ink = "document.querySelector('[data-chart=ranks-all] svg text').getAttribute('fill')"
    until(page, f"document.querySelector('.drawn') && {ink} === '#1b1f24'")
    page.emulate_media(color_scheme="dark")
    until(page, f"{ink} === '#e3e6e9'")
    place.locator("svg path[aria-roledescription='point']").first.hover()
    until(page, "document.querySelector('#vg-tooltip-element.visible')?.innerText.includes('hyfreedp')")


def test_a_click_in_the_legend_singles_out_a_contestant(visit: Open) -> None:
    page = visit().page
    place = page.locator('[data-chart="accuracy-digits-linear"]')
    place.scroll_into_view_if_needed()
    points = place.locator("svg path[aria-roledescription='point']")
    place.locator("svg").wait_for()
    everyone = points.count()
    place.locator(".role-legend-label text", has_text="linear_scaling").click(force=True)
    until(
        page,
        "[...document.querySelectorAll('[data-chart=accuracy-digits-linear] path[aria-roledescription=point]')]"
        ".filter(point => point.getAttribute('opacity') === '1').length === 3",
    )
    assert points.count() == everyone == 30


# --------------------------------------------------------------------------------------------- sorting

COLUMN = {column.key: number for number, column in enumerate(row_columns(ACCURACY))}


def order(rows: tuple[Row, ...], key: str, descending: bool) -> list[str]:
    """The labels sorted by a column's values, missing last; ties as they were."""
    column = row_columns(ACCURACY)[COLUMN[key]]
    known = [row for row in rows if column.value(row) is not None]
    missing = [row for row in rows if column.value(row) is None]
    known = sorted(known, key=lambda row: float(column.value(row)) * (-1 if descending else 1))  # type: ignore[arg-type]
    return [row.contestant.label for row in (*known, *missing)]


@pytest.mark.parametrize(
    ("key", "first"),
    [("metric", "descending"), ("epsilon", "ascending"), ("audited", "ascending"), ("seconds", "ascending")],
)
def test_sorting_both_ways(visit: Open, key: str, first: str) -> None:
    one = visit()
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
    assert one.rows("table-2") == [row.contestant.label for row in board("sample").tables[1].rows]  # left alone


def test_missing_values_are_last_both_ways(visit: Open) -> None:
    one = visit()
    for _ in range(2):
        one.header("table-1", COLUMN["metric"]).get_by_role("button").click()
        assert one.rows("table-1")[-1] == "propose_test"


def test_sorting_by_name_and_by_keyboard(visit: Open) -> None:
    one = visit()
    one.header("table-1", COLUMN["method"]).get_by_role("button").focus()
    one.page.keyboard.press("Enter")
    assert one.rows("table-1") == sorted(row.contestant.label for row in board("sample").tables[0].rows)
    one.page.keyboard.press("Tab")
    one.page.keyboard.press("Space")
    assert one.header("table-1", COLUMN["metric"]).get_attribute("aria-sort") == "descending"
    assert one.rows("table-1") == order(board("sample").tables[0].rows, "metric", True)


# --------------------------------------------------------------------------------------------- filters


def test_filters(visit: Open) -> None:
    one = visit()
    page = one.page
    count = page.locator("#count")
    assert count.get_attribute("role") == "status"
    everything = sum(len(table.rows) + len(table.references) for table in board("sample").tables)
    assert count.inner_text() == f"{everything} of {everything} rows, in 9 of 9 tables."

    page.get_by_label("Task", exact=True).select_option("digits (linear)")
    assert [caption.partition(", ε")[0] for caption in one.tables()] == ["digits (linear)"] * 3
    page.get_by_label("Target ε").select_option("3")
    assert [caption.partition(", δ")[0] for caption in one.tables()] == ["digits (linear), ε = 3"]
    assert (len(one.rows("table-5")), one.rows("table-5", 1)) == (8, ["grid_oracle", "nonprivate"])

    page.get_by_label("Privacy", exact=True).select_option("no")
    assert (one.rows("table-5"), one.rows("table-5", 1)) == ([], ["grid_oracle", "nonprivate"])
    assert count.inner_text() == f"2 of {everything} rows, in 1 of 9 tables."
    page.get_by_label("Privacy", exact=True).select_option("yes")
    assert (len(one.rows("table-5")), one.rows("table-5", 1)) == (8, [])

    page.get_by_label("Method contains").fill("Liu_Talwar")
    assert one.rows("table-5") == ["liu_talwar (threshold=none)", "liu_talwar (threshold=0.7)"]
    page.get_by_label("Method contains").fill("nobody")
    assert one.tables() == []
    assert count.inner_text() == f"0 of {everything} rows, in 0 of 9 tables."

    page.get_by_role("button", name="Show all").click()
    until(page, f"document.querySelector('#count').innerText.startsWith('{everything} of')")
    assert len(one.tables()) == 9


def test_overall_by_epsilon(visit: Open) -> None:
    page = visit().page
    visible = ".overall:not([hidden]) caption"
    assert page.locator(visible).all_inner_texts() == ["All ε: 9 tables"]
    page.get_by_label("Tables that count").select_option("3")
    assert page.locator(visible).all_inner_texts() == ["ε = 3: 3 tables"]
    assert page.evaluate("location.hash") == "#overall=3"


def test_a_view_can_be_linked_to(visit: Open) -> None:
    one = visit()
    one.page.get_by_label("Task", exact=True).select_option("mnist (linear)")
    one.page.get_by_label("Target ε").select_option("8")
    one.page.get_by_label("Method contains").fill("auto & more")
    one.page.get_by_label("Method contains").fill("auto")
    before = (one.tables(), one.rows("table-9"))
    assert before == (["mnist (linear), ε = 8, δ = 1e-05"], ["auto_clipping"])
    one.page.reload()
    assert (one.tables(), one.rows("table-9")) == before
    assert one.page.get_by_label("Method contains").input_value() == "auto"

    # A link within the page leaves the view as it is; a view that is not there shows everything.
    one.page.get_by_role("link", name="Legend").click()
    assert one.tables() == before[0]
    assert len(visit(fragment=f"#task={quote('</script>')}&epsilon=4").tables()) == 9


# --------------------------------------------------------------------------------------------- for everyone


@pytest.mark.parametrize("name", ["sample", "hostile", "empty"])
def test_a_phone_does_not_scroll_sideways(visit: Open, name: str) -> None:
    page = visit(name, width=360).page
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    if name == "empty":
        return
    region = page.locator(".scroll").first
    assert region.evaluate("node => node.scrollWidth > node.clientWidth")
    left = page.locator("tbody th[scope=row]").first.bounding_box()
    region.evaluate("node => { node.scrollLeft = 150 }")
    assert page.locator("tbody th[scope=row]").first.bounding_box() == left  # the method stays in sight
    assert left is not None
    assert left["width"] < 180


CONTRAST = """() => {
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => {
    const [r, g, b] = numbers(color).map(part => part / 255)
      .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color;
    }
    throw new Error("no background");
  };
  const seen = {};
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest("svg, script, style, noscript") || !node.getClientRects().length) continue;
    const [low, high] = [luminance(getComputedStyle(node).color), luminance(behind(node))].sort((a, b) => a - b);
    const kind = node.tagName.toLowerCase();
    seen[kind] = Math.min(seen[kind] ?? 21, (high + 0.05) / (low + 0.05));
  }
  return seen;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(visit: Open, scheme: str) -> None:
    """WCAG 2 AA asks for 4.5 to 1, of all text."""
    page = visit(scheme=scheme).page
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")
    seen = page.evaluate(CONTRAST)
    assert {"p", "a", "h1", "h2", "h3", "button", "td", "bdi", "label", "dd", "dt", "figcaption", "summary"} <= set(
        seen
    )
    assert {kind: ratio for kind, ratio in seen.items() if ratio < 4.5} == {}


def test_names_landmarks_and_focus(visit: Open) -> None:
    page = visit().page
    nameless = page.evaluate("""() => [...document.querySelectorAll(
        "a, button, select, input, summary, [tabindex='0']")]
      .filter(node => !(node.innerText.trim() && !node.matches("select, input, [tabindex='0']"))
        && !(node.labels?.length && node.labels[0].innerText.trim())
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
    page = visit().page
    headers = page.locator("#table-1 thead th")
    assert headers.all_inner_texts() == [column.header for column in row_columns(ACCURACY)]
    for number, column in enumerate(row_columns(ACCURACY)):
        button = headers.nth(number).get_by_role("button")
        assert button.get_attribute("title") == column.explanation
        described = page.locator(f"#{button.get_attribute('aria-describedby')}")
        assert described.inner_text() == column.explanation
    first = board("sample").tables[0].rows[0]
    cells = page.locator("#table-1 tbody tr").first.locator("th, td")
    assert cells.all_inner_texts() == [column.text(first) for column in row_columns(ACCURACY)]
    overall = page.locator("#overall-1 tbody tr").first.locator("th, td")
    best = board("sample").overalls[0].rows[0]
    assert overall.all_inner_texts() == [column.text(best) for column in overall_columns(ACCURACY)]


def test_tables_are_there_without_javascript(browser: Browser, files: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((files / "sample.html").as_uri())
    assert page.get_by_role("table").count() == len(board("sample").tables) + len(board("sample").overalls)
    assert not page.get_by_label("Task", exact=True).is_visible()
    assert page.get_by_text("The charts need JavaScript").is_visible()
    context.close()


# --------------------------------------------------------------------------------------------- strangers


def test_strangers_texts_are_shown_and_do_nothing(visit: Open) -> None:
    one = visit("hostile", fragment=f"#method={quote(boards.HOSTILE[0])}&task={quote(boards.HOSTILE[1])}")
    page = one.page
    assert one.rows("table-3") == [f"{boards.HOSTILE[0]} ({boards.HOSTILE[0]})"]
    page.get_by_role("button", name="Show all").click()
    until(page, "document.querySelectorAll('.result[hidden]').length === 0")
    assert set(one.rows("table-1")) == {f"{text} ({text})" for text in boards.HOSTILE}
    shown = page.locator("#table-1").text_content() or ""
    assert all(text in shown for text in boards.HOSTILE)
    for chart in [chart.name for chart in charts(board("hostile")) if boards.HOSTILE[4] in chart.title] + ["ranks-all"]:
        place = page.locator(f'[data-chart="{chart}"]')
        place.scroll_into_view_if_needed()
        place.locator("svg").wait_for()
    place = page.locator('[data-chart="ranks-all"]')
    for point in place.locator("path[aria-roledescription=point]").all()[:4]:
        point.hover()
        until(page, "document.querySelector('#vg-tooltip-element.visible')?.innerText.includes('mean rank')")
    for mark in page.locator("#table-1 thead button").all()[:3]:
        mark.click()
    assert page.evaluate("[window.pwned, document.querySelectorAll('main img').length]") == [None, 0]
    assert page.locator("#vg-tooltip-element script, #vg-tooltip-element img, #vg-tooltip-element svg").count() == 0
