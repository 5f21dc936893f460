"""Operators that a private step takes: on a GPU each of them is a launch, and small ones take as long as large ones."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from dphpo_bench.training import engine, layers, norms, recurrent
from dphpo_bench.training.clipping import AutoS
from tests.benchmarks.test_training_speed import NETWORKS, LastState
from tests.training.models import engine_by

ONLY_MEMORY = ("empty", "new_empty", "empty_like", "_unsafe_view", "detach", "alias", "lift_fresh")
"""Operators that compute nothing, beside views."""
MOST = {
    "cnn": 3.1,
    "cnn of 550,570 weights": 3.4,
    "perceptron of 13,770 weights": 3.6,
    "ViT-Ti": 1.8,
    "ViT-Ti, BitFit": 1.15,
    "ViT-Ti, LoRA": 1.1,
    "BERT-tiny": 1.9,
}
"""Operators of a private step over those of a step without privacy, measured in November 2026 and rounded upwards."""


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not (func.is_view or func.overloadpacket.__name__ in ONLY_MEMORY)
        return func(*args, **(kwargs or {}))


def operators(run) -> int:
    with Counted() as counted:
        run()
    return counted.count


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch, joined_as_on_a_gpu):
    """On a CPU, long work is cut into pieces that stay in its cache, and recurrent layers go step by step."""
    joined_as_on_a_gpu(engine._GPU_SMALL)
    monkeypatch.setattr(norms, "_TILE", norms._GPU_TILE)
    monkeypatch.setattr(norms, "_LONG", 2**62)
    monkeypatch.setattr(layers, "_CACHED", 2**62)
    monkeypatch.setattr(recurrent, "_STEPPED", ())


def private_step(model, inputs, targets):
    made = engine_by("layerwise", model)
    made.clipped_sum(inputs[:1], targets[:1], AutoS())  # measures what a record takes
    made._rows = len(inputs)
    return lambda: made.clipped_sum(inputs, targets, AutoS())


def plain_step(model, inputs, targets):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return lambda: torch.autograd.grad(functional.cross_entropy(model(inputs), targets), trained)


@pytest.mark.parametrize("name", MOST)
def test_operators_of_a_step(name):
    model, inputs, targets = NETWORKS[name]()
    inputs, targets = inputs[:4], targets[:4]
    private = operators(private_step(model, inputs, targets))
    assert private <= MOST[name] * operators(plain_step(model, inputs, targets))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_longer_sequence_takes_no_more_operators_than_its_kernel(kind):
    """On a GPU each kernel is one operator. On a CPU only that of an LSTM is."""
    inputs, targets = torch.randint(0, 1000, (4, 64)), torch.tensor([0, 1, 0, 1])
    model = LastState(kind(64, 64, batch_first=True))
    private, plain = (
        [operators(step(model, inputs[:, :length], targets)) for length in (32, 64)]
        for step in (private_step, plain_step)
    )
    assert private[1] - private[0] <= plain[1] - plain[0]
    if kind is nn.LSTM:
        assert private[1] == private[0] <= 95


def test_small_parameters_take_no_operators_of_their_own():
    def biases(count: int) -> int:
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(count)))
        for layer in model:
            layer.weight.requires_grad_(False)
        return operators(private_step(model, torch.randn(4, 3), torch.tensor([0, 1, 2, 0])))

    assert biases(9) - biases(8) <= 3  # forward, backward, and the bias' gradient
