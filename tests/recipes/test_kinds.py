"""Every kind of task from end to end: regression, binary, several labels, tokens, and one of its own."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.data.source import DataSource
from dphpo_bench.training.losses import IGNORED
from tests.own_task import array_task

BUDGET = bench.PrivacyBudget(8.0, 1e-4)
SOURCE = DataSource.resolve("unused", "unused")
LICENCE = Path(__file__).parents[2] / "LICENSE"
LENGTH = 16


def seeded(*arguments: Any, **options: Any) -> bench.ArrayTask:
    """A task whose data are public, so that its runs may be seeded."""
    return array_task(*arguments, public=True, **options)


def diabetes() -> bench.ArrayTask:
    inputs, targets = load_diabetes(return_X_y=True, as_frame=True)
    inputs, targets = inputs * 10, targets / 100 - 1.5  # public constants
    inputs.index = [f"patient {row}" for row in range(len(inputs))]
    arguments: dict[str, Any] = {"kind": "regression", "error_bound": 3.0, "learning_rate": 0.05, "epochs": 20}
    return seeded(
        "diabetes", (inputs[:353], targets[:353]), nn.Linear(10, 1), test=(inputs[353:], targets[353:]), **arguments
    )


def tumours() -> bench.ArrayTask:
    frame = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    columns = [name for name in frame if name != "target"]
    frame[columns] = np.log(frame[columns] + 0.01)
    arguments: dict[str, Any] = {"kind": "binary", "target": "target", "learning_rate": 0.02, "epochs": 20}
    metrics = (bench.metrics.ROC_AUC, bench.metrics.BALANCED_ACCURACY, bench.metrics.F1)
    return seeded("tumours", frame[:455], nn.Linear(30, 1), test=frame[455:], metrics=metrics, **arguments)


def bits() -> bench.ArrayTask:
    """The four bits of a digit, as labels of their own."""
    inputs, classes = load_digits(return_X_y=True)
    labels = (classes[:, None] >> np.arange(4)) & 1
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
    train, test = (inputs[:1400] / 8 - 1, labels[:1400]), (inputs[1400:] / 8 - 1, labels[1400:])
    return seeded("bits", train, model, test=test, kind="multilabel", learning_rate=0.02, epochs=10)


class NextToken(nn.Module):
    """An embedding, what came before as its mean, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(128, 16), nn.Linear(16, 128)

    def forward(self, inputs: Tensor) -> Tensor:
        assert inputs.dtype == torch.int64
        return self.last(self.embedding(inputs))


def letters(epochs: int = 30) -> bench.ArrayTask:
    """Letters of the project's licence, in pieces."""
    text = torch.tensor(list(LICENCE.read_bytes())).clamp(max=127)
    pieces = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    train, test = pieces[:500], pieces[500:]
    return seeded("letters", train, NextToken, test=test, kind="tokens", learning_rate=0.05, epochs=epochs)


class Bag(nn.Module):
    """The mean of the words that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        assert ids.dtype == torch.int64
        assert mask.dtype == torch.bool
        kept = mask.unsqueeze(-1)
        mean = (self.embedding(ids) * kept).sum(1) / kept.sum(1).clamp(min=1)
        return {"logits": self.last(mean)}


def bags(n: int = 400) -> bench.ArrayTask:
    """Inputs of two names: is the first word below 25?"""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(25, (n, 6), generator=generator)
    labels = torch.randint(2, (n,), generator=generator)
    columns = {"ids": ids + 25 * labels[:, None], "mask": torch.rand(n, 6, generator=generator) < 0.7, "labels": labels}
    rows = [{name: values[row] for name, values in columns.items()} for row in range(n)]
    test = {name: values[:100] for name, values in columns.items()}
    return seeded("bags", Rows(rows), Bag, test=test, learning_rate=0.05, epochs=20)


class Rows(torch.utils.data.Dataset[Any]):
    """A dataset of what it is given."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


# The first metric, and what a model that learned nothing would have.
TASKS: dict[str, tuple[Any, str, float]] = {
    "regression": (diabetes, "r2", 0.1),
    "binary": (tumours, "roc_auc", 0.9),
    "multilabel": (bits, "accuracy", 0.6),
    "tokens": (letters, "perplexity", 60.0),
    "several inputs": (bags, "accuracy", 0.8),
}


@pytest.mark.parametrize("kind", TASKS)
def test_from_end_to_end(kind: str, tmp_path: Path) -> None:
    make, name, mark = TASKS[kind]
    task = make()
    record = bench.run("dp_sgd", task, BUDGET, seed=0, results_dir=tmp_path).record
    assert record.privacy is not None
    assert record.privacy.epsilon <= 8
    assert next(iter(record.metrics)) == name
    value = record.metrics[name]
    assert value < mark if name == "perplexity" else value > mark
    assert record.identity.facts["metrics"][0]["name"] == name
    if kind == "several inputs":
        again = bench.run("dp_sgd", make(), BUDGET, seed=0).record  # made anew, as in another process
        assert again.metrics == record.metrics


@pytest.mark.parametrize("make", [diabetes, lambda: letters(epochs=2)], ids=["regression", "tokens"])
def test_searches_pay_for_scores_of_the_task(make: Any) -> None:
    method = bench.make_method("grid_composed", {"points": 2})
    record = bench.run(method, make(), BUDGET, seed=1).record
    assert record.status == "ok"


def test_losses_scores_and_metrics_of_its_own() -> None:
    inputs = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    targets = {"sum": inputs.sum(1), "counts": torch.ones(200)}
    task = seeded(
        "own",
        (inputs, targets),
        nn.Linear(3, 1),
        test=(inputs, targets),
        kind="own",
        losses=lambda outputs, wanted: (outputs[:, 0] - wanted["sum"]).abs() * wanted["counts"],
        scores=lambda outputs, wanted: 1 - (outputs[:, 0] - wanted["sum"]).abs(),
        metrics=[
            bench.metrics.Metric("largest", False, lambda outputs, wanted: float((outputs[:, 0] - wanted["sum"]).max()))
        ],
        learning_rate=0.05,
        epochs=20,
    )
    record = bench.run("dp_sgd", task, BUDGET, seed=0).record
    assert record.metrics["largest"] < 1
    with pytest.raises(bench.errors.InvalidValueError, match="Expected losses of its own of task own"):
        seeded("own", (inputs, targets), nn.Linear(3, 1), kind="own")


@pytest.mark.parametrize(
    ("what", "function", "message"),
    [
        (
            "losses",
            lambda outputs, targets: bench.losses.cross_entropy(outputs, targets).mean(),
            r"one loss for each record",
        ),
        ("scores", lambda outputs, _: outputs.softmax(1)[0], r"one score for each record, shape \(1,\), got \(3,\)"),
    ],
)
def test_losses_and_scores_are_of_one_record_alone(what: str, function: Any, message: str) -> None:
    inputs, labels = torch.randn(60, 4), torch.arange(60) % 3

    def run() -> None:
        task = seeded("mixed", (inputs, labels), nn.Linear(4, 3), epochs=2, **{what: function})
        bench.run(bench.make_method("grid_composed", {"points": 2}), task, BUDGET, seed=0)

    with pytest.raises((bench.errors.InvalidValueError, bench.errors.RunFailedError), match=message) as error:
        run()
    assert "\n" not in str(error.value).strip()


def test_integers_stay_integers_where_the_model_takes_them() -> None:
    ids = np.arange(80).reshape(40, 2) % 7
    labels = pd.Series(np.arange(40) % 3, index=range(100, 140))
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 3))
    of_words = seeded("words", (ids, labels), model)
    of_counts = seeded("counts", (pd.DataFrame(ids), labels), nn.Linear(2, 3))
    assert of_words.load_train(SOURCE).inputs.dtype == torch.int64
    assert of_counts.load_train(SOURCE).inputs.dtype == torch.float32
    assert (of_words.facts.inputs.dtype, of_counts.facts.inputs.dtype) == ("int", "float")
    assert torch.equal(of_counts.load_train(SOURCE).targets, torch.arange(40) % 3)


def test_tokens_that_do_not_count() -> None:
    outputs = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 1, 2, 3], [4, 0, IGNORED, IGNORED], [IGNORED] * 4])
    losses = bench.losses.token_cross_entropy(outputs, targets)
    torch.testing.assert_close(losses[0], nn.functional.cross_entropy(outputs[0], targets[0]))
    torch.testing.assert_close(losses[1], nn.functional.cross_entropy(outputs[1, :2], targets[1, :2]))
    assert losses[2] == 0
    assert bench.losses.correct_tokens(outputs, targets)[2] == 0
    exact = nn.functional.one_hot(targets.clamp(min=0), 5).float()
    assert bench.losses.correct_tokens(exact, targets).tolist() == [1, 1, 0]
    assert bench.metrics.ACCURACY.of(exact, targets) == 1
    total = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())  # over all tokens together
    assert bench.metrics.PERPLEXITY.of(outputs, targets) == pytest.approx(math.exp(total))
