"""Tasks from a user's own data and model."""

import functools
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import scipy
import torch
from optuna.distributions import IntDistribution
from torch import nn
from torch.utils.data import TensorDataset

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.array_task import ArrayTask
from tests.own_task import array_task

X = np.random.default_rng(0).normal(size=(100, 5))
Y = np.arange(100) % 3
SOURCE = DataSource.resolve("unused", "unused")


def make(**changes: Any) -> ArrayTask:
    arguments: dict[str, Any] = {"name": "mine", "train": (X, Y), "model": nn.Linear(5, 3), **changes}
    return array_task(**arguments)


def test_facts_are_inferred() -> None:
    facts = make(test=(X[:10], Y[:10])).facts
    assert (facts.task, facts.model, facts.n_records) == ("mine", "Linear", 100)
    assert (facts.inputs.shape, facts.n_classes, facts.batch_size) == ((5,), 3, 25)


@pytest.mark.parametrize(
    "train",
    [
        (X, Y),
        (X.tolist(), Y.tolist()),
        TensorDataset(torch.tensor(X), torch.tensor(Y)),
        [X, Y],
    ],
)
def test_arrays_tensors_and_datasets_are_the_same(train: Any) -> None:
    split = make(train=train).load_train(SOURCE)
    assert split.inputs.dtype == torch.float32
    torch.testing.assert_close(split.inputs, torch.tensor(X).float())
    assert torch.equal(split.targets, torch.tensor(Y))


def test_every_run_gets_its_own_copy_of_the_module() -> None:
    module = nn.Linear(5, 3)
    task = make(model=module, pretrained=True)
    first, second = task.build_model(), task.build_model()
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    with torch.no_grad():
        first.weight.zero_()
    assert torch.equal(second.weight, module.weight)
    assert second.training


def test_weights_of_a_module_follow_the_seed() -> None:
    """Not what the module was drawn with, so that one seed gives one result in every process."""
    tasks = [make(model=nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))) for _ in range(2)]
    built = []
    for task in tasks:
        torch.manual_seed(1)
        built.append(task.build_model().state_dict())
    assert all(torch.equal(value, built[1][name]) for name, value in built[0].items())
    assert tasks[0].model_fingerprint() == tasks[1].model_fingerprint()


def test_a_layer_that_cannot_draw_its_weights_is_refused() -> None:
    class Scaled(nn.Linear):
        reset_parameters = None  # type: ignore[assignment]

        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.weight, self.bias = nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(3))

    with pytest.raises(InvalidValueError, match=r"\(Scaled\) has none. Pass a function .* or pretrained=True"):
        make(model=Scaled())
    make(model=Scaled(), pretrained=True)
    make(model=Scaled)


def test_fingerprint_tells_nothing_about_the_records() -> None:
    assert make().fingerprint(SOURCE) == make(train=(X + 1, Y)).fingerprint(SOURCE)
    assert make().fingerprint(SOURCE) != make(version="2").fingerprint(SOURCE)
    assert make().fingerprint(SOURCE) != make(train=(torch.tensor(X).half(), Y)).fingerprint(SOURCE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": X}, "Expected train to be .inputs, labels. or a torch Dataset"),
        ({"train": {"labels": Y}}, "Expected inputs beside the labels in train, got none"),
        ({"train": (X, np.eye(2)[Y % 2]), "kind": "multilabel"}, "each of the model's 3 outputs, got 2"),
        ({"train": (X, Y[:-1])}, r"got \(100, 5\) and \(99,\)"),
        ({"train": (X[:, 0], Y)}, "Expected train inputs of shape"),
        ({"train": (X[:0], Y[:0])}, "at least one record in train"),
        ({"train": (X, Y.astype(float))}, "Expected integer class labels in train"),
        ({"train": (X, Y + 1)}, "Expected train labels from 0 to 2, got 1 to 3"),
        ({"train": (np.where(X > 2, np.nan, X), Y)}, "Expected finite inputs in train"),
        ({"test": (X[:, :4], Y)}, r"Expected test inputs as in train, Input\(shape=\(5,"),
        ({"model": nn.Linear(4, 3)}, r"The model does not accept inputs of shape \(1, 5\)"),
        (
            {"model": nn.LazyLinear(3)},
            "know their shapes",
        ),
        ({"model": lambda: 3}, "Expected model to be or to return a torch.nn.Module, got 3"),
        ({"model": functools.cache(lambda: nn.Linear(5, 3))}, "make a new module at each call, got the same one twice"),
        ({"name": "a/b"}, "task's name of at most 64 letters"),
        ({"n_classes": 4}, "Expected a model with n_classes=4 outputs, got 3"),
        ({"batch_size": 101}, "batch_size=101"),
        ({"model": nn.Linear}, r"Cannot make a model of <class .*missing 2 required .* a function without parameters"),
        ({"model": Y}, r"The data come before it: ArrayTask\(name, \(inputs, labels\), model\)"),
        ({"kind": "regression", "metrics": bench.metrics.ACCURACY}, "metrics of a regression, got accuracy"),
        (
            {"metrics": [bench.metrics.ACCURACY, bench.metrics.R2]},
            "metrics of classes, got r2",
        ),
        ({"search_space": {"learning_rate": (1e-4, 1)}}, r"Expected an Optuna distribution .* got \(0.0001, 1\)"),
        ({"search_space": {"batch_size": IntDistribution(10, 500)}}, "<= n_records=100, got batch_size=255"),
        ({"train": (scipy.sparse.csr_matrix(X), Y)}, "to be numbers in an array or tensor, got a csr_matrix"),
        (
            {"train": (pandas.DataFrame(X).astype("Float64").where(X > 0), Y)},
            "Expected finite inputs in train, got nan in row 0, column '1'; impute or drop them",
        ),
    ],
)
def test_mistakes_get_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as error:
        make(**changes)
    assert "\n" not in str(error.value)


def test_booleans_become_numbers_as_integers_do() -> None:
    task = make(train=(X > 0, Y), test=(X > 1, Y))
    assert task.facts.inputs.dtype == "float"
    assert task.load_train(SOURCE).named()["inputs"].sum() == (X > 0).sum()
    result = bench.run("dp_sgd", make(public=True, epochs=1), bench.PrivacyBudget(2.0, 1e-3), seed=0)
    assert result.predict(X[:3] > 0).tolist() == result.predict((X[:3] > 0).astype(float)).tolist()


def test_columns_of_test_data_are_those_of_train() -> None:
    """In another order they would be scored without a word."""
    frame = pandas.DataFrame(X, columns=list("abcde"))
    make(train=(frame, Y), test=(X, Y))
    labelled = frame.assign(labels=Y)
    make(train=labelled, test=labelled[["labels", *"abcde"]])
    for other in (frame[list("edcba")], frame.rename(columns={"a": "z"})):
        with pytest.raises(InvalidValueError, match="in the same order, a, b, c, d, e, got"):
            make(train=(frame, Y), test=(other, Y))
    one, other = (pandas.DataFrame({name: Y / 2}) for name in ("answer", "label"))
    assert make(train=(X, one), test=(X, other), kind="regression", model=nn.Linear(5, 1), target_scale=(0, 1))
    answers = pandas.DataFrame({"yes": Y > 0, "no": Y == 0})
    several: Any = {"train": (X, answers), "kind": "multilabel", "model": nn.Linear(5, 2)}
    for test in (answers[["no", "yes"]], pyarrow.table({"no": Y == 0, "yes": Y > 0})):
        with pytest.raises(InvalidValueError, match="in the same order, yes, no, got no, yes"):
            make(**several, test=(X, test))
        named = make(**several, test=(X, test), classes=("no", "yes"))
        assert named.load_test(SOURCE).targets.tolist() == named.load_train(SOURCE).targets.tolist()


def test_columns_have_different_names() -> None:
    """A prediction would take one of them for all of its name."""
    with pytest.raises(DataError, match="different names, got several a; rename or drop some"):
        make(train=(pandas.DataFrame(X, columns=list("abcad")), Y))


def test_a_search_on_a_regression_needs_scores_and_says_so_before_it_trains() -> None:
    values = X @ np.arange(5.0)
    task = make(train=(X, values), kind="regression", model=nn.Linear(5, 1))
    budget = bench.PrivacyBudget(2.0, 1e-3)
    for method in ("grid_composed", "papernot_steinke"):
        with pytest.raises(InvalidValueError, match="Expected an error_bound of task"):
            bench.plan(method, task, budget)
    bench.plan("dp_sgd", task, budget)
    scored = make(train=(X, values), kind="regression", model=nn.Linear(5, 1), error_bound=9)
    bench.plan("grid_composed", scored, budget)


def test_a_run_on_other_records_does_not_replace_a_record(tmp_path: Path) -> None:
    one, other = make(epochs=1), make(train=(X + 1, Y), epochs=1)
    bench.run("dp_sgd", one, bench.PrivacyBudget(2.0, 1e-3), seed=None, results_dir=tmp_path)
    with pytest.raises(DataError, match="are others than those that results in"):
        bench.run("dp_sgd", other, bench.PrivacyBudget(2.0, 1e-3), seed=None, results_dir=tmp_path)


def test_columns_of_texts_are_named_and_no_record_is_quoted() -> None:
    frame = pandas.DataFrame({"age": [30, 40], "city": ["Secretville", "Elsewhere"]})
    with pytest.raises(InvalidValueError, match=r"train inputs 'city' to be numbers .* Declare the columns") as error:
        array_task("people", (frame, np.array([0, 1])), nn.Linear(2, 2))
    assert "Secretville" not in "".join(traceback.format_exception(error.value))


def test_integers_that_a_model_of_numbers_would_round_are_refused() -> None:
    inputs = np.arange(40).reshape(20, 2)
    inputs[3, 1] = 2**24 + 1
    with pytest.raises(InvalidValueError, match=r"that float32 holds, got 16777217 in row 3"):
        bench.ArrayTask("large", (inputs, inputs[:, 0] % 2), nn.Linear(2, 2))
    table = nn.Sequential(nn.EmbeddingBag(100, 2))
    kept = bench.ArrayTask("ids", (inputs % 100, inputs[:, 0] % 2), table).load_train(SOURCE).inputs
    assert isinstance(kept, torch.Tensor)
    assert kept.dtype == torch.int64
