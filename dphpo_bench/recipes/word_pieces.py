"""Token ids of a public vocabulary of word pieces, for networks that are trained from nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights
from dphpo_bench.recipes.text_features import MINILM
from dphpo_bench.recipes.tokenizing import load_tokenizer, padded_ids

if TYPE_CHECKING:
    import torch

PADDING = 0
"""The token of no text."""


@dataclass(frozen=True)
class WordPieces:
    """BERT's vocabulary of English word pieces, in lower case. It was made of books and Wikipedia.

    Attributes:
        longest: number of tokens after which a text is cut.
        vocabulary: number of tokens.
        weights: whose tokeniser it is; no weight is used.
    """

    longest: int = 64
    vocabulary: int = 30_522
    weights: Weights = MINILM

    @property
    def key(self) -> dict[str, Any]:
        """Identity of token ids, for the cache and for the identity of a run."""
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
