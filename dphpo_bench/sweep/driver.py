"""Drive a sweep: find the cells that lack a record, have executors run them, and write their records.

Only the driver writes records, so a cell needs no access to the folder of results.
"""

import contextlib
import errno
import fcntl
import os
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, Self

from dphpo_bench.base.errors import DataError, InvalidValueError, OtherRunError, RecordError, SweepError
from dphpo_bench.base.files import remove_torn, write_whole
from dphpo_bench.base.text import compact_json
from dphpo_bench.data.source import DataSource
from dphpo_bench.records.record import Identity, RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, PrivateCells, failed_record, job_of, prepare_data, run_cell
from dphpo_bench.sweep.executors import Answer, Executor, NotStartedError, Resources, answer_of

ATTEMPTS = 2
TICK_SECONDS = 0.5
PREPARE_SECONDS = 3600.0
START_ATTEMPTS = 6  # attempts to start a process; the waits between grow to a minute in all
_HELD = {errno.EACCES, errno.EAGAIN}


class Watcher(Protocol):
    """Observer of a sweep's progress; see `SweepDisplay`. Another sweep made a record that comes from `elsewhere`."""

    def stock(self, stock: "Stock") -> None: ...
    def preparing(self, tasks: Sequence[str]) -> None: ...
    def started(self, cell: Cell) -> None: ...
    def finished(self, cell: Cell, record: RunRecord, elsewhere: bool) -> None: ...
    def note(self, text: str) -> None: ...
    def tick(self) -> None: ...


class Estimates:
    """Running times of finished runs, by method with its parameters, task and model, and by example passes."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._per_example: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, record: RunRecord) -> None:
        identity, seconds = record.identity, sum(record.seconds.values())
        self._seconds[_kind_of(identity)].append(seconds)
        if record.cost and record.cost.examples:
            self._per_example[identity.task, identity.model].append(seconds / record.cost.examples)

    def seconds(self, identity: Identity, examples: float) -> float | None:
        """Return the seconds of a run: the median of its kind, else by its example passes; None if unknown."""
        if known := self._seconds.get(_kind_of(identity)):
            return statistics.median(known)
        rates = self._per_example.get((identity.task, identity.model))
        return examples * statistics.median(rates) if rates else None


def _kind_of(identity: Identity) -> str:
    return compact_json([identity.method, identity.parameters, identity.task, identity.model])


class Claims:
    """Locks on single bytes of one file in the folder of results: a byte for each cell, since there may be a million.

    The operating system releases the locks of a process that dies. If a file system has no locks, every claim
    succeeds: two sweeps then run the same cells, and the last record stays. The sweeps of one process do not lock each
    other out.
    """

    def __init__(self, root: Path) -> None:
        path = root / ".claims"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RecordError(f"Cannot open {path}: {error.strerror}. Name a writable folder.") from None

    def take(self, key: str) -> bool:
        """Claim a cell; False if another process has it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(key))
        except OSError as error:
            return error.errno not in _HELD
        return True

    def give_back(self, key: str) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _offset(key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _offset(key: str) -> int:
    """Return a byte, which the file need not have; two of 10⁵ cells share a byte with probability below 1e-7."""
    return int(key[:15], 16)


@dataclass
class Stock:
    """Cells of a sweep before it starts."""

    finished: list[Cell] = field(default_factory=list)  # with a record of status "ok"
    failed: list[Cell] = field(default_factory=list)  # with another record, which is kept
    todo: list[Cell] = field(default_factory=list)
    replaced: dict[str, RunRecord] = field(default_factory=dict)  # of failed cells that run again, by key
    damaged: list[str] = field(default_factory=list)  # faults of files that should be records
    times: Estimates = field(default_factory=Estimates)  # of the finished cells


@dataclass
class Summary:
    """Result of a sweep: the number of cells run, here or by another sweep meanwhile, and those that failed."""

    stock: Stock
    run: int = 0
    failures: list[tuple[Cell, RunRecord]] = field(default_factory=list)


def take_stock(cells: Iterable[Cell], store: RecordStore, *, retry_failed: bool = False) -> Stock:
    """Find out which cells have been run; with `retry_failed`, failed cells run again."""
    stock = Stock()
    for cell in cells:
        try:
            record = store.find(cell.identity)
        except OtherRunError:  # the cell's record could not be written
            raise
        except RecordError as error:
            stock.damaged.append(str(error))
            record = None
        if record is None:
            stock.todo.append(cell)
        elif record.status == "ok":
            stock.finished.append(cell)
            stock.times.add(record)
        elif retry_failed:
            stock.todo.append(cell)
            stock.replaced[cell.key] = record
        else:
            stock.failed.append(cell)
    return stock


def sweep(
    cells: Sequence[Cell],
    store: RecordStore,
    executor: Executor,
    source: DataSource,
    watcher: Watcher,
    *,
    retry_failed: bool = False,
    private: PrivateCells | None = None,
) -> Summary:
    """Run every cell that has no record, write the records, and close the executor.

    A cell whose process is killed is tried again once, and then recorded as failed. Its seed decides all its draws, so
    another try cannot choose better ones.

    `private` counts the cells on private records; None: in the account "main".

    Raises:
        DataError: if the data of a task are missing; no cell has been run.
        RecordError: if a record cannot be written. Those written before are kept.
    """
    try:
        store.check_writable()
        stock = take_stock(cells, store, retry_failed=retry_failed)
        watcher.stock(stock)
        summary = Summary(stock)
        if stock.todo:
            private = private or PrivateCells(store)
            has_private = any(not cell.task.public for cell in stock.todo)
            if has_private:
                watcher.note(private.prepare(stock.todo, executor, source))
            _prepare(stock.todo, executor, source, watcher)
            private.check_data(stock.todo, source)
            with Claims(store.root) as claims:
                remove_torn(store.root)
                for cell, record, elsewhere in _run_all(stock, store, executor, source, watcher, claims, private):
                    summary.run += 1
                    if record.status != "ok":
                        summary.failures.append((cell, record))
                    watcher.finished(cell, record, elsewhere)
            if has_private:
                watcher.note(private.summary())
        return summary
    except NotStartedError as error:
        raise SweepError(f"{error} The sweep stopped; what is finished is kept.") from None
    finally:
        executor.close()


def _prepare(cells: Sequence[Cell], executor: Executor, source: DataSource, watcher: Watcher) -> None:
    """Prepare the data of each task once, before the time limit of any cell counts."""
    tasks = {(cell.identity.task, cell.identity.model): cell for cell in cells}
    watcher.preparing([name for name, _ in tasks])
    for attempt in range(1, ATTEMPTS + 1):
        futures: dict[tuple[str, str], Future[Answer]] = {}
        for key, cell in tasks.items():
            needs = Resources(cell.resources.threads, time_limit_s=max(cell.resources.time_limit_s, PREPARE_SECONDS))
            futures[key] = executor.submit(prepare_data, job_of(cell, source), needs)
        while wait(futures.values(), timeout=TICK_SECONDS).not_done:
            watcher.tick()
        for key, future in futures.items():
            answer = answer_of(future)
            if answer.again and attempt < ATTEMPTS:
                continue
            if answer.text != "":
                reason = answer.text or " ".join([answer.failure, *answer.log.strip().splitlines()[-1:]])
                raise DataError(
                    f"Cannot prepare the data of task {key[0]}: {reason} "
                    f"No cell was run; other tasks can be chosen with --only task=NAME."
                )
            del tasks[key]


def _run_all(
    stock: Stock,
    store: RecordStore,
    executor: Executor,
    source: DataSource,
    watcher: Watcher,
    claims: Claims,
    private: PrivateCells,
) -> Iterator[tuple[Cell, RunRecord, bool]]:
    """Run cells until each has a record; yields a cell, its record, and whether another sweep made it."""
    waiting, tries = deque(stock.todo), Counter[str]()
    elsewhere: deque[Cell] = deque()  # another sweep was running them at the last attempt to claim them
    running: dict[Future[Answer], Cell] = {}
    refusals, has_said = 0, False
    while waiting or running or elsewhere:
        while waiting and len(running) < executor.capacity:
            cell = waiting.popleft()
            key = cell.key
            if not claims.take(key):
                elsewhere.append(cell)
                continue
            meanwhile = None
            with contextlib.suppress(RecordError):
                meanwhile = store.find(cell.identity)
            if meanwhile is not None and meanwhile != stock.replaced.get(key):
                claims.give_back(key)
                yield cell, meanwhile, True
                continue
            watcher.started(cell)
            try:
                counted = None if cell.task.public else private.start(cell)
            except InvalidValueError as error:  # it cannot be planned
                private.refuse(cell)
                record = failed_record(cell.identity, str(error), 0.0)
                store.write(record)
                claims.give_back(key)
                yield cell, record, False
                continue
            running[executor.submit(run_cell, job_of(cell, source, counted), cell.resources)] = cell
        done = wait(running, timeout=TICK_SECONDS, return_when=FIRST_COMPLETED).done if running else set()
        unwritten: RecordError | None = None
        refusal: NotStartedError | None = None
        for future in done:
            cell = running.pop(future)
            try:
                answer = answer_of(future)
            except NotStartedError as error:
                refusal = error
                waiting.appendleft(cell)
                continue
            refusals = 0
            tries[cell.key] += 1
            if answer.again and tries[cell.key] < ATTEMPTS:
                private.killed(cell)
                watcher.note(f"{cell}: {answer.failure} Trying again.")
                waiting.appendleft(cell)
                continue
            record = _record_of(cell, answer, tries[cell.key])
            try:
                store.write(record)
            except RecordError as error:  # the disk is full; the store keeps the other finished records elsewhere, too
                unwritten = error
                continue
            if not cell.task.public:
                private.end(cell, record)
            path = log_path(store, record)
            with contextlib.suppress(OSError):  # a log is a help, not a result
                if record.status != "ok" and answer.log:
                    path.parent.mkdir(mode=0o700, exist_ok=True)  # logs may say more than records may
                    write_whole(path, answer.log, mode=0o600)
                else:
                    path.unlink(missing_ok=True)
            claims.give_back(cell.key)
            yield cell, record, False
        if unwritten:
            raise unwritten
        if refusal:
            refusals += 1
            if refusals >= START_ATTEMPTS:
                raise refusal
            watcher.note(f"{refusal} Waiting.")
            time.sleep(2.0**refusals)
        if not (waiting or running):
            if elsewhere and not has_said:
                watcher.note(f"Waiting for {len(elsewhere):,} cells that another sweep is running.")
                has_said = True
            waiting, elsewhere = elsewhere, waiting
            time.sleep(TICK_SECONDS if waiting else 0)
        watcher.tick()


def _record_of(cell: Cell, answer: Answer, tries: int) -> RunRecord:
    identity, here = cell.identity, version("dphpo-bench")
    reason = answer.failure
    if answer.text is not None:
        try:
            record = RunRecord.model_validate_json(answer.text)
        except (ValueError, RecursionError) as error:
            reason = f"The run returned no valid record: {str(error).splitlines()[0]}."
        else:
            there = record.environment.get("dphpo-bench")
            if record.identity == identity and there == here:
                return record
            changed = [name for name, value in identity if getattr(record.identity, name) != value]
            reason = f"The run returned the record of another run ({', '.join(changed)} differ); was code edited?"
            if there != here:
                reason = f"Expected dphpo-bench {here}, and the run was by {there}; is that installed on a node?"
    if tries > 1:
        reason = f"{reason} (attempt {tries})"
    return failed_record(identity, reason, answer.seconds)


def log_path(store: RecordStore, record: RunRecord) -> Path:
    """Return the file with the output of a failed run."""
    return store.root / ".logs" / f"{record.identity.key}.log"
