"""Tokenisers that were published with pretrained weights."""

from typing import TYPE_CHECKING

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights, weights_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def require_transformers() -> None:
    """Refuse to go on without the extra `transformers`.

    Raises:
        DataError: if a package of it is missing.
    """
    try:
        import safetensors  # noqa: F401
        import tokenizers  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"Pretrained networks for texts need {error.name}: pip install 'dphpo-bench[transformers]'."
        ) from None


def load_tokenizer(weights: Weights, vocabulary: int, source: DataSource | None = None) -> "Tokenizer":
    """The tokeniser that was published with some weights; it neither pads nor cuts.

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
