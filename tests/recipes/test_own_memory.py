"""An `ArrayTask` shares no memory that anybody may write to, and no run changes its records or its model."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import dphpo_bench as bench
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.array_task import ArrayTask
from tests.own_task import array_task
from tests.training.test_in_place import Centred, greedy

SOURCE = DataSource.resolve("unused", "unused")
BUDGET = bench.PrivacyBudget(8.0, 1e-3)


def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 5
    return (rng.normal(size=(60, 20)) + 3 * np.eye(5, 20)[labels]).astype(np.float32), labels


class Rows(torch.utils.data.Dataset[Any]):
    """Records that are given out as views."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


def frame(x: Any) -> pandas.DataFrame:
    return pandas.DataFrame(x, copy=False)


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "numpy": lambda x, y: (x, y),
    "tensors": lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
    "frame": lambda x, y: (frame(x), pandas.Series(y, copy=False)),
    "labelled frame": lambda x, y: frame(x).assign(labels=y),
    "dictionary": lambda x, y: {"x": x, "labels": y},
    "dataset": lambda x, y: Rows(torch.from_numpy(x), torch.from_numpy(y)),
    "TensorDataset": lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
}


@pytest.mark.parametrize(("form", "kind"), [*((form, "classification") for form in FORMS), ("numpy", "own")])
def test_what_is_given_is_copied(form: str, kind: str) -> None:
    x, y = arrays()
    own = {"losses": bench.losses.cross_entropy, "kind": "own"} if kind == "own" else {}
    data = test = FORMS[form](x, y)
    task = array_task("mine", data, Centred(in_place=False), test, **own)
    before = [copy.deepcopy(records) for records in (task.load_train(SOURCE), task.load_test(SOURCE))]
    x[:], y[:] = 0, 0  # which all the forms share
    for records, theirs in zip((task.load_train(SOURCE), task.load_test(SOURCE)), before, strict=True):
        assert all(torch.equal(tensor, theirs.named()[name]) for name, tensor in records.named().items())
        assert any(bool(tensor.any()) for tensor in records.named().values())


def mapped(folder: Path, x: Any) -> Any:
    np.save(folder / "inputs.npy", x)
    return np.load(folder / "inputs.npy", mmap_mode="r")


def test_a_memory_map_is_not_copied_and_gives_what_an_array_does(tmp_path: Path) -> None:
    x, y = arrays()

    def weights(inputs: Any) -> Tensor:
        task = array_task("mine", (inputs, y), Centred(in_place=True), (x, y), public=True)
        assert np.may_share_memory(task.load_train(SOURCE).inputs.numpy(), inputs) == (inputs is not x)
        execution = bench.ExecutionOptions(device="cpu", source=SOURCE)
        model = bench.run("dp_sgd", task, BUDGET, seed=3, execution=execution).model
        return torch.cat([weight.flatten() for weight in model.parameters()])

    assert torch.equal(weights(x), weights(mapped(tmp_path, x)))


@pytest.mark.parametrize("by_name", [False, True])
def test_a_memory_map_is_checked_row_by_row(tmp_path: Path, by_name: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dphpo_bench.data.arrays._ASKED", 100)
    x, y = arrays()
    x[37, 3] = np.nan
    some = mapped(tmp_path, x)
    with pytest.raises(bench.errors.InvalidValueError, match="nan in row 37, column 3"):
        array_task("mine", ({"x": some} if by_name else some, y), Centred(in_place=False))


@pytest.mark.slow
def test_a_table_of_a_gigabyte_takes_little_more_memory_than_its_map(tmp_path: Path) -> None:
    """Less than .3 of it beside the pages of the map, which the system takes back when it needs them."""
    gigabyte = tmp_path / "inputs.npy"
    inputs = np.lib.format.open_memmap(gigabyte, "w+", np.float32, (500_000, 500))
    inputs[:] = np.random.default_rng(0).integers(0, 2, (500_000, 1))
    inputs.flush()
    done = subprocess.run([sys.executable, "-c", _LARGE, str(gigabyte)], capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) < 0.3 * inputs.nbytes


_LARGE = """
import resource, sys
import numpy as np
from torch import nn
import dphpo_bench as bench

def in_memory():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return 1024 * (int(lines["VmHWM"].split()[0]) - int(lines["RssFile"].split()[0]))

inputs = np.load(sys.argv[1], mmap_mode="r")
labels = np.asarray(inputs[:, 0], np.int64)
before = in_memory()
training = bench.TrainingOptions(batch_size=1000, epochs=0.1)
task = bench.ArrayTask("large", (inputs, labels), nn.Linear(500, 2), (inputs[:100], labels[:100]), training=training)
bench.run("recommended", task, bench.PrivacyBudget(3, 1e-7))
print(in_memory() - before)
"""


def spoil(outputs: Any, targets: Any) -> float:
    outputs.zero_()
    targets.fill_(4)
    return 0.0


def score(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float()


METRICS = (
    bench.metrics.Metric("spoil", True, spoil),
    bench.metrics.ACCURACY,
    bench.metrics.ModelMetric("outputs", True, lambda model, test: float(model(test.inputs.clone()).abs().mean())),
)


def written(in_place: bool, batch_size: int, losses: Any = bench.losses.cross_entropy) -> tuple[ArrayTask, Any]:
    data = arrays()
    rule = greedy if in_place else lambda values: values
    task = array_task(
        "mine",
        data,
        Centred(in_place),
        data,
        kind="own",
        losses=rule(losses),
        scores=rule(score),
        metrics=METRICS if in_place else METRICS[1:],
        batch_size=batch_size,
        epochs=4,
        learning_rate=0.05,
        public=True,
    )
    return task, data


@pytest.mark.parametrize(
    ("method", "batch_size"),
    [("dp_sgd", 60), ("papernot_steinke", 60), ("hyfreedp", 20)],
)
def test_runs_with_code_that_writes_in_place_repeat(method: str, batch_size: int) -> None:
    """As often as one likes, with what the same code without it gives, and the caller's arrays stay."""
    (task, data), (polite, _) = written(True, batch_size), written(False, batch_size)
    before = [copy.deepcopy(records) for records in (task.load_train(SOURCE), task.load_test(SOURCE))]

    def measured(some: ArrayTask) -> dict[str, float]:
        return bench.run(
            method, some, BUDGET, seed=3, execution=bench.ExecutionOptions(device="cpu", source=SOURCE)
        ).record.metrics

    first, second, expected = measured(task), measured(task), measured(polite)
    assert first == second
    assert {name: first[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert all((one == two).all() for one, two in zip(data, arrays(), strict=True))
    for records, theirs in zip((task.load_train(SOURCE), task.load_test(SOURCE)), before, strict=True):
        assert all(torch.equal(tensor, theirs.named()[name]) for name, tensor in records.named().items())
