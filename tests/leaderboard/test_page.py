"""The page: what it holds, and how it behaves in a real browser that reads it from disk."""

import csv
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal
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
    "guided": boards.guided_board,
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


def test_lists_of_tests_do_not_say_that_nobody_had_seen_them() -> None:
    """No constant was settled on them; but their records may be those of development tables, and results were seen."""
    guided, page = board("guided"), html("guided")
    seen = "Version 12 of <code>hyfreedp</code> was made after version 11 had been seen to fail on networks"
    assert "settled nothing" not in page
    assert page.count(", test tasks: 2 tables on which this project settled no constant.") == 3
    assert page.count(", test tasks: 6 tables on which this project settled no constant.") == 1
    assert page.count(seen) == page.count("<p>Test tables are not all unseen. Version 12") == 1

    other = replace(guided.tables[0], model="pretrained", setting="cifar10 (pretrained)", stage="development")
    drawn = [
        replace(other, task="synthetic", setting=f"synthetic ({stage})", stage=stage)
        for stage in ("development", "test")
    ]
    overalls = [replace(each, tables=(*each.tables, drawn[1].title)) for each in guided.overalls]
    more = replace(guided, tables=(*guided.tables, other, *drawn), overalls=tuple(overalls))
    assert "Development tables have the records of cifar10 (linear), too. Version 12" in to_html(more)
    strangers = [replace(each, rows=each.rows[1:]) for each in overalls]
    assert seen not in html("sample") + to_html(replace(more, overalls=tuple(strangers)))


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
        name: str = "sample",
        fragment: str = "",
        width: int = 1280,
        height: int = 800,
        scheme: Literal["light", "dark"] = "light",
        forced: Literal["active", "none"] = "none",
    ) -> Visit:
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, forced_colors=forced)
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
FILTER = "#controls input[type=search]"


def choose(page: Page, epsilon: str) -> None:
    page.locator("#controls label", has_text=re.compile(f"^{epsilon}$")).click()


# --------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_shipped_board_fits_the_first_screen(browser: Browser, width: int, height: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(100_000)
    page.goto((ROOT / "leaderboard" / "index.html").as_uri())
    for epsilon in ("1", "8", "all", "3"):
        choose(page, epsilon)
        bottom = page.locator(f"{ANSWER} .sentence").evaluate("node => node.getBoundingClientRect().bottom")
        assert bottom <= height
        if width == 1400:  # there is room for rows, and for all columns
            fifth = page.locator(f"{ANSWER} tbody tr").nth(4).evaluate("node => node.getBoundingClientRect().bottom")
            assert fifth <= height
            assert page.evaluate(
                f"[...document.querySelectorAll('{ANSWER} .scroll')].every(one => one.scrollWidth <= one.clientWidth)"
            )
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

    page.locator(FILTER).fill("Liu_Talwar")
    assert one.rows("table-5") == ["liu_talwar (threshold=none)", "liu_talwar (threshold=0.7)"]
    assert len(page.locator(f"{ANSWER} tbody tr").filter(visible=True).all()) == 2
    assert count.inner_text() == "6 of 30 rows, in 3 of 9 tables, as chosen above."
    page.locator(FILTER).fill("nobody")
    assert count.inner_text() == "0 of 30 rows, in 3 of 9 tables, as chosen above."


def test_a_filter_without_a_match_says_so_and_leads_back(visit: Open) -> None:
    page = visit().page
    notes = page.locator(".nothing").filter(visible=True)
    drawn = page.locator(".forest, .data, .panels").filter(visible=True)
    before = drawn.count()
    assert notes.count() == 0
    page.locator(FILTER).fill("nobody")
    words = "No method that is shown here has nobody in its name. Show all methods"
    assert [note.inner_text() for note in notes.all()] == [words] * 4  # answer, ranks, tables, methods
    assert drawn.count() == 0
    page.locator(FILTER).fill("dp_sgd")
    card = page.locator("details[data-name=dp_sgd]")
    card.locator("summary").first.click()
    assert card.locator("tbody tr").filter(visible=True).count() == 9
    card.locator("summary").first.click()
    page.locator(FILTER).fill("grid_oracle")  # ranked nowhere: a table of references is left, no head without rows
    assert page.locator(".data tbody").filter(visible=True).count() == len(
        page.locator(".data").filter(visible=True).all()
    )
    page.locator(FILTER).fill("nobody")
    notes.first.get_by_role("button").click()
    assert (notes.count(), drawn.count()) == (0, before)
    assert page.locator(FILTER).input_value() == ""
    assert page.evaluate("document.activeElement.name") == "method"
    assert page.evaluate("location.hash").endswith("method=")


def test_a_view_can_be_linked_to(visit: Open) -> None:
    one = visit()
    one.page.locator("#controls select").select_option("mnist (linear)")
    choose(one.page, "8")
    one.page.locator(FILTER).fill("auto & more")
    one.page.locator(FILTER).fill("auto")
    before = (one.tables(), one.rows("table-9"))
    assert before[0][0].startswith("mnist (linear), ε = 8, δ = 1e-05.")
    assert before[1] == ["auto_clipping"]
    one.page.reload()
    assert (one.tables(), one.rows("table-9")) == before
    assert one.page.locator(FILTER).input_value() == "auto"

    # A link within the page leaves the view as it is; a view that is not there shows the first.
    one.page.get_by_role("link", name="Legend").click()
    assert one.tables() == before[0]
    other = visit(fragment=f"#task={quote('</script>')}&epsilon=4")
    assert other.page.locator(f"{ANSWER} caption strong").inner_text() == "all tasks, ε = 3."


def test_sorting_and_the_place_are_in_the_address(visit: Open) -> None:
    """A link shows the same view: what was chosen, sorted, filtered and gone to."""
    one = visit(fragment="#epsilon=1&task=cifar10+%28linear%29&method=&sort=nothing:ascending:ranks&sort=x")
    header, other = one.header("table-1", COLUMN["metric"]), one.header("overall-2", 0)
    for button in (header, header, other):
        button.get_by_role("button").click()
    page = one.page
    page.locator(FILTER).fill("p")
    shown = (one.rows("table-1"), one.rows("overall-2"), one.tables())
    assert shown[0] == [label for label in order(board("sample").tables[0].rows, "metric", False) if "p" in label]
    address = page.evaluate("location.hash")
    assert (
        "&sort=metric%3Aascending%3Atable%2Ccifar10+%28linear%29%2C1&sort=method%3Aascending%3Aoverall%2C%2C1"
        in address
    )
    linked = visit(fragment=address)
    assert (linked.rows("table-1"), linked.rows("overall-2"), linked.tables()) == shown
    assert linked.header("table-1", COLUMN["metric"]).get_attribute("aria-sort") == "ascending"
    assert linked.page.locator("#overall-2").evaluate(  # the table sorted last is in sight
        "node => node.getBoundingClientRect().top >= -1 && node.getBoundingClientRect().top < innerHeight"
    )
    assert linked.page.evaluate("location.hash") == address

    # A link within the page leaves the view in the address; the way back leads back, to the order of the page.
    page.get_by_role("link", name="Legend").click()
    until(page, "location.hash.includes('at=legend')")
    assert page.evaluate("location.hash") == f"{address}&at=legend"
    gone = visit(fragment=f"{address}&at=legend")
    assert (gone.rows("table-1"), gone.rows("overall-2")) == shown[:2]
    top = gone.page.locator("#legend").evaluate("node => node.getBoundingClientRect().top")
    assert -1 <= top < 800  # half a pixel is rounding
    page.go_back()
    until(page, f"location.hash === {address!r}")
    page.evaluate("location.hash = '#epsilon=1'")
    until(page, "!document.querySelector('[aria-sort]')")
    assert one.rows("table-1") == [row.contestant.label for row in board("sample").tables[0].rows]


GUIDE = "#guide-form"


def test_the_question_to_the_guide_is_in_the_address(visit: Open) -> None:
    one = visit("guided")
    page, answer = one.page, one.page.locator("#guide-answer")
    first = answer.inner_text()
    assert page.evaluate("location.hash") == ""
    page.select_option(f"{GUIDE} [name=epsilon]", "8")
    page.select_option(f"{GUIDE} [name=compute]", "3")
    assert page.evaluate("location.hash") == "#epsilon=3&task=all+tasks&method=&guide=linear%2C50000%2C8%2C3"
    asked = answer.inner_text()
    assert asked != first
    choose(page, "1")
    address = page.evaluate("location.hash")
    assert address == "#epsilon=1&task=all+tasks&method=&guide=linear%2C50000%2C8%2C3"
    linked = visit("guided", fragment=address).page
    assert linked.locator("#guide-answer").inner_text() == asked
    assert linked.locator(f"{GUIDE} [name=compute]").input_value() == "3"
    assert linked.locator(f"{ANSWER} caption strong").inner_text() == "all tasks, ε = 1."
    assert linked.evaluate("location.hash") == address

    # What is not there, or not asked, is as on the page that was opened first.
    other = visit("guided", fragment="#epsilon=1&guide=tree%2C50000%2C4%2C").page
    assert other.locator("#guide-answer").inner_text() == first
    page.evaluate("location.hash = '#epsilon=1'")
    until(page, f"document.getElementById('guide-answer').textContent === {first!r}")


def test_what_is_shown_can_be_saved_with_its_seeds(visit: Open, tmp_path: Path) -> None:
    one = visit(fragment="#epsilon=1&task=digits+%28linear%29")
    page, table = one.page, board("sample").tables[3]
    one.header("table-4", COLUMN["metric"]).get_by_role("button").click()
    page.locator(FILTER).fill("a")
    with page.expect_download() as waiting:
        page.locator(".export").first.click()
    waiting.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = {row.contestant.label: row for row in table.everyone}
    shown = one.rows("table-4") + one.rows("table-4", 1)
    assert "liu_talwar (threshold=0.7)" in shown
    expected = [
        {
            "setting": "digits (linear)",
            "task": "digits",
            "model": "linear",
            "epsilon_target": "1",
            "delta": "1e-05",
            "method": rows[label].contestant.method,
            "label": label,
            "parameters": rows[label].contestant.parameters,
            "reference": str(rows[label].contestant.reference).lower(),
            "seed": str(seed),
            "metric": "accuracy",
            "value": "" if value is None else f"{value:.6g}",
            "finished": str(value is not None).lower(),
            "record": f"results/{path}",
        }
        for label in shown
        for (seed, path), value in zip(rows[label].records, rows[label].values, strict=True)
    ]
    assert lines == expected
    assert {line["finished"] for line in lines} == {"true", "false"}


def test_a_saved_text_is_no_formula(visit: Open, tmp_path: Path) -> None:
    page = visit("hostile").page
    page.evaluate("""() => { document.querySelector('summary[data-method]').dataset.method = '=1+"2",3'; }""")
    with page.expect_download() as waiting:
        page.locator(".export").first.click()
    waiting.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["label"] for line in lines} >= {f"{text} ({text})" for text in boards.HOSTILE}
    assert '\'=1+"2",3' in {line["method"] for line in lines}
    assert all(None not in line and None not in line.values() for line in lines)


# --------------------------------------------------------------------------------------------- for everyone


@pytest.mark.parametrize("name", ["sample", "guided", "hostile", "empty"])
def test_a_phone_does_not_scroll_sideways(visit: Open, name: str) -> None:
    page = visit(name, width=360).page
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    if name == "empty":
        return
    region = page.locator(".overall:not([hidden]) .scroll").first
    assert region.evaluate("node => node.scrollWidth > node.clientWidth")
    first = region.locator("tbody th[scope=row]").first
    left = first.bounding_box()
    region.evaluate("node => { node.scrollLeft = 150 }")
    assert first.bounding_box() == left  # the method stays in sight
    assert left is not None
    assert left["width"] < 180


WIDE = ("method", "mean ± 95 %", "worst", "cost", "on tuning,", "cross entropy")


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_no_width_loses_a_column_or_cuts_a_name(visit: Open, width: int) -> None:
    page = visit("hostile" if width == 820 else "sample", width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    region = page.locator(f"{ANSWER} .scroll")
    assert region.evaluate("node => node.scrollWidth > node.clientWidth") == (width < 1000)
    headers = [text.split("\n")[0] for text in region.locator("thead th").filter(visible=True).all_inner_texts()]
    assert [name for name in WIDE if not any(header.startswith(name) for header in headers)] == []
    assert all(cell.is_visible() for cell in region.locator("tbody tr").first.locator("th, td").all())
    assert page.locator(FILTER).is_visible()
    assert page.locator("#controls label", has_text="Method").is_visible()
    name = region.locator("tbody th").first
    left = name.bounding_box()
    region.evaluate("node => { node.scrollLeft = 200 }")
    assert name.bounding_box() == left  # the method stays in sight
    assert left is not None
    assert left["width"] < max(250, width / 2.5)
    cut = page.evaluate("""() => [...document.querySelectorAll(".forest th, .forest td, figcaption, .data th, select")]
      .filter(node => node.offsetParent && getComputedStyle(node).overflowX !== "visible"
        && node.scrollWidth > node.clientWidth)
      .map(node => node.textContent.slice(0, 60))""")
    assert cut == []
    beyond = page.evaluate("""() => [...document.querySelectorAll("caption > span")].filter(node => node.offsetParent
        && node.getBoundingClientRect().right > node.closest(".scroll").getBoundingClientRect().right + 1).length""")
    assert beyond == 0
    assert page.locator("text=…").count() == 0


def test_print_has_all_columns_and_no_controls(visit: Open) -> None:
    """On A4 with the page's margins: 186 mm at 96 dots an inch."""
    page = visit("guided", width=703).page
    page.select_option(f"{GUIDE} [name=epsilon]", "8")
    page.emulate_media(media="print")
    table = page.locator(f"{ANSWER} .forest")
    assert table.evaluate("node => node.getBoundingClientRect().right") <= 703
    assert all(cell.is_visible() for cell in table.locator("tbody tr").first.locator("th, td").all())
    for gone in ("#controls", GUIDE, "header nav", ".export", ".nothing"):
        assert page.locator(gone).filter(visible=True).count() == 0, gone
    assert page.locator("#guide-answer").is_visible()
    page.set_viewport_size({"width": 500, "height": 800})  # a small sheet, which is no phone: the question stands there
    (asked,) = page.locator("#guide-table tbody tr").filter(visible=True).all()
    assert asked.inner_text().split("\t")[:3] == ["linear", "50,000", "8"]


def test_forced_colours_show_what_colours_told(visit: Open) -> None:
    """The chosen ε, lines and dots against the background, what differs by shade, and the grey of uncertain rows."""
    page = visit("guided", scheme="dark", forced="active").page
    style = "getComputedStyle(document.querySelector({!r}), {!r}).{}"

    def look(selector: str, name: str, pseudo: str = "") -> str:
        return str(page.evaluate(style.format(selector, pseudo, name)))

    chosen, others = "fieldset :checked + span", "fieldset :not(:checked) + span"
    assert look(chosen, "backgroundColor") != look(others, "backgroundColor")
    page.emulate_media(forced_colors="none")
    assert look(chosen, "backgroundColor") != look(others, "backgroundColor")
    page.emulate_media(forced_colors="active")
    canvas = look("body", "backgroundColor")
    for mark in ("svg circle.better", "svg rect.worse", "symbol line.zero", "symbol line.untuned", ".panels line.own"):
        assert look(f"main {mark}", "stroke") not in (canvas, "none"), mark
    assert look("main svg circle.better", "fill") != look("main svg circle.alike", "fill") == canvas
    shades = ("shade1", "shade3", "shade4")  # of three ε
    assert len({look(f"main svg .path.{shade}", "strokeDasharray") for shade in shades}) == 3
    assert "the more broken a line, the larger its ε" in look("figure:has(> .paths) > figcaption", "content", "::after")
    for cell in (f"{ANSWER} tbody .cost-plot", f"{ANSWER} tbody .calibration"):
        assert look(cell, "borderTopColor", "::after") != canvas
    assert look(f"{ANSWER} tbody .cost-plot", "backgroundColor", "::after") not in (canvas, "rgba(0, 0, 0, 0)")
    assert "gradient" in look(f"{ANSWER} tbody .calibration", "backgroundImage")


@pytest.mark.parametrize("forced", ["none", "active"])
def test_equivalent_rows_are_bold_and_uncertain_ones_grey_with_a_mark(
    visit: Open, forced: Literal["active", "none"]
) -> None:
    page = visit(forced=forced).page
    page.evaluate(f"""() => ["equivalent", "uncertain", ""].forEach((kind, at) => {{
        document.querySelectorAll("{ANSWER} tbody tr")[at].className = kind; }})""")
    looks = page.evaluate(f"""() => [...document.querySelectorAll("{ANSWER} tbody a")].slice(0, 3).map(node =>
        [getComputedStyle(node).fontWeight, getComputedStyle(node, "::after").content])""")
    assert looks == [["700", "none"], ["400", '" ?"'], ["400", "none"]]
    grey, ink = (
        page.evaluate(f"getComputedStyle(document.querySelectorAll('{ANSWER} tbody td.number')[{at}]).color")
        for at in (4, 8)
    )
    assert grey != ink
    for media in ("screen", "print"):
        page.emulate_media(media=media)
        assert page.evaluate(f"getComputedStyle(document.querySelectorAll('{ANSWER} tbody tr')[1]).color") != ink


def stops(page: Page, most: int) -> list[str]:
    """Where the Tab key leads, up to a table."""
    seen = []
    for _ in range(most):
        page.keyboard.press("Tab")
        node, is_table, outline = page.evaluate("""(node => [node.textContent.trim().slice(0, 30) || node.name,
            !!node.closest(".scroll"), getComputedStyle(node.type === "radio" ? node.nextSibling : node).outlineStyle]
            )(document.activeElement)""")
        assert outline == "solid" or node == "task", node  # the browser outlines a list of its own
        seen.append(node)
        if is_table:
            break
    return seen


def test_the_keyboard_reaches_each_table_soon(visit: Open) -> None:
    page = visit("guided").page
    focus = "document.activeElement"
    way = stops(page, 20)
    assert page.evaluate(f"{focus}.closest('.guide') !== null")
    assert len(way) <= 15 - 1  # a board with claims has one more link to its sections
    assert len(stops(page, 20)) <= 5
    assert page.evaluate(f"{focus}.closest('.answer') !== null")
    page.keyboard.press("Tab")  # the links of a table are one stop, arrow keys lead to the others
    names = [page.evaluate(f"{focus}.textContent")]
    for key in ("ArrowDown", "ArrowUp", "ArrowUp", "End", "Home", "ArrowDown"):
        page.keyboard.press(key)
        names.append(page.evaluate(f"{focus}.textContent"))
    labels = [place.contestant.label for place in board("sample").answers[1].everyone]
    assert names == [labels[at] for at in (0, 1, 0, 0, -1, 0, 1)]
    page.keyboard.press("Tab")
    assert not page.evaluate(f"!!{focus}.closest('.forest')")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(f"{focus}.textContent") == labels[1]  # where one left it
    page.locator(FILTER).fill(labels[2])
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focus}.textContent") == labels[2]  # what is hidden is no stop

    for name in ("Ranks", "Tables", "Who beats whom"):
        link = page.get_by_role("navigation").get_by_role("link", name=name)
        if link.count():
            link.focus()
            page.keyboard.press("Enter")
            assert len(stops(page, 5)) <= 3, name


def test_terms_are_explained_where_they_first_stand(visit: Open) -> None:
    page = visit("guided", width=1400, height=900).page
    defined = page.locator(".defined")
    for term in ("Oracle", "Untuned", "Table"):
        assert defined.locator("b", has_text=term).bounding_box()["y"] < 300  # type: ignore[index]
    text = page.locator("main").inner_text()
    first = text.lower().index("oracle")
    assert text[first:].startswith("Oracle: the best values of a grid whose search costs no ε")
    assert text.lower().index("untuned") == text.index("Untuned: one run of auto_clipping")
    assert defined.count() == 1
    assert visit("empty").page.locator(".defined").count() == 0  # there is nothing to explain


def test_a_table_is_one_task_and_model_at_one_epsilon() -> None:
    """The word means nothing else on the page: what sums up several of them has another name."""
    text = re.sub("<(script|style).*?</\\1>|<[^>]*>", " ", html("sample"), flags=re.DOTALL)
    assert "Tables: one task and model at one ε each" in text
    assert not re.findall("overall table|data tables?|tables by task", text, re.IGNORECASE)


@pytest.mark.parametrize("width", [390, 820, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, files: Path, scheme: Literal["light", "dark"], width: int) -> None:
    path = os.environ.get("DPHPO_BENCH_AXE")
    if not path:
        pytest.skip("axe-core is not here: npm pack axe-core, and set DPHPO_BENCH_AXE to its axe.min.js")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(100_000)
    page.goto((files / "guided.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.add_script_tag(content=Path(path).read_text(encoding="utf-8"))
    found = page.evaluate("""async () => (await axe.run()).violations.map(
        one => [one.id, one.help, ...one.nodes.slice(0, 3).map(node => node.html.slice(0, 120))])""")
    page.close()
    assert found == []


def test_names_landmarks_and_focus(visit: Open) -> None:
    page = visit("guided").page
    nameless = page.evaluate("""() => [...document.querySelectorAll(
        "a, button, select, input, summary, div[tabindex='0']")]
      .filter(node => !(node.textContent.trim() && !node.matches("select, input, div"))
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
        assert page.get_by_role(landmark).count() == 1
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
    page.set_default_timeout(100_000)
    page.goto((files / "guided.html").as_uri())
    guided = board("guided")
    assert page.locator(".data").filter(visible=True).count() == 1 + len(guided.tables) + len(guided.overalls)
    assert page.locator("#guide-table tbody tr").filter(visible=True).count() == 3  # a row for each ε
    assert page.locator(".forest").filter(visible=True).count() == len(guided.answers)
    for form in ("#controls", GUIDE):
        assert not page.locator(form).is_visible()
    context.close()


# --------------------------------------------------------------------------------------------- strangers


def test_strangers_texts_are_shown_and_do_nothing(visit: Open) -> None:
    one = visit("hostile", fragment=f"#method={quote(boards.HOSTILE[0])}&task={quote(boards.HOSTILE[1])}&epsilon=1")
    page = one.page
    assert one.rows("table-3") == [f"{boards.HOSTILE[0]} ({boards.HOSTILE[0]})"]
    page.locator(FILTER).fill("")
    assert set(one.rows("table-3")) == {f"{text} ({text})" for text in boards.HOSTILE}
    for place in (page.locator("#table-3"), page.locator(ANSWER), page.locator("#methods ~ .card").first):
        shown = place.text_content() or ""
        assert "<" in shown or "window" in shown
    assert all(text in (page.locator(ANSWER).text_content() or "") for text in boards.HOSTILE)
    for mark in page.locator("#table-3 thead button").all()[:3]:
        mark.click()
    page.locator(f"{ANSWER} tbody a").first.click()
    assert page.evaluate("[window.pwned, document.querySelectorAll('main img').length]") == [None, 0]
