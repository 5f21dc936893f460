"""Tiny networks with the files that are published of large ones: weights of other names, and a tokeniser of bytes."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.data.source import Weights, sha256_of_file
from dphpo_bench.testing import TaskContract
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.zoo.published import Gpt2, Roberta
from tests.training.models import flat

MARKS = ["<s>", "<pad>", "</s>", "<unk>"]
FILES = ("model.safetensors", "tokenizer.json")


def bytes_only(marks: list[str]) -> Tokenizer:
    """Each byte is a token."""
    names = [*marks, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    return tokenizer


def put_roberta(folder: Path, **options: Any) -> Roberta:
    """Write a RoBERTa with its head for masked words, and say what it is like."""
    tokenizer = bytes_only(MARKS)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.enable_padding(length=20)  # as some published ones do; it is not wanted
    parameters = {"longest": 12, "layers": 2, "heads": 2, "size": 16, "inner": 32, "vocabulary": 260, "positions": 20}
    config = transformers.RobertaConfig(
        vocab_size=260,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        initializer_range=0.3,
    )
    put(folder, transformers.RobertaForMaskedLM, config, tokenizer)
    return Roberta(**{**parameters, "rank": 2, "weights": published("tiny-roberta", folder), **options})


def put_gpt2(folder: Path, length: int = 24, positions: int = 40) -> Gpt2:
    """Write a GPT-2 without a last layer, as it is published, and say what it is like."""
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=positions, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3
    )
    put(folder, transformers.GPT2Model, config, bytes_only(["<|endoftext|>"]))
    return Gpt2(length, 2, 2, 16, 257, rank=2, alpha=4, weights=published("tiny-gpt2", folder))


def put(folder: Path, network: type[nn.Module], config: Any, tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def published(name: str, folder: Path, files: tuple[str, ...] = FILES) -> Weights:
    return Weights(
        name=name,
        files=tuple((file, sha256_of_file(folder / file)) for file in files),
        trained_on=("nothing",),
        licence="none",
        homepage="https://example.org",
        repo_id=f"someone/{name}",
    )


def loop(model: nn.Module, records: bench.Records, losses: Any, clipping: Clipping) -> Tensor:
    """The sum of clipped gradients by one backward pass for each record."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros(sum(parameter.numel() for parameter in parameters))
    for row in range(len(records)):
        one = records.rows(slice(row, row + 1))
        gradient = torch.autograd.grad(losses(one.outputs(model), one.targets).sum(), parameters)
        whole = flat(list(gradient))
        total += clipping.factors(whole.norm()[None])[0] * whole
    return total


def shaken(model: nn.Module) -> nn.Module:
    """The model in training mode with other weights where it is trained, so that no gradient is zero by accident."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.train()


def check_model(task: bench.Task, *more: str) -> None:
    """Run what the contract of tasks says of models, and more of its tests by name."""
    of_models = ("facts_are_public", "initial_weights_follow_the_seed", "model_and_losses_are_of_one_record_each")
    for name in (*of_models, *more):
        getattr(TaskContract(), f"test_{name}")(task)
