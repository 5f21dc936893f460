"""Tasks for tests that take milliseconds: Gaussian blobs, and the first records of another task."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.tensors import RECORD, Records, single
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.metrics import Metric, ModelMetric
from dphpo_bench.contract.task import Input, Task, TaskFacts

if TYPE_CHECKING:
    from torch import nn

    from dphpo_bench.data.source import DataSource
    from dphpo_bench.training.losses import Objective


def blobs_for(method: Method, model: str | None = None, **options: Any) -> "Blobs":
    """Return the blobs that a method takes: of clients where it needs units."""
    return Blobs(model, unit="client" if method.needs_units else RECORD, **options)


SIBLING_DRAW = 10**6
"""The draw of the public siblings of `Blobs`."""


class Blobs(Task):
    """Three Gaussian blobs in five dimensions: learnable, drawn anew by each `draw`, nothing on disk.

    Three models: "linear", "mlp" with eight hidden tanh units, and "undefined", a linear layer that takes each input
    below 0 for NaN: its outputs and losses are NaN for nearly all records.

    Args:
        model: one of `models`.
        draw: the seed of the records, which the public facts do not depend on.
        n_records: N.
        batch_size: expected batch size; 1 leaves a third of all batches empty.
        epochs: passes over the data in expectation.
        odd_records: whether the first four records hold NaN, infinities, and a number near the largest float.
        unit: "record", or the name of units of two records each.
    """

    name = "blobs"
    summary = "Three Gaussian blobs in five dimensions; made up, for tests."
    public = True
    models = ("linear", "mlp", "undefined")

    def __init__(
        self,
        model: str | None = None,
        *,
        draw: int = 1,
        n_records: int = 600,
        batch_size: int = 100,
        epochs: float = 3.0,
        odd_records: bool = False,
        unit: str = RECORD,
    ) -> None:
        super().__init__(model)
        self._draw = draw
        self._odd_records = odd_records
        self._facts = TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=n_records,
            inputs=Input((5,)),
            n_classes=3,
            batch_size=batch_size,
            epochs=epochs,
            optimizer="AdamW",
            learning_rate=0.05,
            unit=unit,
        )

    @property
    def facts(self) -> TaskFacts:
        return self._facts

    @property
    def sibling(self) -> "Blobs":
        """The same rule, drawn anew; the same records whatever `draw` is."""
        facts, model = self._facts, "linear" if self.model_name == "undefined" else self.model_name
        return Blobs(model, draw=SIBLING_DRAW, n_records=facts.n_records, batch_size=facts.batch_size)

    def load_train(self, source: "DataSource") -> Records:
        del source
        n = self._facts.n_records * (1 if self._facts.unit == RECORD else 2)
        split = self._split(n, 2 * self._draw)
        if self._odd_records:
            for row, value in enumerate((float("nan"), float("inf"), float("-inf"), 3e38)):
                single(split.inputs)[row] = value
        if self._facts.unit == RECORD:
            return split
        import torch

        return replace(split, units=torch.arange(n) // 2)

    def load_test(self, source: "DataSource") -> Records:
        del source
        return self._split(self._facts.n_records // 2, 2 * self._draw + 1)

    def build_model(self) -> "nn.Module":
        from torch import nn

        if self.model_name == "mlp":
            return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        if self.model_name == "undefined":
            return nn.Sequential(nn.Threshold(0, float("nan")), nn.Linear(5, 3))
        return nn.Linear(5, 3)

    def fingerprint(self, source: "DataSource") -> str:
        del source
        return f"blobs-{self._draw}{'-odd' if self._odd_records else ''}"

    def _split(self, n: int, seed: int) -> Records:
        import torch

        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (n,), generator=generator)
        return Records(2 * torch.eye(5)[targets] + torch.randn(n, 5, generator=generator), targets)


class Excerpt(Task):
    """The first records of another task and its model, with a schedule of two short epochs.

    Args:
        n_records: how many training records, or units of several, at most.
    """

    def __init__(self, task: Task, n_records: int = 64) -> None:
        self.name, self.summary, self.public = task.name, task.summary, task.public
        self.model_name, self.augment, self.example = task.model_name, task.augment, task.example
        self._task = task
        n_records = min(n_records, task.facts.n_records)
        self._facts = replace(task.facts, n_records=n_records, batch_size=-(-n_records // 2), epochs=2.0)

    @property
    def facts(self) -> TaskFacts:
        return self._facts

    @property
    def sibling(self) -> Task | None:
        return self._task.sibling

    def load_train(self, source: "DataSource") -> Records:
        return self._task.load_train(source).first(self._facts.n_records)

    def load_test(self, source: "DataSource") -> Records:
        return self._task.load_test(source).rows(slice(self._facts.n_records))

    def build_model(self) -> "nn.Module":
        return self._task.build_model()

    def objective(self) -> "Objective":
        return self._task.objective()

    @property
    def metrics(self) -> tuple[Metric | ModelMetric, ...]:
        return self._task.metrics

    def fingerprint(self, source: "DataSource") -> str:
        return f"{self._task.data_fingerprint(source)}-{self._facts.n_records}"
