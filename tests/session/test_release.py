"""Sums of bounded values, as the share of records whose loss rises: what counts, what a record adds, noise, charge."""

import math
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, OverBudgetError
from dphpo_bench.base.progress import Meter
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.events import compose, gaussian, poisson_sampled, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.queries import rising_share
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import Session
from dphpo_bench.training.values import Query
from tests.conftest import TinyTask, asking, session_on
from tests.session.test_units import a_direction, losses_of, open_on, visits

NO_NOISE = 1e-12
STEPS = (0.4, -0.4, 0.1)
N = TinyTask.n_records


def records_of(n: int = N) -> bench.Records:
    return TinyTask()._split(n, 1)


def rises(model: nn.Module, records: bench.Records, factor: float) -> Tensor:
    """Compute bᵢ − 1/2 of finite records in float64, one forward pass for each step."""
    exact = bench.Records(records.inputs.double(), records.targets)
    direction = [part.double() for part in a_direction(model)]
    model = model.double()
    start = [weight.detach().clone() for weight in model.parameters()]
    with torch.no_grad():
        before, total = losses_of(model, exact), torch.zeros(len(records))
        for step in STEPS:
            for weight, first, part in zip(model.parameters(), start, direction, strict=True):
                weight.copy_(first - step * part)
            total = total + losses_of(model, exact)
    return (total / len(STEPS) > factor * before).double() - 0.5


@pytest.mark.parametrize("model_name", ["linear", "mlp"])
@pytest.mark.parametrize(("rate", "factor"), [(1.0, 1.05), (0.25, 1.05), (1.0, 1.2)])
def test_it_is_the_share_of_the_expected_batch_size(model_name: str, rate: float, factor: float) -> None:
    records = records_of()
    session = session_on(TinyTask(model_name), records)
    model = session.build_model()
    batch = session.sample(asking(rate, gaussian(NO_NOISE)))
    drawn = torch.arange(N) if rate == 1 else batch._indices
    assert rate == 1 or len(drawn) != rate * N
    share = rising_share(batch, model, a_direction(model), STEPS, factor, NO_NOISE)
    expected = rises(model, records.rows(drawn), factor)
    assert 0 < (expected > 0).sum() < len(drawn)
    assert share == pytest.approx(0.5 + float(expected.sum()) / (rate * N), abs=1e-9)


@pytest.mark.parametrize("model_name", ["linear", "mlp"])
def test_a_unit_counts_as_the_mean_of_its_records(model_name: str) -> None:
    records = visits()
    session = open_on(records, model_name)
    model = session.build_model()
    share = rising_share(
        session.sample(asking(1.0, gaussian(NO_NOISE))), model, a_direction(model), STEPS, 1.1, NO_NOISE
    )
    each = rises(model, records, 1.1)
    assert records.units is not None
    means = [float(each[records.units == unit].mean()) for unit in torch.unique(records.units)]
    assert len(set(means)) > 2
    assert share == pytest.approx(0.5 + sum(means) / len(means), abs=1e-9)


@pytest.mark.parametrize(
    ("start", "along", "counts"),
    [
        (1.0, (2.0, 2.0), False),  # exactly the factor
        (1.0, (1.0, 3.1), True),  # on average, not at each step
        (1.0, (1.0, 2.9), False),
        (0.0, (0.0, 1e-30), True),
        (-1.0, (-3.0, -3.0), False),
        (-1.0, (-0.7, -0.7), False),
        (-1.0, (1.2, 1.2), True),
        (1.0, (math.nan, 0.0), True),
        (1.0, (math.inf, -math.inf), True),
        (math.nan, (0.0, 0.0), True),
        (math.inf, (math.inf, 0.0), True),
    ],
)
def test_which_records_count(start: float, along: tuple[float, float], counts: bool) -> None:
    """A loss that is not finite, at any of the weights, counts as a rise."""

    class Asked:
        def release(self, model: nn.Module, values: Any, *others: Any, **named: Any) -> list[float]:
            losses = torch.tensor([[start, *along]]).double()
            return values(SimpleNamespace(losses_along=lambda *_: losses), None, None).tolist()

    model = TinyTask().build_model()
    share = rising_share(Asked(), model, a_direction(model), (0.1, -0.1), 2.0, NO_NOISE)  # type: ignore[arg-type]
    assert share == float(counts)


def noisefree_sum(session: Session, factor: float, scale: float) -> float:
    model = session.build_model()
    direction = [scale * part for part in a_direction(model)]
    batch = session.sample(asking(1.0, gaussian(NO_NOISE)))
    return (rising_share(batch, model, direction, STEPS, factor, NO_NOISE) - 0.5) * session.expected_records


@pytest.mark.parametrize("model_name", ["linear", "mlp"])
@pytest.mark.parametrize("in_units", [False, True])
@settings(max_examples=15)
@given(
    size=st.integers(1, 30),
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.0, 1.0, 1e20, 3e38]),
    spoiled=st.sampled_from([None, math.nan, math.inf, -math.inf]),
    factor=st.sampled_from([0.7, 1.0, 1.3, 1e300]),
    length=st.sampled_from([0.1, 1.0, 1e38]),
)
def test_one_record_or_unit_moves_the_sum_by_half_at_most(
    model_name: str,
    in_units: bool,
    size: int,
    seed: int,
    scale: float,
    spoiled: float | None,
    factor: float,
    length: float,
) -> None:
    """Some of a unit's records may be spoiled; a record is a unit of one."""
    generator = torch.Generator().manual_seed(seed)
    size = size if in_units else 1
    inputs = scale * torch.randn(size, 5, generator=generator).clamp(-1, 1)
    if spoiled is not None:
        inputs[:: 1 + seed % 3, seed % 5] = spoiled
    before = visits() if in_units else records_of(50)
    more = [inputs, torch.randint(3, (size,), generator=generator)]
    joined = [torch.cat(pair) for pair in zip((before.inputs, before.targets), more, strict=True)]  # type: ignore[arg-type]
    if in_units:
        after = bench.Records(*joined, units=torch.cat([before.units, torch.full((size,), 1)]))  # type: ignore[list-item]
        sums = [noisefree_sum(open_on(records, model_name), factor, length) for records in (before, after)]
    else:
        sums = [
            noisefree_sum(session_on(TinyTask(model_name), records), factor, length)
            for records in (before, bench.Records(*joined))
        ]
        assert abs(sums[1] - sums[0]) == pytest.approx(0.5, abs=1e-6)
    assert abs(sums[1] - sums[0]) <= 0.5 + 1e-6


def test_its_noise_has_the_stated_deviation() -> None:
    """The sample deviation of n normals is within 6/√(2n) of σ, their mean within 6σ/√n, but for a probability < 1e-8.

    Batches are empty, so that noise is all that is released: a sum's deviation is half the multiplier.
    """
    n, sigma, rate = 2000, 4.0, 1e-12
    session = session_on(TinyTask(), records_of())
    model = session.build_model()
    batch = session.sample(asking(rate, repeat(gaussian(sigma), n)))
    assert len(batch._indices) == 0
    shares = [rising_share(batch, model, a_direction(model), (0.1,), 2.0, sigma) for _ in range(n)]
    noise = (torch.tensor(shares, dtype=torch.float64) - 0.5) * (N * rate)
    assert float(noise.std()) == pytest.approx(sigma / 2, rel=6 / (2 * n) ** 0.5)
    assert abs(float(noise.mean())) < 6 * sigma / 2 / n**0.5


def test_it_is_charged_once_and_refused_before_it_is_computed(monkeypatch) -> None:
    allowance = poisson_sampled(0.25, compose(gaussian(2.0), gaussian(3.0)))
    meter = Meter(total=1e9)
    session = session_on(TinyTask(), records_of(), Ledger(allowance=allowance), meter=meter)
    model = session.build_model()
    direction = a_direction(model)
    computed: list[object] = []
    total = RawRecords.total
    monkeypatch.setattr(RawRecords, "total", lambda *args: computed.append(args) or total(*args))
    batch = session.sample(allowance)
    for noise in (1.0, 0.0):
        with pytest.raises(OverBudgetError):
            rising_share(batch, model, direction, STEPS, 1.5, noise)
    assert computed == []
    rising_share(batch, model, direction, STEPS, 1.5, 2.0)
    assert len(computed) == 1
    assert meter.done == pytest.approx(4 * 0.25 * N)
    with pytest.raises(OverBudgetError):
        rising_share(batch, model, direction, STEPS, 1.5, 2.0)
    assert multiset(batch._account.event) == multiset(gaussian(2.0))  # type: ignore[attr-defined]
    assert multiset(session._access.ledger.event) == multiset(allowance)


@pytest.mark.parametrize("by_vmap", [True, False])
def test_values_of_your_own_are_held_to_the_bound_and_keep_nothing(by_vmap: bool) -> None:
    """A function that stores what it sees could make values of one record depend on another's."""
    records = records_of(40)
    records.inputs[3] = math.nan  # type: ignore[index]
    seen: list[Tensor] = []

    def values(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(inputs)
        outputs = model(inputs)
        if not by_vmap and float(outputs.sum()) > 1e9:
            raise ValueError
        scale = 10.0 if len(seen) == 1 else 1e6
        return torch.stack([scale * outputs[:, 0], targets.to(outputs) - len(seen)], dim=1)

    session = session_on(TinyTask(), records)
    model = session.build_model()
    means = session.release(model, values, 2.0, NO_NOISE, count=2)
    with torch.no_grad():
        outputs = (10 * model(records.inputs)[:, 0]).double().clamp(-2, 2).nan_to_num(nan=2.0)
    expected = [float(outputs.sum()) / N, float((records.targets - 1).double().clamp(-2, 2).sum()) / N]  # type: ignore[operator]
    assert means == pytest.approx(expected, abs=1e-6)
    assert len(seen) <= 7  # of made-up records
    assert multiset(session._access.ledger.event) == multiset(repeat(gaussian(NO_NOISE), 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"factor": 0.0}, "a finite factor > 0"),
        ({"factor": math.inf}, "a finite factor > 0"),
        ({"steps": ()}, "at least one step"),
        ({"noise_multiplier": math.nan}, "a finite noise_multiplier >= 0"),
        ({"direction": []}, "a direction of shapes"),
    ],
)
def test_a_wrong_call_is_refused_in_a_line_and_charged_nothing(change: dict[str, Any], words: str) -> None:
    session = session_on(TinyTask(), records_of())
    model = session.build_model()
    batch = session.sample(asking(0.5, gaussian(1.0)))
    call = {"direction": a_direction(model), "steps": STEPS, "factor": 1.5, "noise_multiplier": 1.0, **change}
    with pytest.raises(InvalidValueError, match=words) as caught:
        rising_share(batch, model, **call)
    assert "\n" not in str(caught.value)
    assert not batch._account.entries


class TestVectors:
    """Values that are held to a bound together: one Gaussian for all sums."""

    def test_each_vector_is_scaled_to_the_bound(self) -> None:
        records = records_of(40)
        records.inputs[3] = math.nan  # type: ignore[index]

        def values(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
            return torch.cat([inputs * (0.1 + 5 * targets[:, None]), torch.zeros_like(inputs)], dim=1)

        ledger = Ledger(allowance=gaussian(NO_NOISE))
        session = session_on(TinyTask(), records, ledger)
        means = session.release(session.build_model(), values, 1.5, NO_NOISE, count=10, together=True)
        inputs = torch.as_tensor(records.inputs).double() * (0.1 + 5 * torch.as_tensor(records.targets)[:, None])
        held = inputs.nan_to_num(nan=1.5).clamp(-1.5, 1.5)
        norms = held.norm(dim=1, keepdim=True)
        assert (norms < 1.5).any()
        assert (norms > 1.5).any()
        expected = (held * (1.5 / norms).clamp(max=1)).sum(0) / N
        assert means == pytest.approx([*expected.tolist(), *[0.0] * 5], abs=1e-6)
        assert multiset(ledger.event) == multiset(gaussian(NO_NOISE))
        with pytest.raises(OverBudgetError):
            session.release(session.build_model(), values, 1.5, NO_NOISE, count=10)

    @settings(max_examples=25)
    @given(
        values=st.lists(st.floats(allow_subnormal=False, width=32), min_size=1, max_size=6),
        bound=st.sampled_from([1e-30, 0.7, 1e30]),
    )
    def test_no_record_adds_a_vector_above_the_bound(self, values: list[float], bound: float) -> None:
        query = Query(lambda *_: torch.tensor([values]), bound, len(values), together=True)
        model = TinyTask().build_model()
        total = query.total(model, TinyTask().objective(), records_of(1))
        assert float((total / bound).norm()) <= 1 + 1e-12

    def test_a_unit_adds_the_mean_of_its_vectors(self) -> None:
        records = visits()
        session = open_on(records, "linear")
        means = session.release(session.build_model(), lambda _, x, __: x, 0.5, NO_NOISE, count=5, together=True)
        held = torch.as_tensor(records.inputs).double().clamp(-0.5, 0.5)
        held *= (0.5 / held.norm(dim=1, keepdim=True)).clamp(max=1)
        assert records.units is not None
        units = [held[records.units == unit].mean(0) for unit in torch.unique(records.units)]
        expected = torch.stack(units).sum(0) / session.expected_records
        assert means == pytest.approx(expected.tolist(), abs=1e-6)
        assert max(float(unit.norm()) for unit in units) <= 0.5 + 1e-9
