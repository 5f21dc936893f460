"""DP-ZO: one clipped, noisy number a step is all that it takes from records."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import dphpo_bench as bench
from dphpo_bench.methods.dp_zo import ZerothOrder
from tests.conftest import TinyTask, session_on


def run_of(**parameters: float) -> ZerothOrder:
    """Return one step on all records without noise."""
    return ZerothOrder(*(1.0, 1, 0.0), **({"learning_rate": 100.0, "averaging": 0.0} | parameters))  # type: ignore[arg-type]


def vector(model: torch.nn.Module) -> torch.Tensor:
    """All weights, float64."""
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_step_is_a_clipped_two_point_difference(model: str) -> None:
    """By hand: each record's difference quotient along a random direction, clipped, averaged, walked back along it."""
    task, run = TinyTask(model), run_of(smoothing=0.01, clipping_threshold=0.7, learning_rate=3.0)
    records = task.load_train(None)  # type: ignore[arg-type]
    session = session_on(task, records)
    start = session.build_model()
    moved = run.train(session)
    step = vector(moved) - vector(start)
    generator = torch.Generator().manual_seed(int(session_on(task, records).uniform("directions") * 2**53))
    z = torch.cat([torch.randn(weight.shape, generator=generator).flatten() for weight in start.parameters()]).double()

    def losses(sign: float) -> torch.Tensor:
        at = session.build_model().double()
        torch.nn.utils.vector_to_parameters(vector(start) + sign * 0.01 * z, at.parameters())
        return cross_entropy(at(records.inputs.double()), records.targets, reduction="none").detach()

    quotients = (losses(1) - losses(-1)) / 0.02
    clipped = quotients.clamp(-0.7, 0.7)
    assert 0.1 < (clipped != quotients).double().mean() < 0.9
    assert torch.allclose(step, -3.0 / z.numel() * clipped.mean() * z, atol=2e-4 * float(step.abs().max()))


@pytest.mark.parametrize("outlier", [1e6, torch.nan])
def test_one_record_moves_a_step_by_what_was_charged(outlier: float) -> None:
    """Add a record as bad as can be: the released mean moves by C/N at most."""
    task, run = TinyTask(), run_of()
    records = task.load_train(None)  # type: ignore[arg-type]
    more = bench.Records(
        torch.cat([records.inputs, torch.full((1, 5), outlier)]), torch.cat([records.targets, records.targets[:1]])
    )
    ends = [vector(run.train(session_on(task, data))) for data in (records, more)]
    length = ends[0].numel()
    moved = float((ends[0] - ends[1]).norm())
    # ‖z‖ is about √d, and at most 2√d here.
    assert moved <= run.clipping_threshold / 600 * 2 * length**0.5 * run.learning_rate / length * 1.001
