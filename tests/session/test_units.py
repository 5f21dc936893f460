"""Every query on units of several records: what a unit adds, how it is drawn, and that nothing else passes."""

import copy
from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError
from dphpo_bench.base.tensors import Records
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.events import gaussian, poisson_sampled, repeat
from dphpo_bench.session.session import Session
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask, asking, session_on

NO_NOISE = 1e-12
EVERYBODY = asking(1.0, repeat(gaussian(NO_NOISE), 4))
N_UNITS = 120


class Visits(TinyTask):
    """The tiny task, with 1 to 19 records of each of 120 patients, in any order."""

    n_records = N_UNITS

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, unit="patient", batch_size=30)

    def load_train(self, source: DataSource) -> bench.Records:
        return visits()


def visits() -> Records:
    ids = torch.repeat_interleave(torch.arange(N_UNITS) * 7 - 30, 1 + torch.arange(N_UNITS) ** 2 % 19)
    records = TinyTask()._split(len(ids), 1)
    mixed = torch.randperm(len(ids), generator=torch.Generator().manual_seed(3))
    return Records(records.inputs, records.targets, units=ids[mixed])


def open_on(records: Records, model: str = "linear", seed: int = 0) -> Session:
    return session_on(Visits(model), records, streams=Streams(seed))


def of_units(records: Records, numbers: Tensor | None = None) -> list[Records]:
    """The records of each unit, by ascending id; only these, if numbers are given."""
    assert records.units is not None
    ids = torch.unique(records.units)
    some = ids if numbers is None else ids[numbers]
    return [records.rows((records.units == one).nonzero()[:, 0]) for one in some]


def losses_of(model: nn.Module, records: Records) -> Tensor:
    return nn.functional.cross_entropy(model(records.inputs), records.targets, reduction="none").double()


def a_direction(model: nn.Module) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]


def clipped_gradient(model: nn.Module, unit: Records, bound: float) -> Tensor:
    """The clipped mean gradient of one unit's records."""
    parts = torch.autograd.grad(losses_of(model, unit).mean(), list(model.parameters()))
    gradient = torch.cat([part.flatten() for part in parts]).double()
    return gradient * min(1.0, bound / float(gradient.norm()))


@pytest.mark.parametrize("model_name", ["linear", "mlp"])
@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_gradient_is_the_sum_over_drawn_units_by_the_expected_number(model_name: str, rate: float) -> None:
    records = visits()
    session = open_on(records, model_name)
    model = session.build_model()
    batch = session.sample(asking(rate, gaussian(NO_NOISE)))
    drawn = batch._indices  # type: ignore[attr-defined]
    assert rate == 1 or (len(drawn) != rate * N_UNITS and drawn.max() < N_UNITS)  # numbers of units, not rows
    found = torch.cat([part.flatten() for part in batch.gradient(model, bench.clipping.Abadi(0.3), NO_NOISE)])
    expected = sum(clipped_gradient(model, unit, 0.3) for unit in of_units(records, drawn)) / (rate * N_UNITS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_local_steps_are_those_of_clients_with_models_of_their_own(rate: float) -> None:
    records = visits()
    session = open_on(records, "mlp")
    model = session.build_model()
    batch = session.sample(asking(rate, gaussian(NO_NOISE)))
    total: Tensor | float = 0.0
    for unit in of_units(records, batch._indices):  # type: ignore[attr-defined]
        client = copy.deepcopy(model)
        optimizer = torch.optim.SGD(client.parameters(), 0.2)
        for _ in range(3):
            optimizer.zero_grad()
            losses_of(client, unit).mean().backward()
            optimizer.step()
        pairs = zip(model.parameters(), client.parameters(), strict=True)
        update = torch.cat([(start - end).detach().flatten() for start, end in pairs]).double() / (3 * 0.2)
        total = total + update * min(1.0, 0.3 / float(update.norm()))
    found = batch.gradient(model, bench.clipping.Abadi(0.3), NO_NOISE, local_steps=3, local_rate=0.2)
    flat = torch.cat([part.flatten() for part in found]).double()
    torch.testing.assert_close(flat, total / (rate * N_UNITS), rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


def test_local_steps_need_units() -> None:
    session = session_on(TinyTask(), TinyTask().load_train(DataSource.resolve()))
    batch, clipping = session.sample(EVERYBODY), bench.clipping.Abadi(1.0)
    with pytest.raises(bench.errors.InvalidValueError, match="a task whose unit holds several records"):
        batch.gradient(session.build_model(), clipping, NO_NOISE, local_steps=2)
    session = open_on(visits())
    batch = session.sample(EVERYBODY)
    with pytest.raises(bench.errors.InvalidValueError, match="local_rate > 0"):
        batch.gradient(session.build_model(), clipping, NO_NOISE, local_steps=2, local_rate=0.0)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_losses_and_changes_are_means_of_units_means_of_clipped_values(rate: float) -> None:
    records = visits()
    session = open_on(records)
    model = session.build_model()
    direction = a_direction(model)
    batch = session.sample(asking(rate, repeat(gaussian(NO_NOISE), 4)))
    found = bench.recipes.mean_losses(batch, model, direction, (0.0, 0.5), bound=0.9, noise_multiplier=NO_NOISE)
    changes = bench.recipes.mean_loss_changes(batch, model, direction, (0.5,), bound=0.02, noise_multiplier=NO_NOISE)
    units = of_units(records, batch._indices)  # type: ignore[attr-defined]
    with torch.no_grad():
        start = [losses_of(model, unit) for unit in units]
        for parameter, part in zip(model.parameters(), direction, strict=True):
            parameter -= 0.5 * part
        moved = [losses_of(model, unit) for unit in units]
    expected = [sum(float(one.clamp(0, 0.9).mean()) for one in part) / (rate * N_UNITS) for part in (start, moved)]
    assert max(one.max() for one in start) > 0.9
    assert found == pytest.approx(expected, rel=1e-5)
    differences = [(b - a).clamp(-0.02, 0.02).mean() for a, b in zip(start, moved, strict=True)]
    assert max(float((b - a).abs().max()) for a, b in zip(start, moved, strict=True)) > 0.02
    assert changes == pytest.approx([float(sum(differences)) / (rate * N_UNITS)], rel=1e-4, abs=1e-6)


def test_score_is_the_mean_over_units() -> None:
    records = visits()
    session = open_on(records)
    model = session.build_model()
    with torch.no_grad():
        shares = [(model(unit.inputs).argmax(1) == unit.targets).double().mean() for unit in of_units(records)]
    assert bench.recipes.mean_score(session, model, NO_NOISE) == pytest.approx(float(sum(shares)) / N_UNITS, abs=1e-9)


def test_parts_and_samples_hold_all_records_of_a_unit_or_none() -> None:
    records = visits()
    session = open_on(records)
    training, validation = session.holdout(0.3)
    sample = session.subsample(poisson_sampled(0.5, gaussian(1.0)))
    numbers = [one._access.rows for one in (training, validation, sample)]  # type: ignore[attr-defined]
    assert sorted(torch.cat(numbers[:2]).tolist()) == list(range(N_UNITS))
    assert 0 < len(numbers[2]) < N_UNITS
    assert validation.expected_records == pytest.approx(0.3 * N_UNITS)
    whole = {int(unit.units[0]): len(unit) for unit in of_units(records)}  # type: ignore[index]
    for part in (training, validation, sample):
        raw = part._access.raw  # type: ignore[attr-defined]
        rows, _ = raw.members(part._access.rows)  # type: ignore[attr-defined]
        ids, counts = torch.unique(records.units[rows], return_counts=True)  # type: ignore[index]
        assert {one: whole[one] for one in ids.tolist()} == dict(zip(ids.tolist(), counts.tolist(), strict=True))
        assert len(ids) == len(part._access.rows)  # type: ignore[attr-defined]


Query = Callable[[Session], list[Tensor]]


def _gradient(session: Session) -> list[Tensor]:
    return session.sample(EVERYBODY).gradient(_model(session), bench.clipping.Abadi(0.7), NO_NOISE)


def _update(session: Session) -> list[Tensor]:
    batch, clipping = session.sample(EVERYBODY), bench.clipping.Abadi(0.7)
    return batch.gradient(_model(session), clipping, NO_NOISE, local_steps=4, local_rate=0.5)


def _count(session: Session) -> list[Tensor]:
    kind = asking(1.0, gaussian(NO_NOISE), gaussian(2 * NO_NOISE))
    _, share = session.sample(kind).gradient_and_quantile(_model(session), 0.7, NO_NOISE, NO_NOISE)
    return [torch.tensor(share)]


def _rising(session: Session) -> list[Tensor]:
    model = _model(session)
    kind = asking(1.0, gaussian(NO_NOISE))
    return [
        torch.tensor(
            bench.recipes.rising_share(session.sample(kind), model, a_direction(model), (0.3, -0.3), 1.2, NO_NOISE)
        )
    ]


def _score(session: Session) -> list[Tensor]:
    return [torch.tensor(bench.recipes.mean_score(session, _model(session), NO_NOISE))]


def _model(session: Session) -> nn.Module:
    torch.manual_seed(0)
    model = session.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    return model


@pytest.mark.parametrize(
    ("query", "bound", "model_name"),
    [
        (_gradient, 0.7, "linear"),
        (_gradient, 0.7, "mlp"),
        (_update, 0.7, "linear"),
        (_update, 0.7, "mlp"),
        (_count, 0.5, "mlp"),
        (_rising, 0.5, "linear"),
        (_rising, 0.5, "mlp"),
        (_score, 1.0, "linear"),
    ],
)
@settings(max_examples=5)
@given(size=st.integers(1, 60), seed=st.integers(0, 2**20), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_a_unit_of_any_number_of_records_moves_no_query_by_more_than_its_sensitivity(
    query: Query, bound: float, model_name: str, size: int, seed: int, scale: float
) -> None:
    records, generator = visits(), torch.Generator().manual_seed(seed)
    assert records.units is not None
    one = Records(scale * torch.randn(size, 5, generator=generator), torch.randint(3, (size,), generator=generator))
    joined = Records(
        torch.cat([records.inputs, one.inputs]),  # type: ignore[list-item]
        torch.cat([records.targets, one.targets]),  # type: ignore[list-item]
        units=torch.cat([records.units, torch.full((size,), 1)]),
    )
    pairs = zip(query(open_on(joined, model_name)), query(open_on(records, model_name)), strict=True)
    moved = torch.cat([(a.double() - b.double()).flatten() for a, b in pairs]) * N_UNITS
    assert float(moved.norm()) <= bound * (1 + 1e-4)  # results are rounded to float32, once each


def test_records_without_the_declared_units_are_refused() -> None:
    records = visits()
    with pytest.raises(DataError, match="task's unit is 'patient', got none"):
        open_on(Records(records.inputs, records.targets))
    with pytest.raises(DataError, match="set unit of the facts"):
        session_on(TinyTask(), records)
