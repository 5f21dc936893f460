"""Tasks on a labelled image dataset: a subclass names the dataset, everything else is here."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, Task, TaskFacts
from dphpo_bench.data.datasets import HubDataset, HubSplit
from dphpo_bench.recipes.scattering import ScatteringFeatures

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.cache import Array
    from dphpo_bench.data.source import DataSource


@dataclass(frozen=True)
class Schedule:
    """How a model is trained by default: expected batch size, and passes over the data in expectation."""

    batch_size: int
    epochs: float


class ImageTask(Task):
    """Classification of the pictures of one dataset.

    Two models: "linear", a linear layer that starts from zero on ScatterNet features, and "cnn", a
    convolutional network on pixels. Pixels are scaled by public constants, never by a dataset's mean or
    variance, which would be a release.

    Subclasses set `name`, `summary` and `datasets`, and may replace the rest.

    Attributes:
        features: what the linear model is trained on.
        linear_schedule: of the linear model.
        cnn_schedule: of the convolutional network.
    """

    public = True
    models = ("linear", "cnn")
    features: ClassVar[ScatteringFeatures] = ScatteringFeatures()
    linear_schedule: ClassVar[Schedule] = Schedule(batch_size=8192, epochs=30)
    cnn_schedule: ClassVar[Schedule]

    @property
    def dataset(self) -> HubDataset:
        """The one dataset of the task."""
        return self.datasets[0]

    @property
    def facts(self) -> TaskFacts:
        """Public facts; reads no data."""
        linear = self.model_name == "linear"
        schedule = self.linear_schedule if linear else self.cnn_schedule
        shape = self.dataset.image_shape
        return TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=self.dataset.train.rows,
            inputs=Input((self.features.size(shape),) if linear else shape),
            n_classes=self.dataset.n_classes,
            batch_size=schedule.batch_size,
            epochs=schedule.epochs,
            optimizer="AdamW",
            learning_rate=1e-3,  # AdamW's own default: tuned on nothing
        )

    def load_train(self, source: "DataSource") -> Records:
        """The private training records in canonical order."""
        return self._load(source, self.dataset.train)

    def load_test(self, source: "DataSource") -> Records:
        """The test records in canonical order."""
        return self._load(source, self.dataset.test)

    def build_model(self) -> "torch.nn.Module":
        """The linear layer, of zeros, or the convolutional network with torch's initial weights."""
        from dphpo_bench.recipes import networks

        if self.model_name == "cnn":
            return networks.tanh_cnn(self.dataset.image_shape, self.dataset.n_classes)
        return networks.zero_linear(self.features.size(self.dataset.image_shape), self.dataset.n_classes)

    def fingerprint(self, source: "DataSource") -> str:
        """Hash of what identifies the inputs: pinned content hashes, and the features' parameters."""
        del source
        inputs = self.features.key if self.model_name == "linear" else {"pixels": "x / 127.5 - 1"}
        identity = [[split.content_hash for split in self.dataset.splits], inputs]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def _load(self, source: "DataSource", split: HubSplit) -> Records:
        import torch

        from dphpo_bench.data.images import load_records

        records = load_records(source, self.dataset, split)
        if self.model_name == "linear":
            inputs = self._features(source, split, records)
        else:
            inputs = torch.from_numpy(records["pixels"]).float().div_(127.5).sub_(1)
        return Records(inputs, torch.from_numpy(records["label"]).long())

    def _features(self, source: "DataSource", split: HubSplit, records: "Array") -> "torch.Tensor":
        """Features of shape (n, size), bfloat16, memory-mapped; extracted once, then cached."""
        import numpy as np
        import torch

        from dphpo_bench.data.cache import cached_array

        dataset, features = self.dataset, self.features

        def compute(start: int) -> "Iterator[Array]":
            label = f"Extracting features of {dataset.name} ({split.name})"
            with source.progress.track(label, len(records)) as advance:
                advance(start)
                for block in features.extract(torch.from_numpy(records["pixels"][start:])):
                    yield block.view(torch.uint16).numpy()  # NumPy has no bfloat16, so its bits are stored
                    advance(len(block))

        identity = json.dumps([split.content_hash, features.key], sort_keys=True)
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        bits = cached_array(
            source.cache_dir / "features" / f"{dataset.name}-{split.name}-{key}.npy",
            (split.rows, features.size(dataset.image_shape)),
            np.dtype(np.uint16),
            compute,
        )
        return torch.from_numpy(bits).view(torch.bfloat16)
