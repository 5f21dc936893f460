"""Runs that several threads call at once: they wait for each other, since seals hold for the whole process."""

import threading
from pathlib import Path
from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench.harness.loading import check_declared_data
from dphpo_bench.harness.recording import identity_of, task_identity
from tests.conftest import TinyTask


class PrivateTask(TinyTask):
    """Records that nobody else has, loaded while other threads want to train."""

    public = False


@pytest.mark.filterwarnings("ignore")
def test_three_threads_have_a_run_each_and_each_is_charged_once(fixed_noise, budget, tmp_path: Path) -> None:
    together, results = threading.Barrier(3), []

    def call() -> None:
        together.wait()
        results.append(bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path, check=False))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(result.record.status, result.record.error) for result in results] == [("ok", None)] * 3
    entries = bench.account(tmp_path).releases
    assert [entry.status for entry in entries] == ["ok"] * 3
    assert {entry.record for entry in entries} == {result.record.identity.key for result in results}
    assert len({entry.record for entry in entries}) == 3


@pytest.mark.parametrize("door", ["plan", "make_method", "check_declared_data"])
def test_other_threads_that_seal_or_load_wait_for_a_run(door: str, fixed_noise, budget, tmp_path: Path) -> None:
    entered, ended = threading.Event(), threading.Event()

    class Declared(TinyTask):
        fingerprint_is_declared = True

        def fingerprint(self, source: bench.DataSource) -> str:
            return "the table of May"

    source, task = bench.DataSource.resolve(), Declared()
    identity = identity_of(fixed_noise(), task_identity(task, task.facts, source), budget, 0)
    doors: dict[str, Any] = {
        "plan": lambda: bench.plan("dp_sgd", TinyTask(), budget),
        "make_method": lambda: bench.make_method("dp_sgd"),
        "check_declared_data": lambda: check_declared_data(tmp_path, task, identity, source),
    }

    def call() -> None:
        entered.wait()
        doors[door]()
        ended.set()

    class Waits(fixed_noise):
        def run(self, plan, session):
            entered.set()
            assert not ended.wait(0.3), "another thread went through the door during a run"
            return super().run(plan, session)

    thread = threading.Thread(target=call)
    thread.start()
    assert bench.run(Waits(), TinyTask(), budget, seed=0).record.status == "ok"
    thread.join()
    assert ended.is_set()
