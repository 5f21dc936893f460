"""Synthetic: hundreds of made-up tasks of all kinds, each from a number. See `bench.recipes.SyntheticDraw`."""

from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch


class Synthetic(bench.Task):
    """A made-up task: the model is the name of a draw, a number or one of `models`.

    Numbers 0 to 239 are the development set of methods without hyperparameters; from 10,000 on they are for tests.
    Other tasks on vectors have public siblings made up like them: `SyntheticDraw.like`.
    """

    name = "synthetic"
    summary = "Made-up tasks of all kinds, by number: --model 17; regression, rare and many classes, networks."
    public = True
    models = (
        *("gaussian_200", "gaussian_50"),
        *("teacher_300", "teacher_1000", "teacher_3000", "teacher_10000", "teacher_32000"),
    )

    def __init__(self, model: "str | bench.recipes.SyntheticDraw | None" = None) -> None:
        super().__init__(model if model in self.models else None)
        named = self.models[0] if model is None else model
        self.draw = bench.recipes.SyntheticDraw.of(named) if isinstance(named, str) else named
        self.model_name = self.draw.name
        # As a sibling it is judged by its metric: by accuracy, many models are as good as a constant.
        positives = None if isinstance(named, str) else self.draw.positives
        self.class_shares = None if positives is None else (1 - positives, positives)

    @property
    def facts(self) -> bench.TaskFacts:
        """Public facts; reads no data."""
        draw = self.draw
        side = round(draw.n_inputs**0.5)
        return bench.TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=draw.n_records,
            inputs=bench.recipes.Input((1, side, side) if draw.hidden is None else (draw.n_inputs,)),
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

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """Return the private training records."""
        del source
        return self.draw.records("train")

    def load_test(self, source: bench.DataSource) -> bench.Records:
        """Return the test records."""
        del source
        return self.draw.records("test")

    def build_model(self) -> "torch.nn.Module":
        """Build the draw's model."""
        return self.draw.build_model()

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash the draw's rule and seed."""
        del source
        return self.draw.fingerprint
