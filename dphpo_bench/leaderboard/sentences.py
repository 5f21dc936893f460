"""Sentences and small tables about a board, as plain text: its findings, its answers, who beats whom."""

import re
import statistics as plain
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from dphpo_bench.base.text import count
from dphpo_bench.contract import registry
from dphpo_bench.leaderboard.advice import MODELS, RATED, Advice, cost_text, interval_text, lead, rate_text
from dphpo_bench.leaderboard.answers import (
    BEHIND,
    EQUIVALENT,
    FAMILY_ERROR,
    TESTS,
    UNCERTAIN,
    UNTOUCHED,
    UNTUNED,
    Absent,
    Answer,
    Claims,
    Place,
    Subject,
)
from dphpo_bench.leaderboard.entries import Contest, Entry, median
from dphpo_bench.leaderboard.means import POINT
from dphpo_bench.leaderboard.submissions import built_in
from dphpo_bench.leaderboard.tables import Board, Overall, Row, Table
from dphpo_bench.leaderboard.written import Finding
from dphpo_bench.records.measure import NOTHING, Estimate, Measure, change_text, metric_text

ADVISED = "recommended"
MOST_NAMED = 4
MUCH_LESS = 1.5
"""An entry that costs less by this factor, and is a point behind the first at most, is named beside it."""


def findings(counted: Sequence[tuple[Contest, Table]], overalls: Sequence[Overall]) -> tuple[Finding, ...]:
    epsilons = sorted({table.epsilon for _, table in counted})
    ends = list(dict.fromkeys([*epsilons[:1], *epsilons[-1:]]))
    sentences_by_title = {
        "Who is first": [_first(overall) for overall in overalls if overall.epsilon in ends and len(overall.rows) > 1],
        "Does searching pay for itself": [text for epsilon in ends for text in _searching(counted, epsilon)],
    }
    return tuple(Finding(title, " ".join(texts)) for title, texts in sentences_by_title.items() if texts)


def _first(overall: Overall) -> str:
    best, *rest = overall.rows
    assert best.mean_rank is not None
    tied = [row for row in rest if row.mean_rank and row.mean_rank.mean == best.mean_rank.mean]
    names = ", ".join(row.entry.label for row in (best, *tied))
    close = sum(bool(best.ranks and row.ranks and row.ranks.low <= best.ranks.high) for row in rest[len(tied) :])
    return (
        f"At {overall.title}, {names} {'share' if tied else 'has'} the best mean rank, {best.mean_rank.mean:.2f} of "
        f"{len(overall.rows)} (tables: {len(overall.tables)}). Others whose rank interval overlaps with "
        f"{'theirs' if tied else 'its own'}: {close}."
    )


def _searching(counted: Sequence[tuple[Contest, Table]], epsilon: float) -> Iterator[str]:
    """Yield how many searches are significantly better or worse than no tuning, and than recommended values.

    Those in half of the tables or more, so that a submission to one of them does not change what is said of all.
    """
    tables = [(contest, table) for contest, table in counted if table.epsilon == epsilon]
    among = Counter(row.entry for _, table in tables for row in table.rows)
    searches = [
        (row, contest)
        for contest, table in tables
        for row in table.rows
        if row.runs > 1 and not row.lacks_seeds and 2 * among[row.entry] >= len(tables)
    ]
    untuned = [row.gap_to_untuned for row, _ in searches if row.gap_to_untuned]
    advised = []
    for row, contest in searches:
        alone = Subject(contest.title, contest.task_model.measure, (contest,))
        known = [member.entry for member in contest.members if member.entry.label == ADVISED and not member.lacks]
        if known and (lead := alone.lead(row.entry, known[0])):
            advised.append(lead)
    if untuned:
        better, worse = _beyond_chance(untuned)
        text = (
            f"{better} of {len(untuned)} results of methods with several training runs are better than {UNTUNED} and "
        )
        text += f"{worse} worse"
        if advised:
            better, worse = _beyond_chance(advised)
            text += f"; {better} are better than {ADVISED}, whose values are from the literature, and {worse} worse"
        spent = plain.median(row.tuning_share for row, _ in searches)
        yield (
            f"At ε = {epsilon:g}, {text} (95 % confidence each). Their search takes {100 * spent:.0f} % of ε (median)."
        )


def _beyond_chance(leads: Sequence[Estimate]) -> tuple[int, int]:
    signs = [lead.sign for lead in leads]
    return signs.count(1), signs.count(-1)


def sentences(answer: Answer) -> list[str]:
    """Return who is first, who is within a point of it, who may be either, and who is last of those behind."""
    first, *others = answer.places
    runs = f"{first.cost:.3g}" if first.cost else ""
    cost = runs and f", for the cost of {'one untuned run' if runs == '1' else f'{runs} untuned runs'}"
    texts = [f"{first.entry.label} is {_distance(answer, first.lead.mean)}{_intervals(answer, first)}"
             f"{_worst(answer, first)}{cost}{_cheaper(answer)}."]  # fmt: skip
    if len(answer.places) == 1:
        return texts
    near = _named(others, EQUIVALENT)
    texts.append(f"Shown to be within {point_text(answer)} of {first.entry.label}: {near or 'none'}.")
    unclear = _named(others, UNCERTAIN)
    if unclear:
        texts.append(f"Too uncertain to say: {unclear}.")
    behind = [place for place in others if place.verdict == BEHIND]
    if behind:
        last = behind[-1]
        place = f"{_distance(answer, last.lead.mean)}{_worst(answer, last)}"
        texts.append(f"{len(behind)} {'is' if len(behind) == 1 else 'are'} behind; {last.entry.label} is {place}.")
    return texts


def headline(answer: Answer) -> str:
    """Return what tuning costs at least, who is nearest, how sure that is, and what no tuning costs."""
    first = answer.places[0]
    where = f"At ε = {answer.epsilon:g} on {answer.subject}" if answer.epsilon else f"At all ε on {answer.subject}"
    who = f"{first.entry.label} (this project's)" if first.entry.label in RATED else first.entry.label
    sure = _ends(answer, first.over_tasks) or _ends(answer, first.lead)
    about = f"{sure} {'if tasks were drawn anew' if first.over_tasks else 'over seeds'}" if sure else "one seed"
    texts = [f"{where}, {who} is nearest: {_distance(answer, first.lead.mean)} ({about})."]
    untuned = [place for place in answer.places if place.entry.label in (ADVISED, "auto_clipping")]
    if untuned and first not in untuned:
        leads = (f"{place.entry.label} {change_text(place.lead.mean, answer.measure)}" for place in untuned)
        texts.append(f"Without any tuning: {', '.join(leads)}.")
    return " ".join(texts)


def _cheaper(answer: Answer) -> str:
    """Return the cheapest place that costs much less, and is a point behind at most; nothing if there is none."""
    first, *others = answer.places
    if not first.cost or not answer.measure.comparable:
        return ""
    least, most = first.lead.mean - POINT, first.cost / MUCH_LESS
    near = [place for place in others if place.verdict != BEHIND and place.lead.mean >= least]
    cheap = [place for place in near if place.cost and place.cost <= most]
    if not cheap:
        return ""
    place = min(cheap, key=lambda place: round(place.cost or 0.0, 1))
    distance = f"{_distance(answer, place.lead.mean)}{_intervals(answer, place)}"
    return f"; for {place.cost:.3g}, {place.entry.label} is {distance}"


def point_text(answer: Answer) -> str:
    measure = answer.measure
    if measure.share:
        return "a point"
    return "1 % in perplexity" if measure.logarithmic else "0.01" if measure.comparable else "1 %"


def _named(places: Sequence[Place], verdict: str) -> str:
    return _some([place.entry.label for place in places if place.verdict == verdict])


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return f"{', '.join(labels[:MOST_NAMED])}{more}"


def about_intervals(answer: Answer) -> str:
    """Return what the intervals of an answer cover, and what they leave out."""
    seeds = "over seeds, with these tasks and test records"
    if any(place.over_tasks for place in answer.everyone):
        return f"first 95 % interval: {seeds}; second: if tasks were drawn anew, too"
    return f"95 % interval: {seeds}"


def absence(answer: Answer, absent: Absent) -> str:
    if absent.lead is None or absent.first is None or absent not in answer.nearly:
        return f"in {absent.tables}"
    first = f"{answer.places[0].entry.label} is {_distance(answer, absent.first.mean)}"
    return f"in {absent.tables}: {_distance(answer, absent.lead.mean)} there, where {first}"


def _distance(answer: Answer, mean: float) -> str:
    if not change_text(mean, answer.measure).strip("+−0."):
        return f"level with {answer.anchor}"
    unit = answer.measure.unit or f"of {answer.measure.title}"
    amount = change_text(abs(mean), answer.measure).lstrip("+")
    return f"{amount} {unit} {'ahead of' if mean > 0 else 'behind'} {answer.anchor}"


def _intervals(answer: Answer, place: Place) -> str:
    seeds, tasks = _ends(answer, place.lead), _ends(answer, place.over_tasks)
    return f" {seeds} over seeds, {tasks} over tasks" if seeds and tasks else f" {seeds}" if seeds else ""


def _ends(answer: Answer, estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{change_text(estimate.low, answer.measure)}, {change_text(estimate.high, answer.measure)}]"


def _worst(answer: Answer, place: Place) -> str:
    if len(place.parts) < 2:
        return ""
    worst = place.parts[-1]
    return f", at worst {change_text(worst.value, answer.measure)} ({worst.name})"


def summary(board: Board) -> str:
    pairs = sum(len(claims.pairs) for claims in board.claims)
    claimed = sum(len(claims.significant) for claims in board.claims)
    return (
        f"All pairs of entries, on the same tables: {pairs:,} comparisons by Welch's test, of which {claimed:,} "
        f"tell who is better. By Holm's procedure, the chance of any wrong claim is at most {100 * FAMILY_ERROR:g} %, "
        "as far as t-tests hold. The claims are about these tasks. A pair that is not named is undecided, which does "
        "not mean equal."
    )


def by_subject(board: Board) -> list[tuple[str, list[Claims]]]:
    return [(subject, list(some)) for subject, some in groupby(board.claims, key=lambda claims: claims.subject)]


def count_text(claims: Claims) -> str:
    return f"ε = {claims.epsilon:g}: {len(claims.significant):,} of {len(claims.pairs):,} pairs differ significantly"


def versus(claims: Claims) -> dict[str, Any]:
    """Return the pairs of entries for the page: who leads by how much, in how many tables, and whether it is shown."""
    labels = [who.label for who in (*claims.order, *claims.others)]
    pairs = []
    for pair in claims.pairs:
        lead = pair.lead.estimate
        ends = [NOTHING if end is None else change_text(end, claims.measure) for end in (lead.low, lead.high)]
        amount = change_text(lead.mean, claims.measure).lstrip("+")
        who = labels.index(pair.better.label), labels.index(pair.worse.label)
        pairs.append([*who, amount, *ends, pair.ahead, pair.tables, pair.significant])
    return {"labels": labels, "pairs": pairs, "unit": claims.measure.unit and f" {claims.measure.unit}"}


def victories(claims: Claims) -> list[str]:
    everyone = (*claims.order, *claims.others)
    texts = [f"{who.label} beats {_whom(claims, who)}." for who in everyone if claims.beaten(who)]
    few = [pair for pair in claims.significant if 2 * pair.ahead <= pair.tables]
    if few:
        pairs = (f"{pair.better.label} than {pair.worse.label} ({pair.ahead} of {pair.tables})" for pair in few)
        texts.append(f"Better on average, but on half of the tasks at most: {', '.join(pairs)}.")
    return texts


def _whom(claims: Claims, who: Entry) -> str:
    beaten = {pair.worse: pair for pair in claims.beaten(who)}
    first = [other for other in claims.order if other in beaten and who in claims.order]
    rest = [other.label for other in claims.order if other != who and other not in beaten]
    text = ", ".join(other.label for other in first)
    if len(rest) < len(first):
        text = "all others that are in all tables" if claims.others else "all others"
        text += f" but {', '.join(rest)}" if rest else ""
    further = [
        other.label + (f" (on {pair.tables} of {claims.tasks} tasks)" if pair.tables < claims.tasks else "")
        for other, pair in beaten.items()
        if other not in first
    ]
    return "; and ".join(filter(None, (text, ", ".join(further))))


def first_answers(board: Board) -> list[Answer]:
    return [answer for answer in board.answers if answer.subject == board.answers[0].subject]


_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Paths:
    """The project's files that lie beside a leaderboard, so that links to them lead somewhere."""

    present: frozenset[str] = frozenset()

    @classmethod
    def beside(cls, folder: Path) -> "Paths":
        root = folder.absolute().parent
        pages = ("docs/guide.md", "docs/scoring.md", "CONTRIBUTING.md")
        names = (*pages, *(f"methods/{name}.py" for name in registry.methods()))  # no name of a stranger's is a path
        return cls(frozenset(name for name in names if (root / name).is_file()))

    def link(self, name: str) -> str | None:
        return f"../{name}" if name in self.present else None


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


MOST_LINES = 16
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


def leading(board: Board) -> list[list[Answer]]:
    """Return the answers at each ε of the first subject; of untouched tables, of each of their metrics."""
    names = dict.fromkeys(answer.subject for answer in board.answers)
    whole = [name for name in names if name.startswith(UNTOUCHED)] or [*names][:1]
    return [single_answers(board, name) for name in whole]


def middle_answer(board: Board) -> Answer | None:
    answers = single_answers(board)
    return answers[len(answers) // 2] if answers else None


def uneven(answers: Iterable[Answer]) -> bool:
    """Return True if answers are about other task–model pairs at some ε than at others."""
    return len({answer.task_models for answer in answers}) > 1


def methods_of(board: Board, prefix: str = "") -> dict[Entry, dict[float, Place]]:
    """Return the places by ε of each entry in a single answer: first those in most answers, then the best mean."""
    places: defaultdict[Entry, dict[float, Place]] = defaultdict(dict)
    for answer in single_answers(board, prefix):
        for place in answer.places:
            places[place.entry][answer.epsilon or 0.0] = place

    def order(who: Entry) -> tuple[int, float, str]:
        mean = fmean(place.lead.mean for place in places[who].values())
        return -len(places[who]), -round(mean, 9), who.label

    return {who: places[who] for who in sorted(places, key=order)}


def methods_grid(board: Board, prefix: str = "") -> Grid:
    """Return a line for each method: its distance at each ε, its worst run, collapses and cost."""
    answers = {answer.epsilon or 0.0: answer for answer in single_answers(board, prefix)}
    methods = methods_of(board, prefix)
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
    several = uneven(answers.values())
    pairs = {at: f" ({count(len(each.task_models), 'pair')})" if several else "" for at, each in answers.items()}
    heads = [
        Head("method", kind="label"),
        *(Head(f"ε = {epsilon:g}{on_pairs}") for epsilon, on_pairs in pairs.items()),
        Head("worst run", "The distance of its worst run, in any table, to the oracle's mean there."),
        Head(
            "collapses",
            "Runs that end ten points or half a nat below the median of the method's runs in the table, or at a "
            "smaller ε. First in all tables that count, of an R² or an error none. Then on the pair with the highest "
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
    counted = [(table, row) for table, row in rows if table.counted and row.collapsed is not None]
    collapsed, runs = sum(row.collapsed or 0 for _, row in counted), sum(row.seeds + row.failed for _, row in counted)
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
        ceiling = next((row for row in table.references if row.entry.label == "nonprivate"), None)
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
                metric_text(ceiling.utility if ceiling else None, table.measure),
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
        Head("without privacy"),
    )
    return Grid(heads, tuple(rows))


def runs_grid(board: Board) -> Grid:
    """Return the number of runs of each method on each pair whose tables count, the most complete methods first."""
    counted = [table for table in board.tables if table.counted]
    pairs = list(dict.fromkeys(table.task_model for table in counted))
    runs: dict[str, Counter[str]] = defaultdict(Counter)
    for table in counted:
        for row in table.rows:
            runs[row.entry.label][table.task_model] += row.seeds + row.failed
    heads = (Head("method", kind="label"), *(Head(pair) for pair in pairs))
    order = sorted(runs, key=lambda label: (-len(runs[label]), label))
    return Grid(heads, tuple((label, *(str(runs[label][pair] or NOTHING) for pair in pairs)) for label in order))


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


def _significantly(ahead: Iterable[Sequence[str]]) -> str:
    """Return in how many tables somebody is ahead by more than an interval, and who, by the names in each table."""
    tables = [names for names in ahead if names]
    counts = Counter(name for names in tables for name in names).most_common()
    named = _some([f"{name} in {number}" for name, number in counts])
    return f", in {len(tables)} by more than its interval: {named}" if tables else ""


def limits(board: Board, methods: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return what a board that has tables cannot tell: a title and a sentence or two for each limit."""
    task_models = {table.task_model for table in board.tables}
    epsilons = sorted({table.epsilon for table in board.tables})
    records = [table.n_records for table in board.tables if table.n_records]
    seeds = [row.seeds + row.failed for table in board.tables for row in table.rows] or [0]
    gaps = [
        [(row.entry.label, row.gap_to_oracle) for row in table.rows if row.gap_to_oracle and not row.entry.reference]
        for table in board.tables
        if table.oracle
    ]
    beaten = sum(any(gap.mean < 0 for _, gap in of_table) for of_table in gaps)
    ahead = [[who for who, gap in of_table if gap.high is not None and gap.high < 0] for of_table in gaps]
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
            f" On the test tables alone the first by distance are {firsts}." if firsts else ""
        )
        texts["How good tuning could be"] = (
            f"The oracle is a grid, no limit: in {beaten} of {len(gaps)} tables a private method has the better mean"
            f"{_significantly(ahead)}."
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
    if board.disputes:
        places = [f"{each.method} on {each.task}" if each.task else each.method for each in board.disputes]
        about = (f"{place}: {each.reason} {each.link}" for place, each in zip(places, board.disputes, strict=True))
        texts["Disputed (⚑)"] = " ".join(map(str.strip, about))
    texts["What leaks"] = "ε bounds it from above. An audit bounds it from below, where somebody ran one."
    return list(texts.items())
