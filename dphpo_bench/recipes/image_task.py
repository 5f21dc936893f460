"""Tasks on a labelled image dataset: a subclass names the dataset, everything else is here."""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, Task, TaskFacts
from dphpo_bench.data.datasets import Images, Split
from dphpo_bench.data.weights import Weights
from dphpo_bench.recipes.features import CachedFeatures
from dphpo_bench.recipes.picture_features import PictureFeatures
from dphpo_bench.recipes.scattering import ScatteringFeatures

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.source import DataSource


@dataclass(frozen=True)
class Schedule:
    """How a model is trained by default: expected batch size, and passes over the data in expectation."""

    batch_size: int
    epochs: float


class ImageTask(Task):
    """Classification of the pictures of one dataset.

    Models: "linear", a linear layer that starts from zero on ScatterNet features; "cnn", a convolutional network on
    pixels; and where a subclass lists it among its `models`, "pretrained", a linear layer on features of a pretrained
    network. Pixels are scaled by public constants, never by a dataset's mean or variance, which would be a release.

    Subclasses set `name`, `summary` and `datasets`, and may replace the rest.

    Attributes:
        features: what the linear model is trained on.
        pretrained: what the model "pretrained" is trained on.
        linear_schedule: of both linear models.
        cnn_schedule: of the convolutional network.
    """

    public = True
    models: ClassVar[tuple[str, ...]] = ("linear", "cnn")
    datasets: ClassVar[tuple[Images, ...]]
    features: ClassVar[ScatteringFeatures] = ScatteringFeatures()
    pretrained: ClassVar[PictureFeatures] = PictureFeatures()
    linear_schedule: ClassVar[Schedule] = Schedule(batch_size=8192, epochs=30)
    cnn_schedule: ClassVar[Schedule]

    @property
    def dataset(self) -> Images:
        """The one dataset of the task."""
        return self.datasets[0]

    @property
    def facts(self) -> TaskFacts:
        """Public facts; reads no data."""
        shape, route = self.dataset.image_shape, self._route
        schedule = self.linear_schedule if route else self.cnn_schedule
        return TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=self.dataset.train.rows,
            inputs=Input((route.size(shape),) if route else shape),
            n_classes=self.dataset.n_classes,
            batch_size=schedule.batch_size,
            epochs=schedule.epochs,
            optimizer="AdamW",
            learning_rate=1e-3,  # AdamW's own default: tuned on nothing
        )

    @property
    def pretrained_models(self) -> tuple[Weights, ...]:
        """The network whose features the model is trained on, if it is."""
        return (self.pretrained.weights,) if self.model_name == "pretrained" else ()

    def prepare(self, source: "DataSource") -> None:
        """Decode the pictures of both splits, and extract their features, where the cache lacks them."""
        import torch

        from dphpo_bench.data.images import load_records, prepare_records

        def pixels(split: Split) -> "torch.Tensor":
            return torch.from_numpy(load_records(source, self.dataset, split)["pixels"])

        prepare_records(source, self.dataset)
        if route := self._route:
            shape = self.dataset.image_shape
            self._features(source, route).prepare(pixels, lambda: route.extractor(shape, source))

    def load_train(self, source: "DataSource") -> Records:
        """The private training records in canonical order."""
        return self._load(source, self.dataset.train)

    def load_test(self, source: "DataSource") -> Records:
        """The test records in canonical order."""
        return self._load(source, self.dataset.test)

    def build_model(self) -> "torch.nn.Module":
        """A linear layer, of zeros, or the convolutional network with torch's initial weights."""
        from dphpo_bench.recipes import networks

        shape, n_classes = self.dataset.image_shape, self.dataset.n_classes
        if self._route:
            return networks.zero_linear(self._route.size(shape), n_classes)
        return networks.tanh_cnn(shape, n_classes)

    def fingerprint(self, source: "DataSource") -> str:
        """Hash of what identifies the inputs: the records, and the features' parameters."""
        inputs = self._route.key if self._route else {"pixels": "x / 127.5 - 1"}
        identity = [[source.pin(self.dataset, split) for split in self.dataset.splits], inputs]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    @property
    def _route(self) -> ScatteringFeatures | PictureFeatures | None:
        """From pictures to what the model is trained on; None if that is the pixels."""
        if self.model_name == "cnn":
            return None
        return self.pretrained if self.model_name == "pretrained" else self.features

    def _features(self, source: "DataSource", route: ScatteringFeatures | PictureFeatures) -> CachedFeatures:
        return CachedFeatures(source, self.dataset, route.key, route.size(self.dataset.image_shape))

    def _load(self, source: "DataSource", split: Split) -> Records:
        import torch

        from dphpo_bench.data.images import load_records

        records = load_records(source, self.dataset, split)
        pixels = torch.from_numpy(records["pixels"])
        if route := self._route:
            inputs = self._features(source, route).load(split, pixels, lambda some: route.extract(some, source))
        else:
            inputs = pixels.float().div_(127.5).sub_(1)
        return Records(inputs, torch.from_numpy(records["label"]).long())
