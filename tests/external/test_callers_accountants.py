"""ε in the caller's accountant: what Opacus says of a training is what was declared."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from opacus import GradSampleModule
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch.nn import functional
from torch.utils.data import DataLoader

import dphpo_bench as bench
from dphpo_bench.external.opacus import note
from tests.external.loops import BUDGET, DATA, RATE, STEPS, N, batches, network, private, tuner_of

pytestmark = pytest.mark.filterwarnings("ignore:No account counts", "ignore:.*hook", "ignore:Secure RNG", "ignore:GDP")


def after_a_training(accountant: str, **options: Any) -> tuple[bench.hyfreedp.Tuner, Any]:
    model = network()
    tuner = tuner_of(model, **options)
    module, optimizer, loader, accountant = private(model, tuner, accountant)
    tuner.attach(optimizer, loader, accountant)
    for x, y in batches(loader, STEPS):
        functional.cross_entropy(module(x), y).backward()
        tuner.step()
    tuner.finish()
    return tuner, accountant


def test_the_rdp_accountant_of_opacus_agrees_with_that_of_dp_accounting_of_the_declared_event() -> None:
    """At integer orders both compute the divergence of Mironov et al. exactly, and they convert it in the same way."""
    tuner, accountant = after_a_training("rdp")
    assert isinstance(accountant, RDPAccountant)
    orders = [*range(2, 64)]
    outside = RdpAccountant(orders).compose(tuner.event)
    assert accountant.get_epsilon(BUDGET.delta, alphas=orders) == pytest.approx(
        outside.get_epsilon(BUDGET.delta), rel=1e-6
    )


def test_the_prv_accountant_of_opacus_agrees_with_the_budget() -> None:
    """Its answer is an upper bound, by default .01 above its estimate."""
    tuner, accountant = after_a_training("prv")
    assert isinstance(accountant, PRVAccountant)
    declared = bench.events.epsilon(tuner.event, BUDGET.delta).epsilon
    assert declared <= BUDGET.epsilon
    assert accountant.get_epsilon(BUDGET.delta) == pytest.approx(declared, abs=0.03)


def test_gradients_of_an_optimiser_that_tells_no_accountant_are_noted() -> None:
    """A DPOptimizer made by hand has no step hook."""
    model, accountant = network(), RDPAccountant()
    tuner, module = tuner_of(model), GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=tuner.noise_multiplier,
        max_grad_norm=0.1,
        expected_batch_size=round(N * RATE),
    )
    loader = DPDataLoader.from_data_loader(DataLoader(DATA, batch_size=round(N * RATE)))
    tuner.attach(optimizer, loader, accountant)
    for x, y in batches(loader, STEPS):
        functional.cross_entropy(module(x), y).backward()
        tuner.step()
    assert accountant.history[-1] == (tuner.noise_multiplier, pytest.approx(RATE), STEPS)


@pytest.mark.parametrize(("noise", "rate", "loss"), [(1.0, 0.1, 0.5), (3.0, 0.3, 0.1), (2.0, 1.0, 1.0)])
def test_two_sums_over_one_batch_are_one_gaussian(noise: float, rate: float, loss: float) -> None:
    """Divergences of the two releases, integrated over the plane, against those of one of multiplier σ/√2."""
    kind = bench.events.poisson_sampled(rate, bench.events.repeat(bench.events.gaussian(noise), 2))
    accountant = RDPAccountant()
    note(accountant, kind)
    ((multiplier, same_rate, times),) = accountant.history
    assert (same_rate, times) == (rate, 1)
    line = np.linspace(-12 * noise, 12 * noise + 1, 3001)
    width = line[1] - line[0]

    def density(values: Any, mean: float, deviation: float) -> Any:
        return np.exp(-((values - mean) ** 2) / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))

    without, with_ = (np.outer(part, part) for part in (density(line, 0, noise), density(line, 1, noise)))
    plane = np.maximum((1 - rate) * without + rate * with_ - math.exp(loss) * without, 0).sum() * width**2
    without, with_ = density(line, 0, multiplier), density(line, 1, multiplier)
    alone = np.maximum((1 - rate) * without + rate * with_ - math.exp(loss) * without, 0).sum() * width
    assert plane == pytest.approx(alone, rel=1e-3, abs=1e-12)


def test_accountants_that_cannot_take_queries_are_refused() -> None:
    model = network()
    tuner, optimizer = tuner_of(model), torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(bench.errors.InvalidValueError, match=r"PrivacyEngine\(accountant='rdp'\)"):
        tuner.attach(optimizer, None, GaussianAccountant())
    with pytest.raises(bench.errors.InvalidValueError, match="got float"):
        tuner.attach(optimizer, None, 3.0)


@pytest.mark.parametrize("regression", [False, True])
def test_queries_are_noted_together_before_the_gradients(regression: bool) -> None:
    """The fewer the kinds that follow each other, the faster the PRV accountant."""
    tuner, accountant = after_a_training("rdp", regression=regression)
    planned = tuner.planned
    assert accountant.history == [
        # a batch of eight sums before the first step, and in a classification one after the last
        (pytest.approx(planned.look_noise / math.sqrt(8)), planned.look_rate, 1 if regression else 2),
        (planned.noise_multiplier, pytest.approx(RATE), STEPS),
    ]
