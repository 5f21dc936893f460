"""Sums of clients' clipped updates: against plain gradient descent, and against the stated sensitivity."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from dphpo_bench.training.clipping import Abadi, AutoS, Clipping
from dphpo_bench.training.losses import cross_entropy
from dphpo_bench.training.rare_classes import ClassWeighted
from dphpo_bench.training.units import Units
from tests.training.models import Calls, flat, linear, mlp, relative_error, vectors
from tests.training.test_units import ENGINES, IDS, engine_of

LOCAL = (4, 0.5)
CASES = pytest.mark.parametrize(("build", "kind"), ENGINES)


def updates(build: Any, inputs: Tensor, targets: Tensor, ids: Tensor, clipping: Clipping) -> Tensor:
    """The sum of clipped (w − w_E) / (E · rate), with torch's SGD on a model of each client's own."""
    steps, rate = LOCAL
    total = 0.0
    for client in torch.unique(ids):
        model = build().double()
        start, optimizer = flat([*model.parameters()]).detach().clone(), torch.optim.SGD(model.parameters(), rate)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[ids == client].double()), targets[ids == client]).backward()
            optimizer.step()
        update = (start - flat([*model.parameters()]).detach()) / (steps * rate)
        total = total + clipping.factors(update.norm()[None])[0] * update
    return total  # type: ignore[return-value]


@CASES
@pytest.mark.parametrize("clipping", [Abadi(0.1), AutoS()], ids=str)
@pytest.mark.parametrize("unit_rows", [None, 5])
def test_sum_is_that_of_clients_with_models_of_their_own(build, kind, clipping, unit_rows) -> None:
    inputs, targets = vectors(len(IDS))
    engine = engine_of(kind, build(), unit_rows)
    before = flat(engine.parameters).detach().clone()
    found = engine.clipped_update_sum(inputs, targets, clipping, Units.of(IDS), LOCAL)
    torch.testing.assert_close(flat(found), updates(build, inputs, targets, IDS, clipping), rtol=1e-5, atol=1e-6)
    assert all(part.dtype == torch.float64 for part in found)
    assert torch.equal(flat(engine.parameters).detach(), before)  # the server's weights stay


@CASES
def test_one_step_is_the_mean_gradient(build, kind) -> None:
    inputs, targets = vectors(len(IDS))
    engine, units = engine_of(kind, build()), Units.of(IDS)
    one = engine.clipped_update_sum(inputs, targets, Abadi(0.1), units, (1, 7.0))
    assert relative_error(one, engine.clipped_unit_sum(inputs, targets, Abadi(0.1), units)) < 1e-6


def scaled() -> nn.Module:
    """A network with a weight that is a single number, of shape ()."""
    return Calls(lambda net, x: net.scale * net.inner(x), inner=mlp(), scale=nn.Parameter(torch.tensor(0.7)))


def test_a_weight_may_be_a_single_number() -> None:
    inputs, targets = vectors(len(IDS))
    found = engine_of(ENGINES[-1][1], scaled()).clipped_update_sum(inputs, targets, Abadi(0.1), Units.of(IDS), LOCAL)
    torch.testing.assert_close(flat(found), updates(scaled, inputs, targets, IDS, Abadi(0.1)), rtol=1e-5, atol=1e-6)


def test_class_weights_come_after_clipping() -> None:
    inputs, targets = vectors(len(IDS))
    engine = engine_of(ENGINES[-1][1], mlp())
    engine.class_weights = ClassWeighted(cross_entropy, tuple([0.1] + 4 * [0.225])).weights
    weights = engine.class_weights(targets)
    total = sum(
        weights[client == IDS].double().mean()
        * updates(mlp, inputs[client == IDS], targets[client == IDS], IDS[client == IDS], Abadi(0.1))
        for client in torch.unique(IDS)
    )
    found = engine.clipped_update_sum(inputs, targets, Abadi(0.1), Units.of(IDS), LOCAL)
    torch.testing.assert_close(flat(found), total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@CASES
def test_a_client_whose_update_is_not_finite_adds_exactly_nothing(build, kind, bad) -> None:
    inputs, targets = vectors(len(IDS))
    inputs[8, 3] = bad  # of client 5
    engine, units = engine_of(kind, build()), Units.of(IDS)
    others = engine.clipped_update_sum(inputs, targets, AutoS(), units.some(torch.tensor([0, 1, 2, 3, 5, 6])), LOCAL)
    found = engine.clipped_update_sum(inputs, targets, AutoS(), units, LOCAL)
    assert flat(found).isfinite().all()
    if bad == 1e30:  # may have an update, which is clipped
        assert float((flat(found) - flat(others)).norm()) <= 1
    else:
        torch.testing.assert_close(flat(found), flat(others), rtol=0, atol=1e-7)


@pytest.mark.parametrize("build", [linear, mlp])
@pytest.mark.parametrize("clipping", [Abadi(0.1), AutoS()], ids=str)
@settings(max_examples=8)
@given(
    size=st.integers(1, 40),
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]),
    local=st.sampled_from([(1, 1.0), (5, 0.1), (7, 1e3)]),
)
def test_a_client_more_moves_the_sum_by_the_sensitivity_at_most(build, clipping, size, seed, scale, local) -> None:
    """Whatever it holds: also records and rates with which its steps diverge."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = vectors(len(IDS) + size)
    inputs[len(IDS) :] = scale * torch.randn(size, 20, generator=generator)
    engine = engine_of(ENGINES[-1][1], build(), 16)
    both, without = (
        engine.clipped_update_sum(inputs, targets, clipping, Units.of(ids), local)
        for ids in (torch.cat([IDS, torch.full((size,), 4)]), IDS)
    )
    assert float((flat(both) - flat(without)).norm()) <= clipping.sensitivity * (1 + 1e-6)


@pytest.mark.parametrize("out", [0, 4])  # one of another size, and the largest
def test_a_client_moves_no_bit_of_the_updates_of_others(out: int) -> None:
    """Steps that diverge would blow up another rounding: the sum moves by the client's own share alone."""
    inputs, targets = vectors(len(IDS))
    engine, units = engine_of(ENGINES[-1][1], mlp(), 64), Units.of(IDS)
    rest = torch.tensor([place for place in range(len(units)) if place != out])
    whole, without, alone = (
        flat(engine.clipped_update_sum(inputs, targets, Abadi(0.1), some, (30, 1e3)))
        for some in (units, units.some(rest), units.some(torch.tensor([out])))
    )
    assert float((whole - without - alone).norm()) < 1e-14
