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

from dphpo_bench.base.tensors import Records, gathered
from dphpo_bench.recipes import networks
from dphpo_bench.training import engine as any_engine
from dphpo_bench.training import evaluation
from dphpo_bench.training import linear as closed_form
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.linear import StackedLinear
from dphpo_bench.training.noise import add_gaussian_noise
from dphpo_bench.training.optimizers import UpdateRule
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
        for module in (closed_form, any_engine):
            patch.setattr(module, "add_product", float32_product)
            patch.setattr(module, "row_norms", float32_norms)
        yield


@pytest.mark.parametrize("kind", ["linear", "linear, an index in bfloat16", "vmap"])
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


def test_linear_step_on_a_given_batch(benchmark, threads):
    inputs, targets = torch.randn(1024, 4096), torch.randint(0, 10, (1024,))
    model = linear(4096, 10)
    weight, residuals = model.weight.detach(), torch.randn(1024, 10)
    engine = gradient_engine(model)
    runs = {
        "two products": lambda: (functional.linear(inputs, weight), residuals.t() @ inputs),
        "step": lambda: engine.clipped_sum(inputs, targets, AutoS()),
        "step on an unknown tensor": lambda: engine.clipped_sum(inputs[:], targets, AutoS()),
    }
    # In turns with the other, the known tensor would be forgotten each time.
    times = interleaved({k: runs[k] for k in ("two products", "step")}, 201)
    fresh = interleaved({k: runs[k] for k in ("two products", "step on an unknown tensor")}, 41)
    scale = times["two products"] / fresh["two products"]
    times["step on an unknown tensor"] = fresh["step on an unknown tensor"] * scale
    ratios = record(benchmark, times, "two products")
    if threads == 1:
        assert ratios["step"] <= 6


def test_linear_step_on_an_indexed_dataset_in_bfloat16(benchmark, threads):
    data = torch.empty(30_000, 8000, dtype=torch.bfloat16).normal_()
    targets = torch.randint(0, 10, (30_000,))
    indices = torch.randperm(30_000)[:8192].sort().values
    model = linear(8000, 10)
    weight, residuals, batch = model.weight.detach(), torch.randn(8192, 10), data[indices].float()
    engine = gradient_engine(model)
    times = interleaved(
        {
            "two products": lambda: (functional.linear(batch, weight), residuals.t() @ batch),
            "step": lambda: engine.clipped_sum(data, targets, AutoS(), indices),
        },
        9,
    )
    ratios = record(benchmark, times, "two products")
    if threads == 1:
        assert ratios["step"] <= 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_ten_linear_models_on_a_full_batch(benchmark, threads, dtype):
    inputs, targets = torch.randn(8192, 4096).to(dtype), torch.randint(0, 10, (8192,))
    models = [linear(4096, 10) for _ in range(10)]
    engines, stack = [gradient_engine(model) for model in models], StackedLinear(models)
    runs = {
        "stacked": lambda: stack.clipped_sums(inputs, targets, [AutoS()] * 10),
        "one after the other": lambda: [engine.clipped_sum(inputs, targets, AutoS()) for engine in engines],
    }
    ratios = record(benchmark, interleaved(runs, 7), "stacked")
    if threads == 1:
        assert ratios["one after the other"] > 1


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
}  # fmt: skip
MOST = {"cnn": 1.0, "cnn of 550,570 weights": 1.25, "ViT-Ti": 1.25, "ViT-Ti, BitFit": 1.1, "ViT-Ti, LoRA": 1.1}
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
        engine = engine_by(backend, model)
        engine.clipped_sum(inputs[:1], targets[:1], AutoS())
        if backend == "layerwise" or "8,024,010" not in name:  # half a minute by vmap
            runs[backend] = lambda engine=engine: engine.clipped_sum(inputs, targets, AutoS())  # type: ignore[misc]
    ratios = record(benchmark, interleaved(runs, 7), "without privacy")
    if threads == 1 and name in MOST:
        assert ratios["layerwise"] <= 2 * MOST[name]


def texts(number):
    """A block of MiniLM with LoRA, and texts of 13 tokens on average and 48 at most, as those of SST-2 are."""
    pytest.importorskip("peft")
    from dphpo_bench.recipes.pooling_block import PoolingBlock
    from dphpo_bench.recipes.text_features import TextFeatures

    torch.manual_seed(0)
    features = TextFeatures(longest=48)
    network = PoolingBlock(features.block_structure().to_empty(device="cpu"), features.size, 2, "lora")
    for weights in network.parameters():
        weights.data.normal_(std=0.02)
    lengths = (-10.4 * torch.rand(number).log()).int() + 3
    inputs = torch.randn(number, 48, features.size) * (torch.arange(48) < lengths[:, None])[..., None]
    return network, inputs, torch.randint(0, 2, (number,))


class OwnClass(nn.Module):
    """A network in a class that is not torch's: it might write to its inputs, so it gets copies."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits


@contextmanager
def records_themselves() -> Iterator[None]:
    """Views of records where models and losses get copies: the reference for what copies cost."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (any_engine, evaluation):
            patch.setattr(module, "gathered", lambda *args, **kwargs: gathered(*args, **{**kwargs, "copy": False}))
        patch.setattr(any_engine.RowMemory, "of", lambda _, tensor, rows, *to: gathered(tensor, rows, *to, copy=False))
        yield


def narrow() -> tuple[nn.Module, Tensor, Tensor]:
    """A small perceptron on the 108 columns of Adult."""
    layers = [nn.Linear(108, 32), nn.Tanh(), nn.Linear(32, 10)]
    return nn.Sequential(*layers), torch.randn(20_000, 108), torch.randint(0, 10, (20_000,))


COPIED: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor, Tensor]], str]] = {
    "linear": (lambda: (linear(4096, 10), torch.randn(4096, 4096), torch.randint(0, 10, (4096,))), "linear"),
    "linear layer by layer": (
        lambda: (linear(4096, 10), torch.randn(4096, 4096), torch.randint(0, 10, (4096,))), "layerwise"
    ),
    "perceptron": (narrow, "layerwise"),
    "perceptron by vmap": (narrow, "vmap"),
    "perceptron of one's own": (lambda: (OwnClass(narrow()[0]), *narrow()[1:]), "layerwise"),
    "perceptron of one's own, 4096 wide": (
        lambda: (OwnClass(nn.Sequential(nn.Linear(4096, 32), nn.Tanh(), nn.Linear(32, 10))),
                 torch.randn(4096, 4096), torch.randint(0, 10, (4096,))), "layerwise"
    ),
    "cnn": (lambda: (tanh_cnn(), *pictures(512)), "layerwise"),
    "cnn by vmap": (lambda: (tanh_cnn(), *pictures(512)), "vmap"),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("what", ["step", "test"])
def test_copies_of_full_batches(benchmark, threads, what, name):
    """Models and losses may write to what they get; batches below all records are gathered anyway."""
    make, backend = COPIED[name]
    model, inputs, targets = make()
    engine, records = engine_by(backend, model), Records(inputs, targets)
    run = {
        "step": partial(engine.clipped_sum, inputs, targets, AutoS()),
        "test": partial(evaluation.all_outputs, model, records),
    }[what]

    def without() -> None:
        with records_themselves():
            run()

    ratios = record(benchmark, interleaved({"views": without, "copies": run}), "views")
    if threads == 1 and what == "step":
        assert ratios["copies"] <= 1.25


def test_micro_batches_are_taken_once_for_several_weights(benchmark, threads):
    """Texts as features in half precision: taking them costs a quarter of what a network of one block makes of them."""
    network, inputs, targets = texts(2048)
    engine = engine_by("layerwise", network)
    direction = [torch.randn_like(weights) * 1e-3 for weights in engine.parameters]
    arguments = inputs.bfloat16(), targets, direction
    runs = {
        "three weights together": lambda: engine.losses_along(*arguments, (0.0, 1.0, -1.0)),
        "one after the other": lambda: [engine.losses_along(*arguments, (step,)) for step in (0.0, 1.0, -1.0)],
    }
    ratios = record(benchmark, interleaved(runs, 5), "three weights together")
    if threads == 1:
        assert ratios["one after the other"] > 1.05


def test_texts_of_several_lengths(benchmark, threads):
    """Cut to their length, or not."""
    from dphpo_bench.recipes.pooling_block import PoolingBlock

    class Whole(nn.Module):
        """The same network, which does not say how long texts are."""

        def __init__(self, network: PoolingBlock) -> None:
            super().__init__()
            self.network = network

        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.network(inputs)
            return logits

    network, inputs, targets = texts(256)
    engines = {"cut to their length": engine_by("layerwise", network), "whole": engine_by("layerwise", Whole(network))}
    runs = {name: partial(engine.clipped_sum, inputs, targets, AutoS()) for name, engine in engines.items()}
    ratios = record(benchmark, interleaved(runs, 5), "cut to their length")
    if threads == 1:
        assert ratios["whole"] > 1.15


@pytest.mark.parametrize("fraction", [1, 0.5, 0.25])
@pytest.mark.parametrize("kind", ["linear", "cnn"])
def test_losses_along_the_direction(benchmark, threads, kind, fraction):
    """Three losses on a batch of their own every K steps, as a share of the private step."""
    if kind == "linear":
        inputs, targets = torch.randn(20_000, 4096), torch.randint(0, 10, (20_000,))
        model, size = linear(4096, 10), 4096
    else:
        inputs, targets = pictures(4000)
        model, size = tanh_cnn(), 512
    engine = gradient_engine(model)
    update = UpdateRule("adamw", engine.parameters)
    noise = torch.Generator().manual_seed(0)
    batch, other = torch.randperm(len(inputs))[: 2 * size].split(size)
    batch, other = batch.sort().values, other[: int(fraction * size)].sort().values
    direction = [torch.randn_like(p) * 1e-3 for p in engine.parameters]

    def step() -> None:
        total = engine.clipped_sum(inputs, targets, AutoS(), batch)
        noisy = add_gaussian_noise(total, 1.0, 1.0, noise)
        update.apply(update.direction([gradient / size for gradient in noisy]), 1e-3)

    times = interleaved(
        {
            "private step": step,
            "three losses": lambda: engine.losses_along(inputs, targets, direction, [-0.1, 0.0, 0.1], other),
        },
        15,
    )
    ratios = record(benchmark, times, "private step")
    extra = {interval: 1 + ratios["three losses"] / interval for interval in (5, 10)}
    print(f"K=5: x{extra[5]:.3f}, K=10: x{extra[10]:.3f}")  # noqa: T201
    benchmark.extra_info.update({f"K={interval}": round(value, 3) for interval, value in extra.items()})
    if threads == 1:
        assert extra[5] <= 1.5


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
