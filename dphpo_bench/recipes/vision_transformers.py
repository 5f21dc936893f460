"""A pretrained vision transformer: features of pictures from it, or the network itself to be fine-tuned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.extras import require_extra
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights
from dphpo_bench.recipes.features import PictureRoute

if TYPE_CHECKING:
    import torch
    from transformers import ViTConfig, ViTModel

    from dphpo_bench.recipes.fine_tuning import Which

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

    Attributes:
        side: pictures are made this many pixels high and wide.
        patch: height and width of a patch.
        width: of a token.
        layers: how many.
        heads: of attention.
        inner: width of the hidden layer of each block's perceptron.
        weights: the network's.
    """

    per_call: ClassVar[int] = 8

    side: int = 224
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

        from dphpo_bench.recipes.vision_networks import class_tokens

        del image_shape
        network = self._network(source)
        network.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        return lambda few: layer_norm(class_tokens(network, few), (self.width,)).bfloat16()

    def classifier(self, n_classes: int, which: "Which", source: DataSource | None = None) -> "torch.nn.Module":
        """Build the pretrained network with a linear layer on its class token, which starts from zero.

        It takes pixels as integers, shape (n, 1 or 3, height, width). LoRA draws from torch's global generator.

        Raises:
            DataError: if the weights cannot be had; see `weights_folder`.
        """
        from dphpo_bench.recipes.vision_networks import PictureClassifier

        return PictureClassifier(self._network(source), n_classes, which)

    def structure(self, n_classes: int, which: "Which") -> "torch.nn.Module":
        """Build `classifier` without values, on torch's device "meta": no weights are needed."""
        import torch

        from dphpo_bench.recipes.vision_networks import PictureClassifier, empty

        with torch.device("meta"):
            return PictureClassifier(empty(self.config()), n_classes, which)

    def _network(self, source: DataSource | None) -> "ViTModel":
        from dphpo_bench.recipes import vision_networks
        from dphpo_bench.recipes.fine_tuning import published

        return published(lambda: vision_networks.empty(self.config()), self.weights, source, vision_networks.named)

    def config(self) -> "ViTConfig":
        """Return the configuration, without dropout: the noise regularises enough.

        Raises:
            DataError: if transformers is not installed.
        """
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
`tests/benchmarks/small_vit.py`. `tasks/small_vit.json` is the log of the training."""
