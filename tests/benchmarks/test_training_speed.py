"""Speed of the training engine, as ratios of runs that take turns.

Run with `pytest tests/benchmarks --benchmark-enable`. Ratios are reported: on a noisy machine they read half as much
again. Asserted is what noise cannot break, a wide margin that a wrong algorithm would miss, and on one thread only: on
several, threads wait for each other at every operation, and a neighbour on one core slows small operations tenfold.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dphpo_bench.training import linear as closed_form
from dphpo_bench.training import vmap
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.noise import add_gaussian_noise
from dphpo_bench.training.optimizers import UpdateRule
from dphpo_bench.training.stacked import StackedLinear
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
        for module in (closed_form, vmap):
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


def test_ghost_clipping_in_float64(benchmark, threads):
    """Both passes, against one backward pass of the same network in float32 and in float64."""
    inputs, targets = torch.randn(512, 2000), torch.randint(0, 10, (512,))
    model = torch.nn.Sequential(torch.nn.Linear(2000, 2000), torch.nn.Tanh(), torch.nn.Linear(2000, 10))
    twin = copy.deepcopy(model).double()
    ghost = engine_by("ghost", model)
    runs = {
        "float32 without privacy": lambda: functional.cross_entropy(model(inputs), targets).backward(),
        "float64 without privacy": lambda: functional.cross_entropy(twin(inputs.double()), targets).backward(),
        "float32": lambda: super(type(ghost), ghost).clipped_sum(inputs, targets, AutoS()),
        "float64": lambda: ghost.clipped_sum(inputs, targets, AutoS()),
    }
    record(benchmark, interleaved(runs, 7), "float32")


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


def test_backends_on_a_convolutional_network(benchmark, threads):
    inputs, targets = pictures(512)
    model = tanh_cnn()

    def without_privacy() -> None:
        functional.cross_entropy(model(inputs), targets).backward()
        model.zero_grad()

    runs: dict[str, Callable[[], object]] = {"without privacy": without_privacy}
    for backend in BACKENDS:
        engine = engine_by(backend, model)
        runs[backend] = lambda engine=engine: engine.clipped_sum(inputs, targets, AutoS())  # type: ignore[misc]
    record(benchmark, interleaved(runs, 7), "without privacy")


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
