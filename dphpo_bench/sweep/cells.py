"""Cells: the single runs of a sweep, which depend on nothing but their identity, and what workers do with them."""

import hashlib
import hmac
import json
import logging
import pickle
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import torch

from dphpo_bench.base.errors import AccountError, DphpoBenchError, InvalidValueError
from dphpo_bench.base.progress import NullProgress, Progress
from dphpo_bench.base.text import compact_json, count, shown
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.registry import is_registered, make_method, make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import DEFAULT, RESERVED, VOID, Account, Entry
from dphpo_bench.harness.account_report import report_of, total_of
from dphpo_bench.harness.cache import Cache, code_of
from dphpo_bench.harness.journal import NONCE, Journal
from dphpo_bench.harness.loading import (
    Counted,
    check_declared,
    check_same_data,
    data_digest,
    folder_key,
    refuse_no_privacy,
)
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.harness.run import ExecutionOptions, run
from dphpo_bench.harness.state import CONDITIONS, conditions_of
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.events import no_op
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records.reading import Only
from dphpo_bench.records.record import Epsilon, Identity, Privacy, RunRecord, moment
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.executors import Executor, ProcessExecutor, Resources, SerialExecutor, answer_of
from dphpo_bench.sweep.suite import Suite, TaskMaker, configuration_of

PlugIns = dict[tuple[str, str], Method | Task]
"""Methods by name and parameters, and tasks by name and model, for a process that finds them by no name."""


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
    with torch.random.fork_rng(devices=[]):
        classes = {type(layer): None for task in own_tasks for layer in task.build_model().modules()}
    # Layers that functions define, and their full names: copies of classes lack them, and fingerprints hold them.
    nested = [(cls, cls.__qualname__) for cls in classes if "<locals>" in cls.__qualname__]
    plug_ins: PlugIns = {configuration_of(method): method for method in own_methods}
    plug_ins |= {(task.facts.task, task.facts.model): task for task in own_tasks}
    with TemporaryDirectory(prefix="dphpo-bench-") as folder:
        path = Path(folder) / "plug_ins.pickle"
        try:
            with path.open("wb") as file:
                cloudpickle.dump((plug_ins, nested), file)
        except OSError as error:
            raise InvalidValueError(
                f"Cannot write {path}: {error.strerror}. Set TMPDIR to a folder with room."
            ) from None
        except Exception as error:  # whatever an object of somebody's raises when it is pickled
            names = ", ".join(name for name, _ in plug_ins)
            raise InvalidValueError(
                f"Cannot hand {shown(names)} to another process: {shown(error, 300)}. Keep open files, locks and "
                "generators out of it, or pass functions that make them."
            ) from None
        yield str(path)


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
            "seed": {
                seed
                for task, _ in tasks
                for some in (suite.seeds_of(task), *suite.more_seeds_of(task).values())
                for seed in some
            },
        },
    )
    methods = [(method, hints) for method, hints in suite.made_methods() if only_these.accepts("method", method.name)]
    groups: list[list[Cell]] = []
    for task, task_hints in tasks:
        if not (only_these.accepts("task", task.name) and only_these.accepts("model", task.model_name)):
            continue
        of_task = task_identity(task, task.facts, source)
        more = suite.more_seeds_of(task)
        for budget in suite.budgets(task):
            if not only_these.accepts("epsilon", budget.epsilon):
                continue
            for method, method_hints in methods:
                every = suite.seeds_of(task) + more.get(configuration_of(method), ())
                seeds = [seed for seed in every if only_these.accepts("seed", seed)]
                if seeds and suite.runs_on(method.name, task):
                    identity = identity_of(method, of_task, budget, seeds[0])
                    resources = suite.resources_of(method_hints, task_hints)
                    groups.append(with_seeds([Cell(method, task, budget, identity, resources)], seeds))
    if not groups:
        which = f" is all of --only {shown(','.join(only), 300)}" if only else ": each task is without all methods"
        raise InvalidValueError(f"No cell of the suite{which}.")
    cells = [cell for cell in chain(*zip_longest(*groups)) if cell]  # seeds vary slowest; see `with_seeds`
    return list({cell.key: cell for cell in cells}.values())


def with_seeds(first: Sequence[Cell], seeds: Iterable[int]) -> list[Cell]:
    """Return the cells with each seed; seeds vary slowest, so that plans are made by the time second runs need them."""
    return [replace(cell, identity=cell.identity.model_copy(update={"seed": seed})) for seed in seeds for cell in first]


def job_of(cell: Cell, source: DataSource, counted: Counted | None = None) -> str:
    """Return the argument of `run_cell`, `plan_cell` and `prepare_data`, as JSON."""
    return json.dumps(
        {
            "identity": cell.identity.model_dump(),
            "threads": cell.resources.threads,
            "device": device_of(cell),
            "data_dir": None if source.data_dir is None else str(source.data_dir.absolute()),
            "cache_dir": str(source.cache_dir.absolute()),
            "plug_ins": cell.plug_ins,
            "counted": None if counted is None else asdict(counted),
        }
    )


def device_of(cell: Cell) -> str:
    """Return the device of a cell; like the results, it does not depend on the machine."""
    return "cuda" if cell.resources.gpus else "cpu"


class Job:
    """Work on a cell in the process that does it."""

    def __init__(self, text: str) -> None:
        job = json.loads(text)
        self.identity = Identity.model_validate(job["identity"])
        self.budget = PrivacyBudget(self.identity.epsilon, self.identity.delta)
        self.device = str(job["device"])
        self.source = DataSource.resolve(job["data_dir"], job["cache_dir"], NullProgress())
        self.cache = Cache.of(self.source)
        torch.set_num_threads(job["threads"])
        self._plug_ins = str(job["plug_ins"])
        self.counted = Counted(**job["counted"]) if job["counted"] else None
        logging.basicConfig()  # writes to the cell's log, tracebacks included
        logging.getLogger("dphpo_bench").setLevel(logging.DEBUG)

    @cached_property
    def _unregistered(self) -> PlugIns:
        if not self._plug_ins:
            return {}
        plug_ins: PlugIns
        plug_ins, nested = pickle.loads(Path(self._plug_ins).read_bytes())
        for cls, name in nested:
            cls.__qualname__ = name
        return plug_ins

    def method(self) -> Method:
        who = self.identity
        plug_in = self._unregistered.get((who.method, compact_json(who.parameters)))
        return plug_in if isinstance(plug_in, Method) else make_method(who.method, who.parameters)

    def task(self) -> Task:
        who = self.identity
        plug_in = self._unregistered.get((who.task, who.model))
        return plug_in if isinstance(plug_in, Task) else make_task(who.task, who.model)


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


def plans_of(
    cells: Iterable[Cell], executor: Executor, source: DataSource, progress: Progress | None = None
) -> dict[str, tuple[CellPlan, Entry] | str]:
    """Plan each kind of cell once, and keep the plan for the sweep.

    Returns:
        By `plan_key`: the plan, and the entry of its runs in an account; or why there is no plan.
    """
    kinds = {plan_key(cell): cell for cell in cells}
    futures = [executor.submit(plan_cell, job_of(cell, source), cell.resources) for cell in kinds.values()]
    with (progress or NullProgress()).track("Planning", len(futures)) as advance:
        for _ in as_completed(futures):
            advance()
    plans: dict[str, tuple[CellPlan, Entry] | str] = {}
    for key, future in zip(kinds, futures, strict=True):
        answer = answer_of(future)
        said: dict[str, Any] = {"error": answer.failure} if answer.text is None else json.loads(answer.text)
        plans[key] = said["error"] if "error" in said else (CellPlan(**said["plan"]), Entry(**said["entry"]))
    return plans


def plan_key(cell: Cell) -> str:
    """Return what cells that differ in nothing but their seed have in common."""
    return cell.identity.model_copy(update={"seed": None, "run": None}).key


def prepare_data(job: str) -> str:
    """Load the data of a task, and return the user's error, if any."""
    work = Job(job)
    task = work.task()
    try:
        task.prepare(work.source)
        train = task.load_train(work.source)  # a task that prepares nothing may download or refuse here
        check_declared(task.facts, train)
        task.load_test(work.source)
    except DphpoBenchError as error:
        return str(error)
    return ""


_NOTHING = Epsilon(epsilon=0, accountant="none", by_accountant={})
_NO_RELEASE = Privacy(
    planned=_NOTHING, recomputed=_NOTHING, epsilon=0, tuning_share=0, end_to_end_private=True, ledger=Ledger().to_json()
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


def unseeded(cells: Sequence[Cell], store: RecordStore) -> list[Cell]:
    """Return the cells, of which those on private records have no seed, but a number each.

    Whoever knows a seed can subtract the noise, and a suite is no secret. The numbers come from the folder's secret
    key, so that a sweep that goes on finds its own records.
    """
    if all(cell.task.public for cell in cells):
        return list(cells)
    key = folder_key(store.root)

    def numbered(cell: Cell) -> Cell:
        number = hmac.new(key, f"run {cell.identity.key}".encode(), hashlib.sha256).hexdigest()[:16]
        return replace(cell, identity=cell.identity.model_copy(update={"seed": None, "run": number}))

    return [cell if cell.task.public else numbered(cell) for cell in cells]


LOCAL = SerialExecutor, ProcessExecutor
"""Executors whose workers are on this machine, with its processor and its files."""


@dataclass
class PrivateCells:
    """Account of a sweep's runs on private records.

    A cell has a journal until it ends. After a kill of its worker or of the sweep, it starts again with the same noise
    and under the same entry. On a GPU or a cluster, or under other conditions, sums may be rounded otherwise: there
    each start has noise and an entry of its own.
    """

    store: RecordStore
    name: str = DEFAULT
    not_private: bool = False  # methods with ε = ∞ may run, because their output stays inside
    what: str = "run"  # kind of the runs in the account
    _releases: dict[str, Entry | str] = field(default_factory=dict)  # by `plan_key`; or why there is none
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)  # of the records, by task and model
    _is_local: bool = True  # workers are on this machine
    _running: dict[str, tuple[Counted, Journal, bool]] = field(default_factory=dict)  # by cell; whether it is its first

    @property
    def account(self) -> Account:
        return Account(self.store.root, self.name)

    def prepare(self, cells: Sequence[Cell], executor: Executor, source: DataSource) -> str:
        """Plan the cells on private records and check that they may run; return a line that says what they cost."""
        self._running.clear()
        self._is_local = isinstance(executor, LOCAL)
        private = [cell for cell in cells if not cell.task.public]
        for key, answer in plans_of(private, executor, source).items():
            self._releases[key] = answer if isinstance(answer, str) else answer[1]
        known = [(cell, release) for cell in private if isinstance(release := self._releases[plan_key(cell)], Entry)]
        if not known:
            return ""
        for _, release in known:
            refuse_no_privacy(release, self.not_private)
        cap, before = self.account.read()
        if cap:  # a list fixed in advance may fit where its runs one after the other would not
            entries = [self._entry(cell, release, self._journal(cell, release)) for cell, release in known]
            self.account.count([replace(entry, status=RESERVED) for entry in entries])
        earlier = f", after {len(before)} earlier ones" if before else ""
        by_unit: dict[str, list[Entry]] = {}
        for _, release in known:
            by_unit.setdefault(release.unit, []).append(release)
        each = "; ".join(f"{count(len(some), 'run')}, together {total_of(some).text()}" for some in by_unit.values())
        return f"On private records{earlier}: {each}."

    def check_data(self, cells: Sequence[Cell], source: DataSource) -> None:
        """Reject private records that changed since results were put into the folder."""
        for key, cell in {(cell.identity.task, cell.identity.model): cell for cell in cells}.items():
            if not cell.task.public:
                self._digests[key] = data_digest(self.store.root, cell.task, source)
                check_same_data(self.store.root, cell.task, cell.identity, self._digests[key])

    def start(self, cell: Cell) -> Counted:
        """Count a cell, and return what its process draws from; nothing changes for one whose process did not start."""
        if cell.key in self._running:
            return self._running[cell.key][0]
        release = self._releases[plan_key(cell)]
        if isinstance(release, str):
            raise InvalidValueError(release)
        self.store.check_writable(cell.identity)
        journal = self._journal(cell, release)
        is_first = CONDITIONS not in journal.values
        is_first = self.account.count([self._entry(cell, release, journal)]) and is_first
        journal.once(CONDITIONS, lambda: _conditions(cell, release))
        values = {NONCE: journal.nonce()}
        if cell.identity.run is not None:
            seed = journal.once("seed", lambda: secrets.randbits(128))
            values |= {"seed": seed, "run": int(cell.identity.run, 16)}
        releases = str(journal.releases) if self._is_local else ""
        self._running[cell.key] = Counted(values, release.event, releases), journal, is_first
        return self._running[cell.key][0]

    def killed(self, cell: Cell) -> None:
        """Note that the process of a cell was killed, before the cell starts again."""
        self._running.pop(cell.key, None)

    def refuse(self, cell: Cell) -> None:
        """Note a cell that cannot be planned: its record has cost nothing."""
        who, nothing = cell.identity, json.dumps(event_trees.to_json(no_op()))
        today = datetime.now(UTC).date().isoformat()
        names = f"{secrets.randbits(64):016x}", self.what, who.method, who.task, who.model, who.unit
        self.account.write_void(Entry(*names, 0.0, who.delta, nothing, today, cell.key))

    def end(self, cell: Cell, record: RunRecord) -> None:
        """Note how a cell ended, and forget what its noise was drawn from."""
        _, journal, is_first = self._running.pop(cell.key)
        asked_nothing = record.privacy is not None and record.asked_nothing  # of a worker that was killed nobody knows
        status = VOID if is_first and asked_nothing and record.status != "ok" else record.status
        digest = self._digests[cell.identity.task, cell.identity.model]
        with suppress(AccountError):  # it counts all the same
            self.account.note(f"{journal.nonce():016x}", status=status, digest=digest)
        journal.discard()

    def summary(self) -> str:
        return report_of(self.account).summary()

    def _journal(self, cell: Cell, release: Entry) -> Journal:
        """Return the journal of a cell; a new one if the noise of a killed try might fall on other sums."""
        journal = Journal(self.store.journal_of(cell.identity).absolute())
        conditions = _conditions(cell, release) if self._is_local and not cell.resources.gpus else None
        if journal.values.get(CONDITIONS, conditions) != conditions:
            journal.discard()
        return journal

    def _entry(self, cell: Cell, release: Entry, journal: Journal) -> Entry:
        return replace(release, number=f"{journal.nonce():016x}", record=cell.key, what=self.what)


def _conditions(cell: Cell, release: Entry) -> int:
    """Return a hash of what decides what a cell asks, its plan included, and how its sums are rounded."""
    asked = code_of(cell.method, cell.task) + release.event
    return conditions_of(asked, device_of(cell), cell.resources.threads)
