"""The same call in several processes or threads at once: a run, an entry and a record each."""

import multiprocessing
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.harness.journal import Journal
from dphpo_bench.harness.loading import check_declared_data
from dphpo_bench.harness.recording import identity_of, task_identity
from tests.conftest import TinyTask
from tests.harness.children import ended, start

pytestmark = pytest.mark.filterwarnings("ignore")
PROCESSES = 4
SECONDS = 120.0  # until a test whose processes wait for each other fails


class Meeting(TinyTask):
    """Private records that no process reads before all processes are about to: then all runs are counted."""

    public = False

    def __init__(self, barrier: Any, victim: bool = False) -> None:
        super().__init__()
        self.barrier, self.victim = barrier, victim

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """Wait for the others, and die if this is the victim's."""
        if self.barrier:
            self.barrier.wait(SECONDS)
        if self.victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load_train(source)


@pytest.fixture
def barrier() -> Any:
    return multiprocessing.get_context("fork").Barrier(PROCESSES)


def run(method: bench.Method, task: bench.Task, folder: Path, **options: Any) -> bench.RunResult:
    budget = bench.PrivacyBudget(3.0, 1e-4)
    return bench.run(method, task, budget, results_dir=folder, progress=bench.NullProgress(), **options)


def saved(method: bench.Method, barrier: Any, folder: Path, seed: int | None, number: int) -> None:
    model = run(method, Meeting(barrier), folder, seed=seed).model
    torch.save([parameter.detach() for parameter in model.parameters()], folder / f"{number}.weights")  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", [None, 7])
def test_each_process_has_a_run_of_its_own(seed: int | None, barrier: Any, fixed_noise, tmp_path: Path) -> None:
    children = [start(partial(saved, fixed_noise(), barrier, tmp_path, seed, n)) for n in range(PROCESSES)]
    assert [ended(child) for child in children] == [0] * PROCESSES
    entries = bench.account(tmp_path).releases
    assert [entry.status for entry in entries] == ["ok"] * PROCESSES
    assert len({entry.number for entry in entries}) == PROCESSES
    records = {bench.read_record(path).identity.key for path in tmp_path.glob("tiny/*/*.json")}
    assert records == {entry.record for entry in entries}
    weights = [torch.load(path) for path in tmp_path.glob("*.weights")]
    assert len({tuple(torch.cat([part.flatten() for part in each]).tolist()) for each in weights}) == PROCESSES
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_the_next_call_continues_the_run_that_was_killed_beside_others(
    barrier: Any, fixed_noise, tmp_path: Path
) -> None:
    tasks = [Meeting(barrier, victim=number == 2) for number in range(PROCESSES)]
    children = [start(partial(run, fixed_noise(), task, tmp_path)) for task in tasks]
    assert sorted(ended(child) for child in children) == [-signal.SIGKILL, 0, 0, 0]
    (killed,) = (entry for entry in bench.account(tmp_path).releases if entry.status == "open")
    assert run(fixed_noise(), Meeting(None), tmp_path).record.identity.run == killed.number
    assert [entry.status for entry in bench.account(tmp_path).releases] == ["ok"] * PROCESSES
    assert run(fixed_noise(), Meeting(None), tmp_path).record.identity.run != killed.number
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_two_that_restart_do_not_share_the_run_that_was_killed(fixed_noise, tmp_path: Path) -> None:
    assert ended(start(partial(run, fixed_noise(), Meeting(None, victim=True), tmp_path))) == -signal.SIGKILL
    two = multiprocessing.get_context("fork").Barrier(2)
    children = [start(partial(run, fixed_noise(), Meeting(two), tmp_path)) for _ in range(2)]
    assert [ended(child) for child in children] == [0, 0]
    assert [entry.status for entry in bench.account(tmp_path).releases] == ["ok", "ok"]
    assert len(list(tmp_path.glob("tiny/*/*.json"))) == 2


def test_a_seeded_run_that_was_killed_is_continued_and_counted_once(fixed_noise, tmp_path: Path) -> None:
    victim = partial(run, fixed_noise(), Meeting(None, victim=True), tmp_path, seed=7)
    assert [ended(start(victim)), ended(start(victim))] == [-signal.SIGKILL] * 2
    (killed,) = bench.account(tmp_path).releases
    assert run(fixed_noise(), Meeting(None), tmp_path, seed=7).record.identity.run == killed.number
    assert [entry.number for entry in bench.account(tmp_path).releases] == [killed.number]


def test_a_journal_has_one_owner_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "key.jsonl"
    first, second = Journal.claimed(place), Journal.claimed(place)
    assert (first.once("seed", lambda: 1), second.once("seed", lambda: 2)) == (1, 2)
    first.close()
    assert Journal.claimed(tmp_path / "ke.jsonl").values == {}
    taken, third = Journal.claimed(place), Journal.claimed(place)
    assert (taken.values, third.values) == ({"seed": 1}, {})
    for journal in (taken, second, third):
        journal.discard()
    assert len(list(tmp_path.iterdir())) == 1


def test_three_threads_have_a_run_each_and_each_is_charged_once(fixed_noise, budget, tmp_path: Path) -> None:
    together, results = threading.Barrier(3), []

    def call() -> None:
        together.wait()
        results.append(bench.run(fixed_noise(), Meeting(None), budget, results_dir=tmp_path, check=False))

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
