"""Cells: the single runs of a sweep, which depend on nothing but their identity, and what workers do with them."""

import json
import logging
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import cloudpickle

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import is_registered, make_method, make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import Entry
from dphpo_bench.harness.cache import Cache
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.loading import Counted, check_declared, records_digest
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.harness.run import ExecutionOptions, run
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records.reading import Only
from dphpo_bench.records.record import Epsilon, Identity, Privacy, RunRecord, moment
from dphpo_bench.sweep.executors import Answer, Resources
from dphpo_bench.sweep.suite import Suite, TaskMaker


@dataclass(frozen=True)
class Unregistered:
    """Methods by name and parameters, and tasks by name and model, for a process that finds them by no name."""

    methods: Mapping[tuple[str, str], Method] = field(default_factory=dict)
    tasks: Mapping[tuple[str, str], Task] = field(default_factory=dict)
    # Layers that functions define, and their full names: copies of classes lack them, and fingerprints hold them.
    nested: tuple[tuple[type, str], ...] = ()

    def method_of(self, identity: Identity) -> Method:
        method = self.methods.get((identity.method, compact_json(identity.parameters)))
        return make_method(identity.method, identity.parameters) if method is None else method

    def task_of(self, identity: Identity) -> Task:
        task = self.tasks.get((identity.task, identity.model))
        return make_task(identity.task, identity.model) if task is None else task


@contextmanager
def pickled(methods: Iterable[Method], tasks: Iterable[Task]) -> Iterator[str]:
    """Pickle what is not registered to a file that only the user can read, and remove the file at the end.

    The records of an `ArrayTask` are in that file. It stays if this process is killed. Yields its path, empty if all
    plug-ins are registered.
    """
    own_methods = {id(method): method for method in methods if not is_registered(type(method))}.values()
    own_tasks = {id(task): task for task in tasks if not is_registered(type(task))}.values()
    if not (own_methods or own_tasks):
        yield ""
        return
    plug_ins = Unregistered(
        {(method.name, compact_json(method.parameters)): method for method in own_methods},
        {(task.facts.task, task.facts.model): task for task in own_tasks},
        _nested_layers(own_tasks),
    )
    with TemporaryDirectory(prefix="dphpo-bench-") as folder:
        path = Path(folder) / "plug_ins.pickle"
        try:
            with path.open("wb") as file:
                cloudpickle.dump(plug_ins, file)
        except OSError as error:
            raise InvalidValueError(
                f"Cannot write {path}: {error.strerror}. Set TMPDIR to a folder with room."
            ) from None
        except Exception as error:  # whatever an object of somebody's raises when it is pickled
            names = ", ".join(name for name, _ in (*plug_ins.methods, *plug_ins.tasks))
            raise InvalidValueError(
                f"Cannot hand {shown(names)} to another process: {shown(error, 300)}. Keep open files, locks and "
                "generators out of it, or pass functions that make them."
            ) from None
        yield str(path)


def unpickled(path: str) -> Unregistered:
    """Return what `pickled` wrote; nothing for an empty path."""
    if not path:
        return Unregistered()
    plug_ins: Unregistered = pickle.loads(Path(path).read_bytes())
    for cls, name in plug_ins.nested:
        cls.__qualname__ = name
    return plug_ins


def _nested_layers(tasks: Iterable[Task]) -> tuple[tuple[type, str], ...]:
    import torch

    with torch.random.fork_rng(devices=[]):
        classes = {type(layer): None for task in tasks for layer in task.build_model().modules()}
    return tuple((cls, cls.__qualname__) for cls in classes if "<locals>" in cls.__qualname__)


@dataclass(frozen=True)
class Cell:
    """Single run of a sweep. Its identity, seed included, decides whether it has been run; its resources do not."""

    method: Method
    task: Task
    budget: PrivacyBudget
    identity: Identity
    resources: Resources
    plug_ins: str = ""  # file of a method or a task that is not registered; see `pickled`

    @cached_property
    def key(self) -> str:
        return self.identity.key

    def __str__(self) -> str:
        identity = self.identity
        which = f"run {identity.run}" if identity.seed is None else f"seed {identity.seed}"
        return f"{identity.method} on {identity.task} ({identity.model}), ε {identity.epsilon:g}, {which}"


@dataclass(frozen=True)
class CellPlan:
    """Plan of a cell: ε of the whole procedure, and the expected training runs, steps and per-example passes."""

    epsilon: float
    accountant: str
    tuning_share: float
    runs: int
    steps: int
    examples: float


def cells_of(
    suite: Suite, source: DataSource, only: Sequence[str] = (), make_task: TaskMaker = make_task
) -> list[Cell]:
    """Return the cells of a checked suite, or only some: `only` has texts such as "method=hyfreedp,task=mnist"."""
    tasks = suite.made_tasks(make_task)
    only_these = Only.parse(
        only,
        {
            "method": {entry.name for entry in suite.methods},
            "task": {task.name for task, _ in tasks},
            "model": {task.model_name for task, _ in tasks},
            "epsilon": set(suite.epsilons),
            "seed": {seed for task, _ in tasks for some in _seeds(suite, task).values() for seed in some},
        },
    )
    methods = [(method, hints) for method, hints in suite.made_methods() if only_these.accepts("method", method.name)]
    groups: list[list[Cell]] = []
    for task, task_hints in tasks:
        if not (only_these.accepts("task", task.name) and only_these.accepts("model", task.model_name)):
            continue
        of_task = task_identity(task, task.facts, source)
        for budget in suite.budgets(task):
            if not only_these.accepts("epsilon", budget.epsilon):
                continue
            for method, method_hints in methods:
                seeds = [seed for seed in _seeds(suite, task)[method.name] if only_these.accepts("seed", seed)]
                if seeds and suite.runs_on(method.name, task):
                    identity = identity_of(method, of_task, budget, seeds[0])
                    resources = suite.resources_of(method_hints, task_hints)
                    groups.append(with_seeds([Cell(method, task, budget, identity, resources)], seeds))
    if not groups:
        raise InvalidValueError(f"No cell of the suite is all of --only {shown(','.join(only), 300)}.")
    return [cell for cell in chain(*zip_longest(*groups)) if cell]  # seeds vary slowest; see `with_seeds`


def _seeds(suite: Suite, task: Task) -> dict[str, tuple[int, ...]]:
    """Return the seeds of each method on a task."""
    more = suite.more_seeds_of(task)
    return {entry.name: suite.seeds_of(task) + more.get(entry.name, ()) for entry in suite.methods}


def with_seeds(first: Sequence[Cell], seeds: Iterable[int]) -> list[Cell]:
    """Return the cells with each seed; seeds vary slowest, so that plans are made by the time second runs need them."""
    return [replace(cell, identity=cell.identity.model_copy(update={"seed": seed})) for seed in seeds for cell in first]


@dataclass(frozen=True)
class Secret:
    """Secrets of a worker on private records."""

    values: Mapping[str, int] = field(default_factory=dict)  # of the run's journal: its noise is drawn from them
    event: str = ""  # of the plan that was counted, as text; empty for other work than a run
    key: str = ""  # of the digest of the records, in hexadecimal digits; empty if none is asked for
    releases: str = ""  # path of the hashes of what the run released before; empty where it cannot start again


def job_of(cell: Cell, source: DataSource, secret: Secret | None = None) -> str:
    """Return the argument of `run_cell`, `plan_cell` and `prepare_data`, as JSON."""
    return json.dumps(
        {
            "identity": cell.identity.model_dump(),
            "threads": cell.resources.threads,
            "device": device_of(cell),
            "data_dir": None if source.data_dir is None else str(source.data_dir.absolute()),
            "cache_dir": str(source.cache_dir.absolute()),
            "plug_ins": cell.plug_ins,
            "secret": asdict(secret or Secret()),
        }
    )


def device_of(cell: Cell) -> str:
    """Return the device of a cell; like the results, it does not depend on the machine."""
    return "cuda" if cell.resources.gpus else "cpu"


class Job:
    """Work on a cell in the process that does it."""

    def __init__(self, text: str) -> None:
        import torch

        job = json.loads(text)
        self.identity = Identity.model_validate(job["identity"])
        self.budget = PrivacyBudget(self.identity.epsilon, self.identity.delta)
        self.device = str(job["device"])
        self.source = DataSource.resolve(job["data_dir"], job["cache_dir"], NullProgress())
        self.cache = Cache.of(self.source)
        torch.set_num_threads(job["threads"])
        self._plug_ins = str(job["plug_ins"])
        secret = Secret(**job["secret"])
        releases = Path(secret.releases) if secret.releases else None
        self.counted = Counted(Journal.holding(secret.values, releases), secret.event) if secret.event else None
        self.key = bytes.fromhex(secret.key)
        logging.basicConfig()  # writes to the cell's log, tracebacks included
        logging.getLogger("dphpo_bench").setLevel(logging.DEBUG)

    @cached_property
    def _unregistered(self) -> Unregistered:
        return unpickled(self._plug_ins)

    def method(self) -> Method:
        return self._unregistered.method_of(self.identity)

    def task(self) -> Task:
        return self._unregistered.task_of(self.identity)


def run_cell(job: str) -> str:
    """Run a cell and return its record as JSON; whatever goes wrong is in the record."""
    start = time.monotonic()
    work = Job(job)
    try:
        result = run(
            work.method(),
            work.task(),
            work.budget,
            seed=work.identity.seed,
            account=work.counted,
            execution=ExecutionOptions(work.device, work.source, work.cache),
            progress=NullProgress(),
            check=False,
        )
    except Exception as error:
        reason = reason_of(error, hide=work.counted is not None and work.identity.seed is None)
        is_refused = work.counted is not None and isinstance(error, DphpoBenchError) and error.asked_nothing
        return failed_record(work.identity, reason, time.monotonic() - start, asked_nothing=is_refused).to_json()
    return result.record.to_json()


def plan_cell(job: str) -> str:
    """Plan a cell, keep the plan for its run, and return the plan and its entry in an account, or {"error": reason}."""
    work = Job(job)
    try:
        checked = plan(work.method(), work.task(), work.budget, cache=work.cache)
        report = checked.epsilon
        cell_plan = CellPlan(report.epsilon, report.quoted, checked.tuning_share, **asdict(checked.plan.cost))
        return json.dumps({"plan": asdict(cell_plan), "entry": asdict(Entry.of(checked, 0))})
    except Exception as error:
        return json.dumps({"error": reason_of(error)})


def planned(answer: Answer) -> tuple[CellPlan, Entry] | str:
    """Return the plan of a cell and its entry in an account from the answer of `plan_cell`; or why there is none."""
    if answer.text is None:
        return answer.failure
    said = json.loads(answer.text)
    return said["error"] if "error" in said else (CellPlan(**said["plan"]), Entry(**said["entry"]))


def prepare_data(job: str) -> str:
    """Load the data of a task, and return the user's error and a digest under the job's key, if any, as JSON."""
    work, digest = Job(job), ""
    task = work.task()
    try:
        task.prepare(work.source)
        train = task.load_train(work.source)  # a task that prepares nothing may download or refuse here
        check_declared(task.facts, train)
        task.load_test(work.source)
    except DphpoBenchError as error:
        return json.dumps({"error": str(error), "digest": ""})
    if work.key:
        digest = records_digest(work.key, train)
    return json.dumps({"error": "", "digest": digest})


_NOTHING = Epsilon(epsilon=0, accountant="none", by_accountant={})
_NO_RELEASE = Privacy(
    planned=_NOTHING,
    recomputed=_NOTHING,
    epsilon=0,
    tuning_share=0,
    end_to_end_private=True,
    ledger=Ledger().to_json(),
)


def failed_record(identity: Identity, reason: str, seconds: float, *, asked_nothing: bool = False) -> RunRecord:
    """Return the record of a run that could not make its own. Its releases are unknown, so it states no ε.

    A run that was refused before it asked anything of the records states ε = 0. Whether the time of another is a
    secret is unknown, too, and a run without a seed may have one.
    """
    hidden = identity.seed is None
    return RunRecord(
        identity=identity,
        status="failed",
        error=reason,
        privacy=_NO_RELEASE if asked_nothing else None,
        cost=None,
        seconds={} if hidden else {"total": seconds},
        peak_memory_bytes=None,
        environment={"dphpo-bench": version("dphpo-bench")},
        created=moment(day_only=hidden),
    )
