"""The extra runs that tell why a run lost: its own values for free, and the oracle's with what was left of ε."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.progress import Progress
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract.method import Plan
from dphpo_bench.contract.registry import make_method, make_task
from dphpo_bench.contract.search_space import SCHEDULE
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.cache import Cache
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.recording import Call, identity_of, task_identity
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import HYPERPARAMETERS, DpSgd
from dphpo_bench.recipes.search_method import Trial
from dphpo_bench.recipes.searched_run import SearchedRun
from dphpo_bench.records.measure import compared_value, shown_measure
from dphpo_bench.records.reading import REPLAY as REPLAY
from dphpo_bench.records.record import Identity, RunRecord
from dphpo_bench.sweep.cells import Cell
from dphpo_bench.sweep.executors import Resources
from dphpo_bench.sweep.suite import TaskMaker, configuration_of
from dphpo_bench.training.optimizers import UpdateRule

ORACLE = "grid_oracle"
"""The method, by its default parameters, to which distances are measured."""

T = TypeVar("T")

SAME = ("task", "task_version", "facts", "model", "model_fingerprint", "data_fingerprint", "epsilon", "delta")
"""Fields in which a run and its oracle agree."""

NO_WINNER = "its search has no winner, so it has no values; the noise is that at the oracle's values"
FREE = "nothing was paid for tuning, so no extra run is needed"


@dataclass(frozen=True)
class Split:
    """Four runs, by whose values they train with and how much ε their training has; larger results are better."""

    run: float  # the run's values, what was left of ε: the run itself
    oracle: float  # the oracle's values, all of ε: the oracle's last training
    at_full: float | None  # the run's values, all of ε; None if there are none to train with
    at_left: float  # the oracle's values, what was left of ε

    @classmethod
    def of_free_tuning(cls, run: float, oracle: float) -> "Split":
        return cls(run, oracle, run, oracle)

    @property
    def loss(self) -> float:
        """Distance by which the oracle is better; `noise` and `choice` add up to it."""
        return self.oracle - self.run

    @property
    def noise(self) -> float:
        """Cost of paying for the tuning: the mean over both choices of values, or at the oracle's alone."""
        at_oracles = self.oracle - self.at_left
        return at_oracles if self.at_full is None else (at_oracles + self.at_full - self.run) / 2

    @property
    def choice(self) -> float:
        """Cost of the other values: the mean over both amounts of ε, or at what was left alone."""
        at_what_was_left = self.at_left - self.run
        return at_what_was_left if self.at_full is None else (at_what_was_left + self.oracle - self.at_full) / 2


def counterpart(by_seed: Mapping[int, T], seed: int | None) -> T | None:
    """Return the item of this seed, else of the smallest one; None if there is none."""
    return (None if seed is None else by_seed.get(seed)) or (by_seed[min(by_seed)] if by_seed else None)


@dataclass(frozen=True)
class Question:
    """A question why a run lost, and the extra runs that tell."""

    record: RunRecord
    oracle: RunRecord
    # Its values, the noise of the whole budget; None if it has no values, or paid nothing for them.
    at_full: Cell | None
    at_left: Cell | None  # the oracle's values, the noise that was left; None if the run paid nothing
    note: str = ""

    @property
    def cells(self) -> list[Cell]:
        return [cell for cell in (self.at_full, self.at_left) if cell]

    def split(self, find: Callable[[Identity], RunRecord | None]) -> Split:
        result, oracle = _score(self.record), _score(self.oracle)
        if self.at_left is None:
            return Split.of_free_tuning(result, oracle)
        at_full = None if self.at_full is None else _score(_finished(self.at_full, find))
        return Split(result, oracle, at_full, _score(_finished(self.at_left, find)))


def _score(record: RunRecord) -> float:
    measure = shown_measure(record.identity.facts, record.metrics)
    value = record.metrics.get(measure.name)
    if value is None:
        who = record.identity
        raise InvalidValueError(
            f"Expected a record with the metric {measure.name}, got that of {who.method} on {who.task} ({who.model}), "
            f"ε {who.epsilon:g}."
        )
    return measure.score(compared_value(measure, value, record.identity.facts))


def _finished(cell: Cell, find: Callable[[Identity], RunRecord | None]) -> RunRecord:
    record = find(cell.identity)
    if record is None or record.status != "ok":
        raise InvalidValueError(f"An extra run failed: {record.error if record else 'it has no record'}")
    return record


class Oracles:
    """The oracle's finished runs with a seed, found by what they are set beside."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        who = configuration_of(make_method(ORACLE))
        self._by_setting: defaultdict[str, dict[int, RunRecord]] = defaultdict(dict)
        for record in records:
            identity = record.identity
            is_oracle = (identity.method, compact_json(identity.parameters)) == who
            if is_oracle and record.status == "ok" and identity.seed is not None:
                self._by_setting[_setting(identity)][identity.seed] = record

    def beside(self, identity: Identity) -> RunRecord | None:
        return counterpart(self._by_setting.get(_setting(identity), {}), identity.seed)


def _setting(identity: Identity) -> str:
    return compact_json([getattr(identity, field) for field in SAME])


def questions(
    records: Iterable[RunRecord], oracles: Oracles, root: Path, workshop: "Workshop", progress: Progress
) -> tuple[list[Question], list[tuple[RunRecord, str]]]:
    asked, refused = [], []
    records = list(records)
    with progress.track("Planning extra runs", len(records)) as advance:
        for record in records:
            try:
                asked.append(_question(record, _oracle_of(record, oracles, root), workshop))
            except DphpoBenchError as error:
                refused.append((record, str(error)))
            advance()
    return asked, refused


class Workshop:
    def __init__(self, source: DataSource, resources: Resources, make_task: TaskMaker = make_task) -> None:
        self._source = source
        self._resources = resources
        self._make_task = make_task
        self._cache = Cache.of(source)
        self._tasks: dict[tuple[str, str], tuple[Task, Mapping[str, Any]]] = {}
        self._plans: dict[tuple[object, ...], Plan[Any]] = {}

    def plan(self, identity: Identity) -> Plan[Any]:
        same = self.again(identity)
        key = (identity.method, compact_json(identity.parameters), identity.task, identity.model, same.budget)
        if key not in self._plans:
            self._plans[key] = plan(same.method, same.task, same.budget, cache=self._cache).plan
        return self._plans[key]

    def again(self, identity: Identity) -> Cell:
        cell = self.cell(identity, identity.method, identity.parameters)
        here = cell.identity.model_copy(update={"run": identity.run})
        for name in Identity.model_fields:
            recorded, computed = getattr(identity, name), getattr(here, name)
            if recorded != computed:
                raise InvalidValueError(
                    f"Its {name} is {shown(recorded, 60)}, here it is {shown(computed, 60)}: another method or task. "
                    "Run it again."
                )
        return replace(cell, identity=identity)

    def cell(self, of: Identity, name: str, parameters: Mapping[str, Any]) -> Cell:
        method, (task, of_task) = make_method(name, parameters), self._task(of)
        budget = PrivacyBudget(of.epsilon, of.delta)
        return Cell(method, task, budget, identity_of(method, of_task, budget, of.seed), self._resources)

    def _task(self, of: Identity) -> tuple[Task, Mapping[str, Any]]:
        key = of.task, of.model
        if key not in self._tasks:
            task = self._make_task(*key)
            self._tasks[key] = task, task_identity(task, task.facts, self._source)
        return self._tasks[key]


def _oracle_of(record: RunRecord, oracles: Oracles, root: Path) -> RunRecord:
    identity, privacy = record.identity, record.privacy
    if identity.method == REPLAY:
        raise InvalidValueError("The record is an extra run itself; name the record that it is about.")
    if record.status != "ok" or privacy is None:
        raise InvalidValueError(f"The run failed, so it chose nothing: {record.error}")
    if not privacy.end_to_end_private:
        raise InvalidValueError(f"{identity.method} is not private, so it paid nothing for what it chose.")
    if identity.seed is None:
        raise InvalidValueError("The run has no seed, so no run can be set beside it.")
    oracle = oracles.beside(identity)
    if oracle is None:
        call = replace(Call.of(identity), method=ORACLE, parameters={}, results_dir=str(root))
        raise InvalidValueError(
            f"There is no record of the oracle in {root}. This makes it (on a task of yours, with its --task-file): "
            f"{call}"
        )
    return oracle


def _question(record: RunRecord, oracle: RunRecord, workshop: Workshop) -> Question:
    identity, privacy = record.identity, record.privacy
    assert privacy is not None
    if privacy.tuning_share == 0:
        return Question(record, oracle, None, None, FREE)
    if privacy.tuning_share == 1:
        raise InvalidValueError(
            "Tuning took all of ε, so that the oracle's values cannot be trained with what is left."
        )
    planned = workshop.plan(identity)
    theirs = final_run(workshop.plan(oracle.identity), oracle.released)
    if theirs is None:
        raise InvalidValueError("The record of the oracle does not say what it chose.")
    held_out = planned.parameters.validation if type(planned.parameters) is Trial else 0.0
    left = {"share": 1 - privacy.tuning_share, "held_out": held_out, "values_from": oracle.identity.key}
    about = {"explains": identity.key}
    at_left = workshop.cell(identity, REPLAY, {**about, **left, **values_of(theirs)})
    if record.released.get("winner", record) is None:
        return Question(record, oracle, None, at_left, NO_WINNER)
    about["values_from"] = identity.key
    chosen = final_run(planned, record.released)
    if chosen is not None:
        return Question(record, oracle, workshop.cell(identity, REPLAY, {**about, **values_of(chosen)}), at_left)
    again = {"again": identity.method, "settings": compact_json(identity.parameters)}
    note = "it finds its values while it trains, so it ran again, with so much more ε that its training has all of ε"
    return Question(record, oracle, workshop.cell(identity, REPLAY, {**about, **again}), at_left, note)


def final_run(planned: Plan[Any], released: Mapping[str, Any]) -> DpSgd | None:
    """Return the run of DP-SGD that trained what was released; None if no such run did."""
    parameters = planned.parameters
    run = parameters.training if type(parameters) is Trial else getattr(parameters, "final", parameters)
    if type(run) is SearchedRun:
        run = run.planned({name: released[name] for name in SCHEDULE if name in released})
    if type(run) is not DpSgd:
        return None
    run = run.having({name: released[name] for name in HYPERPARAMETERS if name in released})
    try:
        UpdateRule(run.optimizer, [torch.zeros(1)], run.optimizer_options)
    except DphpoBenchError:  # none of torch's: such methods find their values while they train
        return None
    return run


def values_of(run: DpSgd) -> dict[str, Any]:
    return {field.name: getattr(run, field.name) for field in fields(run) if field.name != "noise_multiplier"}
