"""The networks of `vision_transformers`: built, filled with published weights, and prepared for fine-tuning."""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights
from dphpo_bench.recipes.fine_tuning import Which, filled, published_tensors, train_only
from dphpo_bench.recipes.networks import zero_linear

if TYPE_CHECKING:
    from transformers import ViTConfig, ViTModel

_RANK = 4
# Published files have the names of earlier versions of transformers.
_RENAMED = (
    (r"^vit\.", ""),
    (r"^encoder\.layer\.", "layers."),
    (r"\.attention\.attention\.(query|key|value)\.", lambda found: f".attention.{found[1][0]}_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)


class PictureClassifier(nn.Module):
    """A vision transformer and a linear layer on its class token, which starts from zero.

    Args:
        network: as `empty` makes it.
        n_classes: number of outputs.
    """

    def __init__(self, network: "ViTModel", n_classes: int) -> None:
        super().__init__()
        self.network = network
        self.head = zero_linear(network.config.hidden_size, n_classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits of pictures; see `class_tokens`."""
        logits: Tensor = self.head(class_tokens(self.network, pixels))
        return logits


def class_tokens(network: "ViTModel", pixels: Tensor) -> Tensor:
    """What the last layer puts out for the class token, shape (n, width).

    Args:
        network: as `empty` makes it.
        pixels: 0 to 255, shape (n, 1 or 3, height, width); grey pictures become coloured ones. They are scaled by the
            constants, and resized in the way, that the network was trained with.
    """
    side: Any = network.config.image_size
    images = pixels.float().div(127.5).sub(1)
    if images.shape[-2:] != (side, side):
        images = interpolate(images, size=(side, side), mode="bilinear", antialias=True)
    tokens: Tensor = network(pixel_values=images.expand(-1, 3, -1, -1)).last_hidden_state
    return tokens[:, 0]


def empty(config: "ViTConfig") -> "ViTModel":
    """The network without a head. On the meta device it has no weights, and draws no random numbers."""
    from transformers import ViTModel

    return ViTModel(config, add_pooling_layer=False)


def pretrained(config: "ViTConfig", weights: Weights, source: DataSource | None) -> "ViTModel":
    """The network with the published weights.

    Args:
        config: of the network.
        weights: as published.
        source: where they are looked for; default: as the environment says.

    Raises:
        DataError: if the weights cannot be had, or are those of another configuration.
    """
    tensors = published_tensors(weights, source)
    with torch.device("meta"):
        names = empty(config).state_dict().keys()
    return filled(lambda: empty(config), {_renamed(key, names): tensor for key, tensor in tensors.items()}, weights)


def _renamed(key: str, expected: Collection[str]) -> str:
    for pattern, name in _RENAMED if key not in expected else ():
        key = re.sub(pattern, name, key)
    return key


def fine_tuned(network: "ViTModel", n_classes: int, which: Which) -> PictureClassifier:
    """A classifier of which the head is trained and, beside it, what `which` says.

    Args:
        network: as `empty` makes it; changed in place.
        n_classes: number of outputs.
        which: see `fine_tuning.Which`; LoRA is for queries and values.

    Raises:
        DataError: if peft is needed and not installed.
    """
    # The layers' names since transformers 5.0 and before.
    train_only(network, which, rank=_RANK, alpha=_RANK, layers=("q_proj", "v_proj", "query", "value"))
    return PictureClassifier(network, n_classes)
