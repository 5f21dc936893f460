"""The networks of `vision_transformers`."""

import re
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.functional import interpolate

from dphpo_bench.recipes.fine_tuning import Which, train_only
from dphpo_bench.recipes.networks import zero_linear

if TYPE_CHECKING:
    from transformers import ViTConfig, ViTModel

_RANK = 4
# Published files have the names of earlier versions of transformers.
_RENAMED = (
    (r"^vit\.", ""),
    (r"^encoder\.layer\.", "layers."),
    (r"\.attention\.attention\.(query|key|value)\.", lambda match: f".attention.{match[1][0]}_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)


class PictureClassifier(nn.Module):
    """A vision transformer and a linear layer on its class token, which starts from zero.

    Args:
        network: as `empty` makes it; changed in place.
        n_classes: number of outputs.
        which: what is trained beside the head; LoRA is for queries and values.

    Raises:
        DataError: if peft is needed and not installed.
    """

    def __init__(self, network: "ViTModel", n_classes: int, which: Which) -> None:
        super().__init__()
        # The layers' names since transformers 5.0 and before.
        train_only(network, which, rank=_RANK, alpha=_RANK, layers=("q_proj", "v_proj", "query", "value"))
        self.network = network
        self.head = zero_linear(network.config.hidden_size, n_classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits of pictures; see `class_tokens`."""
        logits: Tensor = self.head(class_tokens(self.network, pixels))
        return logits


def class_tokens(network: "ViTModel", pixels: Tensor) -> Tensor:
    """Return the last layer's output for the class token, shape (n, width).

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
    """Build the network without a head. On the meta device it has no weights, and draws no random numbers."""
    from transformers import ViTModel

    return ViTModel(config, add_pooling_layer=False)


def named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name published tensors as transformers does since 5.0."""
    for pattern, name in _RENAMED:
        tensors = {re.sub(pattern, name, key): tensor for key, tensor in tensors.items()}
    return tensors
