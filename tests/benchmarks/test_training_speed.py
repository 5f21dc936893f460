"""Speed of the training engine, as ratios of runs that take turns.

Run with `pytest tests/benchmarks --benchmark-enable --dist no -s`. Ratios are reported: on a noisy machine they read
half as much again. Asserted is what noise cannot break, a wide margin that a wrong algorithm would miss, and on one
thread only: on several, threads wait for each other at every operation, and a neighbour on one core slows small
operations tenfold.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.base.tensors import Records
from dphpo_bench.recipes import RandomFlip, RandomShift, networks
from dphpo_bench.training import layers
from dphpo_bench.training import linear as closed_form
from dphpo_bench.training.augmentation import Augmentation, augmented_sum
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.units import Units
from tests.training.models import BACKENDS, engine_by, linear, pictures, tanh_cnn


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def interleaved(runs: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Least wall time of each, in ms, the runs taking turns so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(values) for name, values in times.items()}


def record(benchmark, times: dict[str, float], reference: str) -> dict[str, float]:
    """Attach times and ratios to the report; pytest-benchmark itself times nothing here."""
    ratios = {name: value / times[reference] for name, value in times.items()}
    for name, value in times.items():
        benchmark.extra_info[name] = f"{value:.2f} ms, x{ratios[name]:.3f}"
        print(f"{name}: {value:.2f} ms, x{ratios[name]:.3f}")  # noqa: T201
    benchmark.pedantic(lambda: None)
    return ratios


def float32_product(total: Tensor, weights: Tensor, rows: Tensor) -> None:
    total += weights.float() @ rows


def float32_norms(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1).double()


@contextmanager
def float32_sums() -> Iterator[None]:
    """Records added up in float32, as must not be done: the reference for what float64 costs."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (closed_form, layers):
            patch.setattr(module, "add_product", float32_product)
            patch.setattr(module, "row_norms", float32_norms)
        yield


@pytest.mark.parametrize("kind", ["linear", "linear, an index in bfloat16", "layerwise"])
def test_sums_in_float64(benchmark, threads, kind):
    indices = None
    if kind.startswith("linear"):
        inputs, targets, model = torch.randn(4096, 4096), torch.randint(0, 10, (4096,)), linear(4096, 10)
        if "index" in kind:
            inputs, indices = inputs.bfloat16(), torch.arange(0, 4096, 4)
    else:
        (inputs, targets), model = pictures(512), tanh_cnn()
    before, engine = (engine_by(kind.partition(",")[0], model) for _ in range(2))

    def in_float32() -> None:
        with float32_sums():
            before.clipped_sum(inputs, targets, AutoS(), indices)

    runs = {"float32": in_float32, "float64": lambda: engine.clipped_sum(inputs, targets, AutoS(), indices)}
    record(benchmark, interleaved(runs), "float32")


class Logits(nn.Module):
    """A network of transformers that gives its logits, for pictures."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(pixel_values=inputs).logits
        return logits


def tiny_transformer(which: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A vision transformer of 5.4 million weights (ViT-Ti) for pictures of 32x32 in patches of 4x4."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "image_size": 32, "patch_size": 4}
    config = transformers.ViTConfig(**sizes, num_labels=10, attn_implementation="eager")
    network = transformers.ViTForImageClassification(config)
    if which == "LoRA":
        peft = pytest.importorskip("peft")
        peft.inject_adapter_in_model(peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), network)
        network.classifier.requires_grad_(True)
    if which == "BitFit":
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.endswith("bias") or name.startswith("classifier"))
    return Logits(network), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


class Classified(nn.Module):
    """A network of transformers that gives its logits, for token ids and the mask of those that are not 0."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.network(input_ids=ids, attention_mask=(ids != 0).long()).logits
        return logits


def bert_tiny() -> tuple[nn.Module, Tensor, Tensor]:
    """BERT of 4.4 million weights, all trained, with dropout, on 64 texts of 32 to 128 tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    network = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, num_labels=2))
    ids = torch.randint(1, 30522, (64, 128)) * (torch.arange(128) < torch.randint(32, 129, (64, 1)))
    return Classified(network), ids, torch.randint(0, 2, (64,))


def perceptron(width: int, n: int) -> tuple[nn.Module, Tensor, Tensor]:
    layers = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)]
    return nn.Sequential(*layers), torch.randn(n, width), torch.randint(0, 10, (n,))


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "cnn": lambda: (tanh_cnn(), *pictures(512)),
    "cnn of 550,570 weights": lambda: (
        networks.tanh_cnn((3, 32, 32), 10), torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    ),
    "perceptron of 13,770 weights": lambda: perceptron(80, 1024),
    "perceptron of 8,024,010 weights": lambda: perceptron(2000, 512),
    "ViT-Ti": lambda: tiny_transformer("all"),
    "ViT-Ti, BitFit": lambda: tiny_transformer("BitFit"),
    "ViT-Ti, LoRA": lambda: tiny_transformer("LoRA"),
    "BERT-tiny": bert_tiny,
}  # fmt: skip
NOT_BY_VMAP = ("perceptron of 8,024,010 weights", "BERT-tiny")
"""Half a minute, and not at all: vmap does not run `item()`."""
MOST = {
    "BERT-tiny": 1.4,
    "cnn": 1.0,
    "cnn of 550,570 weights": 1.25,
    "ViT-Ti": 1.25,
    "ViT-Ti, BitFit": 1.1,
    "ViT-Ti, LoRA": 1.1,
}
"""What a private step should cost on one thread of a quiet machine, over the same step without privacy."""


@pytest.mark.parametrize("name", NETWORKS)
def test_backends(benchmark, threads, name):
    model, inputs, targets = NETWORKS[name]()
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    runs: dict[str, Callable[[], object]] = {
        "without privacy": lambda: torch.autograd.grad(functional.cross_entropy(model(inputs), targets), parameters)
    }
    for backend in BACKENDS:
        if backend == "layerwise" or name not in NOT_BY_VMAP:
            engine = engine_by(backend, model)
            engine.clipped_sum(inputs[:1], targets[:1], AutoS())
            runs[backend] = lambda engine=engine: engine.clipped_sum(inputs, targets, AutoS())  # type: ignore[misc]
    ratios = record(benchmark, interleaved(runs, 7), "without privacy")
    if threads == 1 and name in MOST:
        assert ratios["layerwise"] <= 2 * MOST[name]


class LastState(nn.Module):
    """Words, a recurrent layer, and a linear one on its last output."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.words, self.recurrent, self.head = nn.Embedding(1000, 64), recurrent, nn.Linear(64, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.words(inputs))[0][:, -1])
        return logits


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers(benchmark, threads, kind):
    """On one thread of a quiet machine a private step should cost less than 3 times the step without privacy."""
    torch.manual_seed(0)
    model, inputs = LastState(kind(64, 64, batch_first=True)), torch.randint(0, 1000, (256, 64))
    targets, parameters = torch.randint(0, 2, (256,)), list(model.parameters())
    runs: dict[str, Callable[[], object]] = {
        "without privacy": lambda: torch.autograd.grad(functional.cross_entropy(model(inputs), targets), parameters)
    }
    for backend in BACKENDS:
        engine = engine_by(backend, model)
        runs[backend] = lambda engine=engine: engine.clipped_sum(inputs, targets, AutoS())  # type: ignore[misc]
    ratios = record(benchmark, interleaved(runs, 7), "without privacy")
    if threads == 1:
        assert ratios["layerwise"] <= 6


@pytest.mark.parametrize("records_each", [2, 5, 30])
@pytest.mark.parametrize("kind", ["linear", "perceptron, layerwise", "network, layerwise", "network, vmap"])
def test_step_by_unit(benchmark, threads, kind, records_each):
    """As many records in both steps; sizes of units are geometric, with this mean."""
    n = 4096 if kind == "linear" else 512
    if kind.startswith("network"):
        (inputs, targets), model = pictures(n), tanh_cnn()
    else:
        inputs, targets = torch.randn(n, 64), torch.randint(0, 10, (n,))
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)) if n == 512 else linear(64, 10)
    engine = engine_by(kind.rpartition(", ")[2], model)
    generator = torch.Generator().manual_seed(0)
    sizes = torch.empty(n).geometric_(1 / records_each, generator=generator).long()
    ids = torch.repeat_interleave(torch.arange(n), sizes)[:n][torch.randperm(n, generator=generator)]
    units, rows = Units.of(ids), torch.arange(n)
    runs = {
        "by record": lambda: engine.clipped_sum(inputs, targets, AutoS(), rows),
        "by unit": lambda: engine.clipped_unit_sum(inputs, targets, AutoS(), units),
    }
    ratios = record(benchmark, interleaved(runs), "by record")
    if threads == 1:
        assert ratios["by unit"] <= 100


@pytest.mark.parametrize("build", ["network", "linear"])
def test_variants_of_an_augmentation(benchmark, threads, build):
    """A step with K variants of each record, over a step without any: about K for a network."""
    inputs, targets = pictures(256)
    records = Records(inputs, targets)
    rows = torch.arange(len(inputs))
    units = Units(rows, torch.ones_like(rows))
    model = tanh_cnn() if build == "network" else nn.Sequential(nn.Flatten(), linear(784, 10))
    engine = engine_by("layerwise" if build == "network" else "linear", model)
    generator = torch.Generator().manual_seed(0)

    def step(copies: int) -> None:
        augmentation = Augmentation((RandomShift(4), RandomFlip()), copies)
        augmented_sum(engine, records, AutoS(), units, augmentation, generator)

    runs: dict[str, Callable[[], object]] = {"none": lambda: engine.clipped_sum(inputs, targets, AutoS(), rows)}
    runs |= {f"{copies} variants": partial(step, copies) for copies in (1, 4, 16)}
    ratios = record(benchmark, interleaved(runs, rounds=5), "none")
    if threads == 1 and build == "network":
        assert ratios["16 variants"] < 16 * 4
