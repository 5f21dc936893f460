"""Tasks on a labelled image dataset: a subclass names the dataset, everything else is here.

Source of the corruptions, their severities and constants, which are those for pictures of 32x32: Hendrycks and
Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations", ICLR 2019. The published
files hold other noise, and blur and colours of another library; compare no value here with theirs.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.metrics import SHIFTED, FurtherTest
from dphpo_bench.contract.task import Input
from dphpo_bench.data.datasets import Images, Split
from dphpo_bench.data.source import Weights, weights_folder
from dphpo_bench.zoo.dataset_task import DatasetTask, Schedule, Setup
from dphpo_bench.zoo.features import CachedFeatures, PictureRoute
from dphpo_bench.zoo.scattering import ScatteringFeatures
from dphpo_bench.zoo.vision import SMALL_VIT, PictureFeatures, VisionTransformer

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dphpo_bench.data.cache import Array
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.zoo.networks import Which


Pictures: TypeAlias = "NDArray[np.float64]"
"""Pictures in [0, 1], shape (n, channels, height, width)."""

VERSION = 1
"""Raise it when the same constants give other pictures."""
_SEED = 0


def _noisy(pictures: "Pictures", deviation: float) -> "Pictures":
    """Return x + deviation · z, z standard normal in each pixel and channel.

    NumPy's legacy generator, because its numbers never change between versions.
    """
    import numpy as np

    noise: Pictures = np.random.RandomState(_SEED).standard_normal(pictures.shape)
    return pictures + deviation * noise


def _blurred(pictures: "Pictures", deviation: float) -> "Pictures":
    """Return x convolved with a Gaussian in height and width, the border repeated outwards."""
    import numpy as np
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(pictures, deviation, mode="nearest", axes=(2, 3)))


def _flattened(pictures: "Pictures", share: float) -> "Pictures":
    """Return m + share · (x − m), m the mean of each channel of a picture."""
    means = pictures.mean((2, 3), keepdims=True)
    flat: Pictures = means + share * (pictures - means)
    return flat


def _brighter(pictures: "Pictures", more: float) -> "Pictures":
    """Return pictures whose value V = max(R, G, B) is min(V + more, 1), of the same hue and saturation.

    Hue and saturation stay if all channels are multiplied by the ratio of the values. Black becomes grey.
    """
    import numpy as np

    value = pictures.max(1, keepdims=True)
    target = np.minimum(value + more, 1.0)
    scaled = pictures * (target / np.where(value > 0, value, 1.0))
    brighter: Pictures = np.where(value > 0, scaled, target)
    return brighter


def _compressed(pictures: "Pictures", quality: float) -> "Pictures":
    """Return pictures as a JPEG of this quality keeps them. Last bits may differ between versions of Pillow."""
    import numpy as np
    from PIL import Image

    def through_jpeg(picture: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
        file = io.BytesIO()
        Image.fromarray(picture.transpose(1, 2, 0).squeeze()).save(file, "JPEG", quality=int(quality))
        return np.asarray(Image.open(file)).reshape(*picture.shape[1:], picture.shape[0]).transpose(2, 0, 1)

    return np.stack([through_jpeg(picture) for picture in (pictures * 255).round().astype(np.uint8)]) / 255


CORRUPTIONS: "dict[str, tuple[Callable[[Pictures, float], Pictures], tuple[float, ...]]]" = {
    "Gaussian noise": (_noisy, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "Gaussian blur": (_blurred, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (_flattened, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brighter, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "JPEG": (_compressed, (80, 65, 58, 50, 40)),
}
"""The corruptions: a function, and its constant at severity 1 to 5."""


@dataclass(frozen=True)
class Corruptions:
    """All corruptions in turn: the first picture has the first, the second the second, and so on.

    In the canonical order of the records, that of their hashes, the turn is independent of what a picture shows. So one
    number is the mean over corruptions, at the price of a single test.

    Attributes:
        severity: 1 to 5.
    """

    severity: int = 3

    def __post_init__(self) -> None:
        if self.severity not in range(1, 6):
            raise InvalidValueError(f"Expected a severity from 1 to 5, got {self.severity}.")

    @property
    def key(self) -> dict[str, int]:
        """Identity of the corrupted pictures, given the pictures."""
        return {"corruptions": VERSION, "severity": self.severity}

    @property
    def about(self) -> str:
        """Constants of all corruptions, in a line."""
        constants = (f"{name} {values[self.severity - 1]:g}" for name, (_, values) in CORRUPTIONS.items())
        return f"each test picture under a corruption, in turn: {', '.join(constants)} (version {VERSION})"

    def apply(self, pixels: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
        """Return corrupted pictures.

        Args:
            pixels: shape (n, 1 or 3, height, width), in canonical order.
        """
        import numpy as np

        corrupted = np.empty_like(pixels)
        for first, (corrupt, values) in enumerate(CORRUPTIONS.values()):
            turn = slice(first, None, len(CORRUPTIONS))
            if len(some := pixels[turn]):
                changed = corrupt(some / 255, values[self.severity - 1])
                corrupted[turn] = (np.clip(changed, 0, 1) * 255).round().astype(np.uint8)
        return corrupted


_FAMILIES = ("vit", "small_vit")
_TUNINGS: "dict[str, Which]" = {"": "all", "_bitfit": "bitfit", "_lora": "lora"}
TUNED_VITS = {family + ending: which for family in _FAMILIES for ending, which in _TUNINGS.items()}
"""The models that fine-tune a vision transformer, and what of it they train."""
VITS = ("vit_head", *(f"vit{ending}" for ending in _TUNINGS))
SMALL_VITS = tuple(f"small_{name}" for name in VITS)


class ImageTask(DatasetTask):
    """Classification of the pictures of one dataset.

    Models: "linear", a linear layer that starts from zero on ScatterNet features; "cnn", a convolutional network on
    pixels. A subclass may list more among its `models`: "pretrained", a linear layer on features of a pretrained
    network; `VITS` and `SMALL_VITS`, of a large and a small vision transformer. Of these "vit_head" is a linear layer
    on its features, "vit" fine-tunes all of its weights, "vit_bitfit" its biases, and "vit_lora" matrices of low rank
    beside its own. Pixels are scaled by public constants, never by a dataset's mean or variance, which would be a
    release.

    Subclasses set `name`, `summary` and `datasets`, and may replace the rest.

    Attributes:
        features: what the linear model is trained on.
        pretrained: what the model "pretrained" is trained on.
        transformers: vision transformers by the name of the model that fine-tunes all weights.
        linear_schedule: of all linear models.
        cnn_schedule: of the convolutional network.
        vit_schedule: of models that fine-tune all weights of a vision transformer.
        vit_part_schedule: of models that fine-tune a part of them.
        corruptions: of the test pictures, for a further test; None: there is none. Theirs are for pictures of 32x32.
    """

    models: ClassVar[tuple[str, ...]] = ("linear", "cnn")
    fine_tuned: "ClassVar[Mapping[str, Which]]" = TUNED_VITS
    datasets: ClassVar[tuple[Images, ...]]
    features: ClassVar[ScatteringFeatures] = ScatteringFeatures()
    pretrained: ClassVar[PictureFeatures] = PictureFeatures()
    transformers: ClassVar[Mapping[str, VisionTransformer]] = MappingProxyType(
        {"vit": VisionTransformer(), "small_vit": SMALL_VIT}
    )
    linear_schedule: ClassVar[Schedule] = Schedule(batch_size=8192, epochs=30)
    cnn_schedule: ClassVar[Schedule]
    # Bu, Mao and Xu, "Scalable and efficient training of large convolutional neural networks with differential
    # privacy", NeurIPS 2022, for CIFAR; the learning rate is the default of their published script.
    vit_schedule: ClassVar[Schedule] = Schedule(batch_size=1000, epochs=5, learning_rate=5e-4)
    vit_part_schedule: ClassVar[Schedule] = Schedule(batch_size=1000, epochs=5)
    corruptions: ClassVar[Corruptions | None] = None

    @property
    def transformer(self) -> VisionTransformer:
        """The network that a model of `VITS` or `SMALL_VITS` fine-tunes, or is a linear layer on."""
        return self.transformers["small_vit" if self.model_name in SMALL_VITS else "vit"]

    @property
    def n_classes(self) -> int:  # type: ignore[override]
        """The dataset's number of classes."""
        return self.datasets[0].n_classes

    @property
    def further_tests(self) -> tuple[FurtherTest, ...]:
        """The test pictures under `corruptions`."""
        corruptions = self.corruptions
        if corruptions is None:
            return super().further_tests
        about = corruptions.about
        return (FurtherTest(SHIFTED, about, lambda source: self._load_corrupted(source, corruptions)),)

    @property
    def pretrained_models(self) -> tuple[Weights, ...]:
        """The network that the model starts from, or on whose features it is trained."""
        network: Any = self.transformer if self._tuning else self._route
        return (network.weights,) if hasattr(network, "weights") else ()

    def prepare(self, source: "DataSource") -> None:
        """Get the weights that the model starts from; decode both splits, and extract features, if not yet cached.

        From then on `build_model` looks for weights in this source.
        """
        import torch

        from dphpo_bench.data.images import load_records, prepare_records

        def pixels(split: Split) -> "torch.Tensor":
            return torch.from_numpy(load_records(source, self.dataset, split)["pixels"])

        self._prepared_from = source.silent
        source.check_mirror(self.dataset)
        if self._tuning:
            weights_folder(source, self.transformer.weights)
        prepare_records(source, self.dataset)
        if route := self._route:
            shape = self.dataset.image_shape
            self._features(source, route).prepare(pixels, lambda: route.extractor(shape, source))
            if corruptions := self.corruptions:
                self._features(source, route, corruptions.key).prepare(
                    lambda _: torch.from_numpy(self._corrupted(source, corruptions)["pixels"]),
                    lambda: route.extractor(shape, source),
                    (self.dataset.test,),
                )

    def build_model(self) -> "torch.nn.Module":
        """Build a linear layer, of zeros, the convolutional network with torch's initial weights, or the transformer.

        Raises:
            DataError: if the transformer's weights are not where the last `prepare` or the environment says.
        """
        from dphpo_bench.recipes import networks

        if self._tuning:
            return self.transformer.classifier(self.n_classes, self._tuning, self._prepared_from)
        if self._route:
            return networks.zero_linear(self._route.size(self.dataset.image_shape), self.n_classes)
        return networks.tanh_cnn(self.dataset.image_shape, self.n_classes)

    def _structure(self, which: "Which") -> "torch.nn.Module":
        return self.transformer.structure(self.n_classes, which)

    @property
    def _route(self) -> PictureRoute | None:
        """The route from pictures to what the model is trained on; None if that is the pixels."""
        if self.model_name == "cnn" or self._tuning:
            return None
        if self.model_name in ("vit_head", "small_vit_head"):
            return self.transformer
        return self.pretrained if self.model_name == "pretrained" else self.features

    @property
    def _setup(self) -> Setup:
        shape = self.dataset.image_shape
        if self._tuning:
            schedule = self.vit_schedule if self._tuning == "all" else self.vit_part_schedule
            return Setup(Input(shape, "int", 256), {"pixels": "x", "weights": self.transformer.weights.key}, schedule)
        if route := self._route:
            return Setup(Input((route.size(shape),)), route.key, self.linear_schedule)
        return Setup(Input(shape), {"pixels": "x / 127.5 - 1"}, self.cnn_schedule)

    def _features(self, source: "DataSource", route: PictureRoute, changed: Any = None) -> CachedFeatures:
        key = {**route.key, **(changed or {})}
        return CachedFeatures(source, self.dataset, key, route.size(self.dataset.image_shape))

    def _load(self, source: "DataSource", split: Split) -> Records:
        from dphpo_bench.data.images import load_records

        records = load_records(source, self.dataset, split)
        return self._records(source, split, records["pixels"], records["label"])

    def _load_corrupted(self, source: "DataSource", corruptions: Corruptions) -> Records:
        records = self._corrupted(source, corruptions)
        return self._records(source, self.dataset.test, records["pixels"], records["label"], corruptions.key)

    def _corrupted(self, source: "DataSource", corruptions: Corruptions) -> "Array":
        from dphpo_bench.data.images import load_records

        records = load_records(source, self.dataset, self.dataset.test).copy()
        records["pixels"] = corruptions.apply(records["pixels"])
        return records

    def _records(self, source: "DataSource", split: Split, pixels: Any, labels: Any, changed: Any = None) -> Records:
        """Return records of pictures of a split; `changed` is the identity of what was done to them, if anything."""
        import torch

        pixels = torch.from_numpy(pixels)
        if route := self._route:
            features = self._features(source, route, changed)
            inputs = features.load(split, pixels, lambda some: route.extract(some, source))
        else:
            inputs = pixels if self._tuning else pixels.float().div_(127.5).sub_(1)
        return Records(inputs, torch.from_numpy(labels).long())
