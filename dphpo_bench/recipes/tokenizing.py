"""Tokenisers that were published with pretrained weights."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.extras import require_extra
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights, weights_folder

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

_TEXTS_PER_BLOCK = 2048


def require_transformers() -> None:
    """Refuse to go on without the extra `transformers`.

    Raises:
        MissingExtraError: if a package of it is missing.
    """
    require_extra("transformers", "Pretrained networks for texts need", "safetensors", "tokenizers", "transformers")


def load_tokenizer(weights: Weights, vocabulary: int, source: DataSource | None = None) -> "Tokenizer":
    """Load the tokeniser that was published with some weights; it neither pads nor cuts.

    Args:
        weights: one of whose files is `tokenizer.json`.
        vocabulary: number of tokens of the network.
        source: where it is looked for; default: as the environment says.

    Raises:
        DataError: if the weights cannot be had; see `weights_folder`.
        InvalidValueError: if it has tokens that the network does not have.
    """
    require_transformers()
    from tokenizers import Tokenizer

    folder = weights_folder(source or DataSource.resolve(), weights)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if tokenizer.get_vocab_size() > vocabulary:
        raise InvalidValueError(
            f"Expected a tokeniser of at most {vocabulary} tokens of {weights.name}, got {tokenizer.get_vocab_size()}."
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def padded_ids(
    tokenizer: "Tokenizer", rows: Sequence[tuple[str, ...]], longest: int, padding: int, marks: bool
) -> "Iterator[torch.Tensor]":
    """Tokenise texts, or pairs of texts.

    Args:
        tokenizer: from `load_tokenizer`.
        rows: of one text or two each.
        longest: number of tokens after which a text or a pair is cut. Of a pair the longer text loses its end first.
        padding: token after the end.
        marks: whether to add the tokeniser's own marks.

    Yields:
        Consecutive rows, int32, shape (rows, longest).
    """
    import torch

    tokenizer.enable_truncation(longest)
    for start in range(0, len(rows), _TEXTS_PER_BLOCK):
        # One at a time: a batch starts threads of the tokeniser's own, which complains when the process forks.
        few = [
            tokenizer.encode(row[0], row[1] if len(row) == 2 else None, add_special_tokens=marks).ids
            for row in rows[start : start + _TEXTS_PER_BLOCK]
        ]
        yield torch.tensor([ids + (longest - len(ids)) * [padding] for ids in few], dtype=torch.int32)
