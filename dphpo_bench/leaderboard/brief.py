"""The board in brief: a line for each method and task–model pair; and sources of its rows, for links."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from dphpo_bench.base.text import count
from dphpo_bench.contract import registry
from dphpo_bench.leaderboard.answers import TESTS, Answer, Place
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.entries import median
from dphpo_bench.leaderboard.sentences import first_answers
from dphpo_bench.leaderboard.submissions import built_in
from dphpo_bench.leaderboard.tables import Row, Table
from dphpo_bench.leaderboard.values import Entry
from dphpo_bench.records.measure import NOTHING, Measure, change_text, metric_text

_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Paths:
    """The project's files that lie beside a leaderboard, so that links to them lead somewhere."""

    present: frozenset[str] = frozenset()

    @classmethod
    def beside(cls, folder: Path) -> "Paths":
        root = folder.absolute().parent
        pages = ("docs/guide.md", "docs/scoring.md", "CONTRIBUTING.md")
        names = (*pages, *(f"methods/{name}.py" for name in registry.methods()))
        return cls(frozenset(f"../{name}" for name in names if (root / name).is_file()))

    def link(self, name: str) -> str | None:
        return f"../{name}" if f"../{name}" in self.present else None


@dataclass(frozen=True)
class About:
    summary: str
    reference: str
    paper: str | None
    source: str


@cache
def about(method: str) -> About | None:
    """Return what this project says of the method; None for a stranger's, whatever is installed here."""
    cls = built_in("method").get(method)
    if cls is None:
        return None
    named = _ARXIV.search(f"{cls.reference} {cls.__doc__}")
    paper = f"https://arxiv.org/abs/{named[1]}" if named else None
    return About(cls.summary, cls.reference, paper, f"methods/{method}.py")


def record_links(records: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    return [(seed, f"results/{quote(path)}") for seed, path in records]


MOST_LINES = 18
"""The most methods, task–model pairs, or answers, that a short page lists; the others are counted."""


@dataclass(frozen=True)
class Column:
    """A column of a table of the short page.

    Attributes:
        explanation: for the legend; may be empty.
        kind: of its cells: "number", "text", or "label", the name of an entry.
    """

    header: str
    explanation: str
    text: Callable[[Any], str]
    kind: str = "number"


@dataclass(frozen=True)
class MethodLine:
    """An entry in the first answers.

    Attributes:
        places: its place by ε.
        rows: its rows in the tables of these answers, with each table.
        counted: its rows in all tables that count, those of other metrics, too.
        measure: of the answers.
    """

    entry: Entry
    places: Mapping[float, Place]
    rows: Sequence[tuple[Table, Row]]
    counted: Sequence[tuple[Table, Row]]
    measure: Measure

    @property
    def cost(self) -> float | None:
        return median(place.cost for place in self.places.values())

    @property
    def collapses(self) -> tuple[int, int]:
        """The number of runs that collapsed, and of all."""
        return sum(row.collapsed for _, row in self.counted), sum(row.seeds + row.failed for _, row in self.counted)

    @property
    def collapses_text(self) -> str:
        """Collapses in all, then those on the pair with the highest rate, at all ε, with the further runs."""
        text = "{:,} of {:,}".format(*self.collapses)
        rates = [(row.collapses, table.task_model) for table, row in self.counted if row.collapses.count]
        if not rates:
            return text
        most, task_model = max(rates, key=lambda rate: (rate[0].mean, rate[0].runs))
        return f"{text}; {most.count:,} of {most.runs:,} on {task_model}"

    @property
    def worst(self) -> tuple[float, str] | None:
        """The lead of the worst run over the oracle's mean in its table, and the table's name."""
        leads = []
        for table, row in self.rows:
            measure = table.measure
            oracle = next((other.utility for other in table.everyone if other.entry == table.oracle), None)
            worst = 0.0 if row.failed and measure.share and measure.higher_is_better else row.worst
            if oracle is not None and worst is not None:
                leads.append((measure.score(worst) - measure.score(oracle.mean), table.title))
        return min(leads, default=None)


def single_answers(board: Board) -> list[Answer]:
    """Return the answers of the first subject at each ε: the whole board's, or that of its metrics in points."""
    return [answer for answer in first_answers(board) if answer.epsilon is not None]


def middle_answer(board: Board) -> Answer | None:
    answers = single_answers(board)
    return answers[len(answers) // 2] if answers else None


def uneven(board: Board) -> bool:
    """Return True if the single answers are about other task–model pairs at some ε than at others."""
    return len({answer.task_models for answer in single_answers(board)}) > 1


def method_lines(board: Board) -> list[MethodLine]:
    """Return a line for each entry in any of the single answers: first those in most, then the best mean."""
    answers = {answer.epsilon or 0.0: answer for answer in single_answers(board)}
    places: defaultdict[Entry, dict[float, Place]] = defaultdict(dict)
    rows: defaultdict[Entry, list[tuple[Table, Row]]] = defaultdict(list)
    counted: defaultdict[Entry, list[tuple[Table, Row]]] = defaultdict(list)
    for epsilon, answer in answers.items():
        for place in answer.places:
            places[place.entry][epsilon] = place
    for table in board.tables:
        task_models = answers[table.epsilon].task_models if table.epsilon in answers else ()
        for row in table.rows:
            if table.task_model in task_models and table.epsilon in places.get(row.entry, {}):
                rows[row.entry].append((table, row))
            if table.counted:
                counted[row.entry].append((table, row))
    lines = [MethodLine(who, places[who], rows[who], counted[who], answers[min(places[who])].measure) for who in places]

    def order(line: MethodLine) -> tuple[int, float, str]:
        mean = fmean(place.lead.mean for place in line.places.values())
        return -len(line.places), -round(mean, 9), line.entry.label

    return sorted(lines, key=order)


def method_columns(board: Board) -> list[Column]:
    """Return the columns of the methods: the gap at each ε, the worst run, collapses, cost."""
    gaps = []
    for answer in single_answers(board):
        pairs = f" ({count(len(answer.task_models), 'setting')})" if uneven(board) else ""
        gaps.append(Column(f"ε = {answer.epsilon:g}{pairs}", "", partial(_gap, answer.epsilon)))
    return [
        Column("method", "", lambda line: line.entry.label, "label"),
        *gaps,
        Column(
            "worst run",
            "The distance of its worst run, in any table, to the oracle's mean there.",
            lambda line: f"{change_text(line.worst[0], line.measure)}, {line.worst[1]}" if line.worst else NOTHING,
        ),
        Column(
            "collapses",
            "Runs in all tables that count, of other metrics, too, that end ten points or half a nat below the median "
            "of the method's runs there, or at a smaller ε; then the pair on which most do, at all ε, with runs that "
            "were made to count them.",
            lambda line: line.collapses_text,
        ),
        Column(
            "cost",
            "Examples processed, relative to one untuned run; median.",
            lambda line: NOTHING if line.cost is None else f"{line.cost:,.{1 if line.cost < 10 else 0}f}",
        ),
    ]


def _gap(epsilon: float | None, line: MethodLine) -> str:
    """Return the distance to the anchor with its interval."""
    place = line.places.get(epsilon or 0.0)
    if place is None:
        return NOTHING
    mean, *ends = (change_text(value, line.measure) for value in astuple(place.lead) if value is not None)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


@dataclass(frozen=True)
class TaskModelLine:
    """A task–model pair: `table` is that at the ε that is shown, `tables` are those at every ε."""

    task_model: str
    table: Table
    tables: tuple[Table, ...]

    @property
    def counted(self) -> bool:
        return any(table.counted for table in self.tables)

    @property
    def seeds(self) -> str:
        numbers = [row.seeds + row.failed for table in self.tables for row in table.everyone]
        low, high = min(numbers), max(numbers)
        return str(low) if low == high else f"{low}–{high}"

    @property
    def best(self) -> Row | None:
        return next((row for row in self.table.rows if row.utility and not row.lacks_seeds), None)

    @property
    def oracle(self) -> Row | None:
        return next((row for row in self.table.everyone if row.entry == self.table.oracle), None)


def task_model_lines(board: Board) -> list[TaskModelLine]:
    """Return a line for each task–model pair, at the ε of the middle answer if it has that; those that count first."""
    answer = middle_answer(board)
    lines = []
    for task_model, group in groupby(board.tables, key=lambda table: table.task_model):
        tables = tuple(group)
        at = [table for table in tables if answer and table.epsilon == answer.epsilon]
        lines.append(TaskModelLine(task_model, (at or tables[len(tables) // 2 :])[0], tables))
    return sorted(lines, key=lambda line: not line.counted)


def listed_task_models(board: Board) -> list[TaskModelLine]:
    """Return the lines of a short page's task–model pairs: those that count, or all if none does."""
    lines = task_model_lines(board)
    return [line for line in lines if line.counted == lines[0].counted][:MOST_LINES]


def task_model_columns(board: Board) -> list[Column]:
    """Return the columns of the task–model pairs, after their names."""
    shown = {line.table.epsilon for line in listed_task_models(board)}
    at = f" at ε = {shown.pop():g}" if len(shown) == 1 else ""
    return [
        Column(
            "stage",
            "Constants of this project's methods were settled on development data.",
            lambda line: line.table.stage,
            "text",
        ),
        Column("N", "Training records.", lambda line: f"{line.table.n_records:,}" if line.table.n_records else NOTHING),
        Column("metric", "", lambda line: line.table.measure.header, "text"),
        Column("δ", "", lambda line: f"{line.table.delta:.2g}"),
        Column("ε", "", lambda line: ", ".join(f"{table.epsilon:g}" for table in line.tables)),
        Column("seeds", "Runs of an entry in a table, each with a seed of its own.", lambda line: line.seeds),
        Column(f"best{at}", "", lambda line: line.best.entry.label if line.best else NOTHING, "label"),
        Column("its mean", "", lambda line: _utility(line.best, line.table)),
        Column("oracle", "", lambda line: _utility(line.oracle, line.table)),
    ]


def _utility(row: Row | None, table: Table) -> str:
    return metric_text(row.utility if row else None, table.measure)


def described(lines: Sequence[MethodLine], board: Board) -> list[tuple[Entry, str]]:
    """Return the methods of these lines and their references, once each, with what this project says of them."""
    references = [place.entry for answer in single_answers(board) for place in answer.references]
    oracles = [table.oracle for table in board.tables if table.oracle]
    first: dict[str, Entry] = {}
    for who in (*(line.entry for line in lines), *references, *oracles):
        first.setdefault(who.method, who)
    return [(who, known.summary if (known := about(who.method)) else "") for who in first.values()]


def others(lines: Sequence[MethodLine], board: Board) -> list[str]:
    """Return the labels of the entries without a line, in order: they are in some of the tables alone."""
    listed = {line.entry for line in lines}
    absent = {row.entry for table in board.tables for row in table.rows} - listed
    return sorted(who.label for who in absent)


def first_on_tests(board: Board) -> str:
    """Return a sentence about who is first on the test tables alone; empty without any."""
    tests = [each for each in board.answers if each.subject.startswith(TESTS) and each.epsilon is not None]
    firsts = [
        f"{each.places[0].entry.label} at ε = {each.epsilon:g}" for each in tests if each.subject == tests[0].subject
    ]
    return f"On the test tables alone the first are {', '.join(firsts)}." if firsts else ""


@dataclass(frozen=True)
class Scope:
    """The reach of a board: least and most of what it measured.

    Attributes:
        some_epsilons: whether a task–model pair lacks any ε that another has.
        beaten: tables whose oracle is behind a private method's mean, of those with an oracle.
        undecided: pairs of entries that the data do not tell apart, of those compared.
    """

    epsilons: tuple[float, float]
    some_epsilons: bool
    records: tuple[int, int] | None
    seeds: tuple[int, int]
    beaten: tuple[int, int]
    undecided: tuple[int, int]


def scope_of(board: Board) -> Scope:
    """Return the reach of a board that has tables."""
    epsilons = [table.epsilon for table in board.tables]
    records = [table.n_records for table in board.tables if table.n_records]
    seeds = [row.seeds + row.failed for table in board.tables for row in table.rows] or [0]
    with_oracle = [table for table in board.tables if table.oracle]
    beaten = [
        table for table in with_oracle if any(row.gap_to_oracle and row.gap_to_oracle.mean < 0 for row in table.rows)
    ]
    pairs = sum(len(claims.pairs) for claims in board.claims)
    decided = sum(len(claims.significant) for claims in board.claims)
    return Scope(
        (min(epsilons), max(epsilons)),
        len(epsilons) < len(set(epsilons)) * len({table.task_model for table in board.tables}),
        (min(records), max(records)) if records else None,
        (min(seeds), max(seeds)),
        (len(beaten), len(with_oracle)),
        (pairs - decided, pairs),
    )
