"""An `ArrayTask` shares no memory with who made it, and no run changes its records or its model."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dphpo_bench as bench
from dphpo_bench.base.tensors import Records
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.array_task import ArrayTask
from tests.training.test_in_place import Centred, greedy

SOURCE = DataSource.resolve("unused", "unused")
BUDGET = bench.PrivacyBudget(8.0, 1e-3)


def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 5
    return (rng.normal(size=(60, 20)) + 3 * np.eye(5, 20)[labels]).astype(np.float32), labels


def tensors() -> tuple[Tensor, Tensor]:
    x, y = arrays()
    return torch.from_numpy(x), torch.from_numpy(y)


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
    "half precision": lambda x, y: (torch.from_numpy(x).half(), torch.from_numpy(y)),
    "frame": lambda x, y: (frame(x), pandas.Series(y, copy=False)),
    "labelled frame": lambda x, y: frame(x).assign(labels=y),
    "dictionary": lambda x, y: {"x": x, "labels": y},
    "dictionary of tensors": lambda x, y: {"x": torch.from_numpy(x), "labels": torch.from_numpy(y)},
    "dataset": lambda x, y: Rows(torch.from_numpy(x), torch.from_numpy(y)),
    "TensorDataset": lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    "every other column": lambda x, y: (np.repeat(x, 2, axis=1)[:, ::2], np.repeat(y, 2)[::2]),
}


def held(data: Any) -> list[Any]:
    """The arrays and tensors that someone who gave these data holds."""
    if isinstance(data, Rows):
        return [data.x, data.y]
    if isinstance(data, TensorDataset):
        return list(data.tensors)
    if isinstance(data, dict):
        return list(data.values())
    parts = [data] if isinstance(data, pandas.DataFrame) else list(data)
    found: list[Any] = []
    for part in parts:
        if isinstance(part, pandas.DataFrame):
            found += [part[name] for name in part.columns]
        else:
            found.append(part)
    return found


def zero(values: Any) -> None:
    """Write zeros over values, whatever holds them."""
    if isinstance(values, pandas.Series):
        values = values.array._ndarray
        values.flags.writeable = True
    values[:] = 0


@pytest.mark.parametrize(("form", "kind"), [*((form, "classification") for form in FORMS), ("numpy", "own")])
def test_what_is_given_is_copied(form: str, kind: str) -> None:
    x, y = arrays()
    own = {"losses": bench.losses.cross_entropy, "kind": "own"} if kind == "own" else {}
    data, test = FORMS[form](x, y), FORMS[form](x.copy(), y.copy())
    task = ArrayTask("mine", data, Centred(in_place=False), test, **own)
    before = [copy.deepcopy(records) for records in (task.load_train(SOURCE), task.load_test(SOURCE))]
    for values in [x, y, *held(data), *held(test)]:
        zero(values)
    for records, theirs in zip((task.load_train(SOURCE), task.load_test(SOURCE)), before, strict=True):
        assert all(torch.equal(tensor, theirs.named()[name]) for name, tensor in records.named().items())
        assert any(bool(tensor.any()) for tensor in records.named().values())


def test_inputs_and_targets_of_sequences_share_no_memory() -> None:
    tokens = torch.randint(7, (30, 6))
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    records = ArrayTask("texts", tokens, model, kind="tokens").load_train(SOURCE)
    pointers = {tensor.untyped_storage().data_ptr() for tensor in (*records.named().values(), tokens)}
    assert len(pointers) == 3


def test_the_module_is_copied_when_the_task_is_made() -> None:
    """Its owner may train it on, and no later run starts from there."""
    module = nn.Linear(20, 5)
    task = ArrayTask("mine", tensors(), module, pretrained=True)
    before, fingerprint = module.weight.detach().clone(), task.model_fingerprint()
    with torch.no_grad():
        module.weight.zero_()
    built = task.build_model()
    assert isinstance(built, nn.Linear)
    assert torch.equal(built.weight, before)
    assert task.model_fingerprint() == fingerprint


def spoil(outputs: Any, targets: Any) -> float:
    outputs.zero_()
    targets.fill_(4)
    return 0.0


def spoil_all(model: nn.Module, test: Records) -> float:
    assert isinstance(test.inputs, Tensor)
    test.inputs.zero_()
    test.named()["targets"].zero_()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.train()
    return 0.0


def score(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float()


METRICS = (
    bench.metrics.Metric("spoil", True, spoil),
    bench.metrics.ModelMetric("spoil_all", True, spoil_all),
    bench.metrics.ACCURACY,
    bench.metrics.ModelMetric("outputs", True, lambda model, test: float(model(test.inputs.clone()).abs().mean())),
)


def written(in_place: bool, batch_size: int, losses: Any = bench.losses.cross_entropy) -> tuple[ArrayTask, Any]:
    data = arrays()
    rule = greedy if in_place else lambda values: values
    task = ArrayTask(
        "mine",
        data,
        Centred(in_place),
        data,
        kind="own",
        losses=rule(losses),
        scores=rule(score),
        metrics=METRICS if in_place else METRICS[2:],
        batch_size=batch_size,
        epochs=4,
        learning_rate=0.05,
        public=True,
    )
    return task, data


@pytest.mark.parametrize(
    ("method", "batch_size"),
    [("dp_sgd", 60), ("dp_sgd", 20), ("papernot_steinke", 60), ("hyfreedp", 20), ("nonprivate", 20)],
)
def test_runs_with_code_that_writes_in_place_repeat(method: str, batch_size: int) -> None:
    """As often as one likes, with what the same code without it gives, and the caller's arrays stay."""
    (task, data), (polite, _) = written(True, batch_size), written(False, batch_size)
    before = [copy.deepcopy(records) for records in (task.load_train(SOURCE), task.load_test(SOURCE))]

    tried = bench.make_method(method, {"epochs": 2} if method == "nonprivate" else {})

    def measured(some: ArrayTask) -> dict[str, float]:
        return bench.run(tried, some, BUDGET, seed=3, source=SOURCE, device="cpu").record.metrics

    first, second, expected = measured(task), measured(task), measured(polite)
    assert first == second
    assert {name: first[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert all((one == two).all() for one, two in zip(data, arrays(), strict=True))
    for records, theirs in zip((task.load_train(SOURCE), task.load_test(SOURCE)), before, strict=True):
        assert all(torch.equal(tensor, theirs.named()[name]) for name, tensor in records.named().items())


def test_metrics_leave_the_model_of_a_run_as_it_is() -> None:
    models = []
    for in_place in (True, False):
        found = bench.run("dp_sgd", written(in_place, 20)[0], BUDGET, seed=3, source=SOURCE, device="cpu").model
        assert found is not None
        models.append(found)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)


@dataclass(frozen=True)
class Spoiler(bench.Method[None]):
    """Writes over all that it is lent."""

    name = "spoiler"
    summary = "No privacy, no manners."
    reference = "a test"
    tuning = ()
    end_to_end_private = False

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[None]:
        event = bench.events.non_private()
        return bench.Plan(budget, event, event, None, (), bench.Cost(1, 1, 1.0))

    def run(self, plan: bench.Plan[None], session: bench.Session) -> bench.Outcome:
        for lent in (session.nonprivate(), session.holdout(0.5)[0].nonprivate()):
            for tensor in lent.named().values():
                tensor.zero_()
        again = session.nonprivate()
        return bench.Outcome(session.build_model(), {"left": float(again.named()["inputs"].abs().sum())})


def test_a_method_that_writes_to_raw_records_changes_no_record() -> None:
    task = ArrayTask("mine", tensors(), nn.Linear(20, 5))
    before = copy.deepcopy(task.load_train(SOURCE))
    record = bench.run(Spoiler(), task, BUDGET, source=SOURCE, device="cpu", not_private=True).record
    assert record.released["left"] == pytest.approx(float(before.named()["inputs"].abs().sum()))
    after = task.load_train(SOURCE).named()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.named().items())
