"""Public functions called with anything: refused in a line and uncharged, or finished."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution
from torch import nn
from torch.nn import functional

import dphpo_bench as bench
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.harness.account import accounts_in
from dphpo_bench.recipes.array_task import TrainingOptions
from tests.fuzz.hostile import examples
from tests.own_task import array_task

X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.arange(40) % 2
BUDGET = bench.PrivacyBudget(3.0, 1e-3)
RECORD = Path(__file__).parent / "records/old_record.json"
QUIET = bench.NullProgress()


def task(**changes: Any) -> bench.ArrayTask:
    arguments: dict[str, Any] = {"name": "t", "train": (X, Y), "model": nn.Linear(3, 2), **changes}
    return array_task(**{"epochs": 1, **arguments})


def selected(**changes: Any) -> None:
    def train(trial: Any) -> tuple[dict[str, float], float]:
        return {"weight": trial.noise_multiplier}, 0.5

    bench.select(**{"train": train, "space": {"rate": [0.1, 1.0]}, **SELECTION, **changes})


def tuned(**changes: Any) -> None:
    tuner = bench.hyfreedp.Tuner(**{**TRAINING, "model": nn.Linear(3, 2), **changes})
    tuner.backward()
    tuner.step()
    tuner.finish()


def fitted(**changes: Any) -> None:
    bench.PrivateClassifier(**{"epsilon": 3, "delta": 1e-3, "classes": (0, 1), **FIT, **changes}).fit(X, Y)


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


TASK, PUBLIC = task(), task(public=True)
SELECTION: dict[str, Any] = {
    "budget": BUDGET,
    "event": lambda noise: bench.events.repeat(bench.events.gaussian(noise), 10),
    "held_out": 0.1,
    "n_scored": 100,
    "name": "t",
    "results_dir": "results",
}
TRAINING: dict[str, Any] = {
    "data": (torch.tensor(X, dtype=torch.float32), torch.tensor(Y)),
    "losses": cross_entropy,
    "sample_rate": 0.25,
    "steps": 1,
    "budget": BUDGET,
    "name": "t",
    "results_dir": "results",
}
FIT: dict[str, Any] = {"method": "dp_sgd", "epochs": 1, "name": "t", "results_dir": "results"}
FILE_NAMES = ("", ".data", "..t", "a/b", "t\n", "数" * 86, "\ud800", "a\0")
NO_MODEL, NO_TEXT, NO_PATH = (1.5, torch.optim.SGD), (1.5, [1, 2], b"x"), (3, ["a"], b"x")
NO_NUMBER, NO_FLAG = ("strange", [1], np.ones((3, 3)), True), (None, 1, "yes")
NO_COUNT = (*NO_NUMBER, 1.5)
NO_TABLE = (3, "x", [1], pd.DataFrame({"a": [1]}))

CALLS: list[tuple[Any, dict[str, Any], dict[str, tuple[Any, ...]]]] = [
    (
        bench.run,
        {"method": "dp_sgd", "task": TASK, "budget": BUDGET, "progress": QUIET, "results_dir": "results"},
        {
            "method": (None, *NO_MODEL),
            "task": (None, *NO_MODEL),
            "budget": (None, 3, (3, 1e-3), bench.PrivacyBudget),
            "seed": (*NO_COUNT, -1),
            "account": (*NO_TEXT, *FILE_NAMES),
            "execution": (3, {"device": "cpu"}, bench.ExecutionOptions(device="gpu")),
        },
    ),
    (bench.ExecutionOptions, {}, {"source": (3, "data"), "checkpoint_every": NO_COUNT}),
    (
        bench.compare,
        {"methods": ["dp_sgd"], "task": TASK, "epsilons": [3], "seeds": [0], "quiet": True},
        {
            "methods": (None, "dp_sgd", 3, [3], {"dp_sgd": 1}, []),
            "task": (None, *NO_MODEL),
            "epsilons": (None, 3, ["x"], np.ones((2, 2)), {3: 1}, [None], b"3", pd.DataFrame({"a": [1]})),
            "seeds": (3, [1.5], ["a"], [-1], [True], {0: 1}),
            "delta": NO_NUMBER,
            "account": (*NO_TEXT, bench.AccountOptions(again="1")),
        },
    ),
    (
        bench.price,
        {"history": [("gaussian", 1.0)], "delta": 1e-5},
        {
            "history": (None, 3, "none.toml", b"x", [3], {}, X, pd.DataFrame({"a": [1]}), print, bench.price),
            "delta": NO_NUMBER,
            "epsilon": NO_NUMBER,
            "run": (3, print),
        },
    ),
    (
        task,
        {},
        {
            "name": (None, *NO_TEXT, *FILE_NAMES),
            "train": (None, 3, X, "x", print, {"a": X}),
            "model": (None, 3, "linear", nn.Linear, X),
            "test": (3, X, "x", (X[:, :2], Y)),
            "losses": (3, "cross_entropy", [print]),
            "metrics": (None, 3, "accuracy", [print], bench.metrics.Metric(None, True, print)),  # type: ignore[arg-type]
            "target": (None, 3, ["labels"]),
            "error_bound": (*NO_NUMBER, -1.0),
            "batch_size": (*NO_COUNT, 0, 41),
            "epochs": (None, *NO_NUMBER, 0, float("nan")),
            "optimizer": (None, 3, torch.optim.SGD, "Sdg", torch.optim.SGD([torch.ones(1, requires_grad=True)])),
            "learning_rate": (None, *NO_NUMBER),
            "search_space": (*NO_TABLE, {}, {"learning_rate": (0, 1)}),
            "public": NO_FLAG,
        },
    ),
    (
        bench.PrivacyBudget,
        {"epsilon": 3, "delta": 1e-3},
        {"epsilon": (None, *NO_NUMBER, -1), "delta": (None, *NO_NUMBER, 0, 1)},
    ),
    (
        selected,
        {},
        {
            "train": (3, None),
            "space": (3, {}, {"epochs": [1]}, {"rate": [float("nan")]}, {"rate": ["\ud800"]}, {"\n": [1]}),
            "budget": (None, 3),
            "event": (3, lambda noise: noise, lambda _: bench.events.gaussian(1.0)),
            "held_out": (*NO_NUMBER, 1),
            "n_scored": (*NO_COUNT, 0),
            "name": FILE_NAMES,
            "results_dir": (*NO_PATH, "a\0"),
        },
    ),
    (
        tuned,
        {},
        {
            "model": (None, 3, nn.Linear(2, 2)),
            "data": ((X, Y[:3]),),
            "losses": (3, lambda model, batch: model(batch[0]).mean()),
            "sample_rate": (*NO_NUMBER, 0),
            "steps": (*NO_COUNT, 0),
            "name": FILE_NAMES,
        },
    ),
    (
        fitted,
        {},
        {
            "epsilon": (*NO_NUMBER, None, 0),
            "delta": (*NO_NUMBER, 1),
            "classes": (3, (0,), (0, 0), (0, 2)),
            "method": (None, *NO_MODEL),
            "name": FILE_NAMES,
        },
    ),
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
    check_refusal(refusal.value, tmp_path)


def check_refusal(error: DphpoBenchError, folder: Path) -> None:
    """A line, without a record, and without an entry that counts."""
    assert "\n" not in str(error)
    assert len(str(error)) < 700
    assert [*folder.rglob("*.json")] == []
    assert not charged(folder)


def charged(folder: Path) -> list[str]:
    """How the runs ended that accounts in a folder count."""
    return [entry.status for account in accounts_in(folder / "results") for entry in account.read()[1]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "entrance", [lambda: bench.run("dp_sgd", TASK, BUDGET, results_dir="results"), selected, tuned]
)
def test_a_record_without_a_place_is_refused(
    entrance: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "t").touch()
    with pytest.raises(DphpoBenchError, match="Cannot write records to") as refusal:
        entrance()
    check_refusal(refusal.value, tmp_path)
    (tmp_path / "results" / "t").unlink()
    entrance()
    assert charged(tmp_path) == ["ok"]


def test_names_that_no_record_holds_are_refused(tmp_path: Path) -> None:
    strange = bench.metrics.Metric("\ud800", True, lambda *_: 1.0)
    with pytest.raises(InvalidValueError, match="Expected names and values that a record can hold") as refusal:
        bench.run("dp_sgd", task(test=(X, Y), metrics=strange), BUDGET, results_dir=tmp_path / "results")
    check_refusal(refusal.value, tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_an_optimiser_that_does_not_take_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="Muon only supports 2D parameters") as refusal:
        bench.run("dp_sgd", task(optimizer="Muon"), BUDGET, results_dir=tmp_path / "results")
    check_refusal(refusal.value, tmp_path)


class Stating(bench.ArrayTask):
    """A task that states a search space, which nobody has checked."""

    stated: Any = None

    @property
    def facts(self) -> bench.TaskFacts:
        return super().facts if self.stated is None else replace(super().facts, search_space=lambda: self.stated)


SEARCHED = Stating("t", (X, Y), nn.Linear(3, 2), training=TrainingOptions(epochs=1))
SEARCHES = (
    "dp_hype",
    "dp_hyper",
    "dp_hypo",
    "grid_composed",
    "liu_talwar",
    "papernot_steinke",
    "propose_test",
    "random_search",
    "subsampled_tuning",
    "successive_halving",
)
HYPERPARAMETERS = (*sorted(bench.recipes.HYPERPARAMETERS), "batch_size", "epochs", "learning_rate:sgd", "depth")
NUMBERS: tuple[Any, ...] = (0.1, 1, 0, -1, 10**400, float("nan"), float("inf"), np.int64(10), np.float32(0.1))
CHOICES = st.sampled_from(
    (*NUMBERS, None, True, "SGD", "AdamW", "Muon", "Sgdd", "abadi:1", "abadi:-1", "cosine", "", "10", [1], X)
)
VALUES = st.one_of(
    st.lists(CHOICES, max_size=2),
    st.lists(CHOICES, min_size=1, max_size=2).map(CategoricalDistribution),
    st.tuples(st.sampled_from((-1.0, 0.0, 0.1)), st.sampled_from((0.5, 20.0, float("inf")))).map(
        lambda ends: FloatDistribution(*ends)
    ),
    CHOICES,
)


@pytest.mark.filterwarnings("ignore")
@examples(10)
@given(st.sampled_from(SEARCHES), st.dictionaries(st.sampled_from(HYPERPARAMETERS), VALUES, max_size=2))
@example("subsampled_tuning", {"optimizer": CategoricalDistribution(["SGD", "Sgdd"])})
@example("subsampled_tuning", {"learning_rate": FloatDistribution(-1, 1)})
@example("subsampled_tuning", {"epochs": [1, None]})
@example("grid_composed", {"optimizer": ["SGD", "Muon"]})
@example("papernot_steinke", {"batch_size": CategoricalDistribution([np.int64(10)])})
@example("papernot_steinke", {"learning_rate": [0.1, float("nan")]})
def test_a_search_space_is_refused_and_uncharged_or_searched(
    tmp_path_factory: pytest.TempPathFactory, method: str, space: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("searches")
    SEARCHED.stated = space
    try:
        bench.run(method, SEARCHED, BUDGET, progress=QUIET, results_dir=folder / "results")
    except DphpoBenchError as refusal:
        check_refusal(refusal, folder)
    else:
        assert charged(folder) == ["ok"]


def test_a_number_that_is_not_finite_is_refused_with_the_rule() -> None:
    with pytest.raises(InvalidValueError, match="Expected epochs to be a finite number, got inf"):
        task(epochs=np.inf)


def test_numbers_of_numpy_and_paths_as_texts_are_taken(tmp_path: Path) -> None:
    from_numpy = task(batch_size=np.int64(10), epochs=np.float32(1), n_classes=np.uint8(2), public=np.True_)
    assert from_numpy.facts == task(batch_size=10, n_classes=2).facts
    assert type(from_numpy.facts.batch_size) is int
    budget = bench.PrivacyBudget(np.float64(3), np.float32(1e-3))
    seeds = (3, np.int64(3), torch.tensor(3))
    keys = {
        bench.run("dp_sgd", PUBLIC, BUDGET, seed=seed, progress=QUIET, results_dir=None).record.identity.key
        for seed in seeds
    }
    assert len(keys) == 1
    result = bench.run(
        "dp_sgd",
        PUBLIC,
        budget,
        seed=0,
        progress=QUIET,
        results_dir=str(tmp_path),
        execution=bench.ExecutionOptions(secure_noise=np.False_),
    )
    assert result.path is not None
    assert bench.read_record(str(result.path)) == bench.read_record(result.path)
