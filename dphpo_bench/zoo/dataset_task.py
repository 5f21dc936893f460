"""Tasks on one published dataset of pictures or texts: a subclass names the dataset, everything else is here.

Source of the corruptions, their severities and constants, which are those for pictures of 32x32: Hendrycks and
Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations", ICLR 2019. The published
files hold other noise, and blur and colours of another library; compare no value here with theirs.
"""

import hashlib
import io
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.metrics import SHIFTED, FurtherTest
from dphpo_bench.contract.task import Input, Kind, Task, TaskFacts
from dphpo_bench.data.source import DataSource, Images, Split, Table, Weights, weights_folder
from dphpo_bench.zoo.features import CachedFeatures, Extract, PictureRoute
from dphpo_bench.zoo.published import LEARNING_RATES, ROBERTAS, Roberta
from dphpo_bench.zoo.scattering import ScatteringFeatures
from dphpo_bench.zoo.texts import TextFeatures, WordPieces
from dphpo_bench.zoo.vision import SMALL_VIT, PictureFeatures, VisionTransformer

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dphpo_bench.data.rows import Row
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
    """The inputs of a task's model, and its training."""

    input: Input
    key: Any  # identity of the inputs and the initial weights, but for the records; JSON
    schedule: Schedule


class DatasetTask(Task):
    """A task on the records of one dataset. Subclasses say what inputs and models are like.

    Attributes:
        fine_tuned: the models that fine-tune a network, and what of it they train.
    """

    public = True
    datasets: ClassVar[tuple[Any, ...]]
    kind: ClassVar[Kind] = "classification"
    n_classes: int | None
    fine_tuned: "ClassVar[Mapping[str, Which]]" = MappingProxyType({})
    _prepared_from: "DataSource | None" = None  # `build_model` takes weights from there

    @property
    def dataset(self) -> Any:
        """The one dataset of the task."""
        return self.datasets[0]

    @property
    def facts(self) -> TaskFacts:
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

    def prepare(self, source: "DataSource") -> None:
        """Get the records, and the weights that a fine-tuned model starts from.

        From then on `build_model` takes weights from this source.
        """
        super().prepare(source)
        self._get_weights(source)

    def _get_weights(self, source: "DataSource") -> None:
        for weights in self.pretrained_models if self._tuning else ():
            weights_folder(source, weights)
        self._prepared_from = source.silent

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
        import torch

        with torch.device("meta"):
            return super().model_fingerprint()

    @property
    def _tuning(self) -> "Which | None":
        """The weights of a pretrained network that are trained; None if nothing is fine-tuned."""
        return self.fine_tuned.get(self.model_name)

    @property
    @abstractmethod
    def _setup(self) -> Setup:
        """The setup of the model."""

    @abstractmethod
    def _load(self, source: "DataSource", split: Split) -> Records:
        """Return the records of a split in canonical order."""


FINE_TUNED: "dict[str, Which]" = {**ROBERTAS, "block": "all", "bitfit": "bitfit", "lora": "lora", "gru": "all"}
"""The models that are more than a linear layer, and what they train: "gru" all but the embeddings that it reads."""


class TextTask(DatasetTask):
    """Classification of the texts, or of the pairs of texts, of one dataset.

    Models: "linear", a linear layer that starts from zero on features of a pretrained encoder. Where a subclass lists
    them among its `models`: "roberta", "roberta_bitfit" and "roberta_lora", a RoBERTa of which all weights, the biases,
    or matrices added to queries and values are trained; and for single texts "block", "bitfit" and "lora", which do the
    same to the encoder's next block, on what the layers below put out; the mean of the tokens goes through it, to a
    linear layer.
    "gru" is a recurrent network on the frozen embeddings with which a pretrained encoder begins.

    A pair has four times the features: those of either text, the absolute values of their differences, and their
    products. Source: Conneau et al., "Supervised learning of universal sentence representations from natural language
    inference data", 2017.

    Subclasses set `name`, `summary`, `datasets` and `n_classes`, and may replace the rest.

    Attributes:
        datasets: one; its columns are one text or two, then the label.
        n_classes: labels are 0 ... n_classes - 1.
        features: what the linear model is trained on.
        linear_schedule: of the linear model.
        tuned_features: what lies below the block that is fine-tuned.
        tuned_schedule: of the models that fine-tune it.
        roberta: what a RoBERTa is like, and how long its texts are.
        roberta_schedule: of the three models that are one.
        gru_tokens: what the recurrent network reads.
        gru_size: of the network's state.
        gru_schedule: of the recurrent network. Its rate is tuned, without privacy, on a split of SST-2's training
            records: docs/tasks.md says how.
    """

    models: ClassVar[tuple[str, ...]] = ("linear",)
    fine_tuned: "ClassVar[Mapping[str, Which]]" = FINE_TUNED
    datasets: ClassVar[tuple[Table, ...]]
    n_classes: int
    features: ClassVar[TextFeatures] = TextFeatures()
    linear_schedule: ClassVar[Schedule] = Schedule(batch_size=8192, epochs=30)
    tuned_features: ClassVar[TextFeatures] = TextFeatures(longest=48)
    tuned_schedule: ClassVar[Schedule] = Schedule(batch_size=2048, epochs=2)
    roberta: ClassVar[Roberta] = Roberta()
    roberta_schedule: ClassVar[Schedule] = Schedule(batch_size=1000, epochs=3)
    gru_tokens: ClassVar[WordPieces] = WordPieces()
    gru_size: ClassVar[int] = 64
    gru_schedule: ClassVar[Schedule] = Schedule(batch_size=2048, epochs=2, learning_rate=3e-2)

    @property
    def pretrained_models(self) -> tuple[Weights, ...]:
        """The encoder."""
        return (self._encoder.weights,)

    def prepare(self, source: "DataSource") -> None:
        """Get records and weights; extract features, or token ids, where the cache lacks them."""
        super().prepare(source)
        self._features(source).prepare(lambda split: self._rows(source, split), lambda: self._extract_from(source))

    def build_model(self) -> "torch.nn.Module":
        """Build the linear layer, of zeros; the pretrained block with one on top; a RoBERTa with a head; or the GRU.

        Raises:
            DataError: if pretrained weights are not where the task was prepared from; without that, where the
                environment says.
        """
        from dphpo_bench.recipes.networks import zero_linear
        from dphpo_bench.zoo.networks import GruClassifier, PoolingBlock

        encoder = self._encoder
        if not self._tuning:
            return zero_linear(math.prod(self._setup.input.shape), self.n_classes)
        if isinstance(encoder, Roberta):
            return encoder.classifier(self.n_classes, self._tuning, self._prepared_from)
        if isinstance(encoder, WordPieces):
            return GruClassifier(encoder.embeddings(self._prepared_from), self.gru_size, self.n_classes)
        block = encoder.block_above(self._prepared_from)
        return PoolingBlock(block, encoder.size, self.n_classes, self._tuning)

    @property
    def _encoder(self) -> Roberta | TextFeatures | WordPieces:
        """The network, or the frozen layers, that the model begins with."""
        if self.model_name in ROBERTAS:
            return self.roberta
        if self.model_name == "gru":
            return self.gru_tokens
        return self.tuned_features if self._tuning else self.features

    @property
    def _texts(self) -> int:
        """The number of texts of a record."""
        return len(self.dataset.columns) - 1

    @property
    def _setup(self) -> Setup:
        encoder = self._encoder
        if isinstance(encoder, TextFeatures):
            if self._tuning:
                shape = (encoder.longest, encoder.size)
                return Setup(Input(shape), {**encoder.key, "of": "each token"}, self.tuned_schedule)
            return Setup(Input((encoder.size * (1 if self._texts == 1 else 4),)), encoder.key, self.linear_schedule)
        schedule = self.gru_schedule
        if isinstance(encoder, Roberta):
            schedule = replace(self.roberta_schedule, learning_rate=LEARNING_RATES[self.model_name])
        return Setup(Input((encoder.longest,), "int", encoder.vocabulary), encoder.key, schedule)

    def _features(self, source: "DataSource") -> CachedFeatures:
        key, size = self._setup.key, math.prod(self._setup.input.shape)
        if isinstance(self._encoder, TextFeatures):
            return CachedFeatures(source, self.dataset, key, size)
        return CachedFeatures(source, self.dataset, key, size, "int32", "Tokenising")

    def _rows(self, source: "DataSource", split: Split) -> "list[Row]":
        from dphpo_bench.data.rows import load_rows, unusable

        rows = load_rows(source, self.dataset, split)
        wrong = [row[-1] for row in rows if row[-1] not in range(self.n_classes)]
        if wrong:
            reason = f"expected labels from 0 to {self.n_classes - 1}, got {wrong[0]}"
            raise unusable(source.files(self.dataset, split)[0], self.dataset, reason)
        return rows

    def _extract_from(self, source: "DataSource") -> Extract:
        import torch

        def extract(some: "Sequence[Row]") -> "Iterator[torch.Tensor]":
            texts = [tuple(map(str, row[:-1])) for row in some]
            encoder = self._encoder
            if not isinstance(encoder, TextFeatures):
                yield from encoder.token_ids(texts, source)
                return
            if self._tuning:
                yield from encoder.tokens([text for text, *_ in texts], source)
                return
            for block in encoder.extract([text for row in texts for text in row], source):
                first, *second = block.view(-1, self._texts, encoder.size).unbind(1)
                pairs = ((first - other).abs() for other in second), (first * other for other in second)
                yield torch.cat([first, *second, *pairs[0], *pairs[1]], 1)

        return extract

    def _load(self, source: "DataSource", split: Split) -> Records:
        import torch

        rows = self._rows(source, split)
        inputs = self._features(source).load(split, rows, self._extract_from(source))
        return Records(inputs.view(-1, *self._setup.input.shape), torch.tensor([row[-1] for row in rows]))


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
    """Corruptions in turn: the first picture has the first, the second the second, and so on.

    In the canonical order of the records, that of their hashes, the turn is independent of what a picture shows. So one
    number is the mean over corruptions, at the price of a single test.

    Attributes:
        severity: 1 to 5.
        turns: the corruption, as `CORRUPTIONS` names it, and the severity of each turn; empty: all at `severity`.
    """

    severity: int = 3
    turns: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for severity in (self.severity, *(each for _, each in self.turns)):
            if severity not in range(1, 6):
                raise InvalidValueError(f"Expected a severity from 1 to 5, got {severity}.")

    @property
    def key(self) -> dict[str, Any]:
        """Identity of the corrupted pictures, given the pictures."""
        return {"corruptions": VERSION} | ({"turns": self.turns} if self.turns else {"severity": self.severity})

    @property
    def _kinds(self) -> "list[tuple[str, Callable[[Pictures, float], Pictures], float]]":
        turns = self.turns or [(name, self.severity) for name in CORRUPTIONS]
        return [(name, CORRUPTIONS[name][0], CORRUPTIONS[name][1][severity - 1]) for name, severity in turns]

    @property
    def about(self) -> str:
        """Constants of the corruptions, in a line."""
        constants = (f"{name} {constant:g}" for name, _, constant in self._kinds)
        return f"each test picture under a corruption, in turn: {', '.join(constants)} (version {VERSION})"

    def apply(self, pixels: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
        """Return corrupted pictures.

        Args:
            pixels: shape (n, 1 or 3, height, width), in canonical order.
        """
        import numpy as np

        corrupted = np.empty_like(pixels)
        for first, (_, corrupt, constant) in enumerate(self._kinds):
            turn = slice(first, None, len(self._kinds))
            if len(some := pixels[turn]):
                changed = corrupt(some / 255, constant)
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
        """Get the weights; decode both splits, and extract features, if not yet cached.

        Features of corrupted pictures wait for the further test, which follows the result.
        """
        import torch

        from dphpo_bench.data.images import load_records, prepare_records

        def pixels(split: Split) -> "torch.Tensor":
            return torch.from_numpy(load_records(source, self.dataset, split)["pixels"])

        source.check_mirror(self.dataset)
        self._get_weights(source)
        prepare_records(source, self.dataset)
        if route := self._route:
            shape = self.dataset.image_shape
            self._features(source, route).prepare(pixels, lambda: route.extractor(shape, source))

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
        from dphpo_bench.data.images import load_records

        records = load_records(source, self.dataset, self.dataset.test)
        pixels = corruptions.apply(records["pixels"])
        return self._records(source, self.dataset.test, pixels, records["label"], corruptions.key)

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
