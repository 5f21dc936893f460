"""Fine-tuning of pretrained networks: published weights, and the choice of those that are trained."""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.extras import require_extra
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights, weights_folder

Network = TypeVar("Network", bound=nn.Module)

Which = Literal["all", "bitfit", "lora"]
"""Weights of a pretrained network that are trained beside a head: all; the biases (Ben Zaken et al., ACL 2022); or a
product of two thin matrices, zero at first, that is added to some weights (Hu et al., ICLR 2022)."""


def train_only(network: nn.Module, which: Which, *, rank: int, alpha: int, layers: tuple[str, ...]) -> None:
    """Freeze all other weights of a pretrained network without its head; add LoRA's matrices if asked for, in place.

    Args:
        network: changed in place.
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
    if which == "lora":
        require_extra("transformers", "LoRA needs", "peft")
        from peft import LoraConfig, inject_adapter_in_model

        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(layers)), network)


def published(
    build: Callable[[], Network],
    weights: Weights,
    source: DataSource | None,
    named: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> Network:
    """Build a network and fill it with published weights, as float32; draw no random number.

    Args:
        build: makes the network; every buffer of it is stored with the weights.
        weights: whose first file is one of safetensors. What the network does not have is left out.
        source: where the weights are looked for; default: as the environment says.
        named: returns published tensors under the network's names; one that has such a name already needs no other.

    Raises:
        DataError: if the weights cannot be had, one is missing, or one has another shape.
    """
    from safetensors.torch import load_file

    with torch.device("meta"):  # structure alone
        network = build()
    network = network.to_empty(device="cpu")
    expected = network.state_dict()
    file = weights_folder(source or DataSource.resolve(), weights) / weights.files[0][0]
    as_published = load_file(file)
    tensors = named(as_published) | as_published
    for name, empty in expected.items():
        if name not in tensors:
            raise DataError(f"The weights {weights.name} lack {name}; they belong to another configuration.")
        if tensors[name].shape != empty.shape:
            raise DataError(
                f"The weights {weights.name} belong to another configuration: expected {name} of shape "
                f"{tuple(empty.shape)}, got {tuple(tensors[name].shape)}."
            )
    network.load_state_dict({name: tensors[name].float() for name in expected})
    return network
