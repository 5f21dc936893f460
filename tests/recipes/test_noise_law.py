"""The law of noise: what its queries cost, the rate that they find, and how far noise moves a weight."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dphpo_bench as bench
from dphpo_bench.methods.hyfreedp import HyFreeDP
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.events import gaussian
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes import noise_law
from dphpo_bench.recipes.noise_law import (
    COMMON,
    CONVOLUTIONS,
    FACTOR,
    HEAD,
    PACE,
    PRIOR,
    QUERIES,
    QUIETEST,
    RANK,
    Looked,
    first_rate,
    is_head,
    noise_walk,
    output_noise,
)
from dphpo_bench.recipes.queries import second_moments
from dphpo_bench.session.batch import Batch
from dphpo_bench.training.optimizers import UpdateRule
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask, asking, session_on

BUDGET = bench.PrivacyBudget(3.0, 1e-5)
PLANNED = Looked(0.1, 100, 1.0, 600, 0.8, 1e-6, 0, False, "SGD")


@pytest.mark.parametrize("regression", [False, True])
def test_there_are_no_queries_after_a_regression(regression: bool) -> None:
    planned = Looked.calibrated(BUDGET, 0.1, 50, 1_000, share=0.03, regression=regression, optimizer="SGD", scaled=True)
    assert planned.scalings == (0 if regression else QUERIES)
    assert [release.count for release in planned.as_plan(BUDGET).releases] == [50, 7, 1] + [8] * (not regression)
    assert len(planned.around) == 2 - regression


@pytest.mark.parametrize(("records", "steps"), [(128, 40), (2_000, 40), (60_000, 3_000)])
def test_queries_of_a_batch_together_are_never_quieter_than_their_limit(records: int, steps: int) -> None:
    planned = Looked.calibrated(
        BUDGET, min(1.0, 256 / records), steps, records, share=0.03, regression=True, optimizer="SGD"
    )
    together = planned.look_noise / math.sqrt(QUERIES)
    assert together == pytest.approx(QUIETEST) if records == 60_000 else together > QUIETEST


def test_a_run_is_charged_the_event_of_its_plan() -> None:
    task = TinyTask()
    plan = HyFreeDP(epochs=2).plan(task.facts, bench.PrivacyBudget(3.0, 1e-4))
    ledger = Ledger(allowance=plan.event)
    HyFreeDP(epochs=2).run(plan, session_on(task, task.load_train(bench.DataSource.resolve()), ledger))
    assert multiset(ledger.event) == multiset(plan.event)


class Scaled(nn.Module):
    """A linear model whose weights count `scale` times as much."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.scale = scale

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs) * self.scale


def rate_of(model: nn.Module, planned: Looked = PLANNED, distance: float = 1.0, pace: float = 0.0) -> float:
    class Task(TinyTask):
        def build_model(self) -> nn.Module:
            return model

    task = Task()
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    return first_rate(planned, session, session.build_model(), distance, pace)


def test_weights_that_count_ten_times_as_much_tolerate_a_tenth_of_the_noise() -> None:
    assert rate_of(Scaled(1.0)) / rate_of(Scaled(10.0)) == pytest.approx(10, rel=0.35)


def answered(threshold: float, wrong: int | None = None, sharp: bool = True) -> float:
    """Return the tolerance that is found where losses rise above a threshold, with one answer turned round."""
    queries = iter(range(QUERIES))

    def share(batch: Batch, model: nn.Module, direction: object, sides: tuple[float, float], *_: float) -> float:
        assert sides[0] == -sides[1]
        beyond = math.log(sides[0] / threshold)
        right = float(beyond > 0) if sharp else 0.5 + math.erf(beyond / noise_law.WIDTH / math.sqrt(2)) / 2
        return 1 - right if next(queries) == wrong else right

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(noise_law, "rising_share", share)
        patched.setattr(noise_law, "_rank", lambda *_: COMMON)
        return rate_of(Scaled(1.0), replace(PLANNED, regression=True)) / FACTOR * math.sqrt(COMMON)


@given(threshold=st.floats(2e-3, 2.0), sharp=st.booleans())
def test_queries_find_a_threshold(threshold: float, sharp: bool) -> None:
    assert abs(math.log(answered(threshold, sharp=sharp) / threshold)) < (0.6 if sharp else 0.05)


@given(threshold=st.floats(0.011, 0.6), wrong=st.integers(0, QUERIES - 2))
def test_no_query_decides_alone(threshold: float, wrong: int) -> None:
    """Later queries make up for most of a wrong answer. Thresholds are those of most tasks: e² times a typical one."""
    assert abs(math.log(answered(threshold, wrong, sharp=False) / threshold)) < 0.8


@pytest.mark.parametrize("regression", [False, True])
def test_where_noise_hides_everything_tolerance_and_rank_are_typical_ones(regression: bool) -> None:
    rate = rate_of(Scaled(1.0), replace(PLANNED, look_noise=1e6, regression=regression))
    typical = PRIOR[regression] * (3 * 5 + 3) ** (-RANK / 2)  # of so many weights
    assert rate / FACTOR / (1 if regression else HEAD) == pytest.approx(typical, rel=0.2)


def test_noise_and_pace_bound_the_rate_together() -> None:
    planned = replace(PLANNED, regression=True)
    alone, slow = rate_of(Scaled(1.0), planned, distance=0.7), rate_of(Scaled(1.0), planned, distance=0.0, pace=3.0)
    assert 1 / rate_of(Scaled(1.0), planned, distance=0.7, pace=3.0) == pytest.approx(1 / alone + 1 / slow)
    assert rate_of(Scaled(1.0), distance=0.7, pace=3.0) == rate_of(Scaled(1.0), distance=0.7)  # of a linear classifier


def moments_of(task: bench.Task, records: bench.Records) -> torch.Tensor:
    session = session_on(task, records)
    model = session.build_model()
    return second_moments(session.sample(asking(1.0, gaussian(1e-12))), model, ways_of(model), 0.01, 1e-12)


def ways_of(model: nn.Module, count: int = 4) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(weight.shape, generator=generator) for weight in model.parameters()] for _ in range(count)]


def test_second_moments_are_those_of_projected_gradients() -> None:
    task = TinyTask()
    records = task.load_train(bench.DataSource.resolve())
    model = session_on(task, records).build_model()
    residuals = model(records.inputs).softmax(1) - nn.functional.one_hot(records.targets, 3)
    projected = [(residuals * (records.inputs @ weight.T + bias)).sum(1) for weight, bias in ways_of(model)]
    gradients = torch.stack(projected, 1).detach().double()
    u = gradients / gradients.norm(dim=1, keepdim=True)
    torch.testing.assert_close(moments_of(task, records), u.T @ u / len(u), rtol=0, atol=1e-3)


@pytest.mark.parametrize("model_name", ["linear", "mlp"])
def test_a_record_changes_second_moments_by_one_at_most(model_name: str) -> None:
    """Norm of the change of the sum, over all numbers."""
    task = TinyTask(model_name)
    records = task.load_train(bench.DataSource.resolve())
    fewer = task.n_records * moments_of(task, records)
    for last in (records.inputs[-1] * 1e6, torch.full((5,), math.nan)):
        changed = bench.Records(torch.cat([records.inputs[:-1], last[None]]), records.targets)
        # Both have one record for the other: twice one at most, less what the two have in common.
        assert (task.n_records * moments_of(task, changed) - fewer).norm() <= 2
    # A record more: the same sum and one vector of length one.
    more = bench.Records(
        torch.cat([records.inputs, records.inputs[:1]]), torch.cat([records.targets, records.targets[:1]])
    )
    assert (task.n_records * moments_of(task, more) - fewer).norm().item() == pytest.approx(1.0, abs=1e-4)


def test_the_noise_of_second_moments_is_that_of_one_vector() -> None:
    """65 differences of 78 numbers each: their mean square is within 12 % of 1 but in one of 10⁷ cases."""
    found, records = [], TinyTask().load_train(bench.DataSource.resolve()).rows(slice(5))
    for seed in range(66):
        session = session_on(TinyTask(), records, streams=Streams(seed))
        model = session.build_model()
        found.append(second_moments(session.sample(asking(1.0, gaussian(3.0))), model, ways_of(model, 12), 0.01, 3.0))
    noise = TinyTask.n_records * (torch.stack(found) - torch.stack(found).mean(0)) / 3.0
    assert noise.square().sum().item() / (65 * 78) == pytest.approx(1, abs=0.12)


def test_records_without_a_gradient_make_the_rate_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of them, or all, count as a higher rank, never as a lower one."""
    ranks = []
    for live in (1.0, 0.75, 0.5, 0.0):
        monkeypatch.setattr(noise_law, "second_moments", lambda *_, live=live: live * torch.diag(torch.ones(8) / 8))
        ranks.append(noise_law._rank(PLANNED, None, nn.Linear(5, 3), torch.Generator(), 0.1))  # type: ignore[arg-type]
    assert ranks[1:] == [pytest.approx(ranks[0])] * 3


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_the_rank_of_orthogonal_inputs_is_found(rank: int) -> None:
    """With two classes gradients have the rank of inputs. Eight directions leave a scatter of .3 in the logarithm."""

    class Orthogonal(TinyTask):
        def build_model(self) -> nn.Module:
            return nn.Linear(50, 2, bias=False)

        @property
        def facts(self) -> bench.TaskFacts:
            return replace(super().facts, inputs=bench.recipes.Input((50,)))

    task, found = Orthogonal(), []
    inputs = torch.eye(50)[torch.arange(600) % rank]
    for seed in range(5):
        session = session_on(task, bench.Records(inputs, torch.zeros(600, dtype=torch.long)), streams=Streams(seed))
        batch, generator = session.sample(PLANNED.queries(QUERIES)), torch.Generator().manual_seed(seed)
        found.append(math.log(noise_law._rank(PLANNED, batch, session.build_model(), generator, 0.1)))
    assert statistics.fmean(found) == pytest.approx(math.log(rank), abs=0.35)


class Convolution(nn.Module):
    """A convolution, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 3, 5), nn.Flatten(), nn.Linear(3, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs[:, None])


@pytest.mark.parametrize("regression", [False, True])
def test_heads_and_trained_convolutions_are_faster_unless_in_a_regression(
    regression: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_law, "_tolerance", lambda *_: 1.0)
    monkeypatch.setattr(noise_law, "_rank", lambda *_: 4.0)
    planned = replace(PLANNED, regression=regression)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    rates = [rate_of(model, planned) for model in (network, nn.Linear(5, 3), Convolution())]
    factors = [FACTOR] * 3 if regression else [FACTOR, FACTOR * HEAD, FACTOR * CONVOLUTIONS]
    assert rates == pytest.approx([factor / 2 for factor in factors])
    slow = rate_of(network, planned, distance=0.0, pace=3.0)
    assert slow == pytest.approx(FACTOR * 2 * PACE / 3)
    monkeypatch.setattr(noise_law, "_rank", lambda *_: 400.0)
    many = [rate_of(network, replace(planned, records=records)) for records in (1, 10_000, 10**9)]
    assert many == pytest.approx([FACTOR / 20, FACTOR / math.sqrt(40), FACTOR / 2], rel=1e-3)


def frozen(*layers: nn.Module) -> nn.Module:
    for layer in layers[:-1]:
        layer.requires_grad_(False)
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (nn.Linear(5, 3), True),
        (frozen(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)), True),
        (nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3)), False),
    ],
)
def test_a_trained_last_layer_alone_is_a_head(model: nn.Module, head: bool) -> None:
    assert is_head(model) == head


def walk(optimizer: str, steps: int, noise: float = 0.5) -> float:
    return noise_walk(UpdateRule(optimizer, [torch.zeros(1_000), torch.zeros(1_000)]), noise, steps)[0]


@pytest.mark.parametrize("steps", [1, 10, 300])
def test_noise_moves_momentum_as_its_closed_form(steps: int) -> None:
    """The numbers are always the same; a root mean square of a thousand is good to 2.2 %: 10 % is a wide tolerance."""
    gains = [(1 - 0.9**k) / 0.1 for k in range(1, steps + 1)]
    assert walk("SGD", steps) == pytest.approx(0.5 * math.sqrt(sum(gain**2 for gain in gains)), rel=0.1)


@pytest.mark.parametrize(("rate", "limit"), [(0.01, "rate"), (0.1, "both"), (1.0, "noise")])
def test_noise_of_a_linear_model_is_that_of_a_closed_form(rate: float, limit: str) -> None:
    """ν = η M J; M is that of momentum, and J is the centred root mean square length of the inputs."""
    model, inputs = nn.Linear(50, 2), torch.randn(300, 50, generator=torch.Generator().manual_seed(0))
    before = [weight.clone() for weight in model.parameters()]
    of_run = output_noise(model, inputs, learning_rate=rate, noise=0.5, steps=10)
    length = float((inputs - inputs.mean(0)).square().sum(1).mean().sqrt())
    moved = 0.5 * math.sqrt(sum(((1 - 0.9**k) / 0.1) ** 2 for k in range(1, 11)))
    assert of_run.nu == pytest.approx(rate * moved * length, rel=0.15)
    assert of_run.limit == limit
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    numbers = output_noise(model, inputs, learning_rate=rate, noise=0.5, steps=10, target_spread=4.0)
    assert numbers.nu == pytest.approx(of_run.nu / 4)
    assert (numbers.limit == "noise") == (numbers.nu > 0.5)


def onward(optimizer: str, steps: int, signal: float, noise: float = 0.5) -> float:
    return noise_walk(UpdateRule(optimizer, [torch.zeros(1_000), torch.zeros(1_000)]), noise, steps, signal)[1]


@pytest.mark.parametrize("steps", [1, 10, 300])
def test_a_signal_amid_noise_moves_momentum_as_its_closed_form(steps: int) -> None:
    """Both gradients have the same noise, so it cancels."""
    assert onward("SGD", steps, 0.01) == pytest.approx(0.01 * (1 - 0.9**steps) / 0.1, rel=1e-3)


def test_adam_divides_a_signal_by_the_noise() -> None:
    """The root of its second moment is that of the noise, to 2.2 % and what a short memory adds."""
    assert onward("AdamW", 2_000, 0.01) == pytest.approx(0.01 / 0.5, rel=0.05)


def test_adam_moves_by_the_root_of_its_steps_whatever_the_noise() -> None:
    short, long = (walk("AdamW", steps) for steps in (400, 1_600))
    assert 1.8 < long / short < 2.3
    assert walk("AdamW", 50, 5.0) == pytest.approx(walk("AdamW", 50, 0.5), rel=1e-3)


def test_beyond_two_thousand_steps_it_goes_on_as_the_root() -> None:
    assert walk("SGD", 8_000) == pytest.approx(2 * walk("SGD", 2_000))
