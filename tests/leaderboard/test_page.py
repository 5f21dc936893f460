"""The page: a snapshot of what it holds, and how it behaves in a real browser that reads it from disk."""

import csv
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dphpo_bench.leaderboard.advice import KINDS, Question, advise, interval_text, lead, measured_rows, settled_on
from dphpo_bench.leaderboard.charts import charts
from dphpo_bench.leaderboard.columns import Column, row_columns, varying
from dphpo_bench.leaderboard.pages import to_html
from dphpo_bench.leaderboard.sentences import Paths, sentences
from dphpo_bench.leaderboard.tables import Board, Row
from dphpo_bench.records.measure import ACCURACY
from tests.leaderboard import boards

ROOT = Path(__file__).parents[2]
BESIDE = Paths(frozenset({"docs/scoring.md", "CONTRIBUTING.md"}))
BUILDERS = {
    "sample": boards.sample_board,
    "guided": boards.guided_board,
    "hostile": boards.hostile_board,
    "empty": boards.empty_board,
}


@cache
def board(name: str) -> Board:
    return BUILDERS[name]()


@cache
def html(name: str) -> str:
    return to_html(board(name), charts(board(name)), BESIDE)


# --------------------------------------------------------------------------------------------- the text


def test_nothing_comes_from_elsewhere() -> None:
    page = html("guided") + html("hostile")
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page
    assert not re.findall(r"""(?:src|action)\s*=\s*["']?\s*(?:https?:|//)""", page)
    assert all(link.startswith("https://arxiv.org/abs/") for link in re.findall('href="(http[^"]*)"', page))
    assert "@import" not in page
    assert "url(" not in page


def test_no_text_of_a_record_ends_a_script_or_starts_a_tag() -> None:
    page = html("hostile")
    scripts = 1 + page.count('<script id="')  # the page's own, and data
    for tag in ("<script", "</script"):
        assert len(re.findall(tag, page, re.IGNORECASE)) == scripts
    assert page.count("<!--") == 0
    assert not re.findall("<(?:img|iframe|svg on)", page)
    for text in boards.HOSTILE[:4]:
        assert text not in page


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
        labels: list[str] = self.page.eval_on_selector_all(
            f"#{table} tbody:nth-of-type({body + 1}) tr[data-name]",
            "rows => rows.filter(row => row.offsetParent !== null).map(row => row.dataset.name)",
        )
        return labels

    def tables(self) -> list[str]:
        """Captions of the visible tables by task and ε."""
        captions: list[str] = self.page.eval_on_selector_all(
            ".result caption", "all => all.filter(each => each.offsetParent !== null).map(each => each.textContent)"
        )
        return captions

    def header(self, table: str, column: int) -> Any:
        return self.page.locator(f"#{table} thead th").nth(column)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("no browser: install chromium or set DPHPO_BENCH_CHROMIUM")
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

    def open_page(name: str = "sample", fragment: str = "", width: int = 1280) -> Visit:
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.set_default_timeout(100_000)
        opened = Visit(page, [], [])
        page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (opened.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: opened.requests.append(request.url))
        page.goto((files / f"{name}.html").as_uri() + fragment)
        visits.append(opened)
        return opened

    yield open_page
    for each in visits:
        each.page.close()
        assert each.complaints == []
        assert len({url.partition("#")[0] for url in each.requests}) == 1


ANSWER = ".answer:not([hidden])"
FILTER = "#controls input[type=search]"
GUIDE = "#guide-form"


def choose(page: Page, epsilon: str) -> None:
    page.locator("#controls label", has_text=re.compile(f"^{epsilon}$")).click()


COLUMNS = varying(row_columns(ACCURACY), boards.sample_board().tables[0].rows)[0]
METRIC = next(at for at, column in enumerate(COLUMNS) if column.key == "metric")


def order(rows: tuple[Row, ...], column: Column, descending: bool) -> list[str]:
    """The labels sorted by a column's values, missing last; ties as they were."""
    known = [row for row in rows if column.value(row) is not None]
    missing = [row for row in rows if column.value(row) is None]
    known = sorted(known, key=lambda row: float(column.value(row) or 0.0) * (-1 if descending else 1))
    return [row.entry.label for row in (*known, *missing)]


def test_answer_and_tables_follow_the_selection(visit: Open) -> None:
    opened = visit()
    page, count = opened.page, opened.page.locator("#count")
    assert [caption.partition(", δ")[0] for caption in opened.tables()] == [
        "cifar10 (linear), ε = 3", "digits (linear), ε = 3", "mnist (linear), ε = 3"
    ]  # fmt: skip
    assert page.locator(f"{ANSWER} figure svg").count() == 1
    choose(page, "8")
    page.locator("#controls select").select_option("mnist (linear)")
    answer = next(each for each in board("sample").answers if (each.subject, each.epsilon) == ("mnist (linear)", 8.0))
    assert page.locator(f"{ANSWER} .sentence").inner_text() == " ".join(sentences(answer))
    assert page.locator(f"{ANSWER} caption strong").inner_text() == "mnist (linear), ε = 8."
    assert [caption.partition(", δ")[0] for caption in opened.tables()] == ["mnist (linear), ε = 8"]
    choose(page, "all")
    assert len(opened.tables()) == 3
    page.locator(FILTER).fill("Liu_Talwar")
    assert opened.rows("table-8") == ["liu_talwar (threshold=none)", "liu_talwar (threshold=0.7)"]
    assert len(page.locator(f"{ANSWER} tbody tr").filter(visible=True).all()) == 2
    assert count.inner_text() == "6 of 27 rows, in 3 of 9 tables, as chosen above."
    page.locator(FILTER).fill("nobody")
    notes = page.locator(".nothing").filter(visible=True)
    assert notes.count() == 4  # answer, ranks, tables, methods
    notes.first.get_by_role("button").click()
    assert page.locator(FILTER).input_value() == ""


def test_sorting_both_ways(visit: Open) -> None:
    opened = visit(fragment="#epsilon=1")
    table, header = board("sample").tables[0], opened.header("table-1", METRIC)
    for direction in ("descending", "ascending"):
        header.get_by_role("button").click()
        assert header.get_attribute("aria-sort") == direction
        assert opened.rows("table-1") == order(table.rows, COLUMNS[METRIC], direction == "descending")
        assert opened.rows("table-1", 1) == order(table.references, COLUMNS[METRIC], direction == "descending")
    choose(opened.page, "3")
    assert opened.rows("table-2") == [row.entry.label for row in board("sample").tables[1].rows]  # left alone


QUESTIONS = [
    Question(records, kind, epsilon, compute)
    for kind in KINDS
    for records, epsilon, compute in (
        (900, 0.3, math.inf),
        (5_000, 0.8, 3.0),
        (50_000, 3.0, 1.0),
        (67_000, 5.0, 9.0),
    )
] + [Question(50, "linear", 1.0), Question(5_000, "linear", 70.0), Question(5_000, "network", 1.0, 0.1)]


def test_the_page_answers_any_question_as_the_command_does(browser: Browser) -> None:
    """On this project's board: the method, its distance and its interval to one decimal, collapses and cost."""
    page = browser.new_page()
    page.goto((ROOT / "leaderboard" / "index.html").as_uri(), timeout=100_000)
    rows = measured_rows((ROOT / "leaderboard" / "leaderboard.csv").read_text(encoding="utf-8"))
    for question in QUESTIONS:
        page.select_option(f"{GUIDE} [name=model]", question.model)
        for name in ("records", "epsilon", "compute"):
            value = getattr(question, name)
            page.fill(f"{GUIDE} [name={name}]", "" if value == math.inf else f"{value:g}")
        answer, option = page.locator("#guide-answer").inner_text(), advise(rows, question).choice
        if option is None:
            assert answer.startswith("Not known: "), (question, answer)
            continue
        assert answer.startswith(f"Take {option.label}: {lead(option.distance.mean)} points"), (question, answer)
        assert interval_text([option.distance]).partition(":")[0] in answer, (question, answer)
        assert f"; {option.collapses.count} of {option.collapses.runs} runs collapsed; " in answer
        assert f"it costs {option.price:g} untuned run" in answer
        assert settled_on(option).partition(" of the weight")[0] in answer


def test_a_link_shows_what_was_chosen_sorted_and_asked(visit: Open) -> None:
    opened = visit(
        "guided", fragment="#epsilon=1&task=cifar10+%28linear%29&method=&sort=nothing:ascending:ranks&sort=x"
    )
    page = opened.page
    for _ in range(2):
        opened.header("table-1", METRIC).get_by_role("button").click()
    page.locator(FILTER).fill("p")
    page.fill(f"{GUIDE} [name=epsilon]", "8")
    page.fill(f"{GUIDE} [name=compute]", "3")
    address = page.evaluate("location.hash")
    assert "&sort=metric%3Aascending%3Atable%2Ccifar10+%28linear%29%2C1" in address
    assert "&guide=linear%2C50000%2C8%2C3" in address
    linked = visit("guided", fragment=address)
    assert (linked.rows("table-1"), linked.tables()) == (opened.rows("table-1"), opened.tables())
    assert linked.page.locator("#guide-answer").inner_text() == page.locator("#guide-answer").inner_text()
    assert linked.page.evaluate("location.hash") == address
    other = visit(fragment=f"#task={quote('</script>')}&epsilon=4")  # a view that is not there shows the first
    assert other.page.locator(f"{ANSWER} caption strong").inner_text() == "all tasks, ε = 3."


def saved(page: Page, path: Path) -> list[dict[str, str]]:
    with page.expect_download() as waiting:
        page.locator(".export").first.click()
    waiting.value.save_as(path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_shown_can_be_saved_with_its_seeds(visit: Open, tmp_path: Path) -> None:
    opened = visit(fragment="#epsilon=1&task=digits+%28linear%29")
    opened.page.locator(FILTER).fill("a")
    lines = saved(opened.page, tmp_path / "runs.csv")
    rows = {row.entry.label: row for row in board("sample").tables[3].everyone}
    shown = opened.rows("table-4") + opened.rows("table-4", 1)
    expected = [
        (label, str(seed), "" if value is None else f"{value:.6g}", f"results/{path}")
        for label in shown
        for (seed, path), value in zip(rows[label].records, rows[label].values, strict=True)
    ]
    assert [(line["label"], line["seed"], line["value"], line["record"]) for line in lines] == expected
    assert {line["finished"] for line in lines} == {"true", "false"}
    assert {line["setting"] for line in lines} == {"digits (linear)"}


def test_a_saved_text_is_no_formula(visit: Open, tmp_path: Path) -> None:
    page = visit("hostile").page
    page.evaluate("""() => { document.querySelector('summary[data-method]').dataset.method = '=1+"2",3'; }""")
    lines = saved(page, tmp_path / "runs.csv")
    assert {line["label"] for line in lines} >= {f"{text} ({text})" for text in boards.HOSTILE}
    assert '\'=1+"2",3' in {line["method"] for line in lines}
    assert all(None not in line and None not in line.values() for line in lines)


def test_a_phone_does_not_scroll_sideways(visit: Open) -> None:
    page = visit("hostile", width=360).page
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]


def test_everything_is_there_without_javascript(browser: Browser, files: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((files / "guided.html").as_uri())
    guided = board("guided")
    tables = page.locator(".data").filter(visible=True).count()
    assert tables == 2 + len(guided.tables) + len(guided.overalls) + len(guided.answers)  # methods, tasks
    for form in ("#controls", GUIDE):
        assert not page.locator(form).is_visible()
    context.close()


def test_strangers_texts_are_shown_and_do_nothing(visit: Open) -> None:
    opened = visit("hostile", fragment=f"#method={quote(boards.HOSTILE[0])}&task={quote(boards.HOSTILE[1])}&epsilon=1")
    page = opened.page
    page.locator(FILTER).fill("")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.evaluate("window.pwned") is None
    text = page.locator("main").inner_text()
    for hostile in boards.HOSTILE[:4]:
        assert hostile in text


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1400)])
def test_axe_finds_nothing(browser: Browser, files: Path, scheme: Literal["light", "dark"], width: int) -> None:
    path = os.environ.get("DPHPO_BENCH_AXE")
    if not path:
        pytest.skip("axe-core is not here: npm pack axe-core, and set DPHPO_BENCH_AXE to its axe.min.js")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(100_000)
    page.goto((files / "guided.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    page.add_script_tag(content=Path(path).read_text(encoding="utf-8"))
    violations = page.evaluate("""async () => (await axe.run()).violations.map(
        each => [each.id, each.help, ...each.nodes.slice(0, 3).map(node => node.html.slice(0, 120))])""")
    page.close()
    assert violations == []
