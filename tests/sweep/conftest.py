"""A plug-in of the tests' own: a task of milliseconds, and a method that fails in every way there is."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench.data.source import DataSource
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, cells_of
from dphpo_bench.sweep.driver import Stock
from dphpo_bench.sweep.suite import load_suite

PLUGIN = '''
import dataclasses, os, signal, subprocess, sys, time
from pathlib import Path
import dphpo_bench as bench
from dphpo_bench.methods.auto_clipping import AutoClipping

class Blobs(bench.Task):
    name = "blobs"
    summary = "Three Gaussian blobs in five dimensions."
    public = True
    models = ("linear", "missing")

    @property
    def facts(self):
        inputs = bench.recipes.Input((5,))
        return bench.TaskFacts("blobs", self.model_name, 600, inputs, 100, 2, "AdamW", 0.05, n_classes=3)

    def _split(self, n, seed):
        import torch
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (n,), generator=generator)
        return bench.Records(2 * torch.eye(5)[targets] + torch.randn(n, 5, generator=generator), targets)

    def load_train(self, source):
        if self.model_name == "missing":
            raise bench.errors.InvalidValueError("Dataset blobs is not here. Get it from nowhere.")
        return self._split(600, 1)

    def load_test(self, source):
        return self._split(300, 2)

    def build_model(self):
        from torch import nn
        return nn.Linear(5, 3)

    def fingerprint(self, source):
        return "blobs-1"

@dataclasses.dataclass(frozen=True)
class Faulty(AutoClipping):
    """Auto clipping that goes wrong as told, `once` only or always."""
    name = "faulty"
    summary = "Fails on demand."

    fault: str = ""
    flag: str = ""
    sleep: float = 0.0

    def plan(self, facts, budget):
        if self.fault == "plan raises":
            raise KeyError("no plan")
        return super().plan(facts, budget)

    def run(self, plan, session):
        outcome = super().run(plan, session)
        time.sleep(self.sleep)
        if self.flag:
            with Path(self.flag).open("a") as file:
                file.write(f"{self.fault}\\n")
        match self.fault:
            case "raise":
                raise ZeroDivisionError("a bug\\nwith a second line")
            case "hang deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
                Path(self.flag).write_text(str(child.pid))
                time.sleep(1000)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill once":
                if Path(self.flag).read_text().count("kill once") == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            case "memory":
                return bench.Outcome(outcome.model, {"sum": sum(bytearray(4 * 10**9))})
            case "exit":
                os._exit(0)
            case "sys.exit":
                sys.exit("gone")
            case "not JSON":
                return bench.Outcome(outcome.model, {"released": {1, 2}})
            case "huge":
                return bench.Outcome(outcome.model, {"released": "x" * 5 * 10**6})
            case "no test":
                import torch
                return bench.Outcome(torch.nn.Linear(7, 3))
            case "loud":
                print("\\x1b[31mloud\\xff" * 10**5)
                sys.stderr.buffer.write(bytes(range(256)))
                raise ValueError("\\ud800" + "x" * 10**4)
        return outcome
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the plug-in for this process and those it starts; returns where it lies."""
    folder = tmp_path / "plugin"
    info = folder / "faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dphpo_bench.methods]\nfaulty = faulty_plugin:Faulty\n[dphpo_bench.tasks]\nblobs = faulty_plugin:Blobs\n"
    )
    (folder / "faulty_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    sys.modules.pop("faulty_plugin", None)
    return folder


class Silent:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.records: list[tuple[Cell, RunRecord, bool]] = []
        self.notes: list[str] = []
        self.started_keys: list[str] = []

    def stock(self, stock: Stock) -> None:
        self.seen = stock

    def preparing(self, tasks: Any) -> None:
        self.prepared = list(tasks)

    def started(self, cell: Cell) -> None:
        self.started_keys.append(cell.key)

    def finished(self, cell: Cell, record: RunRecord, elsewhere: bool) -> None:
        self.records.append((cell, record, elsewhere))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tick(self) -> None:
        pass


@pytest.fixture
def source(tmp_path: Path) -> DataSource:
    return DataSource.resolve(cache_dir=tmp_path / "cache")


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "results")


@pytest.fixture
def blobs(plugin: Path, tmp_path: Path, source: DataSource) -> Any:
    """Cells on the blobs: of the methods given as TOML, at these seeds."""

    def cells(methods: str, seeds: int = 2, more: str = "", models: str = '["linear"]') -> list[Cell]:
        path = tmp_path / "suite.toml"
        path.write_text(
            f'methods = [{methods}]\ntasks = [{{ name = "blobs", models = {models} }}]\n'
            f"epsilons = [3]\nseeds = {list(range(seeds))}\n{more}\n"
        )
        return cells_of(load_suite(path), source)

    return cells


def contents(store: RecordStore) -> dict[str, RunRecord]:
    """All records, without what no two runs share."""
    found = {}
    for path in store.root.rglob("*.json"):
        record = RunRecord.model_validate_json(path.read_bytes())
        assert path == store.path_of(record.identity)
        hidden = {"seconds": {}, "peak_memory_bytes": None, "environment": {}, "created": "2000-01-01T00:00:00Z"}
        found[record.identity.key] = RunRecord.model_validate({**record.model_dump(), **hidden})
    return found
