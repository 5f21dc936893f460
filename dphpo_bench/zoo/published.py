"""RoBERTa and GPT-2, fine-tuned: from texts to token ids, from published weights to a network.

Where `source` is None, weights are searched as the environment says. On torch's device "meta" networks are built
without values, and need no weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import require_extra
from dphpo_bench.data.source import DataSource, Weights
from dphpo_bench.zoo.features import ROBERTA_PADDING
from dphpo_bench.zoo.texts import TokenIds, load_tokenizer, require_transformers

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import GPT2Config, RobertaConfig

    from dphpo_bench.zoo.language_models import PublishedCausalModel, TestTexts
    from dphpo_bench.zoo.networks import RobertaClassifier, Which


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
class Roberta(TokenIds):
    """A RoBERTa with a head for classes (Liu et al. 2019); the defaults are RoBERTa-base.

    The configuration stands here and not in a file, so that a model's structure is known without its weights.

    Attributes:
        longest: RoBERTa's own marks counted in.
        positions: two more than the longest text that the published model takes.
        rank: of LoRA. Source: Yu et al., "Differentially private fine-tuning of language models", ICLR 2022.
    """

    padding, marks = ROBERTA_PADDING, True

    longest: int = 128
    layers: int = 12
    heads: int = 12
    size: int = 768
    inner: int = 3072
    vocabulary: int = 50_265
    positions: int = 514
    rank: int = 16
    weights: Weights = ROBERTA

    def classifier(self, n_classes: int, which: "Which", source: DataSource | None = None) -> "RobertaClassifier":
        """Build the network with published weights, and a head drawn from torch's global generator.

        Args:
            which: what is trained beside the head.
        """
        require_transformers()
        from dphpo_bench.zoo.networks import RobertaClassifier, encoder, published

        def named(tensors: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
            return {key.removeprefix("roberta."): tensor for key, tensor in tensors.items()}

        network = published(lambda: encoder(self._config()), self.weights, source, named)
        return RobertaClassifier(network, self.size, n_classes, which, self.rank)

    def _config(self) -> "RobertaConfig":
        from transformers import RobertaConfig

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
            pad_token_id=ROBERTA_PADDING,
        )


END = "<|endoftext|>"
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # `Conv1D` in the file, `nn.Linear` here

GPT2 = Weights(
    name="gpt2",
    files=(
        ("model.safetensors", "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707"),
        ("tokenizer.json", "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6"),
    ),
    trained_on=("WebText",),
    licence="MIT",
    homepage="https://huggingface.co/openai-community/gpt2",
    repo_id="openai-community/gpt2",
    revision="607a30d783dfa663caf39e06633721c8d4cfcd7e",
)


@dataclass(frozen=True)
class Gpt2:
    """A GPT-2 (Radford et al. 2019); the defaults are the small one.

    The configuration stands here and not in a file, so that a model's structure is known without its weights.

    The published network uses the embedding's weights in its last layer, too. Here the last layer begins with a copy of
    them and is trained on its own: a record's gradient of shared weights has a row for each word there is. Of the
    published positions only the first `length` are there.

    Attributes:
        length: tokens that the network sees of a record.
        rank: of LoRA, whose product is multiplied by alpha / rank. Source, of both: Yu et al., "Differentially private
            fine-tuning of language models", ICLR 2022.
    """

    length: int = 100
    layers: int = 12
    heads: int = 12
    size: int = 768
    vocabulary: int = 50_257
    rank: int = 4
    alpha: int = 32
    weights: Weights = GPT2

    @property
    def key(self) -> dict[str, Any]:
        """Identity of token ids and initial weights, for the identity of a run."""
        return {"tokens": type(self).__name__, "length": self.length, "weights": self.weights.key}

    def records(
        self, prompts: Sequence[str], texts: Sequence[str], source: DataSource | None = None
    ) -> "tuple[Tensor, Tensor]":
        """Return inputs and targets of prompts, each followed by a text and its end; both of shape (n, length).

        Targets count for the text and its end alone. A text that does not fit is cut, and then has no end; a prompt
        that does not fit loses its own end, and leaves one token to the text.

        Args:
            texts: what is to be written for each.
        """
        import torch

        from dphpo_bench.training.losses import IGNORED

        tokenizer, end = self._tokenizer(source)
        inputs = torch.full((len(prompts), self.length), end)
        targets = torch.full((len(prompts), self.length), IGNORED)
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            before = tokenizer.encode(prompt).ids[: self.length]
            tokens = torch.tensor([*before, *tokenizer.encode(text).ids, end][: self.length + 1])
            inputs[row, : len(tokens) - 1] = tokens[:-1]
            targets[row, len(before) - 1 : len(tokens) - 1] = tokens[len(before) :]
        return inputs, targets

    def written(self, model: "nn.Module", test: "TestTexts", source: DataSource | None = None) -> list[str]:
        """Write a text for the prompt of each record, always with the likeliest token.

        Args:
            model: token ids of shape (n, length) → logits of the token after each.
        """
        from dphpo_bench.training.losses import IGNORED
        from dphpo_bench.zoo.language_models import greedy

        tokenizer, end = self._tokenizer(source)
        inputs, targets = (test.named()[name] for name in ("inputs", "targets"))
        sizes = (targets != IGNORED).int().argmax(1) + 1  # of prompts
        texts = [""] * len(test)
        for size in sorted(set(sizes.tolist())):  # texts of one size, because none is padded before its end
            rows = (sizes == size).nonzero()[:, 0]
            written = greedy(model, inputs[rows, :size], self.length + 1 - size, end)
            for row, tokens in zip(rows.tolist(), written, strict=True):
                texts[row] = tokenizer.decode(tokens).strip()
        return texts

    def network(self, which: "Which", source: DataSource | None = None) -> "PublishedCausalModel":
        """Build the network with published weights.

        Args:
            which: what is trained; LoRA is for queries, keys and values, which are one matrix.
        """
        require_transformers()
        from dphpo_bench.zoo.language_models import PublishedCausalModel
        from dphpo_bench.zoo.networks import published, train_only

        def named(published_tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
            tensors = {}
            for key, tensor in published_tensors.items():
                name = f"network.transformer.{key.removeprefix('transformer.')}"
                tensors[name] = tensor.T if name.endswith(_TRANSPOSED) else tensor
                if name.endswith(".wpe.weight"):  # of positions
                    tensors[name] = tensor[: self.length]
                if name.endswith(".wte.weight"):  # the embedding
                    tensors["network.lm_head.weight"] = tensor
            return tensors

        network = published(lambda: PublishedCausalModel(self.config()), self.weights, source, named)
        train_only(network, which, rank=self.rank, alpha=self.alpha, layers=("c_attn",))
        return network

    def _tokenizer(self, source: DataSource | None) -> "tuple[Any, int]":
        tokenizer: Any = load_tokenizer(self.weights, source)
        return tokenizer, tokenizer.token_to_id(END)

    def config(self) -> "GPT2Config":
        """Return the configuration, without dropout: the noise regularises enough."""
        require_extra("transformers", "Language models need", "transformers")
        from transformers import GPT2Config

        return GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=self.length,
            n_embd=self.size,
            n_layer=self.layers,
            n_head=self.heads,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own, in one operation
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
