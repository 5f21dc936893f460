"""`compare`: methods on a task that nobody registered, in processes, and what comes of it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError
from dphpo_bench.base.text import one_line
from tests.conftest import FixedNoise, TinyTask
from tests.own_task import array_task

generator = np.random.default_rng(0)
Y = np.arange(160) % 2
X = generator.normal(size=(160, 4)) + 2 * Y[:, None]


@dataclasses.dataclass(frozen=True)
class Louder(FixedNoise):
    """A method that is in no registry."""

    name = "louder"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "cache"))


def own_task(**changes: Any) -> bench.ArrayTask:
    class Net(nn.Module):  # not importable, as in a script or a notebook
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(inputs)))

    arguments = {"train": (X[:120], Y[:120]), "model": Net, "test": (X[120:], Y[120:]), "epochs": 3, "public": True}
    return array_task("mine", **{**arguments, **changes})


def test_own_methods_on_an_own_task(capsys: pytest.CaptureFixture[str]) -> None:
    methods = [Louder(), FixedNoise(noise_multiplier=8.0)]
    table = bench.compare(methods, own_task(), [50], (0, 1), delta=1e-4, workers=2)
    assert "4 cells: 0 finished, 4 to run." in capsys.readouterr().err
    assert table.failures == ()
    assert table.epsilons == (50,)

    # Each run is what `run` does with this seed.
    alone = bench.run(Louder(), own_task(), bench.PrivacyBudget(50.0, 1e-4), seed=1).record
    (same,) = [one for one in table.records if one.identity == alone.identity]
    assert same.metrics == alone.metrics
    assert same.released == alone.released

    text = str(table)
    assert text.splitlines()[0].startswith("mine (Net), δ = 0.0001: accuracy, % on test data, mean of 2 seeds")
    for line in table.lines:
        (row,) = [row for row in text.splitlines() if row.startswith(line.label)]
        values = [one.metrics["accuracy"] for one in table.records if one.identity.method == line.label]
        assert line.by_epsilon[50].mean == pytest.approx(sum(values) / 2)
        assert f"{100 * sum(values) / 2:.2f} " in row  # then ±, or the ends of an interval that ends at 0 or 100 %
    assert len(table.frame()) == 4

    # Nothing is run twice, and a new seed adds its runs only.
    again = bench.compare(methods[:1], own_task(), [50], (0, 1, 2), delta=1e-4, workers=2)
    assert "3 cells: 2 finished, 1 to run." in capsys.readouterr().err
    assert [one in table.records for one in again.records] == [True, True, False]
    assert not list(Path("results").rglob("*.pickle"))


def test_a_method_that_opens_records_is_stopped_though_its_class_is_a_copy() -> None:
    class Own(TinyTask):
        name = "own"

    @dataclasses.dataclass(frozen=True)
    class Nosy(FixedNoise):
        name = "nosy"

        def run(self, plan: Any, session: Any) -> bench.Outcome:
            Own().load_train(bench.DataSource.resolve())
            return super().run(plan, session)

    table = bench.compare([Nosy(), Louder()], Own(), [100], [0], delta=1e-4, quiet=True, workers=1)
    (failed,) = table.failures
    assert failed.identity.method == "nosy"
    assert "load_train of task own was called by the method" in failed.error
    assert one_line(f"nosy, ε 100, seed 0: {failed.status}: {failed.error}") in str(table)


def test_records_that_changed_are_no_old_results() -> None:
    bench.compare([Louder()], own_task(), [100], [0], delta=1e-4, quiet=True)
    changed = X[:120].copy()
    changed[7, 1] += 1
    with pytest.raises(DataError, match=r"others than those that results in .*results are of"):
        bench.compare([Louder()], own_task(train=(changed, Y[:120])), [100], [0], delta=1e-4, quiet=True)
    table = bench.compare(
        [Louder()], own_task(train=(changed, Y[:120]), version="2"), [100], [0], delta=1e-4, quiet=True
    )
    assert len(table.records) == 1
    (folder,) = Path("results").glob(".data")
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"methods": "hyfreedp"}, "Expected methods as a list"),
        ({"methods": [Louder(), Louder()]}, "Expected each method once"),
        ({"epsilons": iter([3, 3.0])}, "Expected each epsilon once"),
        ({"epsilons": [-1]}, "epsilon"),
        ({"seeds": [0, 0]}, "Expected each seed once"),
    ],
)
def test_mistakes_are_found_before_any_work(changes: dict[str, Any], reason: str) -> None:
    arguments = {"methods": [Louder()], "epsilons": [3], "seeds": [0], **changes}
    with pytest.raises(bench.errors.DphpoBenchError, match=reason):
        bench.compare(task=own_task(), **arguments)
    assert not Path("results").exists()
