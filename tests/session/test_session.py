"""The door to private data: what passes, at which noise, charged as what."""

import copy

import pytest
import torch
from dp_accounting import dp_event

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, OverBudgetError
from dphpo_bench.base.tensors import Records
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.events import compose, gaussian, one_of, poisson_sampled, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.session import Session
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask, asking, session_on

NO_NOISE = 1e-12
EVERYBODY = asking(1.0, repeat(gaussian(NO_NOISE), 3))


@pytest.fixture
def open_session(tiny_task, tmp_path):
    """A session over the tiny task's records, or over others."""

    def make(train: Records | None = None, ledger: Ledger | None = None, seed: int = 0) -> Session:
        source = DataSource.resolve(cache_dir=tmp_path)
        records = train or tiny_task.load_train(source)
        return session_on(tiny_task, records, ledger or Ledger(), Streams(seed))

    return make


def test_all_of_a_batch_is_composed_first_and_sampled_once(open_session) -> None:
    session = open_session()
    model = session.build_model()
    batch = session.sample(asking(0.25, gaussian(2.0), repeat(gaussian(5.0), 3)))
    direction = batch.gradient(model, bench.clipping.AutoS(), 2.0)
    bench.recipes.mean_losses(batch, model, direction, (-0.1, 0.0, 0.1), bound=1.0, noise_multiplier=5.0)
    expected = poisson_sampled(0.25, compose(gaussian(2.0), repeat(gaussian(5.0), 3)))
    assert multiset(session._access.ledger.event) == multiset(expected)


def test_the_gradient_is_divided_by_the_expected_batch_size(open_session, tiny_task) -> None:
    session = open_session()
    model = session.build_model()
    batch = session.sample(asking(0.25, gaussian(NO_NOISE)))
    drawn = batch._indices
    assert len(drawn) != 0.25 * tiny_task.n_records  # at this seed; else the test shows nothing
    gradient = batch.gradient(model, bench.clipping.AutoS(), NO_NOISE)

    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    records = session.nonprivate()
    for i in drawn:
        loss = torch.nn.functional.cross_entropy(model(records.inputs[i])[None], records.targets[i][None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.sqrt(sum(part.square().sum() for part in parts))
        for sum_, part in zip(total, parts, strict=True):
            sum_ += part / (norm + 0.01)
    for ours, sum_ in zip(gradient, total, strict=True):
        torch.testing.assert_close(ours, sum_ / (0.25 * tiny_task.n_records), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, 1e38])
def test_a_record_that_diverges_counts_as_one_bounded_record(open_session, tiny_task, bad: float) -> None:
    clean = open_session().nonprivate()
    inputs = clean.inputs.clone()
    inputs[0] = bad
    session = open_session(Records(inputs, clean.targets))
    model = session.build_model()
    gradient = session.sample(EVERYBODY).gradient(model, bench.clipping.AutoS(), NO_NOISE)
    reference = open_session(clean).sample(EVERYBODY).gradient(model, bench.clipping.AutoS(), NO_NOISE)
    assert all(torch.isfinite(part).all() for part in gradient)
    distance = torch.sqrt(sum((a - b).square().sum() for a, b in zip(gradient, reference, strict=True)))
    assert distance * len(clean) <= 2 * (1 + 1e-4)  # one record removed, another added
    losses = bench.recipes.mean_losses(
        session.sample(EVERYBODY), model, gradient, (0.0,), bound=2.0, noise_multiplier=NO_NOISE
    )
    assert 0 <= losses[0] <= 2.0


@pytest.mark.parametrize("factor", [1.0, -5.0, float("nan")])
def test_a_clipping_rule_is_held_to_the_sensitivity_it_states(open_session, factor: float) -> None:
    class Boastful(bench.clipping.Clipping):
        interpolated = True
        sensitivity = 0.01

        def factors(self, norms: torch.Tensor) -> torch.Tensor:
            return torch.full_like(norms, factor)

    session = open_session()
    gradient = session.sample(EVERYBODY).gradient(session.build_model(), Boastful(), NO_NOISE)
    length = torch.sqrt(sum(part.square().sum() for part in gradient))
    assert length <= 0.01 * (1 + 1e-5)  # the mean of vectors of at most that length


def test_an_empty_batch_releases_noise_alone(open_session) -> None:
    session = open_session()
    model = session.build_model()
    batch = session.sample(asking(1e-12, repeat(gaussian(1.0), 4)))
    assert len(batch._indices) == 0
    gradient = batch.gradient(model, bench.clipping.AutoS(), 1.0)
    losses = bench.recipes.mean_losses(batch, model, gradient, (-1.0, 0.0, 1.0), bound=1.0, noise_multiplier=1.0)
    assert all(torch.isfinite(part).all() and part.abs().max() > 0 for part in gradient)
    assert len(set(losses)) == 3


def test_noise_has_the_stated_deviation(open_session, tiny_task) -> None:
    """The sample deviation of n normals is within 6/sqrt(2n) of σ but for a probability below 1e-8."""
    session = open_session()
    model = session.build_model()
    n = 200
    gradients, losses = [], []
    direction = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in range(n):
        batch = session.sample(asking(1e-12, gaussian(2.0), repeat(gaussian(4.0), 18)))
        gradients.append(torch.cat([part.flatten() for part in batch.gradient(model, bench.clipping.Abadi(3.0), 2.0)]))
        losses.append(bench.recipes.mean_losses(batch, model, direction, (0.0,) * 18, bound=0.5, noise_multiplier=4.0))
    expected_size = tiny_task.n_records * 1e-12
    for noise, sigma in ((torch.stack(gradients), 2.0 * 3.0), (torch.tensor(losses), 4.0 * 0.5)):
        assert noise.numel() == n * 18
        assert noise.std().item() * expected_size == pytest.approx(sigma, rel=6 / (2 * n * 18) ** 0.5)
        assert abs(noise.mean().item()) * expected_size < 6 * sigma / (n * 18) ** 0.5


def test_what_the_plan_does_not_cover_is_refused_before_it_is_computed(open_session) -> None:
    allowance = poisson_sampled(0.25, gaussian(2.0))
    session = open_session(ledger=Ledger(allowance=allowance))
    model = session.build_model()
    with pytest.raises(OverBudgetError):
        session.sample(asking(0.25, gaussian(1.0)))
    assert not session._access.ledger.entries
    batch = session.sample(allowance)
    with pytest.raises(OverBudgetError):
        batch.gradient(model, bench.clipping.AutoS(), 1.0)
    batch.gradient(model, bench.clipping.AutoS(), 2.0)
    with pytest.raises(OverBudgetError):
        session.sample(allowance)


def test_streams_do_not_depend_on_what_else_is_drawn(open_session) -> None:
    one, two = open_session(), open_session()
    model = one.build_model()
    kind = asking(0.5, gaussian(1.0))
    bench.recipes.mean_losses(
        two.sample(kind, "probing"), model, [p.detach() for p in model.parameters()], (0.1,), 1.0, 1.0
    )
    a, b = (session.sample(kind).gradient(model, bench.clipping.AutoS(), 1.0) for session in (one, two))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("rate", [0.0, 1.1, float("nan")])
def test_rates_out_of_range(open_session, rate: float) -> None:
    with pytest.raises(InvalidValueError, match=r"sample_rate <= 1"):
        open_session().sample(dp_event.PoissonSampledDpEvent(rate, gaussian(1.0)))
    with pytest.raises(InvalidValueError, match="a kind of batches as the plan has it"):
        open_session().sample(rate)


def test_queries_leave_every_layer_in_its_mode(open_session, monkeypatch) -> None:
    """A layer that was frozen by itself was thawed by a score."""
    normalised = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    monkeypatch.setattr(TinyTask, "build_model", lambda _: copy.deepcopy(normalised))
    session = open_session()
    model = session.build_model()
    frozen = model[0].eval()
    bench.recipes.mean_score(session, model, 1.0)
    session.sample(asking(0.5, gaussian(1.0))).gradient(model, bench.clipping.AutoS(), 1.0)
    assert model.training
    assert not frozen.training


def test_one_of_several_events_is_taken_or_drawn(open_session) -> None:
    events = [repeat(poisson_sampled(0.1, gaussian(2)), 2), repeat(poisson_sampled(0.5, gaussian(3)), 3)]
    free, drawn = one_of(events), one_of(events, [1, 3])
    ledger = Ledger(compose(free, repeat(drawn, 400)))
    session = open_session(ledger=ledger)
    index, chosen = session.one_of(free, 1)
    assert index == 1
    for _ in range(3):
        chosen.sample(poisson_sampled(0.5, gaussian(3)))
    with pytest.raises(OverBudgetError):
        chosen.sample(poisson_sampled(0.1, gaussian(2)))
    assert multiset(ledger.event) == multiset(free)
    with pytest.raises(InvalidValueError, match="drawn by the session"):
        session.one_of(drawn, 1)
    for wrong in (None, 2, -1):
        with pytest.raises(InvalidValueError, match="index"):
            session.one_of(free, wrong)
    with pytest.raises(InvalidValueError, match="one of several events"):
        session.one_of(gaussian(2), 0)
    share = sum(session.one_of(drawn)[0] for _ in range(400)) / 400
    assert share == pytest.approx(0.75, abs=0.09)  # four standard deviations
    with pytest.raises(OverBudgetError):
        session.one_of(drawn)
