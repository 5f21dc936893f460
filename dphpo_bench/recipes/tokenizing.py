"""Tokenisers that were published with pretrained weights."""

from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.extras import require_extra
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights, weights_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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
