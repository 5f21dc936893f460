"""An `ArrayTask` shares no memory with who made it, and no run changes its records or its model."""

import copy
from collections.abc import Callable
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
