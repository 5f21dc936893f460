"""Constants and records that private records have told: named, or refused, when a task is made of them."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn import preprocessing
from torch import nn

import dphpo_bench as bench
from dphpo_bench.recipes.array_task import ArrayTask
from dphpo_bench.training.losses import cross_entropy
from tests.own_task import array_task

X = np.random.default_rng(0).normal(size=(100, 5))
RARE = (np.arange(100) % 14 == 0).astype(int)


def make(**changes: Any) -> ArrayTask:
    arguments: dict[str, Any] = {"name": "rare", "train": (X, RARE), "model": nn.Linear(5, 2), **changes}
    return array_task(**arguments)


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


BANK = torch.tensor(X[:20]).float()


class Mixed:
    """A transform that mixes records of a bank into others."""

    def __init__(self, bank: Any) -> None:
        self.bank = bank

    def __call__(self, inputs: Any, generator: Any) -> Any:
        return mixed(inputs, generator, self.bank)


def mixed(inputs: Any, generator: Any, bank: Any) -> Any:
    return inputs + torch.as_tensor(bank)[torch.randint(len(bank), (len(inputs),), generator=generator)].to(inputs)


def nearest(outputs: Any, targets: Any, bank: Any = X) -> Any:
    return cross_entropy(outputs, targets) * float(bank[0, 0])


def centred(bank: Any) -> nn.Module:
    model = nn.Linear(5, 2)
    model.register_buffer("centres", torch.as_tensor(bank).float())
    return model


SHIFTED = BANK + 1
HELD: dict[str, tuple[dict[str, Any], str]] = {
    "global": ({"augment": lambda inputs, generator: mixed(inputs, generator, BANK)}, "BANK of the augment"),
    "attribute": ({"augment": (bench.recipes.RandomFlip(), Mixed(X[::-1]))}, "bank of the augment"),
    "method": ({"augment": Mixed(X).__call__}, "bank of the augment"),
    "default": ({"losses": nearest}, "a default 0 of the losses"),
    "partial": ({"scores": partial(nearest, bank=BANK)}, "bank of the scores"),
    "weights": ({"model": lambda: centred(X[::7])}, "centres of the model"),
}


@pytest.mark.parametrize(("changes", "holder"), HELD.values(), ids=HELD)
def test_private_records_in_a_function_or_a_model_are_named(changes: dict[str, Any], holder: str) -> None:
    with pytest.warns(UserWarning, match=f"got records in {holder}.*a release that no ε covers"):
        make(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"augment": lambda inputs, generator: mixed(inputs, generator, SHIFTED)},
        {"losses": nn.CrossEntropyLoss(reduction="none")},
        {"model": lambda: centred(X[:1])},  # one row may be a mean
        {"train": (np.eye(5)[np.arange(100) % 5], RARE), "model": lambda: centred(np.eye(5))},
    ],
)
def test_other_tensors_are_not(changes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**changes)
