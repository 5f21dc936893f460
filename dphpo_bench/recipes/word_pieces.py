"""Word pieces of a public vocabulary, as token ids, and their public embeddings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights, weights_folder
from dphpo_bench.recipes.text_features import MINILM
from dphpo_bench.recipes.tokenizing import load_tokenizer, padded_ids, require_transformers

if TYPE_CHECKING:
    import torch

PADDING = 0
"""The token of no text."""


@dataclass(frozen=True)
class WordPieces:
    """BERT's vocabulary of English word pieces, in lower case, with the embeddings that MiniLM begins with.

    Attributes:
        longest: number of tokens after which a text is cut.
        vocabulary: number of tokens.
        size: of an embedding.
        weights: the encoder, and its tokeniser.
    """

    longest: int = 64
    vocabulary: int = 30_522
    size: int = 384
    weights: Weights = MINILM

    @property
    def key(self) -> dict[str, Any]:
        """Identity of token ids and embeddings, for the cache and for the identity of a run."""
        return {"tokens": type(self).__name__, "longest": self.longest, "weights": self.weights.key}

    def token_ids(self, rows: Sequence[tuple[str, ...]], source: DataSource | None = None) -> "Iterator[torch.Tensor]":
        """Tokenise texts, without marks of their beginnings and ends; see `padded_ids`.

        Args:
            rows: of one text or two each.
            source: where the tokeniser is looked for; default: as the environment says.

        Raises:
            DataError: if the weights cannot be had; see `weights_folder`.
            InvalidValueError: if the tokeniser has another vocabulary.
        """
        tokenizer = load_tokenizer(self.weights, self.vocabulary, source)
        yield from padded_ids(tokenizer, rows, self.longest, PADDING, marks=False)

    def embeddings(self, source: DataSource | None = None) -> "torch.Tensor":
        """Load the embeddings, each brought to mean 0 and variance 1 by itself: shape (vocabulary, size).

        Args:
            source: where the weights are looked for; default: as the environment says.

        Raises:
            DataError: if the weights cannot be had, or have other embeddings.
        """
        require_transformers()
        import torch
        from safetensors import safe_open

        path = weights_folder(source or DataSource.resolve(), self.weights) / self.weights.files[0][0]
        with safe_open(path, "pt") as weights:
            table: torch.Tensor = weights.get_tensor("embeddings.word_embeddings.weight").float()
        if table.shape != (self.vocabulary, self.size):
            raise DataError(
                f"Expected embeddings of shape {(self.vocabulary, self.size)} of {self.weights.name}, got "
                f"{tuple(table.shape)}."
            )
        return torch.nn.functional.layer_norm(table, (self.size,))
