"""A small task and small methods that the tests of the harness, the session and the records share."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn

import dphpo_bench as bench
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import Session, open_session
from dphpo_bench.testing.runs import empty_folder
from dphpo_bench.training.randomness import Streams

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # every core has a worker of its own

# The same examples each time, however busy the machine is.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


# A relative path means the folder that pytest is started in; the tests are started in others.
for name, value in os.environ.items():
    if name.startswith("DPHPO_BENCH_") and Path(value).exists():
        os.environ[name] = str(Path(value).resolve())


def pytest_collection_finish() -> None:
    """Spare the garbage collector, and whoever asks it for all objects, the million that collected tests are."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _empty_folder() -> Iterator[None]:
    """Start each test in an empty folder: what lies where pytest is started decides no test."""
    with empty_folder():
        yield


class TinyTask(bench.Task):
    """Three Gaussian blobs in five dimensions: learnable, generated, and gone after the test."""

    name = "tiny"
    summary = "Three Gaussian blobs."
    public = True
    models = ("linear", "mlp")
    n_records = 600

    @property
    def facts(self) -> bench.TaskFacts:
        return bench.TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=self.n_records,
            inputs=bench.recipes.Input((5,)),
            n_classes=3,
            batch_size=100,
            epochs=5,
            optimizer="AdamW",
            learning_rate=0.05,
        )

    def _split(self, n: int, seed: int) -> bench.Records:
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (n,), generator=generator)
        centres = torch.tensor([[2.0, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 2, 0, 0]])
        return bench.Records(centres[targets] + torch.randn(n, 5, generator=generator), targets)

    def load_train(self, source: DataSource) -> bench.Records:
        return self._split(self.n_records, 1)

    def load_test(self, source: DataSource) -> bench.Records:
        return self._split(300, 2)

    def build_model(self) -> nn.Module:
        if self.model_name == "linear":
            return nn.Linear(5, 3)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def fingerprint(self, source: DataSource) -> str:
        return "tiny-1"


@dataclass(frozen=True)
class FixedNoise(bench.Method):
    """DP-SGD at a noise multiplier that the test chooses; `extra_steps` are taken beyond the plan."""

    name = "fixed_noise"
    summary = "DP-SGD with fixed noise."
    reference = "a test"
    tuning = ()
    end_to_end_private = True

    noise_multiplier: float = 4.0
    steps: int = 6
    extra_steps: int = 0
    fault: str = ""

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        step = bench.events.poisson_sampled(facts.sample_rate, bench.events.gaussian(self.noise_multiplier))
        event = bench.events.repeat(step, self.steps)
        return bench.Plan(
            budget=budget,
            event=event,
            training_event=event,
            parameters=None,
            releases=(bench.Release("gradient", self.steps, self.noise_multiplier, facts.sample_rate),),
            cost=bench.Cost(runs=1, steps=self.steps, examples=float(self.steps * facts.batch_size)),
        )

    def run(self, plan: bench.Plan, session: bench.Session) -> bench.Outcome:
        model = session.build_model()
        for _ in range(self.steps + self.extra_steps):
            kind = bench.events.poisson_sampled(session.facts.sample_rate, bench.events.gaussian(self.noise_multiplier))
            gradient = session.sample(kind).gradient(model, bench.clipping.AutoS(), self.noise_multiplier)
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), gradient, strict=True):
                    parameter -= 0.5 * value
        return self._end(model)

    def _end(self, model: nn.Module) -> bench.Outcome:
        if self.fault == "raise":
            raise ZeroDivisionError("a bug in the method")
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "nan":
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
        return bench.Outcome(model, {"steps": self.steps})


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line in this process: arguments → exit code, output, errors."""
    from dphpo_bench.base import progress
    from dphpo_bench.cli import commands

    monkeypatch.setattr(progress, "SHORT_SECONDS", 1000.0)  # a busy machine would add lines about phases

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dphpo-bench", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            commands.main()
        return ended.value.code, *capsys.readouterr()  # type: ignore[return-value]

    return call


@pytest.fixture
def main_here(main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`main` in the test's own folder, with a cache of its own: what a process of its own would only repeat."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "cache"))
    return main


def session_on(
    task: bench.Task, train: bench.Records, ledger: Ledger | None = None, streams: Streams | None = None, **options: Any
) -> Session:
    """A session on these records, as the harness opens it."""
    raw = RawRecords(task, train, options.pop("device", "cpu"))
    return open_session(raw, ledger or Ledger(), streams or Streams(0), **options)


def asking(rate: float, *releases: Any) -> Any:
    """A kind of batches: what may be asked of one, sampled at a rate."""
    return bench.events.poisson_sampled(rate, bench.events.compose(*releases))


class Remembering:
    """A display that remembers: each piece of work with its total, and what was done of it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []
        self.done: list[int] = []

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Any]:
        self.lines.append((description, total))
        self.done.append(0)

        def advance(amount: int = 1) -> None:
            self.done[-1] += amount

        yield advance

    def whole(self, meter: Any) -> Any:
        return nullcontext(meter)

    def note(self, text: str) -> None:
        pass


@pytest.fixture
def tiny_task() -> TinyTask:
    return TinyTask()


@pytest.fixture
def budget() -> bench.PrivacyBudget:
    return bench.PrivacyBudget(epsilon=3.0, delta=1e-4)


@pytest.fixture
def fixed_noise() -> type[FixedNoise]:
    return FixedNoise


@pytest.fixture
def plain_run(tiny_task: TinyTask, budget: bench.PrivacyBudget) -> Any:
    """Run a method on the tiny task without writing a record."""

    def run(method: bench.Method, **options: Any) -> Any:
        return bench.run(method, tiny_task, budget, **{"seed": 0, "check": False, **options})

    return run
