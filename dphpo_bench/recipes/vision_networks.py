"""The networks of `vision_transformers`: built, filled with published weights, and prepared for fine-tuning."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from dphpo_bench.base.errors import DataError
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


def pretrained(config: "ViTConfig", file: Path, name: str) -> "ViTModel":
    """The network with the weights of a file.

    Args:
        config: of the network.
        file: safetensors.
        name: names the weights in an error.

    Raises:
        DataError: if the weights are those of another configuration.
    """
    from safetensors.torch import load_file

    with torch.device("meta"):
        network = empty(config)
    expected = network.state_dict()
    found = {_renamed(key, expected): tensor for key, tensor in load_file(file).items()}
    for key, tensor in expected.items():
        if key not in found or found[key].shape != tensor.shape:
            raise DataError(
                f"The weights {name} have no {key} of shape {tuple(tensor.shape)}; they are of another configuration."
            )
    network.to_empty(device="cpu").load_state_dict({key: found[key] for key in expected})
    return network


def _renamed(key: str, expected: dict[str, Tensor]) -> str:
    for pattern, name in _RENAMED if key not in expected else ():
        key = re.sub(pattern, name, key)
    return key


def fine_tuned(network: "ViTModel", n_classes: int, tuning: Literal["full", "bitfit", "lora"]) -> PictureClassifier:
    """A classifier of which the head is trained and, beside it, what `tuning` says.

    Args:
        network: as `empty` makes it; changed in place.
        n_classes: number of outputs.
        tuning: "full" trains all weights; "bitfit" the biases (Ben Zaken et al., ACL 2022); "lora" a product of two
            thin matrices that is added to those of queries and values (Hu et al., ICLR 2022), zero at first.

    Raises:
        DataError: if peft is needed and not installed.
    """
    if tuning == "bitfit":
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
    if tuning == "lora":
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError:
            raise DataError("LoRA needs peft: pip install 'dphpo-bench[transformers]'.") from None
        # The layers' names since transformers 5.0 and before.
        targets = ["q_proj", "v_proj", "query", "value"]
        inject_adapter_in_model(LoraConfig(r=_RANK, lora_alpha=_RANK, target_modules=targets), network)
    return PictureClassifier(network, n_classes)
