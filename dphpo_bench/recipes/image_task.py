"""Tasks on a labelled image dataset: a subclass names the dataset, everything else is here."""

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from dphpo_bench.base.progress import SilentProgress
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, Task, TaskFacts
from dphpo_bench.data.datasets import Images, Split
from dphpo_bench.data.weights import Weights, weights_folder
from dphpo_bench.recipes.features import CachedFeatures
from dphpo_bench.recipes.picture_features import PictureFeatures
from dphpo_bench.recipes.scattering import ScatteringFeatures
from dphpo_bench.recipes.schedule import Schedule
from dphpo_bench.recipes.vision_transformers import VisionTransformer

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.source import DataSource
    from dphpo_bench.recipes.fine_tuning import Which

Route = ScatteringFeatures | PictureFeatures | VisionTransformer
"""From pictures to features."""


class ImageTask(Task):
    """Classification of the pictures of one dataset.

    Models: "linear", a linear layer that starts from zero on ScatterNet features; "cnn", a convolutional network on
    pixels. A subclass may list more among its `models`: "pretrained", a linear layer on features of a pretrained
    network, and "vit_head", the same on those of a vision transformer; "vit", which fine-tunes all weights of that
    transformer, "vit_bitfit", its biases, and "vit_lora", matrices of low rank beside its own. Pixels are scaled by
    public constants, never by a dataset's mean or variance, which would be a release.

    Subclasses set `name`, `summary` and `datasets`, and may replace the rest.

    Attributes:
        features: what the linear model is trained on.
        pretrained: what the model "pretrained" is trained on.
        transformer: what "vit_head" is trained on, and what the others of its kind fine-tune.
        linear_schedule: of all linear models.
        cnn_schedule: of the convolutional network.
        vit_schedule: of "vit".
        vit_part_schedule: of "vit_bitfit" and "vit_lora".
    """

    public = True
    models: ClassVar[tuple[str, ...]] = ("linear", "cnn")
    datasets: ClassVar[tuple[Images, ...]]
    features: ClassVar[ScatteringFeatures] = ScatteringFeatures()
    pretrained: ClassVar[PictureFeatures] = PictureFeatures()
    transformer: ClassVar[VisionTransformer] = VisionTransformer()
    linear_schedule: ClassVar[Schedule] = Schedule(batch_size=8192, epochs=30)
    cnn_schedule: ClassVar[Schedule]
    # Bu, Mao and Xu, "Scalable and efficient training of large convolutional neural networks with differential
    # privacy", NeurIPS 2022, for CIFAR; the learning rate is the default of their published script.
    vit_schedule: ClassVar[Schedule] = Schedule(batch_size=1000, epochs=5, learning_rate=5e-4)
    vit_part_schedule: ClassVar[Schedule] = Schedule(batch_size=1000, epochs=5)
    _source: "DataSource | None" = None  # of the last preparation: `build_model` is given none

    @property
    def dataset(self) -> Images:
        """The one dataset of the task."""
        return self.datasets[0]

    @property
    def facts(self) -> TaskFacts:
        """Public facts; reads no data."""
        shape, route, schedule = self.dataset.image_shape, self._route, self._schedule
        pixels = Input(shape, "int", 256) if self._tuning else Input(shape)
        return TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=self.dataset.train.rows,
            inputs=Input((route.size(shape),)) if route else pixels,
            n_classes=self.dataset.n_classes,
            batch_size=schedule.batch_size,
            epochs=schedule.epochs,
            optimizer="AdamW",
            learning_rate=schedule.learning_rate,
        )

    @property
    def pretrained_models(self) -> tuple[Weights, ...]:
        """The network that the model starts from, or on whose features it is trained."""
        network = self.transformer if self._tuning else self._route
        return () if network is None or isinstance(network, ScatteringFeatures) else (network.weights,)

    def prepare(self, source: "DataSource") -> None:
        """Get the weights that the model starts from; decode both splits, and extract features, if not yet cached.

        The source is remembered: it is where `build_model` looks for weights.
        """
        import torch

        from dphpo_bench.data.images import load_records, prepare_records

        def pixels(split: Split) -> "torch.Tensor":
            return torch.from_numpy(load_records(source, self.dataset, split)["pixels"])

        self._source = replace(source, progress=SilentProgress())
        source.check_mirror(self.dataset)
        if self._tuning:
            weights_folder(source, self.transformer.weights)
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
        """A linear layer, of zeros, the convolutional network with torch's initial weights, or the transformer.

        Raises:
            DataError: if the transformer's weights are not where the last `prepare` or the environment says.
        """
        from dphpo_bench.recipes import networks

        shape, n_classes = self.dataset.image_shape, self.dataset.n_classes
        if self._tuning:
            return self.transformer.classifier(n_classes, self._tuning, self._source)
        if self._route:
            return networks.zero_linear(self._route.size(shape), n_classes)
        return networks.tanh_cnn(shape, n_classes)

    def fingerprint(self, source: "DataSource") -> str:
        """Hash of what identifies the inputs and the initial weights: records, features' parameters, checksums."""
        inputs = self._route.key if self._route else {"pixels": "x / 127.5 - 1"}
        if self._tuning:
            inputs = {"pixels": "x", "weights": self.transformer.weights.key}
        identity = [[source.pin(self.dataset, split) for split in self.dataset.splits], inputs]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def model_fingerprint(self) -> str:
        """A hash of the model's structure, for which no weights are needed."""
        if not self._tuning:
            return super().model_fingerprint()
        from dphpo_bench.training.structure import structure_hash

        return structure_hash(self.transformer.structure(self.dataset.n_classes, self._tuning))

    @property
    def _route(self) -> Route | None:
        """From pictures to what the model is trained on; None if that is the pixels."""
        if self.model_name == "cnn" or self._tuning:
            return None
        routes: dict[str, Route] = {"pretrained": self.pretrained, "vit_head": self.transformer}
        return routes.get(self.model_name, self.features)

    @property
    def _tuning(self) -> "Which | None":
        """Which weights of the transformer are trained; None if it is not fine-tuned."""
        tunings: dict[str, Which] = {"vit": "all", "vit_bitfit": "bitfit", "vit_lora": "lora"}
        return tunings.get(self.model_name)

    @property
    def _schedule(self) -> Schedule:
        if self._tuning:
            return self.vit_schedule if self._tuning == "all" else self.vit_part_schedule
        return self.linear_schedule if self._route else self.cnn_schedule

    def _features(self, source: "DataSource", route: Route) -> CachedFeatures:
        return CachedFeatures(source, self.dataset, route.key, route.size(self.dataset.image_shape))

    def _load(self, source: "DataSource", split: Split) -> Records:
        import torch

        from dphpo_bench.data.images import load_records

        records = load_records(source, self.dataset, split)
        pixels = torch.from_numpy(records["pixels"])
        if route := self._route:
            inputs = self._features(source, route).load(split, pixels, lambda some: route.extract(some, source))
        else:
            inputs = pixels if self._tuning else pixels.float().div_(127.5).sub_(1)
        return Records(inputs, torch.from_numpy(records["label"]).long())
