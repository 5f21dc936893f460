"""The upper blocks of a pretrained encoder, fine-tuned on what its frozen lower blocks put out."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from dphpo_bench.recipes.fine_tuning import train_only
from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.training.lengths import last_place

_RANK = 4


class TopBlocks(nn.Module):
    """Blocks, the mean over tokens brought to mean 0 and variance 1, and a linear layer that starts from zero.

    Args:
        blocks: each takes tokens, shape (n, length, width), and an additive mask, shape (n, 1, length, length).
        width: of a token.
        n_classes: number of outputs.
    """

    def __init__(self, blocks: nn.ModuleList, width: int, n_classes: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.head = zero_linear(width, n_classes)

    def lengths_of(self, inputs: Tensor) -> Tensor:
        """How many tokens each text has."""
        return last_place((inputs != 0).any(-1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of tokens, shape (n, length, width); places after the end of a text hold zeros and nothing else."""
        is_token = (inputs != 0).any(-1)
        # Made here, in four dimensions: what transformers makes of other masks branches on their values, and fails
        # where gradients of records are computed side by side.
        mask = torch.where(is_token, 0.0, -1e9).to(inputs.dtype)[:, None, None].expand(-1, 1, inputs.shape[1], -1)
        values = inputs
        for block in self.blocks:
            values = block(values, mask)
        weight = is_token[..., None].to(values.dtype)
        mean = (values * weight).sum(1) / weight.sum(1).clamp(min=1)
        logits: Tensor = self.head(layer_norm(mean, mean.shape[-1:]))
        return logits


def fine_tuned(blocks: nn.ModuleList, width: int, n_classes: int, which: Literal["bitfit", "lora"]) -> TopBlocks:
    """The model, of which few weights are trained beside the head.

    Args:
        blocks: pretrained; changed in place.
        width: of a token.
        n_classes: number of outputs.
        which: see `fine_tuning.Which`; LoRA is for queries and values.

    Raises:
        DataError: if peft is not installed.
    """
    model = TopBlocks(blocks, width, n_classes)
    train_only(blocks, which, rank=_RANK, alpha=_RANK, layers=("query", "value"))
    return model
