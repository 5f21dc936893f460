"""Tasks on one published dataset: what tasks on pictures and on texts share."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.metrics import SHIFTED, FurtherTest
from dphpo_bench.contract.task import Input, Kind, Task, TaskFacts
from dphpo_bench.data.datasets import Split

if TYPE_CHECKING:
    from torch import nn

    from dphpo_bench.data.source import DataSource
    from dphpo_bench.zoo.networks import Which


@dataclass(frozen=True)
class Schedule:
    """A model's default training.

    Attributes:
        batch_size: expected.
        epochs: passes over the data in expectation.
        learning_rate: AdamW's; its own default is tuned on nothing.
    """

    batch_size: int
    epochs: float
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class Setup:
    """The inputs of a task's model, and its training.

    Attributes:
        input: one record's inputs.
        key: identity of the inputs and the initial weights, but for the records; JSON.
        schedule: the model's.
    """

    input: Input
    key: Any
    schedule: Schedule


class DatasetTask(Task):
    """A task on the records of one dataset. Subclasses say what inputs and models are like.

    Attributes:
        datasets: one.
        kind: see `TaskFacts.kind`.
        n_classes: see `TaskFacts.n_classes`.
        fine_tuned: the models that fine-tune a network, and what of it they train.
    """

    public = True
    datasets: ClassVar[tuple[Any, ...]]
    kind: ClassVar[Kind] = "classification"
    n_classes: int | None
    fine_tuned: "ClassVar[Mapping[str, Which]]" = MappingProxyType({})
    _prepared_from: "DataSource | None" = None  # `build_model` looks for weights there

    @property
    def dataset(self) -> Any:
        """The one dataset of the task."""
        return self.datasets[0]

    @property
    def facts(self) -> TaskFacts:
        """Public facts; reads no data."""
        setup = self._setup
        return TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=self.dataset.train.rows,
            inputs=setup.input,
            kind=self.kind,
            n_classes=self.n_classes,
            batch_size=setup.schedule.batch_size,
            epochs=setup.schedule.epochs,
            optimizer="AdamW",
            learning_rate=setup.schedule.learning_rate,
        )

    def load_train(self, source: "DataSource") -> Records:
        """Return the private training records in canonical order."""
        return self._load(source, self.dataset.train)

    def load_test(self, source: "DataSource") -> Records:
        """Return the test records in canonical order."""
        return self._load(source, self.dataset.test)

    @property
    def further_tests(self) -> tuple[FurtherTest, ...]:
        """The dataset's shifted records, if any are published."""
        shifted = self.dataset.shifted
        if shifted is None:
            return ()
        about = f"{shifted.rows:,} records of {shifted.path} in {self.dataset.published_at} at {self.dataset.revision}"
        return (FurtherTest(SHIFTED, about, lambda source: self._load(source, shifted)),)

    def fingerprint(self, source: "DataSource") -> str:
        """Hash what identifies the inputs and the initial weights: records, features' parameters, checksums."""
        identity = [[source.pin(self.dataset, split) for split in self.dataset.splits], self._setup.key]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def model_fingerprint(self) -> str:
        """Hash the model's structure, for which no weights are needed."""
        if not self._tuning:
            return super().model_fingerprint()
        from dphpo_bench.training.structure import structure_hash

        return structure_hash(self._structure(self._tuning))

    @property
    def _tuning(self) -> "Which | None":
        """The weights of a pretrained network that are trained; None if nothing is fine-tuned."""
        return self.fine_tuned.get(self.model_name)

    @property
    @abstractmethod
    def _setup(self) -> Setup:
        """The setup of the model."""

    def _structure(self, which: "Which") -> "nn.Module":
        """Return a fine-tuned model without values, on torch's device "meta"."""
        raise NotImplementedError

    @abstractmethod
    def _load(self, source: "DataSource", split: Split) -> Records:
        """Return the records of a split in canonical order."""
