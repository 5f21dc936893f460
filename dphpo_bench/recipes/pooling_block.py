"""A block of a pretrained encoder, fine-tuned on what its frozen lower blocks put out."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from dphpo_bench.recipes.fine_tuning import Which, train_only
from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.training.lengths import last_place

_RANK = 4


class PoolingBlock(nn.Module):
    """A block that the mean of the tokens goes through, and a linear layer that starts from zero.

    The mean attends to all tokens, as each of them does in the encoder; what comes out is brought to mean 0 and
    variance 1. Only keys and values are computed for each token. If every token went through the block, and the mean
    were taken behind it, a run on SST-2 would take three times as long for half a point of accuracy (docs/tasks.md).

    Args:
        block: one of BERT's, pretrained; changed in place.
        width: of a token.
        n_classes: number of outputs.
        which: what is trained beside the head; LoRA is for queries and values.

    Raises:
        DataError: if peft is needed and not installed.
    """

    def __init__(self, block: nn.Module, width: int, n_classes: int, which: Which) -> None:
        super().__init__()
        self.block = block
        self.head = zero_linear(width, n_classes)  # before LoRA: both draw random numbers
        train_only(block, which, rank=_RANK, alpha=_RANK, layers=("query", "value"))

    def lengths_of(self, inputs: Tensor) -> Tensor:
        """Return the number of tokens of each text."""
        return last_place(_are_tokens(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of tokens, shape (n, length, width); places after the end of a text hold zeros."""
        block: Any = self.block
        attention = block.attention.self
        is_token = _are_tokens(inputs)
        mean = inputs.sum(1) / is_token.sum(1, keepdim=True).clamp(min=1)

        def by_head(values: Tensor) -> Tensor:
            return values.view(*values.shape[:-1], attention.num_attention_heads, -1)

        query, keys = by_head(attention.query(mean)), by_head(attention.key(inputs))
        scores = torch.einsum("nhd,nlhd->nhl", query, keys) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~is_token[:, None], -1e9).softmax(-1)  # of an empty text no nan
        seen = torch.einsum("nhl,nlhd->nhd", weights, by_head(attention.value(inputs))).flatten(1)
        attended = block.attention.output(seen, mean)
        pooled = block.output(block.intermediate(attended), attended)
        logits: Tensor = self.head(layer_norm(pooled, pooled.shape[-1:]))
        return logits


def _are_tokens(inputs: Tensor) -> Tensor:
    """Return where there is a token, shape (n, length). `(inputs != 0).any(-1)` takes three times as long."""
    return inputs.abs().amax(-1) != 0
