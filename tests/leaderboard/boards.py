"""Boards for tests, made without records: a plausible one, a hostile one, a crowded one, and one with nothing in it.

The numbers are smooth functions of names and ε, so each build is the same. They resemble measured ones only so far
that charts and tables made of them can be judged by eye.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from statistics import mean

from dphpo_bench.leaderboard.answers import TESTS, Absent, Answer, Claims, Pair, Part, Place
from dphpo_bench.leaderboard.charts import Chart
from dphpo_bench.leaderboard.entries import Entry
from dphpo_bench.leaderboard.means import Mean, Ranks, Rate
from dphpo_bench.leaderboard.submissions import PathPoint, Refused
from dphpo_bench.leaderboard.tables import Board, Overall, OverallRow, Row, Table
from dphpo_bench.leaderboard.written import Finding
from dphpo_bench.records.measure import ACCURACY, Estimate

EPSILONS = (1.0, 3.0, 8.0)
# Setting, task, and what the best private method reaches there as ε grows.
TASK_MODELS = (
    ("cifar10 (linear)", "cifar10", 0.70),
    ("digits (linear)", "digits", 0.95),
    ("mnist (linear)", "mnist", 0.987),
)

# Method, parameters in the label, how far below the oracle at ε = 1, share of ε on tuning, training runs.
METHODS = (
    ("hyfreedp", "", 0.010, 0.06, 1.0),
    ("linear_scaling", "", 0.018, 0.12, 3.2),
    ("auto_clipping", "", 0.024, 0.0, 1.0),
    ("papernot_steinke", "", 0.030, 0.35, 10.0),
    ("liu_talwar", "threshold=none", 0.041, 0.44, 12.0),
    ("liu_talwar", "threshold=0.7", 0.047, 0.52, 21.0),
    ("propose_test", "", 0.060, 0.40, 8.0),
    ("dp_sgd", "", 0.075, 0.0, 1.0),
)
REFERENCES = (("grid_oracle", "", 0.0, 0.0, 10.0), ("nonprivate", "", -0.03, 0.0, 1.0))
Method = tuple[str, str, float, float, float]

# What strangers might write where HTML, scripts, SVG, Vega expressions or templates are made of it.
HOSTILE = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"'><svg onload=window.pwned=1>",
    "<!--<script>",
    'x"]; window.pwned=1; datum["x',
    "{{ 7 * 7 }}{% raw %}${window.pwned=1}",
    "__proto__",
    "constructor",
    "javascript:alert(1) & &lt;b&gt; \\u003cb\\u003e \\n]]>",
    "line\u2028paragraph\u2029end",
    "long " + "name " * 60,
)


def entry(method: str, parameters: str = "", reference: bool = False) -> Entry:
    """An entry with the label and the parameters that scoring would give it."""
    return Entry(
        method=method,
        label=f"{method} ({parameters})" if parameters else method,
        parameters=f'{{"set":"{parameters}"}}',
        end_to_end_private=not reference,
        reference=reference,
    )


def estimate(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


def path(epsilon: float, steps: int = 400) -> tuple[PathPoint, ...]:
    """A learning rate that rises to a plateau, higher for larger ε."""
    return tuple(
        PathPoint(
            step=step,
            learning_rate=1e-4 + 0.4 * epsilon * (1 - math.exp(-step / 60)) ** 2 * (1 + 0.2 * math.sin(step / 9)),
        )
        for step in range(0, steps, 8)
    )


def row(method: Method, top: float, epsilon: float, place: int, entries: int, reference: bool = False) -> Row:
    """What `method` reaches where the oracle tends to `top`; every fourth has failed runs, the last few seeds."""
    name, parameters, gap, share, runs = method
    oracle = top - 0.06 / epsilon
    utility = top + 0.005 if name == "nonprivate" else oracle - gap / epsilon**0.5
    last = place == entries
    return Row(
        entry=entry(name, parameters, reference),
        method_version=1,
        task_version=1,
        seeds=1 if last else 5,
        failed=1 if place % 4 == 0 else 0,
        utility=Estimate(utility) if last else estimate(utility, 0.002 + 0.01 / epsilon),
        worst=utility - 0.01,
        ranks=None if reference else Ranks(max(1, place - 1), min(entries, place + 1)),
        gap_to_oracle=None if name == "grid_oracle" else estimate(oracle - utility, 0.004),
        cross_entropy=estimate(0.3 + 2 * (oracle - utility), 0.01),
        collapses=Rate(place % 3, 15),
        gap_to_untuned=estimate(utility - oracle + 0.024, 0.004),
        gap_closed=None if reference or last else Estimate(1 - gap / 0.08),
        rerr=None if reference or place % 2 else estimate(1 - gap / 0.1, 0.2),
        epsilon=math.inf if reference else 0.999 * epsilon + 1e-5 * place,
        accountant="none" if reference else "pld",
        audited=0.6 * epsilon if name == "hyfreedp" else (1.5 * epsilon if name == "dp_sgd" else None),
        contradicted=name == "dp_sgd",
        lacks_seeds=False,
        tuning_share=share,
        runs=runs,
        examples=runs * 300_000.0 * epsilon**0.3,
        verdict="" if reference else ("equivalent", "uncertain", "behind")[min(2, place // 3)],
        path=path(epsilon) if name == "hyfreedp" else (),
        records=tuple((seed, f"some/{name}/{seed:016x}.json") for seed in range(5)),
        values=tuple(None if place % 4 == 0 and seed == 4 else utility + (seed - 2) / 1000 for seed in range(5)),
        command=f"dphpo-bench run -m '{name}'",
        collapsed=1 if name == "liu_talwar" else 0,
        untuned_runs=runs,
    )


def table(
    task_model: tuple[str, str, float],
    epsilon: float,
    methods: Sequence[Method] = METHODS,
    references: Sequence[Method] = REFERENCES,
) -> Table:
    name, task, top = task_model
    others = tuple(row(method, top, epsilon, 1, len(methods), True) for method in references)
    return Table(
        task=task,
        model="linear",
        epsilon=epsilon,
        delta=1e-5,
        task_model=name,
        measure=ACCURACY,
        rows=tuple(row(method, top, epsilon, place, len(methods)) for place, method in enumerate(methods, 1)),
        references=others,
        oracle=next((one.entry for one in others if one.entry.method == "grid_oracle"), None),
    )


def overall_row(who: Entry, rows: Sequence[Row], ranks: Ranks | None) -> OverallRow:
    means = [row.utility.mean for row in rows if row.utility is not None]
    places = [(row.ranks.low + row.ranks.high) / 2 for row in rows if row.ranks is not None]
    return OverallRow(
        entry=who,
        tables=len(rows),
        seeds=min(row.seeds for row in rows),
        failed=sum(row.failed for row in rows),
        mean_rank=estimate(mean(places), 0.5) if places and ranks else None,
        ranks=ranks,
        utility=estimate(mean(means), 0.003) if means else None,
        gap_to_oracle=rows[0].gap_to_oracle,
        collapses=rows[0].collapses,
        contradicted=any(row.contradicted for row in rows),
        lacks_seeds=False,
        tuning_share=rows[0].tuning_share,
        relative_cost=rows[0].runs,
        profile=(0.0, 0.5, 0.5, 1.0, 1.0),
        normalised=0.8 - rows[0].tuning_share,
    )


def overall(epsilon: float | None, tables: Sequence[Table]) -> Overall:
    """Who is in all of `tables` is ranked, in the order of the first table."""
    counted = [table for table in tables if epsilon in (None, table.epsilon)]
    found: dict[Entry, list[Row]] = {}
    for one in (row for table in counted for row in (*table.rows, *table.references)):
        found.setdefault(one.entry, []).append(one)
    ranked = [who for who, rows in found.items() if not who.reference and len(rows) == len(counted)]
    places = {who: Ranks(max(1, at - 1), min(len(ranked), at + 1)) for at, who in enumerate(ranked, 1)}
    rows = {who: overall_row(who, rows, places.get(who)) for who, rows in found.items()}
    return Overall(
        epsilon=epsilon,
        tables=tuple(table.title for table in counted),
        measure=ACCURACY,
        rows=tuple(rows[who] for who in ranked),
        incomplete=tuple(row for who, row in rows.items() if who not in places and not who.reference),
        references=tuple(row for who, row in rows.items() if who.reference),
    )


def place(who: Entry, rows: Sequence[Row], several: bool) -> Place:
    """The line of an entry over its rows, all of which have a distance to the oracle."""
    gaps = [row.gap_to_oracle.mean for row in rows if row.gap_to_oracle]
    seeds = [("seed 0", 0.002 - gaps[0]), ("seed 1", -0.002 - gaps[0])]
    parts = [(f"table {at}", -gap) for at, gap in enumerate(gaps)] if several else seeds
    cross_entropy = rows[0].cross_entropy
    assert cross_entropy is not None
    return Place(
        entry=who,
        lead=estimate(-mean(gaps), 0.004),
        parts=tuple(sorted((Part(*part) for part in parts), key=lambda part: -part.value)),
        over_tasks=estimate(-mean(gaps), 0.008) if several else None,
        untuned=1 if mean(gaps) < 0.01 else -1 if mean(gaps) > 0.03 else 0,
        verdict=("equivalent" if mean(gaps) < 0.008 else "uncertain" if mean(gaps) < 0.02 else "behind"),
        cross_entropy=cross_entropy,
        calibration=estimate(0.3 - cross_entropy.mean, 0.01),
        cost=rows[0].runs,
        tuning_share=rows[0].tuning_share,
    )


def answer(subject: str, epsilon: float | None, tables: Sequence[Table]) -> Answer:
    """Who is in all of the tables, but for those without a finished run."""
    found: dict[Entry, list[Row]] = {}
    for row in (row for table in tables for row in table.everyone if row.gap_to_oracle and row.utility):
        found.setdefault(row.entry, []).append(row)
    places = [place(who, rows, len(tables) > 1) for who, rows in found.items() if len(rows) == len(tables)]
    places.sort(key=lambda one: -one.lead.mean)
    return Answer(
        subject=subject,
        epsilon=epsilon,
        measure=ACCURACY,
        anchor="the oracle",
        task_models=tuple(dict.fromkeys(table.task_model for table in tables)),
        tables=len(tables),
        places=tuple(one for one in places if not one.entry.reference),
        references=tuple(one for one in places if one.entry.reference),
        absent=tuple(
            Absent(who, len(rows), estimate(-0.02, 0.01), estimate(-0.005, 0.01))
            for who, rows in found.items()
            if len(rows) < len(tables) and not who.reference
        ),
    )


def answers(tables: Sequence[Table]) -> Iterator[Answer]:
    """All tasks, then each; at each ε, then all."""
    task_models = list(dict.fromkeys(table.task_model for table in tables))
    for subject, chosen in [("all tasks", task_models), *((task_model, [task_model]) for task_model in task_models)]:
        mine = [table for table in tables if table.task_model in chosen]
        for epsilon in (*sorted({table.epsilon for table in mine}), None):
            found = answer(subject, epsilon, [table for table in mine if epsilon in (None, table.epsilon)])
            if found.places:
                yield found


def board(tables: Sequence[Table], findings: Sequence[Finding] = (), refused: Sequence[Refused] = ()) -> Board:
    epsilons = sorted({table.epsilon for table in tables})
    return Board(
        findings=tuple(findings),
        overalls=tuple(overall(epsilon, tables) for epsilon in (None, *epsilons)) if tables else (),
        tables=tuple(replace(each, counted=True) for each in tables),
        missing=("fashion_mnist (linear), ε = 1", "fashion_mnist (linear), ε = 3") if tables else (),
        rejected=tuple(refused),
        failed=tuple(refused),
        superseded=3,
        records=500,
        seconds=7500.0,
        answers=tuple(answers(tables)),
    )


def sample_board() -> Board:
    """Three task–model pairs at three ε; propose_test is missing on mnist, and one method ran without finishing."""
    tables = [table(task_model, epsilon) for task_model in TASK_MODELS for epsilon in EPSILONS]
    tables[-3:] = [replace(one, rows=tuple(row for row in one.rows if row.entry.method != "propose_test"))
                   for one in tables[-3:]]  # fmt: skip
    first = tables[0]
    broken = replace(first.rows[-2], seeds=0, failed=5, utility=None, gap_closed=None)
    tables[0] = replace(first, rows=(*first.rows[:-2], first.rows[-1], broken))
    findings = (
        Finding(
            "Tuning while training costs little", "hyfreedp spends 6 % of ε on tuning and is first in 9 of 9 tables."
        ),
        Finding("One run is hard to beat", "Methods of ten runs are behind untuned auto_clipping at every ε below 8."),
    )
    refused = [Refused(f"digits/dp_sgd/{number:016x}.json", f"Its ε of {number} is not that of its ledger.")
               for number in range(120)]  # fmt: skip
    return board(tables, findings, refused)


def blank_charts(board: Board) -> list[Chart]:
    """Pictures without content, for pages that are read for their words."""
    first = [each for each in board.answers if each.subject == board.answers[0].subject]
    return [Chart(f"answer-{at}", each.title, "A picture.", "<svg></svg>", "answer", each.subject)
            for at, each in enumerate(first)]  # fmt: skip


def with_sizes(board: Board) -> Board:
    """Return a board whose tables have a number of records and a kind of model, so that its page has the guide."""
    return replace(board, tables=tuple(replace(each, model_kind="linear", n_records=50_000) for each in board.tables))


def guided_board() -> Board:
    """The sample with what it lacks beside the shipped board: the guide, development data, and lists of tests alone."""
    made = with_sizes(sample_board())
    tables = tuple(replace(each, stage="development" if each.task == "digits" else "test") for each in made.tables)
    tests = [each for each in tables if each.stage == "test"]
    twins = [replace(overall(each.epsilon, tests), stage=TESTS) for each in made.overalls]
    return replace(made, tables=tables, overalls=(*made.overalls, *twins))


def hostile_board() -> Board:
    """A board on which every text that a record brings is an attempt at something."""
    methods = [(text, text, 0.01 * place, 0.1, 2.0) for place, text in enumerate(HOSTILE)]
    references = [(f"reference {text}", "", 0.0, 0.0, 2.0) for text in HOSTILE[:4]]
    tables = [
        replace(
            table((text, text, 0.9), epsilon, methods, references),
            model=text,
            rows=tuple(
                replace(row, accountant=text, path=path(epsilon))
                for row in table((text, text, 0.9), epsilon, methods).rows
            ),
        )
        for text in (HOSTILE[0], HOSTILE[1], HOSTILE[4])
        for epsilon in (1.0, 3.0)
    ]
    findings = [Finding(text, text, ((text, text),), text) for text in HOSTILE]
    made = board(tables, findings, [Refused(f"{text}.json", text) for text in HOSTILE])
    who = [row.entry for row in tables[0].rows]
    pairs = tuple(
        Pair(*two, Mean(0.1, 0.02, 4.0), 0.01, 1, tables) for two, tables in zip(pairwise(who), cycle((2, 1)))
    )
    claims = Claims(HOSTILE[0], 1.0, ACCURACY, 2, tuple(who[:-2]), tuple(who[-2:]), pairs)
    return replace(made, claims=(claims,))


def crowded_board(entries: int = 40) -> Board:
    """More entries than a chart can hold."""
    methods = [(f"method_{number:02d}", "", 0.002 * number, 0.01 * number, 1.0 + number) for number in range(entries)]
    return board([table(TASK_MODELS[0], epsilon, methods) for epsilon in EPSILONS])


def empty_board() -> Board:
    """What a folder without records makes."""
    return Board(findings=(), overalls=(), tables=(), missing=(), rejected=(), failed=(), superseded=0, records=0)
