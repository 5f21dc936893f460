"""The board in brief: a line for each method and task–model pair; and sources of its rows, for links."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from dphpo_bench.base.text import count
from dphpo_bench.leaderboard.advice import MODELS, Advice, cost_text, interval_text, lead, rate_text
from dphpo_bench.leaderboard.answers import TESTS, Answer, Place
from dphpo_bench.leaderboard.entries import median
from dphpo_bench.leaderboard.submissions import built_in
from dphpo_bench.leaderboard.tables import Board, Row, Table
from dphpo_bench.leaderboard.values import Entry
from dphpo_bench.records.measure import NOTHING, Measure, change_text, metric_text

_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Paths:
    """The project's files that lie beside a leaderboard, so that links to them lead somewhere."""

    root: Path | None = None

    def link(self, name: str) -> str | None:
        return f"../{name}" if self.root and (self.root / name).is_file() else None


@dataclass(frozen=True)
class About:
    summary: str
    reference: str
    paper: str | None


@cache
def about(method: str) -> About | None:
    """Return what this project says of the method; None for a stranger's, whatever is installed here."""
    cls = built_in("method").get(method)
    if cls is None:
        return None
    named = _ARXIV.search(f"{cls.reference} {cls.__doc__}")
    paper = f"https://arxiv.org/abs/{named[1]}" if named else None
    return About(cls.summary, cls.reference, paper)


def record_links(records: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    return [(seed, f"results/{quote(path)}") for seed, path in records]


MOST_LINES = 18
"""The most methods, task–model pairs, or answers, that a short page lists; the others are counted."""


@dataclass(frozen=True)
class Head:
    """The head of a column of a short table.

    Attributes:
        explanation: for the legend; may be empty.
        kind: of its cells: "number", "text", "label" (the name of an entry) or "pair" (a task–model pair).
    """

    header: str
    explanation: str = ""
    kind: str = "number"


@dataclass(frozen=True)
class Grid:
    """A short table: its cells are plain texts, whatever page it is on."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[str, ...], ...]


def single_answers(board: Board, prefix: str = "") -> list[Answer]:
    """Return the answers at each ε of the first subject, among those whose names begin with the prefix."""
    named = [answer for answer in board.answers if answer.subject.startswith(prefix)]
    return [answer for answer in named if answer.subject == named[0].subject and answer.epsilon is not None]


def middle_answer(board: Board) -> Answer | None:
    answers = single_answers(board)
    return answers[len(answers) // 2] if answers else None


def uneven(board: Board) -> bool:
    """Return True if the single answers are about other task–model pairs at some ε than at others."""
    return len({answer.task_models for answer in single_answers(board)}) > 1


def methods_of(board: Board) -> dict[Entry, dict[float, Place]]:
    """Return the places by ε of each entry in a single answer: first those in most answers, then the best mean."""
    places: defaultdict[Entry, dict[float, Place]] = defaultdict(dict)
    for answer in single_answers(board):
        for place in answer.places:
            places[place.entry][answer.epsilon or 0.0] = place

    def order(who: Entry) -> tuple[int, float, str]:
        mean = fmean(place.lead.mean for place in places[who].values())
        return -len(places[who]), -round(mean, 9), who.label

    return {who: places[who] for who in sorted(places, key=order)}


def methods_grid(board: Board, methods: Mapping[Entry, Mapping[float, Place]]) -> Grid:
    """Return a line for each method: its distance at each ε, its worst run, collapses and cost."""
    answers = {answer.epsilon or 0.0: answer for answer in single_answers(board)}
    everywhere: defaultdict[Entry, list[tuple[Table, Row]]] = defaultdict(list)
    for table in board.tables:
        for row in table.rows:
            everywhere[row.entry].append((table, row))
    rows = []
    for who, places in methods.items():
        measure = answers[min(places)].measure
        inside = [
            (table, row)
            for table, row in everywhere[who]
            if table.epsilon in places and table.task_model in answers[table.epsilon].task_models
        ]
        gaps = [_gap(places.get(epsilon), measure) for epsilon in answers]
        cost = median(place.cost for place in places.values())
        costs = NOTHING if cost is None else f"{cost:,.{1 if cost < 10 else 0}f}"
        rows.append((who.label, *gaps, _worst_run(inside, measure), _collapses(everywhere[who]), costs))
    several = uneven(board)
    on_pairs = {
        epsilon: f" ({count(len(answer.task_models), 'pair')})" if several else ""
        for epsilon, answer in answers.items()
    }
    heads = [
        Head("method", kind="label"),
        *(Head(f"ε = {epsilon:g}{pairs}") for epsilon, pairs in on_pairs.items()),
        Head("worst run", "The distance of its worst run, in any table, to the oracle's mean there."),
        Head(
            "collapses",
            "Runs that end ten points or half a nat below the median of the method's runs in the table, or at a "
            "smaller ε. First in all tables that count, those of other metrics too. Then on the pair with the highest "
            "rate, at all ε, with the runs that were made to count them.",
        ),
        Head("cost", "Examples processed, relative to one untuned run; median."),
    ]
    return Grid(tuple(heads), tuple(rows))


def _gap(place: Place | None, measure: Measure) -> str:
    """Return the distance to the anchor with its interval."""
    if place is None:
        return NOTHING
    mean, *ends = (change_text(value, measure) for value in astuple(place.lead) if value is not None)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _worst_run(rows: Iterable[tuple[Table, Row]], measure: Measure) -> str:
    """Return the lead of the worst run over the oracle's mean in its table, and the table's name."""
    leads = []
    for table, row in rows:
        oracle = next((other.utility for other in table.everyone if other.entry == table.oracle), None)
        worst = 0.0 if row.failed and table.measure.share and table.measure.higher_is_better else row.worst
        if oracle is not None and worst is not None:
            leads.append((table.measure.score(worst) - table.measure.score(oracle.mean), table.title))
    lead, title = min(leads, default=(0.0, ""))
    return f"{change_text(lead, measure)}, {title}" if title else NOTHING


def _collapses(rows: Iterable[tuple[Table, Row]]) -> str:
    """Return collapses in all tables that count, then those on the pair with the highest rate, at all ε."""
    counted = [(table, row) for table, row in rows if table.counted]
    collapsed, runs = sum(row.collapsed for _, row in counted), sum(row.seeds + row.failed for _, row in counted)
    text = f"{collapsed:,} of {runs:,}"
    rates = [(row.collapses, table.task_model) for table, row in counted if row.collapses.count]
    if not rates:
        return text
    most, task_model = max(rates, key=lambda rate: (rate[0].mean, rate[0].runs))
    return f"{text}; {most.count:,} of {most.runs:,} on {task_model}"


def task_models_by_count(board: Board) -> tuple[list[str], list[str]]:
    """Return the task–model pairs that a short page lists, those that count or all if none does, and the others."""
    counted = {table.task_model: False for table in board.tables}
    for table in board.tables:
        counted[table.task_model] |= table.counted
    chosen = [name for name, counts in counted.items() if counts] or list(counted)
    listed = chosen[:MOST_LINES]
    return listed, [*chosen[MOST_LINES:], *(name for name in counted if name not in chosen)]


def tasks_grid(board: Board, listed: Sequence[str]) -> Grid:
    """Return a line for each of these task–model pairs, at the ε of the middle answer if it has that."""
    answer = middle_answer(board)
    rows, shown = [], set()
    for name in listed:
        tables = [table for table in board.tables if table.task_model == name]
        at = [table for table in tables if answer and table.epsilon == answer.epsilon]
        table = (at or tables[len(tables) // 2 :])[0]
        shown.add(table.epsilon)
        best = next((row for row in table.rows if row.utility and not row.lacks_seeds), None)
        oracle = next((row for row in table.everyone if row.entry == table.oracle), None)
        seeds = [row.seeds + row.failed for each in tables for row in each.everyone]
        rows.append(
            (
                name,
                table.stage,
                f"{table.n_records:,}" if table.n_records else NOTHING,
                table.measure.header,
                f"{table.delta:.2g}",
                ", ".join(f"{each.epsilon:g}" for each in tables),
                range_text(seeds),
                best.entry.label if best else NOTHING,
                metric_text(best.utility if best else None, table.measure),
                metric_text(oracle.utility if oracle else None, table.measure),
            )
        )
    at_epsilon = f" at ε = {shown.pop():g}" if len(shown) == 1 else ""
    heads = (
        Head("task and model", kind="pair"),
        Head("stage", "Constants of this project's methods were settled on development data.", "text"),
        Head("N", "Training records."),
        Head("metric", kind="text"),
        Head("δ"),
        Head("ε"),
        Head("seeds", "Runs of an entry in a table, each with a seed of its own."),
        Head(f"best{at_epsilon}", kind="label"),
        Head("its mean"),
        Head("oracle"),
    )
    return Grid(heads, tuple(rows))


def range_text(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def guide_grid(guide: Iterable[Advice]) -> Grid:
    """Return a line for each method of neighbouring ε; what is not known has a line, too."""

    def same(advice: Advice) -> tuple[str, int, str]:
        return advice.question.model, advice.question.records, advice.choice.label if advice.choice else NOTHING

    rows = []
    for (model, records, label), group in groupby(guide, same):
        answers = list(group)
        first, last = (answers[at].question.epsilon for at in (0, -1))
        epsilons = f"{first:g}" if first == last else f"{first:g} to {last:g}"
        options = [answer.choice for answer in answers if answer.choice]
        figures = (f"not known: {answers[0].reason}", "", "", "")
        if options:
            highest = max((option.collapses for option in options), key=lambda rate: (rate.high, rate.count))
            figures = (
                " / ".join(lead(option.distance.mean) for option in options),
                interval_text(option.distance for option in options),
                rate_text(highest),
                cost_text(max(options, key=lambda option: option.cost)),
            )
        rows.append((f"{records:,} records, {MODELS[model]}", epsilons, label, *figures))
    heads = (
        Head("if you have", kind="text"),
        Head("ε"),
        Head("use", kind="label"),
        *map(Head, ("to the oracle", "another task", "collapsed runs", "cost")),
    )
    return Grid(heads, tuple(rows))


def described(methods: Iterable[Entry], board: Board) -> list[tuple[Entry, str]]:
    """Return these methods and the references, once each, with what this project says of them."""
    references = [place.entry for answer in single_answers(board) for place in answer.references]
    oracles = [table.oracle for table in board.tables if table.oracle]
    first: dict[str, Entry] = {}
    for who in (*methods, *references, *oracles):
        first.setdefault(who.method, who)
    return [(who, known.summary if (known := about(who.method)) else "") for who in first.values()]


def others(methods: Iterable[Entry], board: Board) -> list[str]:
    """Return the labels of the other entries, in order: they are in some of the tables alone."""
    absent = {row.entry for table in board.tables for row in table.rows} - {*methods}
    return sorted(who.label for who in absent)


def limits(board: Board, methods: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return what a board that has tables cannot tell: a title and a sentence or two for each limit."""
    task_models = {table.task_model for table in board.tables}
    epsilons = sorted({table.epsilon for table in board.tables})
    records = [table.n_records for table in board.tables if table.n_records]
    seeds = [row.seeds + row.failed for table in board.tables for row in table.rows] or [0]
    gaps = [[row.gap_to_oracle for row in table.rows if row.gap_to_oracle] for table in board.tables if table.oracle]
    beaten = sum(any(gap.mean < 0 for gap in of_table) for of_table in gaps)
    pairs = sum(len(claims.pairs) for claims in board.claims)
    undecided = pairs - sum(len(claims.significant) for claims in board.claims)
    tests = single_answers(board, TESTS)
    several = len({table.measure for table in board.tables}) > 1
    outside = len(others(methods, board))

    sizes = f", of {range_text(records)} training records" if records else ""
    missing = len(board.tables) < len(epsilons) * len(task_models)
    texts = {
        "Other records and models": f"The board has {count(len(task_models), 'task–model pair')}{sizes}. From task to "
        "task N, model and batch change together, so no effect of one of them can be read off.",
        "Other ε": f"Nothing below {epsilons[0]:g} or above {epsilons[-1]:g} was run"
        f"{', and not every ε on all of them (see Tasks)' if missing else ''}.",
        "Other draws": f"Intervals over seeds rest on {range_text(seeds)} seeds a table, with tasks and test records "
        "fixed. Those over tasks take the tasks for a sample of all tasks, which they are not.",
    }
    if pairs:
        texts["Close pairs"] = f"{undecided:,} of {pairs:,} pairs of entries are undecided, which does not mean equal."
    if gaps:
        firsts = ", ".join(f"{each.places[0].entry.label} at ε = {each.epsilon:g}" for each in tests)
        texts["Another order"] = "Mean ranks, profiles and the test tables alone may differ." + (
            f" On the test tables alone the first are {firsts}." if firsts else ""
        )
        texts["How good tuning could be"] = (
            f"The oracle is a grid, no limit: in {beaten} of {len(gaps)} tables a private method has the better mean."
        )
    if any(" (" in who.label for who in methods):
        texts["Values chosen afterwards"] = (
            "Some rows are one method with other values, in parentheses. The best of them was seen on these tables. "
            "Nobody who trains in private can look first."
        )
    texts["Units"] = (
        "A mean over accuracy and ROC-AUC adds points that are not worth the same. Metrics that are no shares stay out "
        "of it and have tables of their own."
        if several
        else "Means over tasks weigh all tasks equally."
    )
    texts["Methods outside"] = (
        f"Entries that are in some of the tables alone: {outside or 'none'}. A method's authors may tune it better "
        "than its defaults here."
    )
    texts["What leaks"] = "ε bounds it from above. An audit bounds it from below, where somebody ran one."
    return list(texts.items())
