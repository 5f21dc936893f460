"""The board's pages, read by a Markdown parser: what strangers wrote stays text, and nothing is lost."""

import re
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dphpo_bench.base.text import one_line
from dphpo_bench.leaderboard.charts import Chart
from dphpo_bench.leaderboard.columns import row_columns
from dphpo_bench.leaderboard.pages import MAX_LISTED, MAX_TEXT, code, prose, to_markdown
from dphpo_bench.leaderboard.sentences import Paths
from dphpo_bench.leaderboard.submissions import Refused
from dphpo_bench.leaderboard.tables import Board
from dphpo_bench.leaderboard.written import Finding
from dphpo_bench.records.measure import ACCURACY
from tests.leaderboard.boards import HOSTILE, hostile_board, sample_board, table

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

# Words that are more than text to CommonMark or to GitHub, and hence must end up in code spans.
MARKUP = (
    "@someone", "@org/team", "#12", "owner/repo#12", "GH-12", "someone@example.org", ":smile:", ":+1:", "$x^2$", "$$",
    "deadbeef", "deadbeef-x", "deadbeef-12", "0123456789abcdef0123456789abcdef01234567", "1234567",
    "http://example.org", "www.example.org", "https://example.org/?a=b", "<b>", "<img src=x>", "<http://example.org>",
    "&lt;", "&#42;", "[a](b)", "[a][b]",
    "[^1]", "![a](b)", "*a*", "**a**", "_a_", "__a__", "~~a~~", "`a`", "``", "a|b", "\\", "\\*", "{{a}}", "<!--",
    "a_b_", "a\\|b",
)  # fmt: skip
PIECES = st.sampled_from([*MARKUP, *"`|\\[]()<>&*_~#$@!:.-+ =a1é", "``", "\\|", "](", "word", " "])
TEXTS = st.lists(PIECES).map("".join) | st.text(max_size=40)


OURS = {f"{kind}_{end}" for kind in ("em", "link") for end in ("open", "close")}
"""Markup within cells that is not a stranger's."""


def inline(markdown: str) -> list[Token]:
    """The tokens of the only line of inline content that `markdown` consists of."""
    (block,) = (token for token in PARSER.parse(markdown) if token.type == "inline" and token.content != "head")
    return block.children or []


def shown(tokens: list[Token]) -> str:
    """The text of tokens that are nothing but text or code."""
    assert {token.type for token in tokens} <= {"text", "text_special", "code_inline"}, tokens
    return "".join(token.content for token in tokens)


def cell(text: str) -> list[Token]:
    """The tokens of a table's only cell, escaped as rows are."""
    escaped = text.replace("|", "\\|")
    tokens = PARSER.parse(f"| head |\n| --- |\n| {escaped} |\n\nafter")
    cells = [tokens[at + 1].children or [] for at, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 1
    assert tokens[-2].content == "after"
    return cells[0]


def tables(markdown: str) -> Iterator[list[list[str]]]:
    """The cells of each table as plain text, row by row, the header first; emphasis and links of ours aside."""
    rows: list[list[str]] = []
    tokens = PARSER.parse(markdown)
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type in ("td_open", "th_open"):
            children = [one for one in tokens[at + 1].children or [] if one.type not in OURS]
            rows[-1].append(shown(children).replace("\u00a0", " "))
        elif token.type == "table_close":
            yield rows


def images(markdown: str) -> list[str]:
    return re.findall(r'src="(?:\.\./)?plots/([a-z0-9-]+)\.svg"', markdown)


def overall_page(board: Board) -> str:
    return to_markdown(board, [])["tables/overall.md"]


BESIDE = Paths(frozenset({"docs/scoring.md", "CONTRIBUTING.md"}))


@settings(deadline=None, max_examples=40)
@given(TEXTS)
@example("`" * 81 + "<b>")
@example("a`b``c```d")
@example("`a` and ` b")
def test_code_shows_the_text_as_one_code_span(text: str) -> None:
    expected = one_line(text, MAX_TEXT)
    for tokens in (inline(f"x {code(text)}")[1:], cell(code(text))):
        assert shown(tokens) == expected
        assert [token.type for token in tokens] == (["code_inline"] if expected else [])


@settings(deadline=None, max_examples=40)
@given(TEXTS)
@example("![a](b) [c]")
@example("([(*a*)])!")
def test_prose_shows_the_text_with_all_markup_in_code_spans(text: str) -> None:
    expected = one_line(text, MAX_TEXT)
    for tokens in (inline(f"x{prose(text) and ' '}{prose(text)}"), cell(f"x{prose(text) and ' '}{prose(text)}")):
        assert shown(tokens) == f"x {expected}".rstrip()
        outside = "".join(token.content for token in tokens if token.type == "text")
        assert not set(outside) & set('@#<>&*_`~$|\\{}^"')


def test_plain_words_and_numbers_stay_as_they_are() -> None:
    text = "Untuned runs (of 3 seeds) reach 64.7 ± 0.3 % at ε = 3, the oracle's end-to-end 65; why? 1,234 −0.5 2.5%."
    assert prose(text) == text
    assert prose("On CIFAR-10's features, or SST-2.") == "On CIFAR-10's features, or SST-2."
    assert prose("behind auto_clipping, by 1–2") == "behind `auto_clipping`, by 1–2"
    assert prose("67.10 [66.00, 67.90]") == r"67.10 \[66.00, 67.90\]"


def test_hostile_texts_are_shown_and_are_nothing_but_text() -> None:
    hostile = hostile_board()
    markup = table(("*a* | `b` <c>", "d", 0.9), 3.0, [(word, word, 0.01, 0.1, 2.0) for word in MARKUP])
    hostile = replace(
        hostile,
        tables=(*hostile.tables, markup),
        findings=(*(Finding(word, f"See {word}!", ((word, word),), word) for word in MARKUP), *hostile.findings),
        rejected=tuple(Refused(word, word) for word in MARKUP),
        failed=tuple(Refused(text, text) for text in HOSTILE),
    )
    drawn = [
        Chart(f"{kind}-{number}", f"About, {text}", f"About {text}", "", kind, markup.task_model)
        for kind in ("answer", "metric")
        for number, text in enumerate((*HOSTILE, *MARKUP))
    ]
    pages = to_markdown(hostile, drawn, BESIDE)
    assert {"claims.md", "queries.md"} < pages.keys()
    whole = "\n\n".join(pages.values())
    tokens = [token for page in pages.values() for token in PARSER.parse(page)]
    flat = [one for token in tokens for one in ([token] if token.children is None else token.children)]
    # Links and HTML are ours alone.
    links = {token.attrs["href"] for token in flat if token.type == "link_open"}
    assert all(re.fullmatch(r"(\.\./)*([a-z]+/)?[A-Za-z0-9-]*(\.[a-z]+)?(#[a-z-]+)?", link) for link in links), links
    assert not [token for token in flat if token.type in ("html_inline", "image", "fence", "code_block")]
    ours = re.compile(
        r"<!-- Generated [^<>]* -->|</?details>|<details><summary>[\w ,:=.]+</summary>|"
        r'<p><img src="(?:\.\./)?plots/[a-z0-9-]+\.svg" alt="[^<>"]*"></p>'
    )
    for token in flat:
        if token.type == "html_block":
            assert all(ours.fullmatch(line) for line in token.content.strip().splitlines()), token.content
    assert sorted(images(whole)) == sorted(one.name for one in drawn)
    rows = [row for page in pages.values() for found in tables(page) for row in found]
    labels = {row[0].removeprefix("reference: ") for row in rows}
    assert labels >= {row_columns(ACCURACY)[0].text(row) for row in markup.rows}
    for text in HOSTILE:
        assert any(label.startswith(one_line(text, MAX_TEXT)) for label in labels), text
    headings = [
        shown(tokens[at + 1].children or [])
        for at, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h1"
    ]
    assert {one_line(one.task_model, MAX_TEXT) for one in hostile.tables} <= set(headings)


def test_long_lists_of_records_are_cut_and_counted() -> None:
    page = overall_page(sample_board())
    assert page.count("is not that of its ledger.") == 2 * MAX_LISTED
    assert "And 70 more: `dphpo-bench leaderboard validate` lists all." in page
    assert "<summary>120 rejected</summary>" in page
    assert "read: 500, of which 3 are of superseded versions, or of seeds that the suite does not ask for. The" in page
    assert "The runs took 2 h 5 min" in page
    few = replace(sample_board(), rejected=(Refused("a.json", "Bad."),), failed=())
    page = overall_page(few)
    assert "- `a.json`: Bad.\n" in page
    assert "more:" not in page
    assert "failed</summary>" not in page
