"""Networks of transformers, all weights trained, with masks: gradients are those of a pass for each record."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records, call
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.gradients import LoopEngine, gradient_engine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.losses import cross_entropy
from tests.training.models import flat, relative_error

transformers = pytest.importorskip("transformers")

N, LENGTH, WORDS, CLASSES = 7, 10, 30, 3
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "num_labels": CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OF_ITS_OWN: dict[str, dict[str, Any]] = {
    "Bert": {},
    "DistilBert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12},
    "Albert": {"embedding_size": 6},
    "Electra": {"embedding_size": 6},
    "Roberta": {"type_vocab_size": 1},
    "GPT2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16},
    "OPT": {"ffn_dim": 12, "word_embed_proj_dim": 8},
    "Llama": {"num_key_value_heads": 1},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4},
}
ONLY_EAGER = ("DebertaV2",)


def classifier(name: str, attention: str = "sdpa") -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **OF_ITS_OWN[name]})
    config._attn_implementation = "eager" if name in ONLY_EAGER else attention
    model: nn.Module = getattr(transformers, f"{name}ForSequenceClassification")(config)
    return model


def texts() -> Records:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, WORDS, (N, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (N, 1), generator=generator)).long()
    targets = torch.randint(0, CLASSES, (N,), generator=generator)
    return Records({"input_ids": ids * mask, "attention_mask": mask}, targets)


def by_loop(model: nn.Module, records: Records, bound: float) -> list[Tensor]:
    model = copy.deepcopy(model).double()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
    for row in range(len(records)):
        some = records.rows(slice(row, row + 1)).to(torch.device("cpu"), torch.float64)
        loss = cross_entropy(call(model, some.inputs), some.named()["targets"])
        gradients = torch.autograd.grad(loss.sum(), parameters, allow_unused=True, materialize_grads=True)
        factor = min(1.0, bound / float(flat(list(gradients)).norm()))
        total = [sum_ + factor * gradient for sum_, gradient in zip(total, gradients, strict=True)]
    return total


def check(engine: Any, model: nn.Module, records: Records) -> None:
    expected = by_loop(model, records, 0.1)
    for rows in (slice(0, N), slice(2, 3), slice(1, 3)):  # a row of three is for all, whatever the number of records
        some = records.rows(rows)
        actual = engine.clipped_sum(some.inputs, some.targets, Abadi(0.1))
        assert relative_error(actual, expected if len(some) == N else by_loop(model, some, 0.1)) < 1e-5


@pytest.mark.parametrize(
    ("name", "attention"),
    [pytest.param(name, "eager", marks=() if name == "Bert" else pytest.mark.slow) for name in OF_ITS_OWN]
    + [(name, "sdpa") for name in OF_ITS_OWN],
)
def test_every_engine_agrees_with_a_loop(name: str, attention: str) -> None:
    model, records = classifier(name, attention).eval(), texts()
    chosen = gradient_engine(model, like=records)
    assert isinstance(chosen, LayerwiseEngine)
    check(chosen, model, records)
    check(LoopEngine(model, cross_entropy), model, records)


@pytest.mark.parametrize("name", OF_ITS_OWN)
def test_dropout_changes_no_engine(name: str) -> None:
    model, records = classifier(name).train(), texts()
    assert isinstance(gradient_engine(model, like=records), LayerwiseEngine)


def test_pictures() -> None:
    torch.manual_seed(0)
    sizes = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_labels")}
    config = transformers.ViTConfig(**sizes, intermediate_size=12, image_size=8, patch_size=4)
    model = transformers.ViTForImageClassification(config).eval()
    records = Records({"pixel_values": torch.randn(N, 3, 8, 8)}, texts().targets)
    check(gradient_engine(model, like=records), model, records)
    check(LoopEngine(model, cross_entropy), model, records)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama"])
def test_adapters(name: str, dora: bool) -> None:
    peft = pytest.importorskip("peft")
    modules = {"Bert": ["query", "value"], "GPT2": ["c_attn"], "Llama": ["q_proj", "v_proj"]}[name]
    model, records = classifier(name), texts()
    settings = peft.LoraConfig(r=2, target_modules=modules, use_dora=dora, fan_in_fan_out=name == "GPT2")
    peft.inject_adapter_in_model(settings, model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # B begins with zeros
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    assert sum(parameter.requires_grad for parameter in model.parameters()) >= 2
    engine = gradient_engine(model.eval(), like=records)
    assert isinstance(engine, LayerwiseEngine)
    check(engine, model, records)
