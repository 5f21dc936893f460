"""RoBERTa, fine-tuned: from texts to token ids, and from the published weights to a classifier."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.data.source import DataSource
from dphpo_bench.data.weights import Weights
from dphpo_bench.recipes.tokenizing import load_tokenizer, padded_ids, require_transformers

if TYPE_CHECKING:
    import torch
    from transformers import RobertaConfig

    from dphpo_bench.recipes.fine_tuning import Which
    from dphpo_bench.recipes.roberta_network import RobertaClassifier

ROBERTAS: "dict[str, Which]" = {"roberta": "all", "roberta_bitfit": "bitfit", "roberta_lora": "lora"}
"""The RoBERTa models of a task, and what of the network they train."""

LEARNING_RATES = {"roberta": 5e-4, "roberta_bitfit": 5e-3, "roberta_lora": 1e-3}
"""For AdamW, as published: Li et al., "Large language models can be strong differentially private learners", ICLR
2022; for biases Bu et al., "Differentially private bias-term fine-tuning of foundation models", ICML 2024; for LoRA Yu
et al. 2022. None was tuned here."""

ROBERTA = Weights(
    name="roberta-base",
    files=(
        ("model.safetensors", "5bde1d28afb363d0103324efeb5afc8b2b397fe5e04beabb9b1ef355255ade81"),
        ("tokenizer.json", "847bbeab6174d66a88898f729d52fa8d355fafe1bea101cf960dd404581df70e"),
    ),
    trained_on=("BookCorpus", "English Wikipedia", "CC-News", "OpenWebText", "Stories"),
    licence="MIT",
    homepage="https://huggingface.co/FacebookAI/roberta-base",
    repo_id="FacebookAI/roberta-base",
    revision="e2da8e2f811d1448a5b465c236feacd80ffbac7b",
)


@dataclass(frozen=True)
class Roberta:
    """A RoBERTa with a head for classes (Liu et al. 2019); the defaults are RoBERTa-base.

    The configuration stands here and not in a file, so that a model's structure is known without its weights.

    Attributes:
        longest: number of tokens after which a text or a pair is cut, RoBERTa's own marks counted in. Of a pair the
            longer text loses its end first.
        layers: number of blocks.
        heads: of attention.
        size: of a token.
        inner: width within a block.
        vocabulary: number of tokens.
        positions: two more than the longest text that the published model takes.
        rank: of LoRA. Source: Yu et al., "Differentially private fine-tuning of language models", ICLR 2022.
        weights: the network's, and its tokeniser.
    """

    longest: int = 128
    layers: int = 12
    heads: int = 12
    size: int = 768
    inner: int = 3072
    vocabulary: int = 50_265
    positions: int = 514
    rank: int = 16
    weights: Weights = ROBERTA

    def __post_init__(self) -> None:
        if not 8 <= self.longest <= self.positions - 2:  # 8: the marks of a pair, and some text
            raise InvalidValueError(
                f"Expected longest from 8 to {self.positions - 2} of {self.weights.name}, got {self.longest}."
            )

    @property
    def key(self) -> dict[str, Any]:
        """Identity of token ids and initial weights, for the cache and for the identity of a run."""
        return {"tokens": type(self).__name__, "longest": self.longest, "weights": self.weights.key}

    def token_ids(self, rows: Sequence[tuple[str, ...]], source: DataSource | None = None) -> "Iterator[torch.Tensor]":
        """Tokenise texts, or pairs of texts.

        Args:
            rows: of one text or two each.
            source: where the tokeniser is looked for; default: as the environment says.

        Yields:
            Consecutive rows, int32, shape (rows, longest): token after token, then the token for padding.

        Raises:
            DataError: if the weights cannot be had; see `weights_folder`.
            InvalidValueError: if the tokeniser has another vocabulary.
        """
        from dphpo_bench.recipes.roberta_network import PADDING

        tokenizer = load_tokenizer(self.weights, self.vocabulary, source)
        yield from padded_ids(tokenizer, rows, self.longest, PADDING, marks=True)

    def classifier(self, n_classes: int, which: "Which", source: DataSource | None = None) -> "RobertaClassifier":
        """Build the network with published weights, and a head drawn from torch's global generator.

        Args:
            n_classes: number of outputs.
            which: what is trained beside the head.
            source: where the weights are looked for; default: as the environment says.

        Raises:
            DataError: if the weights cannot be had, or are not this network's.
        """
        require_transformers()
        from dphpo_bench.recipes.fine_tuning import published
        from dphpo_bench.recipes.roberta_network import RobertaClassifier, encoder

        def named(tensors: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
            return {key.removeprefix("roberta."): tensor for key, tensor in tensors.items()}

        network = published(lambda: encoder(self._config()), self.weights, source, named)
        return RobertaClassifier(network, self.size, n_classes, which, self.rank)

    def structure(self, n_classes: int, which: "Which") -> "RobertaClassifier":
        """Build `classifier` without values, on torch's device "meta": no weights are needed."""
        require_transformers()
        import torch

        from dphpo_bench.recipes.roberta_network import RobertaClassifier, encoder

        with torch.device("meta"):
            return RobertaClassifier(encoder(self._config()), self.size, n_classes, which, self.rank)

    def _config(self) -> "RobertaConfig":
        from transformers import RobertaConfig

        from dphpo_bench.recipes.roberta_network import PADDING

        return RobertaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.inner,
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=self.positions,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            pad_token_id=PADDING,
        )
