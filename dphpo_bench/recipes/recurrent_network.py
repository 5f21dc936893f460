"""A recurrent network for texts, on frozen embeddings of words."""

import torch
from torch import Tensor, nn

from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.recipes.word_pieces import PADDING
from dphpo_bench.training.lengths import last_place


class GruClassifier(nn.Module):
    """A frozen embedding of tokens, a GRU, and a linear layer that starts from zero on the mean of the states.

    The mean did better than the state after the last token on a split of SST-2's training records (docs/tasks.md).

    Source of the GRU: Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation", EMNLP 2014.

    Args:
        table: embeddings, shape (vocabulary, width). They are not trained: most of their rows no record has, and noise
            would be added to all.
        size: of the state.
        n_classes: number of outputs.
    """

    def __init__(self, table: Tensor, size: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(table)  # type: ignore[no-untyped-call]
        self.gru = nn.GRU(table.shape[1], size, batch_first=True)
        self.head = zero_linear(size, n_classes)

    def lengths_of(self, inputs: Tensor) -> Tensor:
        """Return the number of tokens of each text."""
        return last_place(inputs != PADDING)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of token ids, shape (n, length)."""
        states, _ = self.gru(self.embedding(inputs))
        lengths = self.lengths_of(inputs)[:, None]
        is_token = torch.arange(inputs.shape[1], device=inputs.device) < lengths
        mean = (states * is_token[..., None]).sum(1) / lengths.clamp(min=1)  # of an empty text zeros
        logits: Tensor = self.head(mean)
        return logits
