"""Loops of a caller's own around a tuner, on three Gaussian blobs."""

import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import dphpo_bench as bench
from dphpo_bench.training.noise import add_gaussian_noise, poisson_sample
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask

BUDGET = bench.PrivacyBudget(epsilon=3.0, delta=1e-4)
TASK = TinyTask()
TRAIN = TASK.load_train(bench.DataSource.resolve())
TEST = TASK.load_test(bench.DataSource.resolve())
DATA = TensorDataset(TRAIN.inputs, TRAIN.targets)
N, RATE, STEPS = len(DATA), 1 / 6, 30


def losses(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of each record."""
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network(name: str = "mlp", seed: int = 0) -> nn.Module:
    """A model at the weights of a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyTask(name).build_model()


def tuner_of(model: nn.Module, data: Any = None, losses_: Any = losses, **options: Any) -> bench.hyfreedp.Tuner:
    """A tuner of the blobs that nothing counts."""
    options = {"sample_rate": RATE, "steps": STEPS, "budget": BUDGET, "name": "blobs", **options}
    return bench.hyfreedp.Tuner(model, (TRAIN.inputs, TRAIN.targets) if data is None else data, losses_, **options)


def having(tuner: bench.hyfreedp.Tuner, streams: Streams) -> bench.hyfreedp.Tuner:
    """The tuner with streams of somebody else's."""
    tuner._streams = streams
    return tuner


def private(model: nn.Module, tuner: bench.hyfreedp.Tuner | None, accountant: str = "rdp", **options: Any) -> Any:
    """Opacus' module or hooks, its optimiser, its loader, its accountant."""
    optimizer = options.pop("optimizer", None) or torch.optim.AdamW(model.parameters())
    engine = PrivacyEngine(accountant=accountant)
    loader = options.pop("loader", None) or DataLoader(DATA, batch_size=round(N * RATE))
    noise = options.pop("noise_multiplier", None) or (tuner.noise_multiplier if tuner else 1.0)
    options = {"max_grad_norm": 0.1, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, **options
        )
    return *parts, engine.accountant


def batches(loader: Any, steps: int) -> Iterator[Any]:
    """So many batches of a loader, however often it is run through."""
    taken = 0
    while taken < steps:
        for batch in loader:
            yield batch
            taken += 1
            if taken == steps:
                return


def seeded(study: Any, seed: int | None) -> Any:
    """The study, whose secrets are drawn from a seed when its loop begins."""
    begin = study._run.open

    def open_seeded() -> Any:
        with patch("dphpo_bench.external.declared.secrets.randbits", lambda bits: seed % 2**bits):
            return begin()

    if seed is not None:
        study._run.open = open_seeded
    return study


class SameBatches:
    """The batches that a session draws for a training of these streams."""

    sample_rate = RATE

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def __iter__(self) -> Iterator[list[int]]:
        generator = self._streams.source("sample", "training")
        for _ in range(STEPS):
            yield poisson_sample(N, RATE, generator).tolist()

    def __len__(self) -> int:
        return STEPS


class SameNoise(DPOptimizer):
    """An optimiser of Opacus whose noise is that of a session of these streams."""

    source: Any = None

    def add_noise(self) -> None:
        sums = [weight.summed_grad.double() for weight in self.params]
        noisy = add_gaussian_noise(sums, self.noise_multiplier, self.max_grad_norm, self.source)
        for weight, part in zip(self.params, noisy, strict=True):
            weight.grad = part.to(weight.dtype)
            weight.summed_grad._processed = True


def as_the_session(
    model: nn.Module, tuner: bench.hyfreedp.Tuner, norm: float, streams: Streams, optimizer: Any = None
) -> Any:
    """Opacus' module, optimiser and loader, with batches and noise of a session."""
    noisy = SameNoise(
        optimizer or torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
        noise_multiplier=tuner.noise_multiplier,
        max_grad_norm=norm,
        expected_batch_size=round(RATE * N),
    )
    noisy.source = streams.source("noise", "gradient")
    return GradSampleModule(model), noisy, DataLoader(DATA, batch_sampler=SameBatches(streams))
