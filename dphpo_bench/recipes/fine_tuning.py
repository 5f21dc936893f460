"""Which weights of a pretrained network are trained, and how it gets the published ones."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.extras import require_extra
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights, weights_folder

Network = TypeVar("Network", bound=nn.Module)

Which = Literal["all", "bitfit", "lora"]
"""What of a pretrained network is trained, beside a head: everything; the biases (Ben Zaken et al., ACL 2022); or a
product of two thin matrices, zero at first, that is added to some weights (Hu et al., ICLR 2022)."""


def train_only(network: nn.Module, which: Which, *, rank: int, alpha: int, layers: tuple[str, ...]) -> None:
    """Freeze all other weights of a network, and give it LoRA's matrices if they are wanted; changed in place.

    Args:
        network: pretrained, without the head.
        which: see `Which`.
        rank: of LoRA's product, which is multiplied by alpha / rank.
        alpha: see `rank`.
        layers: names of the linear layers that LoRA adds to.

    Raises:
        DataError: if peft is not installed.
    """
    if which == "bitfit":
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
    if which != "lora":
        return
    require_extra("transformers", "LoRA needs", "peft")
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(layers)), network)


def published_tensors(weights: Weights, source: DataSource | None) -> dict[str, Tensor]:
    """What the first of the files of `weights` holds.

    Args:
        weights: whose first file is one of safetensors.
        source: where they are looked for; default: as the environment says.

    Raises:
        DataError: if the weights cannot be had; see `weights_folder`.
    """
    from safetensors.torch import load_file

    return load_file(weights_folder(source or DataSource.resolve(), weights) / weights.files[0][0])


def filled(build: Callable[[], Network], tensors: Mapping[str, Tensor], weights: Weights, prefix: str = "") -> Network:
    """A network with the published weights. What it does not have is left out; no random number is drawn.

    Args:
        build: makes the network; every buffer of it is stored with the weights.
        tensors: as `published_tensors` gives them, in any precision; converted to float32.
        weights: names them in messages.
        prefix: what some names of tensors begin with, and the network's do not.

    Raises:
        DataError: if a weight is missing or has another shape.
    """
    with torch.device("meta"):  # structure alone
        network = build()
    network = network.to_empty(device="cpu")
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    found = {}
    for name, own in network.state_dict().items():
        if name not in named:
            raise DataError(f"The weights {weights.name} lack {name}; they belong to another configuration.")
        if named[name].shape != own.shape:
            raise DataError(
                f"The weights {weights.name} belong to another configuration: expected {name} of shape "
                f"{tuple(own.shape)}, got {tuple(named[name].shape)}."
            )
        found[name] = named[name].float()
    network.load_state_dict(found)
    return network
