"""Objective and output perturbation as queries: what is released, what a record can change, noise, price, refusals."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, ModelFailedError, OverBudgetError
from dphpo_bench.base.tensors import single
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.events import compose, gaussian, objective_perturbation
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session import minimum
from dphpo_bench.session.session import Session
from dphpo_bench.training.perturbed_minimum import PerturbedLoss, reachable_tolerance
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask, asking, session_on
from tests.session.test_units import open_on, visits

N = TinyTask.n_records
NO_NOISE = 1e-12
LAMBDA = 3.0


class Wide(TinyTask):
    """A linear layer of many weights, for tests of noise; float64, so that the cast of the release costs nothing."""

    name = "wide"

    def __init__(self, outputs: int = 3, bias: bool = True) -> None:
        super().__init__()
        self.outputs, self.bias = outputs, bias

    @property
    def facts(self) -> bench.TaskFacts:
        kind: Any = "binary" if self.outputs == 1 else "classification"
        classes = None if self.outputs == 1 else self.outputs
        return dataclasses.replace(super().facts, inputs=bench.recipes.Input((40, 50)), kind=kind, n_classes=classes)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(2000, self.outputs, bias=self.bias)).double()


def wide_records(n: int, outputs: int = 3) -> bench.Records:
    generator = torch.Generator().manual_seed(n)
    targets = torch.randint(max(outputs, 2), (n,), generator=generator)
    inputs = torch.randn(n, 40, 50, generator=generator)
    return bench.Records(inputs, targets.float() if outputs == 1 else targets)


def released(session: Session, noise: float = NO_NOISE, output_noise: float = NO_NOISE, rate: float = 1.0) -> list[Any]:
    model = session.build_model()
    outputs = next(iter(model.parameters())).shape[0]
    event = compose(objective_perturbation(noise, LAMBDA, outputs), gaussian(output_noise))
    return session.sample(asking(rate, event)).perturbed_minimum(model, LAMBDA, noise, output_noise)


def minimum_of(session: Session, noise: float = NO_NOISE) -> torch.Tensor:
    """The release of output perturbation as one tensor."""
    parts = session.sample(asking(1.0, gaussian(noise))).noisy_minimum(session.build_model(), LAMBDA, noise)
    return torch.cat([parts[0], *(part[:, None] for part in parts[1:])], dim=1)


def unit(records: bench.Records, bias: bool = True) -> torch.Tensor:
    inputs = records.inputs.flatten(1).double()
    if bias:
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
    return inputs / inputs.norm(dim=1, keepdim=True)


def gradient(records: bench.Records, weights: torch.Tensor, bias: bool = True) -> torch.Tensor:
    """The gradient of the regularised loss without the random term, by autograd."""
    weights = weights.clone().requires_grad_()
    logits = unit(records, bias) @ weights.T
    if len(weights) == 1:
        loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], records.targets.double(), reduction="sum")
    else:
        loss = nn.functional.cross_entropy(logits, records.targets, reduction="sum")
    (found,) = torch.autograd.grad(loss + LAMBDA / 2 * weights.square().sum(), weights)
    return found


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_without_noise_it_is_the_minimum(outputs: int, bias: bool) -> None:
    records = wide_records(50, outputs)
    parts = released(session_on(Wide(outputs, bias), records))
    assert [tuple(part.shape) for part in parts] == [(outputs, 2000), (outputs,)][: 1 + bias]
    weights = torch.cat([parts[0], *(part[:, None] for part in parts[1:])], dim=1)
    assert gradient(records, weights, bias).norm() < 1e-6
    weights = minimum_of(session_on(Wide(outputs, bias), records))
    assert weights.shape == (outputs, 2000 + bias)
    assert gradient(records, weights, bias).norm() < 1e-6


@pytest.mark.parametrize(("outputs", "bound"), [(1, 1.0), (3, math.sqrt(2))])
def test_the_noise_of_a_minimum_is_that_of_its_sensitivity(
    outputs: int, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False alarms: below 1e-8, at six standard errors."""
    records, noise = wide_records(50, outputs), 2.5
    exact = minimum_of(session_on(Wide(outputs), records))
    for tolerance in (None, 1.0):
        if tolerance:  # in truth it is next to nothing
            monkeypatch.setattr(minimum, "reachable_tolerance", lambda *_: 1.0)
            monkeypatch.setattr(PerturbedLoss, "minimum", lambda *_: exact.numpy().copy())
        moved = minimum_of(session_on(Wide(outputs), records), noise) - exact
        scaled = moved / (noise * (bound + 2 * (tolerance or 0)) / LAMBDA)
        assert float(scaled.std()) == pytest.approx(1, abs=6 / math.sqrt(2 * scaled.numel()))
        assert float(scaled.mean()) == pytest.approx(0, abs=6 / math.sqrt(scaled.numel()))


def test_the_ledger_pays_for_a_minimum_and_refuses_more() -> None:
    ledger = Ledger(allowance=gaussian(2.0))
    session = session_on(TinyTask(), TinyTask()._split(N, 1), ledger)
    batch, model = session.sample(asking(1.0, gaussian(2.0))), session.build_model()
    for refused in (1.9, None, 2.0):
        if refused is None:
            batch.noisy_minimum(model, LAMBDA, 2.0)
            continue
        with pytest.raises(OverBudgetError):
            batch.noisy_minimum(model, LAMBDA, refused)
    assert multiset(ledger.event) == multiset(gaussian(2.0))


@pytest.mark.parametrize(("outputs", "bound"), [(1, 1.0), (3, math.sqrt(2))])
def test_a_record_moves_the_minimum_by_no_more_than_its_sensitivity(outputs: int, bound: float) -> None:
    """From any other records, and from none, where the first record comes within half of the bound."""
    moved = []
    for n in (0, 1, 2, 10, 100):
        records = wide_records(n + 1, outputs)
        records.inputs[n] = records.inputs[0] * 1e6 if n else 1.0  # the same direction, or none known yet
        with_it = minimum_of(session_on(Wide(outputs), records))
        without = torch.zeros_like(with_it) if n == 0 else minimum_of(session_on(Wide(outputs), records.rows(slice(n))))
        moved.append(float((with_it - without).norm()))
    assert max(moved) <= bound / LAMBDA
    assert max(moved) >= 0.4 * bound / LAMBDA


def test_a_minimum_may_have_secure_noise() -> None:
    pytest.importorskip("opendp")
    tiny = TinyTask()._split(N, 1)
    session = session_on(TinyTask(), tiny, streams=Streams(1 << 255, (), True))
    assert minimum_of(session, 1.0).isfinite().all()


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_linear_term_has_the_deviation_that_is_charged(outputs: int) -> None:
    """The term follows from the release. False alarms: below 1e-8, at six standard errors."""
    records, noise = wide_records(50, outputs), 2.5
    weight, bias = released(session_on(Wide(outputs), records), noise)
    linear = -gradient(records, torch.cat([weight, bias[:, None]], dim=1))
    scaled = linear / (noise * (1 if outputs == 1 else math.sqrt(2)))
    assert float(scaled.std()) == pytest.approx(1, abs=6 / math.sqrt(2 * scaled.numel()))
    assert float(scaled.mean()) == pytest.approx(0, abs=6 / math.sqrt(scaled.numel()))


def test_the_weights_have_the_noise_that_covers_the_tolerance() -> None:
    records, output_noise = wide_records(50), 40.0
    without = torch.cat([part.flatten() for part in released(session_on(Wide(), records))])
    noisy = torch.cat([part.flatten() for part in released(session_on(Wide(), records), output_noise=output_noise)])
    tolerance = reachable_tolerance(N, (3, 2001), LAMBDA, NO_NOISE * math.sqrt(2))
    scaled = (noisy - without) / (output_noise * 2 * tolerance / LAMBDA)
    assert float(scaled.std()) == pytest.approx(1, abs=6 / math.sqrt(2 * scaled.numel()) + 0.05)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_record_moves_the_gradient_by_no_more_than_its_bound(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it holds, also labels that are none: by L, along one input, and the curvature as the theorem has it."""
    seen: list[PerturbedLoss] = []

    def remembering(self: PerturbedLoss, tolerance: float) -> np.ndarray:
        seen.append(self)
        return np.zeros_like(self.linear)

    monkeypatch.setattr(PerturbedLoss, "minimum", remembering)
    records = wide_records(4, outputs)
    records.inputs[1] = math.nan
    records.inputs[2] = 3e38
    records.targets[:] = torch.tensor([-100, 0, 1, 99])
    released(session_on(Wide(outputs), records))
    for row in range(4):
        alone = PerturbedLoss(seen[0].inputs[[row]], seen[0].labels[[row]], np.zeros((outputs, 2001)), 1e-9)
        for scale in (0.0, 1.0, 1e4):
            weights = scale * np.random.default_rng(row).normal(size=(outputs, 2001))
            moved, p = alone.gradient(weights)
            moved = moved - 1e-9 * weights
            assert np.linalg.norm(moved) <= (1 if outputs == 1 else math.sqrt(2)) + 1e-9
            assert np.linalg.matrix_rank(moved, tol=1e-9) <= 1
            label = int(alone.labels[0])
            residual = p[0] - (np.eye(outputs)[label] if outputs > 1 else label)
            if outputs == 1:  # one sign for each label
                assert (1 - 2 * label) * residual[0] >= 0
            else:  # within the hull of e_j − e_y
                assert residual[label] <= 0
                assert np.all(np.delete(residual, label) >= 0)
                assert residual.sum() == pytest.approx(0, abs=1e-12)


def test_a_poisson_batch_holds_a_sample() -> None:
    records = wide_records(50)
    session = session_on(Wide(), records)
    model = session.build_model()
    event = compose(objective_perturbation(NO_NOISE, LAMBDA, 3), gaussian(NO_NOISE))
    batch = session.sample(asking(0.5, event))
    assert 0 < len(batch._indices) < 50
    weight, bias = batch.perturbed_minimum(model, LAMBDA, NO_NOISE, NO_NOISE)
    assert gradient(records.rows(batch._indices), torch.cat([weight, bias[:, None]], dim=1)).norm() < 1e-6
    batch = session.sample(asking(0.5, gaussian(NO_NOISE)))
    weight, bias = batch.noisy_minimum(model, LAMBDA, NO_NOISE)
    assert gradient(records.rows(batch._indices), torch.cat([weight, bias[:, None]], dim=1)).norm() < 1e-6


def test_the_ledger_pays_for_both_releases_and_refuses_more() -> None:
    event = compose(objective_perturbation(2.0, LAMBDA, 3), gaussian(60.0))
    ledger = Ledger(allowance=event)
    session = session_on(TinyTask(), TinyTask()._split(N, 1), ledger)
    model = session.build_model()
    batch = session.sample(asking(1.0, event))
    for other in ((LAMBDA / 2, 2.0, 60.0), (LAMBDA, 1.9, 60.0), (LAMBDA, 2.0, 59.0)):
        with pytest.raises(OverBudgetError):
            batch.perturbed_minimum(model, *other)
    batch.perturbed_minimum(model, LAMBDA, 2.0, 60.0)
    assert multiset(ledger.event) == multiset(event)
    with pytest.raises(OverBudgetError):
        batch.perturbed_minimum(model, LAMBDA, 2.0, 60.0)


def test_what_the_theorem_does_not_cover_is_refused_before_it_is_charged() -> None:
    tiny = TinyTask()._split(N, 1)
    frozen = session_on(TinyTask(), tiny)
    frozen_model = frozen.build_model()
    [*frozen_model.parameters()][1].requires_grad_(False)
    secure = session_on(TinyTask(), tiny, streams=Streams(1 << 255, (), True))
    mlp, units = session_on(TinyTask("mlp"), tiny), open_on(visits())
    cases = [
        (frozen, frozen_model, "all weights trained"),
        (mlp, mlp.build_model(), "linear classifier"),
        (units, units.build_model(), "units of"),
        (secure, frozen.build_model(), "noise on a grid"),
    ]
    for session, model, reason in cases:
        event = compose(objective_perturbation(1.0, LAMBDA, 3), gaussian(30.0))
        session._access.ledger._allowance = None  # asked without a plan
        batch = session.sample(asking(0.5, event))
        before = multiset(session._access.ledger.event)
        with pytest.raises(InvalidValueError, match=reason):
            batch.perturbed_minimum(model, LAMBDA, 1.0, 30.0)
        assert multiset(session._access.ledger.event) == before
        assert not multiset(batch._account.event)
        if session is secure:  # noise on a grid will do for a minimum
            continue
        batch = session.sample(asking(0.5, gaussian(1.0)))
        with pytest.raises(InvalidValueError, match=reason):
            batch.noisy_minimum(model, LAMBDA, 1.0)
        assert not multiset(batch._account.event)


@pytest.mark.parametrize("n", [N, 4096])
def test_several_labels_of_a_record_are_refused_before_it_is_charged(n: int) -> None:
    """Shares of classes, which the cross-entropy takes: read in a row, a record would get the label of another."""
    tiny = TinyTask()._split(n, 1)
    session = session_on(TinyTask(), bench.Records(tiny.inputs, nn.functional.one_hot(single(tiny.targets)).float()))
    event = compose(objective_perturbation(1.0, LAMBDA, 3), gaussian(30.0))
    batch = session.sample(asking(0.5 if n == N else 1.0, event))
    with pytest.raises(InvalidValueError, match="one label for each record"):
        batch.perturbed_minimum(session.build_model(), LAMBDA, 1.0, 30.0)
    assert not multiset(batch._account.event)


def test_a_solver_that_falls_short_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimum, "reachable_tolerance", lambda *_: 1e-30)
    session = session_on(TinyTask(), TinyTask()._split(N, 1))
    with pytest.raises(ModelFailedError, match="tolerance"):
        released(session, 1.0, 30.0)
    other = session_on(TinyTask(), TinyTask()._split(N, 1))
    with pytest.raises(ModelFailedError, match="tolerance"):
        minimum_of(other, 1.0)
    with pytest.raises(OverBudgetError):
        bench.recipes.mean_score(other, other.build_model(), 1.0)
    with pytest.raises(OverBudgetError):
        bench.recipes.mean_score(session, session.build_model(), 1.0)
