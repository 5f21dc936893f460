"""Synthetic: four classes by a random network, and numbers by a linear rule, made up; and siblings of other tasks."""

import hashlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch

# 20 epochs of batches of N / 8; the same rule for all.
DRAWS = {
    f"teacher_{n}": bench.recipes.SyntheticDraw(
        f"teacher_{n}", 30, "teacher", n, 30, 4, (32,), "tanh", n // 8, 160, signal=4.0, scale=0.18
    )
    for n in (300, 1_000, 3_000, 10_000, 32_000)
}
# A linear rule and noise; least squares explains 77 % of the variance of the test targets.
DRAWS["rule_10000"] = bench.recipes.SyntheticDraw(
    "rule_10000", 31, "regression", 10_000, 30, 1, (), "tanh", 1250, 160, signal=1.0, scale=0.18, label_noise=0.45
)


def check_drawn(what: str, records: bytes, content_hash: str) -> None:
    """Raise a DataError if this Python draws other records than those known here."""
    if hashlib.sha256(records).hexdigest() != content_hash:
        raise bench.errors.DataError(f"This Python draws other {what} than expected; use CPython 3.11 or later.")


class PackagedTask(bench.Task):
    """A task on public records of a package, or of a rule: no file is read.

    Attributes:
        content: what identifies the inputs and targets; the fingerprint is its hash.
    """

    public = True
    content: ClassVar[str]

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """Return the private training records."""
        return self._load(train=True)

    def load_test(self, source: bench.DataSource) -> bench.Records:
        """Return the test records."""
        return self._load(train=False)

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash `content`."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    @abstractmethod
    def _load(self, train: bool) -> bench.Records:
        """Return the training records, or the test records."""


class OnVectors(bench.Task):
    """A task on vectors with a linear layer from zero, "linear", and a network with a hidden layer, "mlp"."""

    models: ClassVar[tuple[str, ...]] = ("linear", "mlp")
    width = 32
    n_outputs = 1

    def build_model(self) -> "torch.nn.Module":
        """Build the linear layer, of zeros, or the small network with torch's initial weights."""
        from dphpo_bench.recipes.networks import perceptron

        inputs = self.facts.inputs
        assert isinstance(inputs, bench.recipes.Input)
        return perceptron(*inputs.shape, *self._hidden, self.n_outputs)

    def _stated(self, n_records: int, n_inputs: int, batch_size: int, epochs: float, **others: Any) -> bench.TaskFacts:
        """Return the facts of a vector of numbers, with AdamW at its own default rate: tuned on nothing."""
        inputs = bench.recipes.Input((n_inputs,))
        return bench.TaskFacts(
            self.name, self.model_name, n_records, inputs, batch_size, epochs, "AdamW", learning_rate=1e-3, **others
        )

    def _made_up(self, rms: float, **options: float) -> "Synthetic":
        """Return a made-up task of the same size, whose inputs have this root mean square."""
        return Synthetic(bench.recipes.SyntheticDraw.like(self.facts, rms, self._hidden, **options))

    @property
    def _hidden(self) -> tuple[int, ...]:
        return (self.width,) if self.model_name.startswith("mlp") else ()


class Synthetic(PackagedTask):
    """A made-up task: the model is one of `models`, or there is a draw instead.

    Other tasks on vectors have public siblings made up like them: `SyntheticDraw.like`.
    """

    name = "synthetic"
    summary = (
        "Made-up records: four classes by a network, from 300 to 32,000 of them; a linear regression; no download."
    )
    models = tuple(DRAWS)

    def __init__(self, model: "str | bench.recipes.SyntheticDraw | None" = None) -> None:
        super().__init__(None if isinstance(model, bench.recipes.SyntheticDraw) else model)
        self.draw = model if isinstance(model, bench.recipes.SyntheticDraw) else DRAWS[self.model_name]
        self.model_name = self.draw.name
        # As a sibling it is judged by its metric: by accuracy, many models are as good as a constant.
        positives = self.draw.positives
        self.class_shares = None if positives is None else (1 - positives, positives)

    @property
    def facts(self) -> bench.TaskFacts:
        draw = self.draw
        return bench.TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=draw.n_records,
            inputs=bench.recipes.Input((draw.n_inputs,)),
            kind=draw.kind,
            n_classes=draw.n_outputs if draw.kind == "classification" else None,
            error_bound=1.0 if draw.kind == "regression" else None,
            class_shares=self.class_shares,
            batch_size=draw.batch_size,
            epochs=draw.steps * draw.batch_size / draw.n_records,
            optimizer="AdamW",
            learning_rate=1e-3,  # AdamW's own default: tuned on nothing
        )

    @property
    def metrics(self) -> tuple[bench.metrics.Metric | bench.metrics.ModelMetric, ...]:
        """The area under the ROC curve first where a class is rare: accuracy would praise a constant."""
        if self.draw.kind == "binary":
            return bench.metrics.ROC_AUC, bench.metrics.BALANCED_ACCURACY, bench.metrics.CROSS_ENTROPY
        return super().metrics

    def build_model(self) -> "torch.nn.Module":
        """Build the draw's model."""
        return self.draw.build_model()

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash the draw's rule and seed."""
        return self.draw.fingerprint

    def _load(self, train: bool) -> bench.Records:
        return self.draw.records("train" if train else "test")
