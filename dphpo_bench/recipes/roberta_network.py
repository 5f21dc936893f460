"""The network of `Roberta`: an encoder of transformers, read in a way that per-sample gradients allow."""

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from dphpo_bench.recipes.fine_tuning import Which, train_only
from dphpo_bench.training.lengths import last_place

if TYPE_CHECKING:
    from transformers import RobertaConfig, RobertaModel

PADDING = 1
"""The token that texts are padded with."""

_DEVIATION = 0.02  # of initial weights, as in RoBERTa


class RobertaClassifier(nn.Module):
    """Token ids, shape (n, length), padded at their end by `PADDING` → logits of classes, shape (n, classes).

    The head is that of the literature: a layer, tanh and another layer on what is put out for the first token.

    Masks and positions are made here, in one row for each record: what transformers makes of other masks branches on
    their values, and fails where gradients of records are computed side by side.

    Args:
        network: an encoder as `encoder` makes it; changed in place.
        size: of a token.
        n_classes: number of outputs.
        which: what is trained beside the head; of LoRA's layers queries and values get matrices.
        rank: of LoRA.
    """

    rows_at_once: ClassVar[int] = 16
    """Most records that it is given at once; of this size 16 took 4.5 GB by vmap, on a CPU."""

    def __init__(self, network: "RobertaModel", size: int, n_classes: int, which: Which, rank: int) -> None:
        super().__init__()
        self.network = network
        train_only(network, which, rank=rank, alpha=rank, layers=("query", "value"))
        layers = nn.Linear(size, size), nn.Linear(size, n_classes)
        for layer in layers:
            nn.init.normal_(layer.weight, std=_DEVIATION)
            nn.init.zeros_(layer.bias)
        self.head = nn.Sequential(layers[0], nn.Tanh(), layers[1])

    def lengths_of(self, ids: Tensor) -> Tensor:
        """Return the number of tokens of each text."""
        return last_place(ids != PADDING)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits for token ids of any integer type."""
        ids = ids.long()
        is_token = ids != PADDING
        places = torch.where(is_token, is_token.cumsum(1) + PADDING, PADDING)  # as RoBERTa counts them
        values = self.network.embeddings(input_ids=ids, position_ids=places, token_type_ids=torch.zeros_like(ids))
        mask = torch.where(is_token, 0.0, -1e9).to(values.dtype)[:, None, None].expand(-1, 1, ids.shape[1], -1)
        for block in self.network.encoder.layer:
            values = block(values, mask)
        logits: Tensor = self.head(values[:, 0])
        return logits


def encoder(config: "RobertaConfig") -> "RobertaModel":
    """Build the encoder, with attention spelled out: vmap takes the fused one's records one by one."""
    from transformers import RobertaModel

    config._attn_implementation = "eager"
    network = RobertaModel(config, add_pooling_layer=False)
    for buffer in ("position_ids", "token_type_ids"):  # neither is used here, nor are they among the weights
        delattr(network.embeddings, buffer)
    return network
