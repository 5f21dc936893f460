"""Every back-end against one backward pass for each record, and against the stated sensitivity."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.clipping import Abadi, AutoS, AutoV, Psac
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.linear import LinearEngine
from tests.training.models import (
    BACKENDS,
    brute_force,
    engine_by,
    flat,
    flat_linear,
    linear,
    mlp,
    pictures,
    relative_error,
    tanh_cnn,
    vectors,
)

CLIPPINGS = (Abadi(0.1), AutoS(), AutoV(), Psac())
CASES = [(linear, "linear"), (flat_linear, "linear")] + [(m, b) for m in (linear, mlp) for b in BACKENDS]


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@pytest.mark.parametrize(("build", "backend"), CASES)
@pytest.mark.parametrize("micro_batch_size", [None, 3])
def test_sum_is_that_of_one_backward_pass_for_each_record(build, backend, clipping, micro_batch_size):
    model = build()
    inputs, targets = vectors(10)
    expected = brute_force(model.double(), inputs.double(), targets, clipping)
    engine = engine_by(backend, model.float(), micro_batch_size)
    actual = engine.clipped_sum(inputs, targets, clipping)
    # One backward pass in float32 is itself off by 1e-6 here; the closed form is closer.
    assert relative_error(actual, expected) < (3e-7 if backend == "linear" else 2e-6)
    assert [g.shape for g in actual] == [p.shape for p in engine.parameters]
    exact = engine_by(backend, model.double(), micro_batch_size)
    assert relative_error(exact.clipped_sum(inputs.double(), targets, clipping), expected) < 1e-12


@pytest.mark.parametrize("clipping", [Abadi(0.5), AutoV()], ids=str)
def test_convolutional_network(clipping):
    model = tanh_cnn()
    assert sum(p.numel() for p in model.parameters()) == 26_010
    inputs, targets = pictures(5)
    expected = brute_force(copy.deepcopy(model).double(), inputs.double(), targets, clipping)
    # Weights with channels last: Opacus alone gets those wrong.
    for network in (model, copy.deepcopy(model).to(memory_format=torch.channels_last)):
        for backend in BACKENDS:
            engine = engine_by(backend, network, 4)
            actual = engine.clipped_sum(inputs, targets, clipping)
            assert relative_error(actual, expected) < 1e-6, backend


@pytest.mark.parametrize(("build", "backend"), CASES)
def test_indices_choose_records_of_a_dataset(build, backend):
    inputs, targets = vectors(12)
    indices = torch.tensor([1, 2, 5, 7, 11])
    engine = engine_by(backend, build(), 2)
    expected = engine.clipped_sum(inputs[indices], targets[indices], AutoS())
    for _ in range(3):  # the linear back-end keeps norms from the second call on
        actual = engine.clipped_sum(inputs, targets, AutoS(), indices=indices)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("build", "backend"), CASES)
def test_empty_batch_adds_nothing(build, backend):
    model = build()
    inputs, targets = vectors(4)
    engine = engine_by(backend, model)
    none = torch.empty(0, dtype=torch.int64)
    for arguments, indices in (((inputs[:0], targets[:0]), None), ((inputs, targets), none)):
        result = engine.clipped_sum(*arguments, AutoS(), indices=indices)
        assert not flat(result).any()
        assert [g.shape for g in result] == [p.shape for p in engine.parameters]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize(("build", "backend"), CASES)
def test_record_that_is_not_finite_adds_exactly_nothing(build, backend, bad):
    model = build()
    inputs, targets = vectors(6)
    engine = engine_by(backend, model)
    good = torch.tensor([0, 2, 3, 5])
    expected = engine.clipped_sum(inputs[good], targets[good], AutoS())
    inputs[1, 3] = bad
    inputs[4] = float("nan")
    for _ in range(3):
        actual = engine.clipped_sum(inputs, targets, AutoS())
        if bad == 1e30:  # may be clipped rather than dropped, when the network saturates
            assert (flat(actual) - flat(expected)).norm() <= 1 + 1e-5
        else:
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    nothing = engine.clipped_sum(inputs[4:5], targets[4:5], AutoS())
    assert not flat(nothing).any()


@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from(CASES),
    clipping=st.sampled_from(CLIPPINGS),
    values=st.lists(
        st.floats(width=32) | st.sampled_from([1e30, 1e19, 1e18, 1e10, 1e-20, 1e-40, 1e-45]),
        min_size=20,
        max_size=20,
    ),
    scale=st.sampled_from([1.0, 1e3, 1e-3]),
    target=st.integers(0, 4),
)
def test_one_more_record_moves_the_sum_by_the_sensitivity_at_most(case, clipping, values, scale, target):
    build, backend = case
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    engine = engine_by(backend, model)
    inputs, targets = vectors(4)
    without = engine.clipped_sum(inputs, targets, clipping)
    record = torch.tensor([values], dtype=torch.float32)
    both = engine.clipped_sum(torch.cat([inputs, record]), torch.cat([targets, torch.tensor([target])]), clipping)
    alone = engine.clipped_sum(record, torch.tensor([target]), clipping)
    moved = (flat(both).double() - flat(without).double()).norm()
    assert moved <= clipping.sensitivity * (1 + 1e-6)
    assert flat(alone).norm() <= clipping.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize(("build", "backend"), [(linear, "linear"), (mlp, "layerwise")])
def test_rounding_of_large_sums_adds_nothing_to_the_sensitivity(build, backend):
    """Nearly equal gradients add up to n · C, where float32 has gaps of n · C / 2^24."""
    n, clipping = 20_000, Abadi(0.1)
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(20, generator=generator) + 1e-3 * torch.randn(n, 20, generator=generator)
    targets = torch.zeros(n, dtype=torch.int64)
    engine = engine_by(backend, build())
    total = flat(engine.clipped_sum(inputs, targets, clipping)).double()
    assert total.norm() > 0.99 * n * clipping.sensitivity
    for without in (slice(1, None), slice(-1)):
        rest = flat(engine.clipped_sum(inputs[without], targets[without], clipping)).double()
        assert (total - rest).norm() <= clipping.sensitivity * (1 + 1e-6)


def test_tiny_residuals_with_huge_inputs_are_still_clipped():
    """In float32 the squares of these residuals underflow to 0 while the gradient does not."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.5e-17, 0.0], [0.0, 0.0]]))
    record, target = torch.tensor([[1e18, 1.0]]), torch.tensor([0])
    for backend in ("linear", *BACKENDS):
        result = engine_by(backend, model).clipped_sum(record, target, Abadi(1e-9))
        assert flat(result).double().norm() <= 1e-9 * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("build", "backend"), CASES)
def test_features_in_half_precision_lose_nothing_after_their_own_rounding(build, backend, dtype):
    model = build()
    inputs, targets = vectors(40)
    inputs = inputs.to(dtype)
    engine = engine_by(backend, model, 16)
    expected = engine.clipped_sum(inputs.float(), targets, AutoS())
    actual = engine.clipped_sum(inputs, targets, AutoS())
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)
    assert all(g.dtype == torch.float64 for g in actual)


@pytest.mark.parametrize(("build", "backend"), CASES)
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_parameters_are_left_out(build, backend, frozen):
    model = build()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith(frozen))
    inputs, targets = vectors(6)
    if not any(p.requires_grad for p in model.parameters()):
        with pytest.raises(InvalidValueError, match="at least one parameter"):
            engine_by(backend, model)
        return
    engine = engine_by(backend, model)
    expected = brute_force(model, inputs, targets, AutoV())
    assert [id(p) for p in engine.parameters] == [id(p) for p in model.parameters() if p.requires_grad]
    actual = engine.clipped_sum(inputs, targets, AutoV())
    assert relative_error(actual, expected) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_draws_a_mask_for_each_record(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 50), nn.Dropout(0.5), nn.Linear(50, 5))
    inputs, targets = vectors(1)
    inputs, targets = inputs.expand(8, -1), targets.expand(8)
    engine = engine_by(backend, model)
    assert flat(engine.clipped_sum(inputs, targets, Abadi(1e-3))).norm() <= 8e-3 * (1 + 1e-5)
    several = [engine.clipped_sum(inputs[:1], targets[:1], Abadi(1e-3)) for _ in range(2)]
    assert not torch.equal(*map(flat, several))


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_that_mix_records_are_refused_by_name(backend):
    model = nn.Sequential(nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Linear(6, 5))
    with pytest.raises(InvalidValueError, match=r"'1' \(BatchNorm1d\).*GroupNorm"):
        engine_by(backend, model)
    model[1].eval().requires_grad_(False)
    engine = engine_by(backend, model)
    inputs, targets = vectors(6)
    expected = brute_force(model, inputs, targets, AutoS())
    assert relative_error(engine.clipped_sum(inputs, targets, AutoS()), expected) < 1e-5
    model.train()
    with pytest.raises(InvalidValueError, match="BatchNorm1d"):
        engine.clipped_sum(inputs, targets, AutoS())


def test_wrong_requests_are_explained():
    with pytest.raises(InvalidValueError, match="Expected a Linear"):
        LinearEngine(mlp())
    inputs, targets = vectors(3)
    with pytest.raises(InvalidValueError, match="one loss for each record"):
        gradient_engine(mlp(), loss=lambda z, _: z).clipped_sum(inputs, targets, AutoS())
