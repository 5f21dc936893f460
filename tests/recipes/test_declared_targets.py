"""Tasks of arrays with declared class shares, class weights and target scales."""

import pickle
import warnings
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn import preprocessing
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.task import Kind
from dphpo_bench.metrics import ACCURACY, BALANCED_ACCURACY, F1, ROC_AUC
from dphpo_bench.recipes.array_task import ArrayTask
from dphpo_bench.training.losses import READY, cross_entropy, one_minus_error, squared_error
from dphpo_bench.training.rare_classes import ClassWeighted, balanced_probability, balanced_right
from tests.own_task import array_task

X = np.random.default_rng(0).normal(size=(100, 5))
RARE = (np.arange(100) % 14 == 0).astype(int)
SHARES = (0.93, 0.07)
OUTPUTS = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor(RARE)


def make(**changes: Any) -> ArrayTask:
    arguments: dict[str, Any] = {"name": "rare", "train": (X, RARE), "model": nn.Linear(5, 2), **changes}
    return array_task(**arguments)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, READY["classification"].scores),
        ({"metrics": [ROC_AUC]}, READY["classification"].scores),
        ({"class_shares": SHARES}, READY["classification"].scores),
        ({"class_shares": SHARES, "metrics": [ACCURACY, ROC_AUC]}, READY["classification"].scores),
        ({"class_shares": SHARES, "scores": "balanced"}, balanced_right(SHARES)),
        ({"class_shares": SHARES, "metrics": [BALANCED_ACCURACY]}, balanced_right(SHARES)),
        ({"class_shares": SHARES, "metrics": [F1]}, balanced_right(SHARES)),
        ({"class_shares": SHARES, "metrics": [ROC_AUC]}, balanced_probability(SHARES)),
        (
            {"class_shares": SHARES, "metrics": [ROC_AUC], "class_weights": "balanced"},
            balanced_probability(SHARES, weighted_losses=True),
        ),
        ({"class_shares": SHARES, "metrics": [ROC_AUC], "scores": cross_entropy}, cross_entropy),
    ],
)
def test_scores_follow_the_first_metric_where_shares_are_declared(changes: dict[str, Any], expected: Any) -> None:
    task = pickle.loads(pickle.dumps(make(**changes)))  # as for the processes of a sweep
    torch.testing.assert_close(task.scores(OUTPUTS, LABELS), expected(OUTPUTS, LABELS))
    torch.testing.assert_close(task.objective().scores(OUTPUTS, LABELS), expected(OUTPUTS, LABELS))


def test_scores_of_one_output_follow_the_metric() -> None:
    task = make(kind="binary", model=nn.Linear(5, 1), class_shares=SHARES, metrics=[BALANCED_ACCURACY])
    margins, labels = OUTPUTS[:, :1], LABELS.float()
    torch.testing.assert_close(task.scores(margins, labels), balanced_right(SHARES)(margins, labels))


def test_losses_have_class_weights_on_request_only() -> None:
    assert make(class_shares=SHARES).objective().losses is cross_entropy  # which has a closed form
    task = make(class_shares=SHARES, class_weights="balanced")
    torch.testing.assert_close(task.losses(OUTPUTS, LABELS), ClassWeighted(cross_entropy, SHARES)(OUTPUTS, LABELS))
    own = make(class_shares=SHARES, class_weights="balanced", losses=lambda o, t: 2 * cross_entropy(o, t))
    torch.testing.assert_close(own.losses(OUTPUTS, LABELS), 2 * task.losses(OUTPUTS, LABELS))


def test_what_is_declared_is_part_of_the_identity_and_nothing_else_is() -> None:
    plain = make().facts.to_json()
    assert plain.keys().isdisjoint({"class_shares", "class_weights", "target_scale"})
    declared = make(class_shares=SHARES, class_weights="balanced").facts.to_json()
    assert declared == {**plain, "class_shares": [0.93, 0.07], "class_weights": "balanced"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_shares": (0.5, 0.3, 0.2)}, "a share between 0 and 1 for each of 2 classes"),
        ({"class_shares": (1.0, 0.0)}, "a share between 0 and 1"),
        ({"class_shares": 0.07}, "a share between 0 and 1"),
        ({"class_shares": {0.07, 0.93}}, "in their order"),
        ({"class_shares": pandas.Series({1: 0.1, 0: 0.9})}, "for each of 2 classes, in their order"),
        ({"class_shares": (0.9, 0.2)}, r"add up to 1, such as .*, got \(0\.9, 0\.2\)"),
        ({"class_weights": "balanced"}, "Expected class_shares with class_weights='balanced'"),
        ({"class_shares": SHARES, "class_weights": (1, 2)}, "Expected class_weights to be 'balanced' or None"),
        ({"scores": "balanced"}, "Expected class_shares with scores='balanced'"),
        ({"scores": "f1", "class_shares": SHARES}, "Expected scores to be Callable or 'balanced' or None"),
        ({"target_scale": (1, 2)}, "Expected target_scale of a regression, got kind='classification'"),
        (
            {"kind": "regression", "model": nn.Linear(5, 1), "class_shares": SHARES},
            "class_shares of a classification or a binary task, got 'regression'",
        ),
        (
            {
                **{"kind": "regression", "model": nn.Linear(5, 1), "train": (X, X[:, 0])},
                "target_scale": bench.Number(0, 1, logarithmic=True),
            },
            "Expected labels of train above -1",
        ),
    ],
)
def test_a_wrong_declaration_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make(**changes)


def test_a_search_advises_to_declare_shares_and_a_run_without_scores_does_not() -> None:
    budget = bench.PrivacyBudget(3, 1e-3)
    with pytest.warns(UserWarning, match=r"first metric is roc_auc.*class_shares=\(0\.93, 0\.07\)"):
        bench.plan("grid_composed", make(metrics=[ROC_AUC]), budget)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.plan("dp_sgd", make(metrics=[ROC_AUC]), budget)
        bench.plan("grid_composed", make(metrics=[ROC_AUC], class_shares=SHARES), budget)
        bench.plan("grid_composed", make(metrics=[ACCURACY]), budget)
        bench.plan("grid_composed", make(metrics=[ROC_AUC], scores=balanced_right(SHARES)), budget)


def test_a_search_prefers_what_finds_the_rare_class() -> None:
    """Right answers prefer the smaller rate, which answers no, always; balanced answers prefer the larger one."""
    rng = np.random.default_rng(1)
    labels = (rng.random(4000) < 0.1).astype(int)
    inputs = rng.normal(size=(4000, 2)) + 1.5 * labels[:, None]
    from optuna.distributions import CategoricalDistribution

    space = {"learning_rate": CategoricalDistribution((1e-6, 0.3))}
    rates = []
    for declared in ({}, {"class_shares": (0.9, 0.1), "class_weights": "balanced"}):
        task = array_task(
            *("rare", (inputs, labels), nn.Linear(2, 2), (inputs, labels)),
            **{"metrics": [BALANCED_ACCURACY], "search_space": space, "public": True, "batch_size": 1000, **declared},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = bench.run("grid_oracle", task, bench.PrivacyBudget(8, 1e-4), seed=0, progress=bench.NullProgress())
        rates.append((result.record.released["learning_rate"], result.record.metrics["balanced_accuracy"]))
    assert rates[1][0] == 0.3
    assert rates[1][1] > 0.75
    assert rates[1][1] >= rates[0][1]


@pytest.mark.parametrize("columns", [1, 2])
def test_a_regression_learns_scaled_targets_and_speaks_in_the_callers_units(columns: int) -> None:
    kind: Kind = "regression"
    targets = 3e5 + 1e5 * X[:, :columns].squeeze()
    scale = (3e5, 1e5) if columns == 1 else [(3e5, 1e5), (3e5, 1e5)]
    task = make(
        **{"train": (X, targets), "model": nn.Linear(5, columns), "kind": kind, "target_scale": scale},
        error_bound=2e5,
    )
    assert torch.equal(
        task.load_train(bench.DataSource.resolve("unused", "unused")).targets, torch.tensor(targets).float()
    )
    assert task.facts.to_json()["target_scale"] == columns * [{"typical": 3e5, "spread": 1e5}]
    outputs, true = torch.randn(100, columns), torch.tensor(targets).float()
    assert task.target_scale is not None
    learned = ((true - 3e5) / 1e5).float()
    torch.testing.assert_close(task.losses(outputs, true), squared_error(outputs, learned))
    predictions = task.target_scale.invert(outputs)
    torch.testing.assert_close(predictions, 3e5 + 1e5 * outputs)
    torch.testing.assert_close(task.scores(outputs, true), one_minus_error(2e5)(predictions, true))
    assert make().target_scale is None


class Scaled(nn.Module):
    """A network with the mean of a table in it."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor(table.mean(0)))
        self.layer = nn.Linear(5, 2)

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs - self.centre.to(inputs))


UNSCALED = 40 + 9 * X
FRAME = pandas.DataFrame(UNSCALED, columns=list("abcde"))
LEARNED: dict[str, tuple[dict[str, Any], str]] = {
    "a scaler": (
        {"train": (preprocessing.StandardScaler().fit_transform(UNSCALED), RARE)},
        "5 inputs of mean 0 and deviation 1",
    ),
    "declared columns": (
        {
            "train": (FRAME, RARE),
            "columns": {name: bench.Number(FRAME[name].mean(), FRAME[name].std()) for name in FRAME},
        },
        "5 inputs of mean 0",
    ),
    "one column": (
        {"train": (np.column_stack([X[:, :4], (X[:, 4] - X[:, 4].mean()) / X[:, 4].std()]), RARE)},
        "1 input",
    ),
    "a buffer": ({"train": (UNSCALED, RARE), "model": lambda: Scaled(UNSCALED)}, "centre of the model"),
    "shares": ({"train": (X[:97], RARE[:97]), "class_shares": np.bincount(RARE[:97]) / 97}, "class_shares"),
    "a scale of targets": (
        {
            "train": (X, UNSCALED[:, 0]),
            "kind": "regression",
            "model": nn.Linear(5, 1),
            "target_scale": (UNSCALED[:, 0].mean(), UNSCALED[:, 0].std()),
        },
        "1 target of mean 0",
    ),
}


@pytest.mark.parametrize(("changes", "constant"), LEARNED.values(), ids=LEARNED)
def test_constants_that_are_statistics_of_the_private_records_are_named(changes: dict[str, Any], constant: str) -> None:
    with pytest.warns(UserWarning, match=f"got {constant}.*a release that no ε covers"):
        make(**changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**changes, public=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": (np.sign(X) * np.array([1, -1] * 50)[:, None], RARE)},
        {"train": (np.tile([[1.0], [-1.0]], (50, 5)), RARE), "class_shares": (0.92, 0.08)},  # which it has
        {"train": (np.zeros((100, 5)), RARE), "model": lambda: Scaled(np.zeros((2, 5)))},
        {"train": (UNSCALED, RARE), "model": lambda: Scaled(np.full((2, 5), 40.0))},
    ],
)
def test_constants_that_may_be_public_knowledge_are_not(changes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**changes)


def test_constants_may_be_numbers_of_numpy() -> None:
    shares = array_task("t", (np.zeros((20, 3)), np.arange(20) % 2), nn.Linear(3, 2), class_shares=np.array([0.9, 0.1]))
    assert shares.facts.class_shares == (0.9, 0.1)
    for constants in ((np.float32(3), np.int64(2)), np.array([3.0, 2.0])):
        task = array_task(
            "t", (np.zeros((20, 3)), np.arange(20.0)), nn.Linear(3, 1), kind="regression", target_scale=constants
        )
        assert task.target_scale is not None
        assert (task.target_scale.typical, task.target_scale.spread) == ((3.0,), (2.0,))


def test_a_scale_that_float32_cannot_hold_is_refused_without_talk_of_logarithms() -> None:
    with pytest.raises(InvalidValueError, match="that float32 holds once scaled, got others"):
        array_task(
            "t",
            (np.zeros((20, 3)), np.arange(20.0)),
            nn.Linear(3, 1),
            kind="regression",
            target_scale=(1e300, 1e300),
        )
