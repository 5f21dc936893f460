"""Networks that tasks train: heads and blocks of pretrained encoders, and a recurrent network."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, layer_norm

from dphpo_bench.base.errors import require_extra
from dphpo_bench.data.source import DataSource, Weights, weights_folder
from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.training.evaluation import last_place
from dphpo_bench.zoo.features import PADDING, ROBERTA_PADDING

if TYPE_CHECKING:
    from transformers import RobertaConfig, RobertaModel, ViTConfig, ViTModel


Network = TypeVar("Network", bound=nn.Module)

Which = Literal["all", "bitfit", "lora"]
"""Weights of a pretrained network that are trained beside a head: all; the biases (Ben Zaken et al., ACL 2022); or a
product of two thin matrices, zero at first, that is added to some weights (Hu et al., ICLR 2022)."""


def train_only(network: nn.Module, which: Which, *, rank: int, alpha: int, layers: tuple[str, ...]) -> None:
    """Freeze all other weights of a pretrained network without its head; add LoRA's matrices if asked for, in place.

    Args:
        network: changed in place.
        which: see `Which`.
        rank: of LoRA's product, which is multiplied by alpha / rank.
        layers: names of the linear layers that LoRA adds to.
    """
    if which == "bitfit":
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
    if which == "lora":
        require_extra("transformers", "LoRA needs", "peft")
        from peft import LoraConfig, inject_adapter_in_model

        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(layers)), network)


def on_meta() -> bool:
    """Return True inside of `torch.device("meta")`, where tensors have no values."""
    return torch.empty(0).is_meta


def published(
    build: Callable[[], Network],
    weights: Weights,
    source: DataSource | None,
    named: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> Network:
    """Build a network and fill it with published weights, as float32; draw no random number.

    On torch's device "meta" a network has its structure alone, and needs no weights.

    Args:
        build: makes the network; every buffer of it is stored with the weights.
        weights: whose first file is one of safetensors. What the network does not have is left out.
        source: where the weights are looked for; default: as the environment says.
        named: returns published tensors under the network's names; one that has such a name already needs no other.
    """
    from safetensors.torch import load_file

    with torch.device("meta"):  # structure alone
        network = build()
    if on_meta():
        return network
    network = network.to_empty(device="cpu")
    expected = network.state_dict()
    file = weights_folder(source, weights) / weights.files[0][0]
    as_published = load_file(file)
    tensors = named(as_published) | as_published
    network.load_state_dict({name: tensor.float() for name, tensor in tensors.items() if name in expected})
    return network


_RANK = 4
# Published files have the names of earlier versions of transformers.
_RENAMED = (
    (r"^vit\.", ""),
    (r"^encoder\.layer\.", "layers."),
    (r"\.attention\.attention\.(query|key|value)\.", lambda match: f".attention.{match[1][0]}_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)


class PictureClassifier(nn.Module):
    """A vision transformer and a linear layer on its class token, which starts from zero.

    Args:
        network: as `empty` makes it; changed in place.
        which: what is trained beside the head; LoRA is for queries and values.
    """

    def __init__(self, network: "ViTModel", n_classes: int, which: Which) -> None:
        super().__init__()
        # The layers' names since transformers 5.0 and before.
        train_only(network, which, rank=_RANK, alpha=_RANK, layers=("q_proj", "v_proj", "query", "value"))
        self.network = network
        self.head = zero_linear(network.config.hidden_size, n_classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits of pictures; see `class_tokens`."""
        logits: Tensor = self.head(class_tokens(self.network, pixels))
        return logits


def class_tokens(network: "ViTModel", pixels: Tensor) -> Tensor:
    """Return the last layer's output for the class token, shape (n, width).

    Args:
        pixels: 0 to 255, shape (n, 1 or 3, height, width); grey pictures become coloured ones. They are scaled by the
            constants, and resized in the way, that the network was trained with.
    """
    side: Any = network.config.image_size
    images = pixels.float().div(127.5).sub(1)
    if images.shape[-2:] != (side, side):
        images = interpolate(images, size=(side, side), mode="bilinear", antialias=True)
    tokens: Tensor = network(pixel_values=images.expand(-1, 3, -1, -1)).last_hidden_state
    return tokens[:, 0]


def empty(config: "ViTConfig") -> "ViTModel":
    """Build the network without a head. On the meta device it has no weights, and draws no random numbers."""
    from transformers import ViTModel

    return ViTModel(config, add_pooling_layer=False)


def named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name published tensors as transformers does since 5.0."""
    for pattern, name in _RENAMED:
        tensors = {re.sub(pattern, name, key): tensor for key, tensor in tensors.items()}
    return tensors


_DEVIATION = 0.02  # of initial weights, as in RoBERTa


class RobertaClassifier(nn.Module):
    """Token ids, shape (n, length), padded at their end by `ROBERTA_PADDING` → logits of classes, shape (n, classes).

    The head is that of the literature: a layer, tanh and another layer on what is put out for the first token.

    Masks and positions are made here, in one row for each record: what transformers makes of other masks branches on
    their values, and fails where gradients of records are computed side by side.

    Args:
        network: an encoder as `encoder` makes it; changed in place.
        which: what is trained beside the head; of LoRA's layers queries and values get matrices.
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
        return last_place(ids != ROBERTA_PADDING)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits for token ids of any integer type."""
        ids = ids.long()
        is_token = ids != ROBERTA_PADDING
        places = torch.where(is_token, is_token.cumsum(1) + ROBERTA_PADDING, ROBERTA_PADDING)  # as RoBERTa counts them
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


class PoolingBlock(nn.Module):
    """A block that the mean of the tokens goes through, and a linear layer that starts from zero.

    The mean attends to all tokens, as each of them does in the encoder; what comes out is brought to mean 0 and
    variance 1. Only keys and values are computed for each token. If every token went through the block, and the mean
    were taken behind it, a run on SST-2 would take three times as long for half a point of accuracy (docs/tasks.md).

    Args:
        block: one of BERT's, pretrained; changed in place.
        which: what is trained beside the head; LoRA is for queries and values.
    """

    def __init__(self, block: nn.Module, width: int, n_classes: int, which: Which) -> None:
        super().__init__()
        self.block = block
        self.head = zero_linear(width, n_classes)  # before LoRA: both draw random numbers
        train_only(block, which, rank=_RANK, alpha=_RANK, layers=("query", "value"))

    def lengths_of(self, inputs: Tensor) -> Tensor:
        """Return the number of tokens of each text."""
        return last_place(_are_tokens(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of tokens, shape (n, length, width); places after the end of a text hold zeros."""
        block: Any = self.block
        attention = block.attention.self
        is_token = _are_tokens(inputs)
        mean = inputs.sum(1) / is_token.sum(1, keepdim=True).clamp(min=1)

        def by_head(values: Tensor) -> Tensor:
            return values.view(*values.shape[:-1], attention.num_attention_heads, -1)

        query, keys = by_head(attention.query(mean)), by_head(attention.key(inputs))
        scores = torch.einsum("nhd,nlhd->nhl", query, keys) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~is_token[:, None], -1e9).softmax(-1)  # of an empty text no nan
        seen = torch.einsum("nhl,nlhd->nhd", weights, by_head(attention.value(inputs))).flatten(1)
        attended = block.attention.output(seen, mean)
        pooled = block.output(block.intermediate(attended), attended)
        logits: Tensor = self.head(layer_norm(pooled, pooled.shape[-1:]))
        return logits


def _are_tokens(inputs: Tensor) -> Tensor:
    """Return where there is a token, shape (n, length). `(inputs != 0).any(-1)` takes three times as long."""
    return inputs.abs().amax(-1) != 0


class GruClassifier(nn.Module):
    """A frozen embedding of tokens, a GRU, and a linear layer that starts from zero on the mean of the states.

    The mean did better than the state after the last token on a split of SST-2's training records (docs/tasks.md).

    Source of the GRU: Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation", EMNLP 2014.

    Args:
        table: embeddings, shape (vocabulary, width). They are not trained: most of their rows no record has, and noise
            would be added to all.
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
