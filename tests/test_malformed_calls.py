"""Public functions called with anything: a line of our own errors, before anything is read, run or written."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError

X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.arange(40) % 2
BUDGET = bench.PrivacyBudget(3.0, 1e-3)
RECORD = Path(__file__).parent / "records/old_record.json"
QUIET = bench.NullProgress()


def task(**changes: Any) -> bench.ArrayTask:
    arguments: dict[str, Any] = {"name": "t", "train": (X, Y), "model": nn.Linear(3, 2), "public": True, **changes}
    return bench.ArrayTask(**{"epochs": 1, **arguments})


TASK = task()
NO_MODEL, NO_TEXT, NO_PATH = (
    (1.5, [1, 2], torch.optim.SGD),
    (1.5, [1, 2], torch.optim.SGD, b"x"),
    (3, ["a"], Path, b"x"),
)
NO_NUMBER, NO_FLAG = ("strange", [1], torch.optim.SGD, np.ones((3, 3)), True), (None, 1, "yes", [True], bool)
NO_COUNT = (*NO_NUMBER, 1.5, np.float64(2))
NO_TABLE = (3, "x", [1], pd.DataFrame({"a": [1]}))

CALLS: list[tuple[Any, dict[str, Any], dict[str, tuple[Any, ...]]]] = [
    (
        bench.run,
        {"method": "dp_sgd", "task": TASK, "budget": BUDGET, "progress": QUIET},
        {
            "method": (None, *NO_MODEL),
            "task": (None, *NO_MODEL),
            "budget": (None, 3, (3, 1e-3), bench.PrivacyBudget),
            "seed": (*NO_COUNT, -1),
            "source": (3, "data", Path()),
            "results_dir": NO_PATH,
            "device": (*NO_TEXT, 7, "gpu", np.ones(2)),
            "progress": (3, print, QUIET.__class__.__name__),
            "secure_noise": NO_FLAG,
            "check": NO_FLAG,
            "account": NO_TEXT,
            "not_private": NO_FLAG,
            "counted": (3, "main"),
            "checkpoint_every": (*NO_COUNT, 0),
            "plans": (3, "plans"),
        },
    ),
    (
        bench.plan,
        {"method": "dp_sgd", "task": TASK, "budget": BUDGET},
        {"budget": (None, 3), "method": NO_MODEL, "task": NO_MODEL},
    ),
    (
        bench.compare,
        {"methods": ["dp_sgd"], "task": TASK, "epsilons": [3], "seeds": [0], "quiet": True},
        {
            "methods": (None, "dp_sgd", 3, [3], {"dp_sgd": 1}, []),
            "task": (None, *NO_MODEL),
            "epsilons": (None, 3, ["x"], np.ones((2, 2)), {3: 1}, [None], b"3", pd.DataFrame({"a": [1]})),
            "seeds": (3, [1.5], ["a"], [-1], [True], {0: 1}),
            "delta": NO_NUMBER,
            "results_dir": NO_PATH,
            "retry_failed": NO_FLAG,
            "workers": NO_COUNT,
            "threads": (None, *NO_COUNT, 0),
            "gpus": (*NO_NUMBER, -1),
            "source": (3, "data"),
            "quiet": NO_FLAG,
            "account": NO_TEXT,
            "not_private": NO_FLAG,
        },
    ),
    (bench.account, {"folder": "."}, {"folder": (None, *NO_PATH), "name": (None, *NO_TEXT)}),
    (
        bench.price,
        {"history": [("gaussian", 1.0)], "delta": 1e-5},
        {
            "history": (None, 3, "none.toml", b"x", [3], {}, X, pd.DataFrame({"a": [1]}), print, bench.price),
            "delta": NO_NUMBER,
            "epsilon": NO_NUMBER,
            "score_noise": NO_NUMBER,
            "count": (None, *NO_COUNT),
            "chosen_by": NO_TEXT,
            "scores": NO_TEXT,
            "study": ("x", *NO_TEXT),
            "steps": ("x", 3, *NO_NUMBER),
        },
    ),
    (bench.load_model, {"path": "x.safetensors", "task": TASK}, {"path": (None, *NO_PATH), "task": (None, *NO_MODEL)}),
    (
        bench.make_method,
        {"name": "dp_sgd"},
        {"name": (None, *NO_TEXT), "overrides": (*NO_TABLE, {1: 2}, {"epochs": print})},
    ),
    (bench.make_task, {"name": "digits"}, {"name": (None, *NO_TEXT), "model": NO_TEXT}),
    (
        task,
        {},
        {
            "name": (None, *NO_TEXT),
            "train": (None, 3, X, "x", print, {"a": X}),
            "model": (None, 3, "linear", nn.Linear, X),
            "test": (3, X, "x", (X[:, :2], Y)),
            "kind": (None, 3, "classes", ["binary"]),
            "losses": (3, "cross_entropy", [print]),
            "scores": (3, "accuracy"),
            "metrics": (None, 3, "accuracy", [print]),
            "target": (None, 3, ["labels"]),
            "unit": (3, "person", X),
            "augment": (3, "flip", [print, 3]),
            "n_classes": (*NO_COUNT, 7),
            "error_bound": (*NO_NUMBER, -1.0),
            "batch_size": (*NO_COUNT, 0, 41),
            "epochs": (None, *NO_NUMBER, 0, float("nan")),
            "optimizer": (None, 3, torch.optim.SGD, "Sdg", torch.optim.SGD([torch.ones(1, requires_grad=True)])),
            "learning_rate": (None, *NO_NUMBER),
            "search_space": (*NO_TABLE, {"learning_rate": (0, 1)}),
            "pretrained": NO_FLAG,
            "public": NO_FLAG,
            "version": (None, 1, ["1"]),
        },
    ),
    (
        bench.PrivacyBudget,
        {"epsilon": 3, "delta": 1e-3},
        {"epsilon": (None, *NO_NUMBER, -1), "delta": (None, *NO_NUMBER, 0, 1)},
    ),
    (
        bench.DataSource,
        {"data_dir": None, "cache_dir": "cache", "progress": QUIET},
        {"data_dir": NO_PATH, "cache_dir": (None, *NO_PATH), "progress": (None, 3, "x")},
    ),
    (bench.DataSource.resolve, {}, {"data_dir": NO_PATH, "cache_dir": NO_PATH, "progress": (3, "x")}),
    (bench.read_record, {}, {"path": (None, *NO_PATH, "missing.json", ".")}),
    (
        bench.risk,
        {"event": bench.events.gaussian(1.0), "delta": 1e-5},
        {"event": (None, 3, "x"), "delta": (None, *NO_NUMBER, 2)},
    ),
]
CASES = [
    pytest.param(function, {**right, name: value}, id=f"{function.__qualname__}-{name}-{type(value).__name__}{number}")
    for function, right, wrong in CALLS
    for name, values in wrong.items()
    for number, value in enumerate(values)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_a_malformed_call_is_a_line(
    function: Any, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DphpoBenchError) as refusal:
        function(**arguments)
    text = str(refusal.value)
    assert "\n" not in text
    assert len(text) < 700
    assert [*tmp_path.rglob("*.json")] == []


def test_there_are_many() -> None:
    assert len(CASES) > 200


def test_an_optimiser_s_class_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"Expected optimizer to be a text, got <class .*SGD'>; write 'SGD'"):
        task(optimizer=torch.optim.SGD)


def test_numbers_of_numpy_and_paths_as_texts_are_taken(tmp_path: Path) -> None:
    from_numpy = task(batch_size=np.int64(10), epochs=np.float32(1), n_classes=np.uint8(2), public=np.True_)
    assert from_numpy.facts == task(batch_size=10, n_classes=2).facts
    assert type(from_numpy.facts.batch_size) is int
    budget = bench.PrivacyBudget(np.float64(3), np.float32(1e-3))
    seeds = (3, np.int64(3), torch.tensor(3))
    keys = {
        bench.run("dp_sgd", TASK, BUDGET, seed=seed, progress=QUIET, results_dir=None).record.identity.key
        for seed in seeds
    }
    assert len(keys) == 1
    result = bench.run(
        "dp_sgd", TASK, budget, seed=0, progress=QUIET, results_dir=str(tmp_path), secure_noise=np.False_
    )
    assert result.path is not None
    assert bench.read_record(str(result.path)) == bench.read_record(result.path)


def test_seeds_and_epsilons_of_compare_may_be_arrays(tmp_path: Path) -> None:
    table = bench.compare(["dp_sgd"], TASK, np.array([2.0, 4.0]), np.arange(2), results_dir=tmp_path, quiet=True)
    found = {(record.identity.epsilon, record.identity.seed) for record in table.records}
    assert found == set(itertools.product((2.0, 4.0), (0, 1)))
