"""Methods that post-process DP-SGD's noisy gradients: they follow their formulas, and cost what DP-SGD costs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import signal
from torch import nn

import dphpo_bench as bench
from tests.conftest import session_on
from tests.own_task import array_task

BUDGET = bench.PrivacyBudget(3.0, 1e-3)
NEIGHBOURS = ("disk", "doppler", "dp_adam_bc", "muon", "tail_average")

Weights = NDArray[np.float64]


def task(network: Callable[[], nn.Module], inputs: int = 1, steps: int = 4, **options: Any) -> bench.ArrayTask:
    """64 records, two classes, batches of 16."""
    x = torch.randn(64, inputs, generator=torch.Generator().manual_seed(0))
    records = (x, (x[:, 0] > 0).long())
    return array_task("toy", records, network, records, public=True, batch_size=16, epochs=steps / 4, **options)


def flat(tensors: Sequence[torch.Tensor]) -> Weights:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).double().numpy()


def path(
    method: str,
    gradient: Callable[[int, Weights], Weights],
    monkeypatch: pytest.MonkeyPatch,
    noise: float = 1.0,
    steps: int = 4,
    network: Callable[[], nn.Module] = lambda: nn.Linear(1, 2),
    inputs: int = 1,
    **parameters: Any,
) -> tuple[Weights, Weights]:
    """Run a method on gradients that are known: where it asks for them, one row each, and the weights at the end."""
    configured = bench.make_method(method, {"averaging": 0.0, **parameters})
    of = task(network, inputs, steps)
    plan = configured.plan(of.facts, BUDGET)
    plan = replace(plan, parameters=replace(plan.parameters, noise_multiplier=noise))
    asked: list[Weights] = []

    def known(self: Any, session: Any, model: nn.Module) -> list[torch.Tensor]:
        weights = list(model.parameters())
        asked.append(flat(weights))
        values = gradient(len(asked) - 1, asked[-1])
        parts = np.split(values, np.cumsum([weight.numel() for weight in weights])[:-1])
        return [torch.tensor(part).to(weight).view_as(weight) for part, weight in zip(parts, weights, strict=True)]

    monkeypatch.setattr(bench.recipes.DpSgd, "gradient", known)
    model = configured.run(plan, session_on(of, of.load_train(None))).model  # type: ignore[arg-type]
    return np.array(asked), flat(list(model.parameters()))


def drawn(steps: int, weights: int = 4) -> Weights:
    return np.random.Generator(np.random.PCG64(0)).normal(size=(steps, weights))


@pytest.mark.filterwarnings("ignore:Not clearly better")
@pytest.mark.parametrize("method", NEIGHBOURS)
def test_costs_are_those_of_dp_sgd(method: str) -> None:
    """The same event in the plan, and in the ledger of a run."""
    of = task(lambda: nn.Linear(1, 2))
    plain, other = (bench.make_method(name, {"clipping": "psac"}) for name in ("dp_sgd", method))
    plan, expected = other.plan(of.facts, BUDGET), plain.plan(of.facts, BUDGET)
    assert (plan.event, plan.releases, plan.cost) == (expected.event, expected.releases, expected.cost)
    private, usual = (bench.run(configured, of, BUDGET, seed=0).record.privacy for configured in (other, plain))
    assert private == usual


# -------------------------------------------------------------------------------------------------------- DP-AdamBC


def test_adam_bc_is_that_of_the_authors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Displacements of `adam_corr` in github.com/ubc-systopia/DP-AdamBC, in float64; some coordinates at the floor."""
    seen = np.array(
        [[0.3, -0.2, 0.05, 0.0], [0.1, 0.4, -0.06, 0.02], [-0.25, 0.3, 0.07, -0.01], [0.2, 0.1, 0.04, 0.03]]
    )
    theirs = [
        [-0.0102243437, 0.0105272271, -0.05, 0.0],
        [-0.0193145996, 0.0067978075, -0.0421052632, -0.0105263158],
        [-0.020681985, 0.0007695828, -0.0629539716, -0.0134783453],
        [-0.0243823755, -0.0052174781, -0.0893715349, -0.0242954433],
    ]
    parameters: dict[str, Any] = {"learning_rate": 0.01, "floor": 1e-4, "smoothing": 0.99, "clipping": "abadi:0.5"}
    asked, end = path("dp_adam_bc", lambda step, _: seen[step], monkeypatch, noise=2.0, **parameters)
    np.testing.assert_allclose([*(asked[1:] - asked[0]), end - asked[0]], theirs, atol=2e-7)


@pytest.mark.parametrize("clipping", ["abadi:0.5", "auto_s", "auto_v", "abadi:30"])
def test_adam_bc_subtracts_the_variance_of_the_sessions_own_noise(clipping: str) -> None:
    """On gradients of 20,000 weights which the records hardly move; as for private units, where N is their number."""
    of = task(lambda: nn.Linear(9_999, 2), inputs=9_999)
    method = bench.make_method("dp_adam_bc", {"clipping": clipping})
    plan = method.plan(of.facts, BUDGET)
    released = method.run(plan, session_on(of, of.load_train(None))).released["noise"]  # type: ignore[arg-type]
    session = session_on(of, of.load_train(None))  # type: ignore[arg-type]
    gradients = [flat(plan.parameters.gradient(session, session.build_model())) for _ in range(4)]
    # Half the mean square of differences: of 40,000 numbers, its standard deviation is .7 %; clipped gradients of 16
    # records add at most C² / 16 to the length of 20,000 weights with noise, which is below .1 %.
    for first, other in (gradients[:2], gradients[2:]):
        assert np.mean((first - other) ** 2) / 2 == pytest.approx(released**2, rel=0.07)


# ----------------------------------------------------------------------------------------------------------- DOPPLER


@pytest.mark.parametrize(("pole", "zero"), [(0.9, 1.0), (0.9, 0.0), (0.9, -1 / 3), (0.6, 0.5), (0.0, 0.0)])
def test_doppler_is_scipys_filter(pole: float, zero: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, steps = drawn(30), 30
    asked, end = path("doppler", lambda step, _: seen[step], monkeypatch, steps=steps, pole=pole, zero=zero)
    now = (1 - pole) / (1 + zero)
    a, b = [1.0, -pole], [now, zero * now]
    filtered = signal.lfilter(b, a, seen, axis=0) / signal.lfilter(b, a, np.ones((steps, 1)), axis=0)
    np.testing.assert_allclose(np.diff([*asked, end], axis=0), -2 * filtered, rtol=1e-4, atol=1e-5)
    (first, last) = signal.freqz(b, a, [0.0, np.pi])[1]
    assert first == pytest.approx(1)
    assert abs(last) == pytest.approx(0, abs=1e-12) or zero < 1
    impulse = signal.lfilter(b, a, [1.0, *[0.0] * 2000])
    assert (impulse**2).sum() == pytest.approx(now**2 + (zero * now + pole * now) ** 2 / (1 - pole**2))


# -------------------------------------------------------------------------------------------------------------- DiSK


def test_disk_follows_its_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, gain, rate = drawn(9), 0.6, 0.1
    asked, end = path("disk", lambda s, w: seen[s] + np.sin(w), monkeypatch, steps=9, gain=gain, learning_rate=rate)
    before = weights = asked[0]
    filtered = np.zeros(4)
    for step in range(9):
        ahead = weights + (1 - gain) / gain * (weights - before)
        np.testing.assert_allclose(asked[step], ahead, rtol=1e-4, atol=1e-5)
        new = seen[step] + np.sin(ahead)
        filtered = (1 - gain) * filtered + gain * new if step else new
        before, weights = weights, weights - rate * filtered
    np.testing.assert_allclose(end, weights, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------------------- tail average


@pytest.mark.parametrize(
    ("steps", "tail", "averaged"), [(10, 0.5, 5), (10, 0.25, 3), (9, 0.01, 1), (9, 0.99, 9), (1, 0.5, 1)]
)
def test_the_tail_is_averaged_uniformly(
    steps: int, tail: float, averaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = drawn(steps)
    asked, end = path("tail_average", lambda step, _: seen[step], monkeypatch, steps=steps, tail=tail)
    trajectory = asked[0] - 2 * np.cumsum(seen, axis=0)
    np.testing.assert_allclose(asked[1:], trajectory[:-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(end, trajectory[-averaged:].mean(axis=0), rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------------------------- Muon


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 2))


def test_muon_makes_hidden_matrices_orthogonal_and_leaves_the_rest_to_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = drawn(1, sum(weight.numel() for weight in deep().parameters()))
    asked, end = path(
        "muon", lambda step, _: seen[step], monkeypatch, steps=1, network=deep, learning_rate=0.01, optimizer="AdamW"
    )
    matrix = slice(48, 48 + 24 * 16)  # behind the first layer's weights, which are a matrix of one column, and biases
    before, after = (part[matrix].reshape(16, 24) for part in (asked[0], end))
    step = (before * (1 - 0.01 * 0.1) - after) / (0.01 * 0.2 * np.sqrt(24))  # of its weight decay, and of its scale
    values = np.linalg.svd(step, compute_uv=False)
    assert values.min() > 0.5, values
    assert values.max() < 1.3, values
    left, _, right = np.linalg.svd(seen[0][matrix].reshape(16, 24), full_matrices=False)
    assert np.sum(step * (left @ right)) / np.linalg.norm(step) / 4 > 0.95, "it is U Vᵀ of the gradient"
    rest = np.ones(len(end), bool)
    rest[matrix], rest[:24] = False, False
    adamw = asked[0] * (1 - 0.01 * 0.01) - 0.01 * np.sign(seen[0])  # a first step
    np.testing.assert_allclose(end[rest], adamw[rest], rtol=1e-4, atol=1e-5)
