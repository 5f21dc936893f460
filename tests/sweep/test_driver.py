"""The driver: what is skipped and what is run, and that every fault costs at most one row."""

import json
import random
import shutil
import sys
from dataclasses import replace
from multiprocessing import Pipe

import pytest

from dphpo_bench.base.errors import DataError, OtherRunError, RecordError, SweepError
from dphpo_bench.harness.reasons import MAX_REASON
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import job_of, run_cell
from dphpo_bench.sweep.driver import START_ATTEMPTS, Claims, log_path, sweep, take_stock
from dphpo_bench.sweep.executors import Answer, NotStartedError, ProcessExecutor, SerialExecutor
from tests.harness.children import ended, start
from tests.sweep.conftest import Silent, contents
from tests.sweep.test_processes import gone, wait_for

TWO = '"auto_clipping", "faulty"'


class Answering(SerialExecutor):
    """Gives prepared answers instead of calling anything, for what no process can be made to do."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.closed = False

    def submit(self, function, argument, resources):
        if function is not run_cell:
            return super().submit(function, argument, resources)
        answer = self.answers.pop(0)
        future = super().submit(str, "", resources)
        future._result = None
        if isinstance(answer, Exception):
            future._exception = answer
        else:
            future._result = answer(argument) if callable(answer) else answer
        return future

    def close(self) -> None:
        self.closed = True


def run(cells, store, source, executor=None, **options):
    watcher = Silent()
    summary = sweep(cells, store, executor or ProcessExecutor(2), source, watcher, **options)
    return summary, watcher


def test_workers_and_order_change_no_bit(blobs, source, tmp_path) -> None:
    cells = blobs('"auto_clipping", "hyfreedp", { name = "random_search", parameters = { epochs = 1 } }', seeds=1)
    stores = [RecordStore(tmp_path / name) for name in ("serial", "three")]
    run(cells, stores[0], source, SerialExecutor())
    run(random.Random(1).sample(cells, len(cells)), stores[1], source, ProcessExecutor(3))
    first, other = map(contents, stores)
    assert len(first) == len(cells)
    assert {record.status for record in first.values()} == {"ok"}
    assert other == first


def test_what_is_finished_is_not_run_again(blobs, source, store) -> None:
    cells = blobs(TWO)
    summary, watcher = run(cells[:3], store, source)
    assert (summary.run, summary.failures) == (3, [])
    paths = {path: path.read_bytes() for path in store.root.rglob("*.json")}
    summary, watcher = run(cells, store, source)
    assert watcher.started_keys == [cells[3].key]
    assert [len(summary.stock.finished), len(summary.stock.todo)] == [3, 1]
    assert all(path.read_bytes() == content for path, content in paths.items())
    watcher = run(cells, store, source)[1]
    assert watcher.started_keys == []
    assert not hasattr(watcher, "prepared")  # nothing is prepared where nothing is to run


def test_another_parameter_data_or_code_is_another_cell(blobs, plugin, tmp_path, monkeypatch) -> None:
    def keys(methods='"faulty"'):
        return {cell.key for cell in blobs(methods, seeds=1)}

    def keys_elsewhere(old, new):
        """The keys as a process sees them that imports the plug-in after this change; the first to import it."""
        code.write_text(text.replace(old, new))
        assert ended(start(lambda: (tmp_path / "keys").write_text(" ".join(keys())))) == 0
        return {*(tmp_path / "keys").read_text().split()}

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    code = plugin / "faulty_plugin.py"
    text = code.read_text()
    elsewhere = [keys_elsewhere(*change) for change in (("", ""), ("blobs-1", "blobs-10"), ("0.0", "0.00"))]
    code.write_text(text)
    plain = keys()
    assert keys() == plain == elsewhere[0]
    assert keys('{ name = "faulty", parameters = { sleep = 0.1 } }').isdisjoint(plain)
    assert all(changed.isdisjoint(plain) for changed in elsewhere[1:])


FAULTS = {
    "raise": "ZeroDivisionError: a bug with a second line",
    "kill": "killed by SIGKILL",
    "memory": "MemoryError",
    "exit": "ended without an answer, exit code 0",
    "sys.exit": "SystemExit: gone",
    "not JSON": "Expected a dictionary of released values that JSON can hold",
    "huge": "The record takes 5",
    "no test": "RuntimeError",
    "loud": "ValueError: ?xxx",
    "plan raises": "KeyError: 'no plan'",
}


def test_every_fault_is_one_failed_row_with_its_reason(blobs, source, store) -> None:
    faulty = ", ".join(f'{{ name = "faulty", parameters = {{ fault = "{fault}" }} }}' for fault in FAULTS)
    limits = "[resources]\ntime_limit_s = 240\nmemory_gb = 3"
    cells = blobs(f'{faulty}, "auto_clipping"', seeds=1, more=limits)
    summary, watcher = run(cells, store, source)
    assert summary.run == len(cells)
    records = {record.identity.parameters.get("fault"): record for record in contents(store).values()}
    assert records.pop(None).status == "ok"
    assert set(records) == set(FAULTS)
    for fault, reason in FAULTS.items():
        assert records[fault].status == "failed"
        assert reason in " ".join(records[fault].error.split())
        assert len(records[fault].error) <= MAX_REASON
    assert len(summary.failures) == len(FAULTS)
    retried = [note for note in watcher.notes if "Trying again" in note]
    assert len(retried) == 2  # kill and exit: the process was gone
    # A run that ended without a word states no ε; one that ended after its releases states theirs.
    assert records["kill"].privacy is None
    assert records["raise"].privacy.recomputed.epsilon > 0


def test_the_output_of_a_failed_run_is_kept_until_it_succeeds(blobs, source, store) -> None:
    cells = blobs('{ name = "faulty", parameters = { fault = "loud" } }, "auto_clipping"', seeds=1)
    summary, _ = run(cells, store, source)
    ((_, record),) = summary.failures
    log = log_path(store, record)
    text = log.read_text()
    assert "loud" in text
    assert "Traceback" in text
    assert "faulty_plugin.py" in text
    assert [path.name for path in log.parent.iterdir()] == [log.name]
    again = blobs('{ name = "faulty", parameters = { fault = "loud" } }', seeds=1)[0]
    good = json.loads(run_cell(job_of(blobs('"faulty"', seeds=1)[0], source)))
    good["identity"] = again.identity.model_dump()
    run([again], store, source, Answering(Answer(json.dumps(good))), retry_failed=True)
    assert not log.exists()


def test_failed_cells_are_kept_until_a_retry_is_asked_for(blobs, source, store, tmp_path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    cells = blobs(f'{{ name = "faulty", parameters = {{ fault = "kill once", flag = "{flag}" }} }}', seeds=1)
    (cell,) = cells
    run(cells, store, source, Answering(Answer(None, "Stopped.")))
    summary, watcher = run(cells, store, source)
    assert (summary.run, len(summary.stock.failed), watcher.started_keys) == (0, 1, [])
    summary, watcher = run(cells, store, source, retry_failed=True)
    assert (summary.run, summary.failures) == (1, [])
    assert flag.read_text().count("kill once") == 2  # killed, and tried again at once
    assert any("Trying again" in note for note in watcher.notes)
    assert store.find(cell.identity).status == "ok"


def test_an_answer_that_is_not_the_cells_record_is_a_failed_row(blobs, source, store) -> None:
    one, two, three, four, five = blobs('"auto_clipping", "faulty"', seeds=3)[:5]
    older = json.loads(run_cell(job_of(five, source)))
    older["environment"]["dphpo-bench"] = "0.0.1"
    executor = Answering(
        Answer("no JSON"),
        lambda _: Answer(run_cell(job_of(one, source))),  # the record of another cell
        Answer(""),
        Answer(json.dumps({"schema_version": 1, "status": "ok"})),
        Answer(json.dumps(older)),
    )
    summary, _ = run([one, two, three, four, five], store, source, executor)
    errors = [record.error for _, record in summary.failures]
    assert [error.startswith("The run returned ") for error in errors] == [True] * 4 + [False]
    assert "the run was by 0.0.1" in errors[4]
    assert "method, parameters" in errors[1]
    assert executor.closed


def test_an_executor_that_fails_is_tried_again_once(blobs, source, store) -> None:
    (cell,) = blobs('"auto_clipping"', seeds=1)
    good = Answer(run_cell(job_of(cell, source)))
    summary, watcher = run([cell], store, source, Answering(ConnectionError("a node is lost"), good))
    assert summary.failures == []
    assert watcher.notes == [f"{cell}: ConnectionError: a node is lost Trying again."]
    lost = ConnectionError("a node is lost")
    other = replace(cell, identity=cell.identity.model_copy(update={"seed": 7}))
    summary, _ = run([other], store, source, Answering(lost, lost))
    assert summary.failures[0][1].error == "ConnectionError: a node is lost (attempt 2)"


def test_a_record_in_anothers_place_stops_the_sweep_before_any_cell(blobs, source, store) -> None:
    cells = blobs('"auto_clipping"')
    run(cells, store, source)
    shutil.copy(store.path_of(cells[0].identity), store.path_of(cells[1].identity))
    with pytest.raises(OtherRunError, match="is the record of another run"):
        take_stock(cells, store)


def test_data_that_are_missing_stop_the_sweep_before_any_cell(blobs, source, store) -> None:
    cells = blobs('"auto_clipping"', models='["linear", "missing"]')
    with pytest.raises(DataError, match=r"data of task blobs: Dataset blobs is not here.*--only task=NAME"):
        run(cells, store, source)
    assert list(store.root.rglob("*.json")) == []


def test_a_cell_of_another_sweep_is_waited_for(blobs, source, store) -> None:
    """Claims hold between processes, so the other sweep is one."""
    cells = blobs('"auto_clipping"')
    store.check_writable()
    key = cells[0].key
    here, there = Pipe()

    def claim() -> None:
        claims = Claims(store.root)
        there.send(claims.take(key))
        there.recv()

    other = start(claim)
    assert here.recv()
    record = run_cell(job_of(cells[0], source))

    class EndsOther(Silent):
        ticks = 0

        def tick(self) -> None:
            self.ticks += 1
            if self.ticks == 4:  # the other sweep finishes the cell, and gives it back
                path = store.path_of(cells[0].identity)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(record)
                here.send("go")
                assert ended(other) == 0

    watcher = EndsOther()
    summary = sweep(cells, store, SerialExecutor(), source, watcher)
    assert watcher.started_keys == [cells[1].key]
    assert [(cell, elsewhere) for cell, _, elsewhere in watcher.records] == [(cells[1], False), (cells[0], True)]
    assert summary.run == 2


def test_an_interrupt_ends_what_runs(blobs, source, store, tmp_path) -> None:
    flag = tmp_path / "pid"
    cells = blobs(f'{{ name = "faulty", parameters = {{ fault = "hang deaf", flag = "{flag}" }} }}', seeds=1)

    class Interrupting(Silent):
        def tick(self) -> None:
            if flag.exists() and flag.read_text().isdigit():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(cells, store, ProcessExecutor(1), source, Interrupting())
    assert wait_for(lambda: gone(int(flag.read_text())))
    assert list(store.root.rglob("*.json")) == []


def test_a_machine_that_starts_no_process_stops_the_sweep_and_fails_no_cell(blobs, source, store, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    cells = blobs('"auto_clipping"', seeds=3)
    good = [Answer(run_cell(job_of(cell, source))) for cell in cells]
    refusal = NotStartedError("No process could be started: no space.")
    executor = Answering(refusal, good[0], *[refusal] * START_ATTEMPTS)
    with pytest.raises(SweepError, match="no space"):
        run(cells, store, source, executor)
    assert [record.status for record in contents(store).values()] == ["ok"]
    summary, watcher = run(cells, store, source, Answering(refusal, good[1], refusal, good[2]))
    assert (summary.run, summary.failures) == (2, [])
    assert watcher.notes == ["No process could be started: no space. Waiting."] * 2


def test_one_batch_of_answers_is_drained_on_a_full_disk(blobs, source, store, monkeypatch) -> None:
    cells = blobs('"auto_clipping"', seeds=2)
    executor = Answering(*(Answer(run_cell(job_of(cell, source))) for cell in cells))
    executor.capacity = 2
    tried = []

    def full(self, record):
        tried.append(record.identity.seed)
        raise RecordError("No space left on device. It was kept elsewhere.")

    monkeypatch.setattr(RecordStore, "write", full)
    with pytest.raises(RecordError, match="kept elsewhere"):
        run(cells, store, source, executor)
    assert sorted(tried) == [0, 1]
