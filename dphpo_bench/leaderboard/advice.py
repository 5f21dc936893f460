"""Advice: the method to take for so many records, a kind of model, ε and compute, from the rows of a board's CSV.

The rule in words, and how often it was right about tasks that it had not seen: docs/guide.md. The guide is the advice
for a grid of questions, as the README and the page of a board show it.
"""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from dphpo_bench.base.checks import positive
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import count, shown
from dphpo_bench.contract import registry
from dphpo_bench.leaderboard.means import Rate
from dphpo_bench.records.measure import ACCURACY, NOTHING, Estimate, Measure, change_text, quantile

TABLE = "leaderboard.csv"
SHIPPED = "advice.csv"
"""The columns and rows of the project's own board that advice needs: what an installed package has of it."""

UNSEEN, RATED = "kinds.csv", ("hyfreedp", "noise_scaled")
"""The table of what a rate loses on other kinds of records (`research/rate_rules.py`), and the methods that have it."""

KINDS = ("linear", "network", "fine-tuned")
"""Kinds of models; `TaskModel.model_kind` tells which models of the tasks are of which."""

SAME_RECORDS = {"adult_few": "adult", "digits_eight": "digits"}
"""Tasks on the records of another task: together they are one task to advice, or sizes of one data set were many."""

COLUMNS = (
    *("stage", "task", "model", "model_kind", "n_records", "metric", "epsilon_target", "label", "seeds", "failed"),
    *("collapsed", "gap_to_oracle", "untuned_runs"),
)


@dataclass(frozen=True)
class Measured:
    """A method's row in a table of the board.

    Attributes:
        kind: of the model, in `KINDS`.
        records: number of training records N.
        epsilon: the budget of tuning and training together.
        runs: number of seeds, those that failed included.
        collapsed: how many of these ended far below the median of the method's runs; those that failed count, too.
            None where the metric knows no collapse.
        distance: points behind the oracle, the mean over the seeds; below zero ahead of it. Of a metric that is no
            share, a hundredth of its unit.
        cost: examples processed, relative to untuned training in that table; ∞ where that is not known.
        stage: "development" if this project settled constants of its methods on these records.
    """

    task: str
    model: str
    kind: str
    records: int
    epsilon: float
    metric: str
    label: str
    runs: int
    collapsed: int | None
    distance: float
    cost: float
    stage: str = "test"

    @property
    def data(self) -> str:
        """The name of the task whose records these are."""
        return SAME_RECORDS.get(self.task, self.task)

    @property
    def unit(self) -> str:
        """Unit that N counts: "record", or one of several such as "patient"; empty if the task is not installed."""
        return unit_of(self.task)

    @property
    def table(self) -> tuple[str, str, int, float, str]:
        return self.task, self.model, self.records, self.epsilon, self.metric


@cache
def unit_of(task: str) -> str:
    """Return what a task protects as a whole and counts, by its facts; empty if the task is not installed."""
    plug_in = registry.tasks().working(task)
    return plug_in.cls().facts.unit if plug_in else ""


def counted_persons(option: "Option") -> str:
    """Return on which tasks of an answer N counts units of several records; empty if there are none."""
    counted = sorted({(each.row.task, each.row.unit) for each in option.evidence if each.row.unit not in ("", RECORD)})
    return ", ".join(f"N of {task} counts units of several records each: {unit}" for task, unit in counted)


def measured_rows(table: str, name: str = TABLE) -> list[Measured]:
    """Return the rows of a board's CSV that advice may name: of private methods with a distance to the oracle.

    Raises:
        DataError: a column is missing, or a value is not what it should be.
    """
    try:
        return [
            Measured(
                line["task"],
                line["model"],
                line["model_kind"],
                int(line["n_records"]),
                float(line["epsilon_target"]),
                line["metric"],
                line["label"],
                int(line["seeds"]) + int(line["failed"]),
                int(line["collapsed"]) if line["collapsed"] else None,
                100 * float(line["gap_to_oracle"]),
                float(line["untuned_runs"] or math.inf),
                line["stage"],
            )
            for line in _needed(csv.DictReader(io.StringIO(table)))
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{name} is not the table of a board: {shown(error, 200)}. Build it again: dphpo-bench leaderboard build."
        ) from None


def shipped_table(table: str) -> str:
    """Return of a board's CSV what comes with the package."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_needed(csv.DictReader(io.StringIO(table))))
    return text.getvalue()


def shipped_file(folder: Path) -> str | None:
    """Return the place of the package's table from a board's folder, if the board lies beside the package's source."""
    beside = f"../dphpo_bench/leaderboard/{SHIPPED}"
    return beside if (folder / beside).is_file() else None


def read_board(board: Path | None) -> tuple[list[Measured], str]:
    """Return the rows of a board, and where they are from: a folder or its CSV.

    By default the board is in the folder `leaderboard` if there is one, else the package's own.
    """
    path = board or Path("leaderboard")
    if path.is_dir():
        path = path / TABLE
    if board is None and not path.is_file():
        shipped = files("dphpo_bench.leaderboard") / SHIPPED
        return measured_rows(shipped.read_text(encoding="utf-8"), SHIPPED), "the board that this package came with"
    try:
        return measured_rows(path.read_text(encoding="utf-8", errors="replace"), str(path)), str(path)
    except OSError as error:
        raise InvalidValueError(
            f"Cannot read {path}: {error.strerror}. Name the folder of a board that was built with --board."
        ) from None


def _needed(lines: "csv.DictReader[str]") -> Iterator[Mapping[str, str]]:
    for line in lines:
        private = line.get("end_to_end_private", "True") == "True" and line.get("reference", "False") == "False"
        if private and line["gap_to_oracle"] and line["model_kind"] and line["n_records"]:
            yield line


FACTOR_IN_RECORDS, FACTOR_IN_EPSILON = 10.0, 3.0
"""A row counts half as much with each such factor between its N or ε and those of the question."""

OTHER_KIND = 0.25
"""Share that a row counts with another kind of model than the question's."""

COVERED = 0.75
"""A method is a candidate if it was measured on so much of the weight of all tasks: else its tasks may be easy ones."""

BEYOND_RECORDS, BEYOND_EPSILON, BETWEEN_EPSILONS = 2.0, 1.25, 2.0
"""Nothing is known beyond these factors from the ends of what is measured; between ε, from the nearest of them."""

NEAR_IN_EPSILON = 4.0
"""Collapses are counted up to this factor in ε: they are rare, and a single table has too few runs to show them."""

NEXT = 3


@dataclass(frozen=True)
class Question:
    """A question for advice; `compute` is in untuned training runs, and `metric` what the answer is measured by."""

    records: int
    model: str
    epsilon: float
    compute: float = math.inf
    metric: str = ACCURACY.name

    def __post_init__(self) -> None:
        if self.model not in KINDS:
            kinds = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
            raise InvalidValueError(f"Expected model to be {kinds}, got {shown(self.model, form=repr)}.")
        positive("records", self.records), positive("epsilon", self.epsilon)
        if self.compute != math.inf:
            positive("compute", self.compute)


@dataclass(frozen=True)
class Evidence:
    """A row that an estimate rests on, with its weight, which is at most 1."""

    row: Measured
    weight: float


@dataclass(frozen=True)
class Option:
    """A method that could be taken.

    Attributes:
        distance: points behind the oracle that are expected on another task, with the interval that holds such a
            distance for 95 of 100 tasks like these; without an interval if a single task has this kind of model.
        collapses: over the rows with this kind of model at an ε within a factor of four.
        cost: median over the rows with this kind of model, in untuned runs; `most` is the largest. ∞ if none has it.
        tasks: number of tasks with this kind of model.
        evidence: the rows that it rests on, the heaviest first.
    """

    label: str
    distance: Estimate
    collapses: Rate
    cost: float
    most: float
    tasks: int
    evidence: tuple[Evidence, ...]

    @property
    def bound(self) -> float:
        """The upper end of the interval, in points behind the oracle: what options are ordered by."""
        return self.distance.mean if self.distance.high is None else self.distance.high

    @property
    def price(self) -> float:
        """The cost to one decimal, as people read it."""
        return round(self.cost, 1)


@dataclass(frozen=True)
class Partly:
    """A method that is ahead of the advice where it was measured, but was measured on too few tasks to be advised."""

    label: str
    tasks: int
    distance: float
    choice_distance: float


@dataclass(frozen=True)
class Advice:
    """The answer to a question.

    Attributes:
        reason: why the answer is not known; empty if it is.
        options: what the compute affords, the lowest bound first.
        front: of all options, the choice too, each with a lower bound than all that cost as much or less; the cheapest
            first.
        partly: methods that may be better, and were measured on too few tasks.
    """

    question: Question
    reason: str = ""
    options: tuple[Option, ...] = ()
    front: tuple[Option, ...] = ()
    partly: tuple[Partly, ...] = ()

    @property
    def choice(self) -> Option | None:
        """The method to take; None if that is not known."""
        return self.options[0] if self.options else None

    @property
    def following(self) -> tuple[Option, ...]:
        """The next options that the compute affords, without those in the front."""
        return tuple(option for option in self.options if option not in self.front)[:NEXT]


def advise(rows: Iterable[Measured], question: Question) -> Advice:
    """Answer a question from the rows of a board; where the board has nothing near, the answer says so."""
    known = list(rows)
    reason = _unmeasured(known, question)
    if reason:
        return Advice(question, reason=reason)

    def halvings(ratio: float, factor: float) -> float:
        return abs(math.log(ratio)) / math.log(factor)

    def weight(row: Measured) -> float:
        far = halvings(row.records / question.records, FACTOR_IN_RECORDS)
        far += halvings(row.epsilon / question.epsilon, FACTOR_IN_EPSILON)
        return float(0.5**far) * (1.0 if row.kind == question.model else OTHER_KIND)

    weighted = [Evidence(row, weight(row)) for row in known if Measure(row.metric).share]
    by_label: defaultdict[str, list[Evidence]] = defaultdict(list)
    for evidence in weighted:
        by_label[evidence.row.label].append(evidence)
    whole = math.fsum(_task_weights(weighted).values())
    options: list[Option] = []
    few: list[Option] = []
    for label, of_label in by_label.items():
        asked = any(evidence.row.kind == question.model for evidence in of_label)
        covered = math.fsum(_task_weights(of_label).values()) >= COVERED * whole * (1 - 1e-9)
        if asked:
            (options if covered else few).append(_option(label, of_label, question))
    options.sort(key=lambda option: (round(option.bound, 9), option.price, option.label))
    affordable = [option for option in options if option.price <= question.compute]
    if not affordable:
        return Advice(question, reason=_unaffordable(options, question))
    front = [option for at, option in enumerate(options) if all(option.price < each.price for each in options[:at])]
    compared = [_partly(option, affordable[0]) for option in few if option.price <= question.compute]
    partly = [each for each in compared if each]
    partly.sort(key=lambda each: (each.distance - each.choice_distance, each.label))
    return Advice(question, options=tuple(affordable), front=tuple(reversed(front)), partly=tuple(partly))


def _task_weights(evidence: Iterable[Evidence]) -> Mapping[str, float]:
    """Return the weight of each task: of its heaviest row, so that many tables of one task count no more than one."""
    weights: dict[str, float] = {}
    for each in evidence:
        weights[each.row.data] = max(each.weight, weights.get(each.row.data, 0.0))
    return weights


def _option(label: str, evidence: Sequence[Evidence], question: Question) -> Option:
    of_kind = [each for each in evidence if each.row.kind == question.model]
    asked = [each.row for each in of_kind]
    tasks = len({row.data for row in asked})
    if tasks == 1:  # nothing tells how this kind of model differs from the others
        evidence = of_kind
    costs = [row.cost for row in asked if row.cost < math.inf] or [math.inf]
    near = [row for row in asked if _within(row.epsilon, question.epsilon, NEAR_IN_EPSILON)]
    falling = [(row.collapsed, row.runs) for row in near if row.collapsed is not None]
    collapses = Rate(sum(each for each, _ in falling), sum(runs for _, runs in falling))
    distance = expected(evidence, interval=tasks > 1)
    heaviest = tuple(sorted(evidence, key=lambda each: (-round(each.weight, 9), each.row.table)))
    return Option(label, distance, collapses, median(costs), max(costs), tasks, heaviest)


def expected(evidence: Sequence[Evidence], interval: bool = True) -> Estimate:
    """Return the distance to expect on another task, with an interval that treats the tasks as drawn at random.

    The mean of the tasks' weighted means, each with the task's weight. The interval is Student's t interval for one
    more draw, mean ± t · s · √(1 + 1/n), with Kish's (1965) effective number of tasks n = (Σw)² / Σw²; for equal
    weights the textbook's prediction interval. Noise of the seeds is within the spread s of the tasks.
    """
    weights = _task_weights(evidence)
    values = {}
    for task in weights:
        of_task = [each for each in evidence if each.row.data == task]
        total = math.fsum(each.weight for each in of_task)
        values[task] = math.fsum(each.weight * each.row.distance for each in of_task) / total
    total = math.fsum(weights.values())
    mean = math.fsum(weights[task] * values[task] for task in weights) / total
    effective = total**2 / math.fsum(weight**2 for weight in weights.values())
    if not interval or len(weights) < 2:
        return Estimate(mean)
    squares = math.fsum(weights[task] * (values[task] - mean) ** 2 for task in weights) / total
    half = quantile(effective - 1) * math.sqrt(squares / (1 - 1 / effective) * (1 + 1 / effective))
    return Estimate(mean, mean - half, mean + half)


def _within(value: float, other: float, factor: float) -> bool:
    return abs(math.log(value / other)) <= math.log(factor) * (1 + 1e-9)


def _partly(option: Option, choice: Option) -> Partly | None:
    """Return the comparison on the tables that both are in, weighted; None if the option is not ahead there."""
    mine = {each.row.table: each for each in option.evidence}
    both = [each for each in choice.evidence if each.row.table in mine]
    if not both:
        return None
    distance = expected([mine[each.row.table] for each in both], interval=False).mean
    other = expected(both, interval=False).mean
    return Partly(option.label, option.tasks, distance, other) if distance < other else None


def _unmeasured(rows: Sequence[Measured], question: Question) -> str:
    """Return why the board has nothing near the question, or an empty text."""
    shares = [row for row in rows if Measure(row.metric).share]
    known = sorted({row.metric for row in shares})
    if not known:
        return "the table has no distance to an oracle in points of a share, such as the accuracy."
    if question.metric not in known:
        tasks = sorted({row.task for row in rows if row.metric == question.metric})
        where = f"only measured on {', '.join(tasks)}" if tasks else "not measured"
        return f"the {shown(question.metric)} is {where}; distances are known in points of {', '.join(known)}."
    asked = [row for row in shares if row.kind == question.model]
    if not asked:
        kinds = ", ".join(kind for kind in KINDS if any(row.kind == kind for row in shares))
        return f"no table of the board has a {question.model} model. It has: {kinds or 'none'}."
    epsilons = sorted({row.epsilon for row in asked})
    inside = epsilons[0] / BEYOND_EPSILON <= question.epsilon <= epsilons[-1] * BEYOND_EPSILON
    if not inside or not any(_within(question.epsilon, epsilon, BETWEEN_EPSILONS) for epsilon in epsilons):
        measured = ", ".join(f"{epsilon:g}" for epsilon in epsilons)
        return f"ε = {question.epsilon:g} is not near an ε that is measured with a {question.model} model: {measured}."
    low, high = min(row.records for row in asked), max(row.records for row in asked)
    if not low / BEYOND_RECORDS <= question.records <= high * BEYOND_RECORDS:
        return (
            f"{question.records:,} records are far from those that are measured with a {question.model} model: "
            f"{low:,}{f' to {high:,}' if high > low else ''}."
        )
    return ""


def _unaffordable(options: Sequence[Option], question: Question) -> str:
    if not options:
        return f"no method is measured on enough tasks near a {question.model} model."
    cheapest = min(option.price for option in options)
    if math.isinf(cheapest):
        return "what the methods cost is not known: the board has no untuned run (auto_clipping) beside them."
    return (
        f"no method that is measured on enough tasks costs {question.compute:g} untuned runs or less. "
        f"The cheapest costs {cheapest:g}."
    )


def unseen(label: str, question: Question) -> str:
    """Return what the method's rate loses on other kinds of records, at the nearest ε; empty if that is not known."""
    if label not in RATED or question.model == "fine-tuned":
        return ""
    table = (files("dphpo_bench.leaderboard") / UNSEEN).read_text(encoding="utf-8")
    lines = [line for line in csv.DictReader(io.StringIO(table)) if line["model_kind"] == question.model]
    nearest = min((float(line["epsilon"]) for line in lines), key=lambda at: abs(math.log(at / question.epsilon)))
    most = {line["kind"]: float(line["most"]) for line in lines if float(line["epsilon"]) == nearest}
    worst = max(most, key=lambda kind: most[kind])
    return (
        f"19 of 20 tasks within {median(most.values()):.1f} points in the median of {len(most)} kinds, within "
        f"{most[worst]:.1f} in the worst ({worst})"
    )


def settled_on(option: Option) -> str:
    """Return how much of an answer rests on data on which the method's constants were settled; empty if none were."""
    if option.label not in RATED:
        return ""
    seen = _task_weights(each for each in option.evidence if each.row.stage == "development")
    share = math.fsum(seen.values()) / math.fsum(_task_weights(option.evidence).values())
    return f"{100 * share:.0f} % of the weight is of data on which its constants were settled, which may flatter it"


NO_INTERVAL = "no interval: a single task"

RECORDS = (2_000, 50_000)
"""Numbers of records in the guide's questions, if the board has measured near each; else it asks about its own."""

MODELS = {"linear": "a linear model", "network": "a network from scratch", "fine-tuned": "a network to fine-tune"}


def lead(behind: float) -> str:
    """Return points behind as a distance to the oracle, as everywhere on the board: above zero is ahead."""
    return change_text(-behind / 100, ACCURACY)


def number(value: float) -> str:
    """Return points with one decimal, with a sign only below zero."""
    return lead(-value).removeprefix("+")


def distance_text(option: Option) -> str:
    mean = option.distance.mean
    return f"{number(abs(mean))} points {'ahead' if round(mean, 1) < 0 else 'behind'}"


def interval_text(distances: Iterable[Estimate]) -> str:
    """Return the intervals of distances to the oracle, all in one, or why there is none."""
    known = [(each.low, each.high) for each in distances if each.low is not None and each.high is not None]
    return f"[{lead(max(high for _, high in known))}, {lead(min(low for low, _ in known))}]" if known else NO_INTERVAL


def size_text(row: Measured) -> str:
    """Return N, with the unit if this holds several records."""
    return f"{row.records:,}" if row.unit in ("", RECORD) else count(row.records, row.unit)


def rate_text(rate: Rate) -> str:
    if not rate.runs:
        return NOTHING  # no run near this ε, or none of a metric that knows a collapse
    return f"{rate.count} of {rate.runs} ({100 * rate.low:.1f} to {100 * rate.high:.1f} %)"


def cost_text(option: Option) -> str:
    if math.isinf(option.price):
        return "cost not known"
    most = "" if round(option.most, 1) == option.price else f", up to {option.most:.1f}"
    runs = "untuned run" if option.price == 1 else "untuned runs"
    return f"{option.price:g} {runs}{most}"


def grid(rows: Iterable[Measured]) -> tuple[Advice, ...]:
    """Return the advice for each kind of model, some numbers of records, and each ε measured with that kind.

    The compute is not limited: `Advice.front` has what to take with less. Empty without rows.
    """
    measured = [row for row in rows if Measure(row.metric).share]
    epsilons = {kind: sorted({row.epsilon for row in measured if row.kind == kind}) for kind in KINDS}

    def answers(sizes: Iterable[int]) -> tuple[Advice, ...]:
        return tuple(
            advise(measured, Question(records, kind, epsilon))
            for kind in KINDS
            for records in sizes
            for epsilon in epsilons[kind]
        )

    usual, sizes = answers(RECORDS), [row.records for row in measured]
    near = {advice.question.records for advice in usual if advice.choice}
    return usual if near.issuperset(RECORDS) else answers(sorted({min(sizes), max(sizes)}) if sizes else ())


def for_page(rows: Iterable[Measured]) -> dict[str, Any]:
    """Return what the page needs to answer any question by the same rule: its rows, constants, and quantiles of t."""
    known = [row for row in rows if Measure(row.metric).share]
    labels, data = sorted({row.label for row in known}), sorted({row.data for row in known})
    freedoms = [10 ** (step / 40) for step in range(-60, 121)]
    return {
        "models": {kind: MODELS[kind] for kind in KINDS if any(row.kind == kind for row in known)},
        "labels": labels,
        "rows": [
            [labels.index(row.label), data.index(row.data), row.kind, row.records, row.epsilon, round(row.distance, 4),
             None if math.isinf(row.cost) else round(row.cost, 4), row.collapsed, row.runs, row.stage == "development"]
            for row in known
        ],
        "rated": [label for label in labels if label in RATED],
        "constants": [FACTOR_IN_RECORDS, FACTOR_IN_EPSILON, OTHER_KIND, COVERED, BEYOND_RECORDS, BEYOND_EPSILON,
                      BETWEEN_EPSILONS, NEAR_IN_EPSILON],
        "freedoms": freedoms,
        "quantiles": [round(quantile(each), 6) for each in freedoms],
    }  # fmt: skip
