"""Predictions of released models: in the labels of the training records, in this process and in another."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.files import write_whole
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.run import RunResult
from tests.conftest import TinyTask
from tests.own_task import array_task

RANDOM = np.random.default_rng(0)
N = 60
FRAME = pandas.DataFrame(
    {
        "age": RANDOM.integers(18, 80, N).astype(float),
        "job": RANDOM.choice(["clerk", "cook"], N),
    }
)
LABELS = pandas.Series(np.where(FRAME["age"] > 45, "yes", "no"))
COLUMNS = {"age": bench.Number(45, 15, missing="typical"), "job": bench.Category(("clerk", "cook"))}
X = RANDOM.normal(size=(N, 3)).astype(np.float32)


def trained(labels: Any, model: Any, inputs: Any = X, **arguments: Any) -> RunResult:
    task = array_task("answers", (inputs, labels), model, public=True, epochs=5, learning_rate=0.3, **arguments)
    budget = bench.PrivacyBudget(8.0, 1e-3)
    return bench.run("dp_sgd", task, budget, seed=0, progress=bench.NullProgress())


@pytest.fixture(scope="module")
def of_table() -> RunResult:
    return trained(LABELS, nn.Linear(3, 2), FRAME, columns=COLUMNS, classes=("no", "yes"))


def test_predictions_are_the_callers_labels(of_table: RunResult) -> None:
    model = of_table.trained
    assert model is not None
    assert (of_table.predict(FRAME) == LABELS).mean() > 0.8
    chances = model.predict_proba(FRAME)
    assert chances.shape == (N, 2)
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-12)
    assert (np.array(["no", "yes"])[chances.argmax(1)] == model.predict(FRAME)).all()
    assert not model.outputs(FRAME).requires_grad
    # By name, from other forms of a table; and inputs that are encoded already.
    for data in (FRAME[["job", "age"]], FRAME.to_dict("list"), FRAME.to_dict("records"), FRAME.to_numpy().tolist()):
        assert (model.predict(data) == model.predict(FRAME)).all()
    assert (model.predict(model.columns.encode(FRAME)) == model.predict(FRAME)).all()  # type: ignore[union-attr]
    facts = (model.method, model.task, model.model, model.delta, model.unit, model.record)
    assert facts == ("dp_sgd", "answers", "Linear", 1e-3, "record", of_table.record.identity.key)


@pytest.mark.parametrize("form", ["frame", "columns of a dictionary", "dictionaries", "named inputs"])
def test_columns_that_training_consumed_are_ignored(form: str, tmp_path: Path) -> None:
    frame = FRAME.assign(patient=np.arange(N) // 2, answer=LABELS)
    model: Any = nn.Linear(3, 2)
    declared: dict[str, Any] = {"columns": COLUMNS, "unit": "patient", "target": "answer", "classes": ("no", "yes")}
    data: Any = frame
    if form == "named inputs":
        data, model = {name: np.asarray(frame[name]) for name in ("age", "patient", "answer")}, Age()
        del declared["columns"]
    elif form != "frame":
        data = frame.to_dict("list" if form.startswith("columns") else "records")
    task = array_task("answers", data, model, public=True, epochs=1, **declared)
    result = bench.run("dp_sgd", task, bench.PrivacyBudget(8, 1e-3), seed=0, progress=bench.NullProgress())
    back = bench.load_model(result.save(tmp_path / "m.safetensors"), task)
    inputs = {"age": data["age"]} if form == "named inputs" else FRAME
    for saved in (back, result):
        assert saved.predict(data).tolist() == saved.predict(inputs).tolist()
    if form == "frame":
        with pytest.raises(bench.errors.DataError, match="which has other, too"):
            back.predict(data.assign(other=1))


class Age(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 2)

    def forward(self, age: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(age[:, None] / 50)


def test_another_process_predicts_the_same(of_table: RunResult, tmp_path: Path) -> None:
    """Bit for bit, from the file alone."""
    model = of_table.trained
    assert model is not None
    new = FRAME.copy()
    new.loc[::3, "age"] = np.nan
    new.to_csv(tmp_path / "new.csv", index=False)
    of_table.save(tmp_path / "m.safetensors")
    code = (
        "import sys, numpy, pandas, dphpo_bench as bench; from pathlib import Path; here = Path(sys.argv[1]); "
        "model = bench.load_model(here / 'm.safetensors'); frame = pandas.read_csv(here / 'new.csv'); "
        "numpy.save(here / 'chances.npy', model.predict_proba(frame)); print(*model.predict(frame), model.epsilon)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*model.predict(new), repr(model.epsilon)]
    assert np.array_equal(np.load(tmp_path / "chances.npy"), model.predict_proba(new))


KINDS: list[tuple[dict[str, Any], Any, Any, tuple[int, ...], Any]] = [
    ({}, np.arange(N) % 3, nn.Linear(3, 3), (N,), {0, 1, 2}),
    ({"classes": (1, 2.5, "?")}, [1, 2.5, "?"] * 20, nn.Linear(3, 3), (N,), {1, 2.5, "?"}),
    ({}, np.arange(N) % 2 == 0, nn.Linear(3, 2), (N,), {False, True}),
    ({"kind": "binary", "classes": (-1, 1)}, np.sign(X[:, 0]), nn.Linear(3, 1), (N,), {-1, 1}),
    ({"kind": "multilabel", "classes": list("abcd")}, (X @ np.ones((3, 4)) > 0), nn.Linear(3, 4), (N, 4), {0, 1}),
    ({"kind": "regression", "error_bound": 1}, X[:, 0], nn.Linear(3, 1), (N,), None),
    ({"kind": "regression", "target_scale": [(1, 2), (3, 4)]}, X[:, :2], nn.Linear(3, 2), (N, 2), None),
    (
        {"kind": "tokens", "inputs": np.arange(N * 4).reshape(N, 4) % 5},
        np.arange(N * 4).reshape(N, 4) % 5,
        nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5)),
        (N, 4),
        set(range(5)),
    ),
]


@pytest.mark.parametrize(("changes", "labels", "network", "shape", "values"), KINDS)
def test_each_kind_predicts_and_comes_back(
    tmp_path: Path, changes: dict[str, Any], labels: Any, network: nn.Module, shape: tuple[int, ...], values: Any
) -> None:
    result = trained(labels, network, **changes)
    inputs = changes.get("inputs", X)
    back = bench.load_model(result.save(tmp_path / "m.safetensors"))
    predicted = result.predict(inputs)
    assert predicted.shape == shape
    assert values is None or set(predicted.ravel().tolist()) <= values
    assert np.array_equal(predicted, back.predict(inputs))
    assert predicted.dtype == back.predict(inputs).dtype
    assert back.predict(inputs[:0]).shape == (0, *shape[1:])
    assert back.predict(inputs[:0]).dtype == predicted.dtype
    if values is None:
        with pytest.raises(bench.errors.InvalidValueError, match="got a regression, which has no probabilities"):
            back.predict_proba(inputs)
    else:
        chances = back.predict_proba(inputs)
        assert ((chances >= 0) & (chances <= 1)).all()
        if back.kind != "multilabel":
            np.testing.assert_allclose(chances.sum(-1), 1, rtol=1e-12)
            assert back.predict_proba(inputs[:0]).shape == (0, *chances.shape[1:])


def test_a_regression_predicts_in_the_units_of_its_targets(tmp_path: Path) -> None:
    scale = bench.Number(2.0, 0.5, logarithmic=True)
    result = trained(np.expm1(2 + 0.5 * X[:, 0]), nn.Linear(3, 1), kind="regression", target_scale=scale)
    model = bench.load_model(result.save(tmp_path / "m.safetensors"))
    expected = np.expm1(2 + 0.5 * model.outputs(X).double().numpy()[:, 0])
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12)


def test_a_threshold_is_a_probability_of_the_second_of_two_classes() -> None:
    binary, three = (
        trained(np.arange(N) % 2, nn.Linear(3, 2)).trained,
        trained(np.arange(N) % 3, nn.Linear(3, 3)).trained,
    )
    several = trained(np.eye(2)[np.arange(N) % 2], nn.Linear(3, 2), kind="multilabel").trained
    assert None not in (binary, three, several)
    assert replace(binary, threshold=1e-9).predict(X).all()
    for model, threshold, message in (
        (three, 0.5, "two classes with a threshold, got 3 of kind classification"),
        (several, 0.5, "two classes with a threshold, got 2 of kind multilabel"),
        (binary, 50, "Expected 0 < threshold < 1, got threshold=50"),
    ):
        with pytest.raises(bench.errors.InvalidValueError, match=message):
            replace(model, threshold=threshold).predict(X)


def test_a_network_that_fails_on_new_records_is_named() -> None:
    ids = np.arange(N * 2).reshape(N, 2) % 5
    model = trained(np.arange(N) % 2, lambda: nn.Sequential(nn.EmbeddingBag(5, 2)), ids).trained
    assert model is not None
    with pytest.raises(bench.errors.DataError, match=r"fails on these inputs: \w+: .*valid range") as caught:
        model.predict(ids + 5)
    assert "\n" not in str(caught.value)


def test_several_inputs_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 2)

        def forward(self, ids: Any, numbers: Any) -> Any:
            return self.head(self.words(ids).mean(1) + numbers)

    inputs = {"ids": np.arange(N * 2).reshape(N, 2) % 5, "numbers": X}
    model = trained(np.arange(N) % 2, Two, inputs).trained
    assert model is not None
    assert model.predict(inputs).shape == (N,)
    for data, message in (
        (X, "Expected inputs by name, ids, numbers, got a single array"),
        ({**inputs, "ids": inputs["ids"].astype(float)}, "Expected input 'ids' to be integers"),
        ({**inputs, "numbers": X[:, :2]}, r"Expected input 'numbers' of shape \(n, 3\), got \(60, 2\)"),
    ):
        with pytest.raises(bench.errors.InvalidValueError, match=message):
            model.predict(data)


class _Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.layer(one + other)


def test_frames_in_a_dictionary_have_the_order_of_training() -> None:
    """Their columns were taken by place, in the test records and in predictions."""
    frame, labels = pandas.DataFrame(X, columns=list("abc")), np.arange(N) % 2
    turned = {"one": frame, "other": frame[list("cab")]}
    model = trained(labels, _Sum(), {"other": frame, "one": frame}).trained
    assert model is not None
    assert model.predict_proba({"one": frame, "other": frame}).shape == (N, 2)
    with pytest.raises(bench.errors.DataError, match=r"one\.a, .*; the data have another order or more"):
        model.predict(turned)
    with pytest.raises(bench.errors.InvalidValueError, match="those of train in the same order"):
        bench.ArrayTask("two", ({"one": frame, "other": frame}, labels), _Sum(), test=(turned, labels), public=True)


def test_frames_of_numbers_are_read_by_name() -> None:
    frame = pandas.DataFrame(X, columns=list("abc"))
    model = trained(np.arange(N) % 2, nn.Linear(3, 2), frame).trained
    assert model is not None
    assert np.array_equal(model.predict_proba(frame[list("cab")].assign(z="?")), model.predict_proba(frame))
    assert np.array_equal(model.predict_proba(X), model.predict_proba(frame))
    arrow = pyarrow.Table.from_pandas(frame[list("cab")])
    assert np.array_equal(model.predict_proba(arrow), model.predict_proba(frame))
    with pytest.raises(bench.errors.InvalidValueError, match="that float32 holds, got 16777217 in row 1"):
        model.predict(np.array([[1, 2, 3], [2**24 + 1, 2, 3]]))
    with pytest.raises(bench.errors.DataError, match="different names, got several a"):
        model.predict(pandas.concat([frame, frame[["a"]] + 1], axis=1))
    with pytest.raises(bench.errors.DataError, match=r"Expected the columns .*, a, b, c; the data lack b\."):
        model.predict(frame[["a", "c"]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X, "Expected a table, .*got a ndarray of another form"),
        (torch.tensor(X[0]), r"Expected inputs of shape \(n, 3\), got \(3,\); put a single record in a list"),
        (torch.full((2, 3), torch.nan), "Expected finite inputs in data"),
        (torch.full((2, 3), 3e38), "output for row 0 is not finite; are its inputs as those of the training records"),
        (FRAME[["age"]], "lacks job"),
        (FRAME.assign(more=1), "has more, too"),
        (FRAME.assign(job="pilot"), "pilot"),
        (None, "Expected a table, .*got a NoneType"),
    ],
)
def test_unfit_data_get_one_line(of_table: RunResult, data: Any, message: str) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message) as caught:
        of_table.predict(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mine", "stays"])  # a registered task has the second, too
def test_a_network_with_code_of_its_own_is_named_when_it_is_loaded(name: str, tmp_path: Path) -> None:
    class Mine(nn.Module):
        def __init__(self, hidden: int = 4) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, hidden), nn.Linear(hidden, 2)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x).tanh())

    task = array_task(name, (X, np.arange(N) % 2), Mine, public=True, epochs=5)
    result = bench.run("dp_sgd", task, bench.PrivacyBudget(8.0, 1e-3), seed=0, progress=bench.NullProgress())
    path = result.save(tmp_path / "mine.safetensors")
    module = Mine()
    before = module.first.weight.clone()
    for loaded in (
        bench.load_model(path, model=Mine),
        bench.load_model(path, model=module),
        bench.load_model(path, task),
    ):
        assert np.array_equal(loaded.predict_proba(X), result.trained.predict_proba(X))  # type: ignore[union-attr]
    assert torch.equal(module.first.weight, before)
    for arguments, kind, message in (
        ({}, bench.errors.InvalidValueError, r"The network Mine in .* has code of its own, .* Pass model=, a module"),
        ({"model": lambda: Mine(5)}, bench.errors.DataError, "has another structure than Mine"),
        ({"model": nn.Linear(3, 2)}, bench.errors.DataError, "has another structure than Linear"),
        ({"model": lambda: 3}, bench.errors.InvalidValueError, "to be or to make a torch.nn.Module"),
    ):
        with pytest.raises(kind, match=message) as caught:
            bench.load_model(path, **arguments)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def rewritten(of_table: RunResult, folder: Path, changes: dict[str, Any]) -> Path:
    """Write the model with other metadata; None leaves some out."""
    path = of_table.save(folder / "m.safetensors")
    with safe_open(path, framework="pt") as file:
        metadata = {**file.metadata(), **changes}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, folder / "n.safetensors", {name: value for name, value in metadata.items() if value is not None})
    return folder / "n.safetensors"


def test_a_file_says_nothing_of_the_records_but_by_its_weights(tmp_path: Path) -> None:
    """Other records, of other labels: the same metadata."""
    described = []
    for shift, labels in ((0, np.arange(N) % 2), (9, np.zeros(N, dtype=int))):
        frame = FRAME.assign(age=FRAME["age"] + shift)
        names = np.array(["no", "yes"])[labels]
        result = trained(names, nn.Linear(3, 2), frame, columns=COLUMNS, classes=("no", "yes"))
        with safe_open(result.save(tmp_path / f"{shift}.safetensors"), framework="pt") as file:
            described.append(file.metadata())
    assert described[0] == described[1]
    assert set(described[0]) == {
        *("format", "dphpo-bench", "record", "method", "task", "model", "epsilon", "delta", "unit", "kind", "inputs"),
        *("columns", "classes", "network"),
    }


def test_a_registered_task_makes_its_network(of_table: RunResult, tmp_path: Path) -> None:
    """Where its structure is not in the file."""
    trained = of_table.trained
    assert trained is not None
    network = bench.make_task("adult", "mlp").build_model()
    inputs = bench.make_task("adult").facts.inputs
    other = replace(
        trained, network=network, task="adult", model="mlp", kind="binary", inputs=inputs, classes=("no", "yes")
    )
    path = rewritten(replace(of_table, trained=other), tmp_path, {"network": None})
    assert torch.equal(bench.load_model(path).network[0].weight, network[0].weight)  # type: ignore[index]
    with pytest.raises(bench.errors.DataError, match="model mlp of task digits, got mlp of adult"):
        bench.load_model(path, "digits")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": None},
        {"kind": "other"},
        {"inputs": "{"},
        {"inputs": '{"shape":[3],"dtype":"complex","vocabulary":null}'},
        {"classes": '[["a"],"b"]'},
        {"columns": '[{"name":"a","kind":"module"}]'},
        {"input_names": "1"},
        {"target_scale": '[{"typical":0,"spread":-1}]'},
        {"delta": None},
        {"network": '["os.system",{}]'},
        {"network": "[" * 9999},
    ],
)
def test_metadata_of_strangers_run_nothing(of_table: RunResult, tmp_path: Path, changes: dict[str, Any]) -> None:
    other = rewritten(of_table, tmp_path, changes)
    with pytest.raises(bench.errors.DataError) as caught:
        bench.load_model(other)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("changes", [{"classes": '["a","b","c"]'}, {"kind": "binary", "classes": '["a","b"]'}])
def test_classes_that_do_not_fit_the_outputs_are_refused(
    of_table: RunResult, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = bench.load_model(rewritten(of_table, tmp_path, changes))
    with pytest.raises(bench.errors.DataError, match=r"Expected [13] outputs for a record, .* got shape \(60, 2\)"):
        model.predict(FRAME)


def test_a_file_without_metadata_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, tmp_path / "m.safetensors")
    with pytest.raises(bench.errors.DataError, match=r"a model that RunResult\.save wrote"):
        bench.load_model(tmp_path / "m.safetensors", model=nn.Linear(3, 2))


def test_a_failed_run_predicts_nothing(of_table: RunResult) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="There is no model to predict with: the run is ok"):
        RunResult(of_table.record, None, None).predict(FRAME)


@pytest.fixture
def result(plain_run: Any, fixed_noise: Any) -> Any:
    return plain_run(fixed_noise())


def test_a_model_goes_to_a_file_and_back(result: Any, tmp_path: Path, tiny_task: TinyTask) -> None:
    path = result.save(tmp_path / "new" / "model.safetensors")
    state = torch.random.get_rng_state()
    loaded, alone = bench.load_model(path, tiny_task), bench.load_model(path)
    assert torch.equal(torch.random.get_rng_state(), state)
    test = tiny_task.load_test(DataSource.resolve())
    for model in (loaded, alone):
        assert torch.equal(model.outputs(test.inputs), result.trained.outputs(test.inputs))
        assert not model.network.training
        assert model.epsilon == result.record.privacy.epsilon
    accuracy = (loaded.predict(test) == test.targets.numpy()).mean()
    assert accuracy == pytest.approx(result.record.metrics["accuracy"])

    # The same without this package.
    network = nn.Linear(5, 3)
    network.load_state_dict(load_file(path))
    assert torch.equal(network.weight, alone.network.weight)  # type: ignore[arg-type]
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    assert (facts["method"], facts["task"], facts["model"]) == ("fixed_noise", "tiny", "linear")
    assert facts["record"] == result.record.identity.key
    assert float(facts["epsilon"]) == result.record.privacy.epsilon


def test_weights_that_layers_share_are_written_for_both(result: Any, tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.register_buffer("kept", torch.ones(4, dtype=torch.bfloat16)[::2])

    model = Tied()
    path = RunResult(result.record, None, replace(result.trained, network=model)).save(tmp_path / "tied.safetensors")
    other = Tied()
    other.load_state_dict(load_file(path))
    assert torch.equal(other.second.weight, model.first.weight)


def test_a_model_is_kept_when_the_disk_is_full(result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been paid for."""

    def full(path: Path, content: bytes) -> Path:
        if path.parent == tmp_path:
            raise OSError(28, "No space left on device")
        return write_whole(path, content)

    monkeypatch.setattr("dphpo_bench.harness.trained.write_whole", full)
    with pytest.raises(bench.errors.DataError, match=r"No space left on device\. It was kept at ") as caught:
        result.save(tmp_path / "model.safetensors")
    aside = Path(str(caught.value).rpartition(" at ")[2].rstrip("."))
    assert set(load_file(aside)) == set(result.model.state_dict())


def test_what_is_unfit_is_refused(result: Any, tmp_path: Path, tiny_task: TinyTask) -> None:
    path = result.save(tmp_path / "model.safetensors")
    for name, message in (
        ("model.pt", "end in .safetensors"),
        ("model.safetensors", "does not exist, got"),
        ("model.safetensors/x.safetensors", "is no writable folder"),
    ):
        with pytest.raises(bench.errors.InvalidValueError, match=message):
            result.save(tmp_path / name)
    with pytest.raises(bench.errors.DataError, match="model mlp of task tiny, got linear of tiny"):
        bench.load_model(path, TinyTask("mlp"))
    with pytest.raises(bench.errors.DataError, match="model linear of task digits, got linear of tiny"):
        bench.load_model(path, "digits")
    with pytest.raises(bench.errors.DataError, match="Cannot read the model"):
        bench.load_model(tmp_path / "none.safetensors", tiny_task)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(bench.errors.DataError, match="Cannot read the model"):
        bench.load_model(path, tiny_task)
