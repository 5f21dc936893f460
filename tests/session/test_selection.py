"""The door to private data, as searches use it: parts, scores, selections, sealed utilities."""

import dataclasses
import itertools
import logging
import math
import os
import random
import sys
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, OverBudgetError, UnsupportedEventError
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.events import (
    best_of,
    compose,
    gaussian,
    on_part,
    poisson_sampled,
    pure_dp,
    repeat,
    threshold_search,
)
from dphpo_bench.privacy.holdout import held_out, holdout_name
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import Binomial, Poisson, RunCount, UniformCount, geometric
from dphpo_bench.session import selection
from dphpo_bench.session.batch import SlackRule
from dphpo_bench.session.interfaces import TrialResult
from dphpo_bench.session.sealed import SealedUtilities
from dphpo_bench.session.session import Session
from dphpo_bench.training.randomness import Streams
from dphpo_bench.training.values import SCORES
from tests.conftest import asking, session_on
from tests.training.models import BACKENDS, engine_by

NO_NOISE = 1e-12
EVERYBODY = asking(1.0, repeat(gaussian(NO_NOISE), 2))
RUNS = UniformCount(2, 4)


@pytest.fixture
def open_session(tiny_task, tmp_path):
    def make(ledger: Ledger | None = None, seed: int = 0) -> Session:
        train = tiny_task.load_train(DataSource.resolve(cache_dir=tmp_path))
        return session_on(tiny_task, train, ledger or Ledger(), Streams(seed))

    return make


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call functions themselves and no copies of them, so that the test sees what trials do."""
    monkeypatch.setattr("dphpo_bench.session.selection.copier", lambda original: lambda: original)


def ask(sealed: SealedUtilities) -> None:
    """Any question."""
    sealed.open_test(1.0).first(0.5)


def spent(session: Session) -> Any:
    return multiset(session._access.ledger.event)


# ------------------------------------------------------------------------------------------------------ parts


def test_a_holdout_divides_the_records(open_session, tiny_task) -> None:
    session = open_session()
    training, validation = session.holdout(0.25)
    rows = torch.cat([training._access.rows, validation._access.rows]).sort().values
    assert torch.equal(rows, torch.arange(tiny_task.n_records))
    assert training.expected_records == 0.75 * tiny_task.n_records
    assert validation.expected_records == 0.25 * tiny_task.n_records
    # Binomial: six standard deviations.
    assert abs(len(validation._access.rows) - 150) < 6 * (600 * 0.25 * 0.75) ** 0.5
    model = session.build_model()
    correct = session._access.raw.total(session._access.raw.own_model().like(model), SCORES, validation._access.rows)
    assert bench.recipes.mean_score(validation, model, NO_NOISE) == pytest.approx(correct.item() / 150)


def test_forks_and_holdouts_have_noise_of_their_own_and_one_account(open_session) -> None:
    session = open_session()
    model = session.build_model()
    assert len({bench.recipes.mean_score(session.fork(str(i)), model, 100.0) for i in range(5)}) == 5
    assert spent(session) == multiset(repeat(gaussian(100.0), 5))
    assert len({bench.recipes.mean_score(session.holdout(0.25)[1], model, 100.0) for _ in range(2)}) == 2


def test_where_a_record_falls_does_not_depend_on_the_others(open_session, tiny_task, tmp_path) -> None:
    records = tiny_task.load_train(DataSource.resolve(cache_dir=tmp_path))
    fewer = bench.Records(records.inputs[:400], records.targets[:400])
    one = open_session().holdout(0.3)[1]
    other = session_on(tiny_task, fewer, Ledger(), Streams(0)).holdout(0.3)[1]
    assert torch.equal(one._access.rows[one._access.rows < 400], other._access.rows)


def test_a_release_from_a_part_is_charged_to_the_part(open_session) -> None:
    session = open_session()
    training, validation = session.holdout(0.25)
    model = session.build_model()
    training.sample(asking(0.5, gaussian(2.0))).gradient(model, bench.clipping.AutoS(), 2.0)
    bench.recipes.mean_score(validation, model, 3.0)
    assert spent(session) == multiset(held_out(poisson_sampled(0.5, gaussian(2.0)), gaussian(3.0), 0.25))


def test_a_plan_for_one_part_does_not_cover_the_other(open_session) -> None:
    session = open_session(
        Ledger(allowance=on_part(holdout_name(0.25), "training", poisson_sampled(0.5, gaussian(2.0))))
    )
    training, validation = session.holdout(0.25)
    with pytest.raises(OverBudgetError):
        validation.sample(asking(0.5, gaussian(2.0)))
    with pytest.raises(OverBudgetError):
        session.sample(asking(0.5, gaussian(2.0)))
    training.sample(asking(0.5, gaussian(2.0))).gradient(session.build_model(), bench.clipping.AutoS(), 2.0)


def test_batches_of_a_part_hold_its_records_only(open_session) -> None:
    training, validation = open_session().holdout(0.25)
    for part in (training, validation):
        for rate in (0.3, 1.0):
            indices = part.sample(asking(rate, gaussian(1.0)))._indices
            assert torch.isin(indices, part._access.rows).all()
    assert torch.equal(validation.sample(EVERYBODY)._indices, validation._access.rows)


def test_a_holdout_of_a_holdout_divides_again_and_is_charged(open_session) -> None:
    session = open_session()
    training, _ = session.holdout(0.5)
    inner, judged = training.holdout(0.5)
    assert torch.equal(torch.cat([inner._access.rows, judged._access.rows]).sort().values, training._access.rows)
    assert abs(len(judged._access.rows) - 150) < 6 * (600 * 0.25 * 0.75) ** 0.5
    bench.recipes.mean_score(judged, session.build_model(), 2.0)
    report = bench.events.epsilon(session._access.ledger.event, 1e-5)
    assert report.epsilon == pytest.approx(bench.events.epsilon(gaussian(2.0), 1e-5).epsilon)


def test_a_subsample_is_composed_first_and_sampled_once(open_session) -> None:
    session = open_session()
    expected = poisson_sampled(0.3, compose(gaussian(5.0), best_of(gaussian(9.0), RUNS)))
    sample = session.subsample(expected)
    model = session.build_model()
    bench.recipes.mean_score(sample, model, 5.0)
    sample.best_of(lambda own: TrialResult(None, bench.recipes.mean_score(own, model, 9.0)), RUNS, gaussian(9.0))
    with pytest.raises(OverBudgetError, match="does not grow"):
        bench.recipes.mean_score(sample, model, 5.0)
    assert spent(session) == multiset(expected)
    assert sample.expected_records == pytest.approx(180)
    with pytest.raises(UnsupportedEventError, match="sample from a sample"):
        sample.sample(asking(0.5, gaussian(1.0)))


def test_a_trial_on_a_subsample_sees_the_sample_only(open_session, here) -> None:
    sample = open_session().subsample(poisson_sampled(0.3, best_of(gaussian(1.0), RUNS)))
    seen = []

    def trial(own: Session) -> TrialResult:
        seen.extend(part._access.rows for part in own.holdout(0.2))
        return TrialResult(None, 0.0)

    sample.best_of(trial, RUNS, gaussian(1.0))
    assert seen
    assert all(torch.isin(rows, sample._access.rows).all() for rows in seen)
    assert torch.equal(torch.cat(seen[:2]).sort().values, sample._access.rows)


# -------------------------------------------------------------------------------------------------- quantiles


def test_quantile_of_gradient_norms(open_session, tiny_task) -> None:
    session = open_session()
    model = session.build_model()
    batch = session.sample(asking(1.0, gaussian(NO_NOISE), gaussian(2 * NO_NOISE)))
    gradient, share = batch.gradient_and_quantile(model, 1.0, NO_NOISE, NO_NOISE)
    reference = session.sample(EVERYBODY).gradient(model, bench.clipping.Abadi(1.0), NO_NOISE)
    for ours, theirs in zip(gradient, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    records = session.nonprivate()
    short = 0
    for x, y in zip(records.inputs, records.targets, strict=True):
        loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        short += int(sum(float(part.square().sum()) for part in parts) <= 1.0)
    assert share == pytest.approx(short / tiny_task.n_records, abs=1e-6)


@given(norms=st.lists(st.floats(0, 1e30) | st.just(math.inf) | st.just(math.nan), max_size=5), slots=st.integers(1, 40))
def test_a_gradient_with_its_slacks_is_no_longer_than_the_threshold(norms: list[float], slots: int) -> None:
    """Each record alone, in float64; and a sum is that of its records, whatever chunks the engine asks about."""
    bound, whole = 0.7, SlackRule(0.7, slots)
    lengths, total = torch.tensor(norms, dtype=torch.float64), torch.zeros(slots, dtype=torch.float64)
    for length in lengths:
        rule = SlackRule(bound, slots)
        clipped = (rule.factors(length[None]) * length).nan_to_num(nan=0.0)
        slacks = bound / math.sqrt(slots) * rule.filled
        assert float(clipped.square().sum() + slacks.square().sum()) <= bound**2 * (1 + 1e-9)
        total += rule.filled
    whole.factors(lengths)
    torch.testing.assert_close(whole.filled, total)


def test_slacks_of_gradient_norms(open_session, tiny_task) -> None:
    """The first share, of 50 slots, is about that of gradients below .98 C; one Gaussian is charged."""
    session = open_session()
    model, batch = session.build_model(), session.sample(EVERYBODY)
    gradient, shares = batch.gradient_and_slacks(model, 1.0, NO_NOISE, 50)
    reference = session.sample(EVERYBODY).gradient(model, bench.clipping.Abadi(1.0), NO_NOISE)
    for ours, theirs in zip(gradient, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    records = session.nonprivate()
    norms = []
    for x, y in zip(records.inputs, records.targets, strict=True):
        loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in torch.autograd.grad(loss, [*model.parameters()]))))
    for slot in (0, 7, 49):
        filled = [min(max(50 * (1 - norm) - slot, 0), 1) for norm in norms]
        assert shares[slot] == pytest.approx(sum(filled) / tiny_task.n_records, abs=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_that_is_no_number_changes_the_count_by_half(tiny_task, tmp_path, monkeypatch, backend: str) -> None:
    """A rule that counts records must see each of them once."""
    tiny_task.model_name = "mlp"
    clean = tiny_task.load_train(DataSource.resolve(cache_dir=tmp_path))
    inputs = clean.inputs.clone()
    inputs[0] = torch.nan
    monkeypatch.setattr(
        "dphpo_bench.training.own_model.gradient_engine", lambda model, *_, **__: engine_by(backend, model)
    )
    shares = []
    for records in (clean, bench.Records(inputs, clean.targets), bench.Records(inputs[1:], clean.targets[1:])):
        session = session_on(tiny_task, records, Ledger(), Streams(0))
        batch = session.sample(asking(1.0, gaussian(NO_NOISE), gaussian(2 * NO_NOISE)))
        shares.append(batch.gradient_and_quantile(session.build_model(), 1.0, NO_NOISE, NO_NOISE)[1])
    for one, other in itertools.combinations(shares, 2):
        assert abs(one - other) * len(clean) <= 1 + 1e-6  # one record removed, another added


# -------------------------------------------------------------------------------------------------- selection


def test_the_best_trial_is_returned_and_nothing_else_is_charged(open_session, here) -> None:
    session = open_session()
    scores = []

    def trial(own: Session) -> TrialResult:
        scores.append(own.uniform("score"))
        return TrialResult(scores[-1], scores[-1])

    best = session.best_of(trial, RUNS, gaussian(1.0))
    assert best == max(scores)
    assert 2 <= len(scores) <= 4
    assert len(set(scores)) == len(scores)
    assert spent(session) == multiset(best_of(gaussian(1.0), RUNS))


def test_nothing_is_left_of_a_trial_but_the_winners_outcome(open_session, capsys, caplog) -> None:
    """Neither a list, nor a model, nor an attribute of the method, nor the state of a generator, nor what it prints."""
    session = open_session(Ledger(best_of(gaussian(9.0), UniformCount(3, 6))))
    scores: list[float] = []
    shared = session.build_model()

    class Searching:
        best = 0.0

        def trial(self, own: Session) -> TrialResult:
            score = bench.recipes.mean_score(own, shared, 9.0)
            scores.append(score)
            self.best = max(self.best, score)
            with torch.no_grad():
                shared.weight.fill_(score)
            torch.manual_seed(int(1e6 * abs(score)))
            print(score)  # noqa: T201
            print(score, file=sys.stderr)  # noqa: T201
            print(score, file=sys.stderr)  # noqa: T201
            logging.getLogger("search").warning("score %f", score)
            return TrialResult((score, self.best, len(scores)), score)

    method = Searching()
    weights, state = shared.weight.clone(), torch.get_rng_state()
    score, best, count = session.best_of(lambda own: method.trial(own), UniformCount(3, 6), gaussian(9.0))
    assert (scores, method.best, *capsys.readouterr(), caplog.records) == ([], 0.0, "", "", [])
    assert (best, count) == (score, 1)  # every trial is the first
    assert torch.equal(shared.weight, weights)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(AttributeError):
        session.best = score


class Telling:
    """Code of a method that says whenever it runs."""

    def __call__(self, tried: list[int], scores: list[float]) -> list[float]:
        self.tell()
        raise SystemExit(f"{tried} {scores}")

    def __getstate__(self) -> dict[str, int]:
        return {"made": 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.tell()
        vars(self).update(state)

    def __float__(self) -> float:
        self.tell()
        return 1.0

    @staticmethod
    def tell() -> None:
        print("a trial")  # noqa: T201
        logging.getLogger("search").warning("a trial")
        random.random()


@pytest.mark.parametrize("learns", [False, True])
def test_nobody_counts_trials_by_other_code_that_runs_for_each(open_session, capsys, caplog, learns: bool) -> None:
    """Copies, scores and proposals are a method's code, too. What they leave must not depend on the trials' number."""
    telling, left = Telling(), []
    proposals = bench.search.Proposals(({"learning_rate": 1.0},), telling, 0.5, 1.5) if learns else None
    for runs in (UniformCount(3, 4), UniformCount(30, 31)):
        random.seed(0)
        caplog.clear()
        best = open_session().best_of(
            lambda _: TrialResult(bool(telling), telling),  # type: ignore[arg-type]
            runs,
            gaussian(9.0),
            proposals=proposals,
        )
        assert best is True
        left.append((*capsys.readouterr(), len(caplog.records), random.getstate()))
    assert left[0] == left[1]


def test_two_selections_have_numbers_of_their_own(open_session, here) -> None:
    session = open_session()
    totals = [0]
    ran: list[int] = []
    for _ in range(6):
        session.best_of(lambda _: TrialResult(ran.append(1), 0.0), geometric(20), gaussian(1.0))
        totals.append(len(ran))
    assert len({after - before for before, after in itertools.pairwise(totals)}) > 1


def test_a_trial_that_fails_is_the_worst_and_no_other_suffers(open_session) -> None:
    def trial(own: Session) -> TrialResult:
        score = own.uniform("score")
        if score > 0.5:
            raise ZeroDivisionError
        return TrialResult(score, score)

    found = [open_session(seed=seed).best_of(trial, UniformCount(1, 4), gaussian(1.0)) for seed in range(20)]
    assert all(value is None or value <= 0.5 for value in found)
    assert {value is None for value in found} == {True, False}


class TestAStackThatRaises:
    """Its trials are what they are without a stack: to draw them again would be a choice that nobody has charged."""

    def test_the_winner_is_that_of_trials_without_a_stack(self, open_session, monkeypatch) -> None:
        trial = bench.search.Trial(bench.recipes.DpSgd(1.0, 2, 4.0, 0.1), 5.0, 0.2)
        run, sizes = bench.search.Trial.run, []

        def failing(self: bench.search.Trial, sessions: list[Session], candidates: Any = None) -> list[TrialResult]:
            sizes.append(len(sessions))
            results = run(self, sessions, candidates)  # the questions have been answered by now
            if len(sessions) > 1:
                raise ZeroDivisionError
            return results

        def winner() -> list[float]:
            best = open_session().best_of(trial, UniformCount(3, 5), trial.event)
            return [weight for value in best.model.parameters() for weight in value.flatten().tolist()]

        with monkeypatch.context() as patched:
            patched.setattr(bench.search.Trial, "run", failing)
            after_raising = winner()
            assert sizes[0] >= 3
            patched.setattr(selection, "is_of_recipes", lambda _: False)
            sizes.clear()
            assert winner() == after_raising
            assert set(sizes) == {1}

    def test_secure_noise_cannot_be_drawn_again_and_is_not_stacked(self, open_session, monkeypatch) -> None:
        sizes = []

        def run(_: bench.search.Trial, sessions: list[Session], candidates: Any = None) -> list[TrialResult]:
            sizes.append(len(sessions))
            return [TrialResult(0.0, 0.0) for _ in sessions]

        monkeypatch.setattr(bench.search.Trial, "run", run)
        trial = bench.search.Trial(bench.recipes.DpSgd(1.0, 2, 4.0, 0.1), 5.0, 0.2)
        session = open_session()
        secure = dataclasses.replace(session._access.streams, secure=True)
        Session(dataclasses.replace(session._access, streams=secure)).best_of(trial, UniformCount(3, 5), trial.event)
        assert set(sizes) == {1}


def test_a_score_that_is_no_number_is_the_worst(open_session, here) -> None:
    nan, low = float("nan"), float("-inf")
    scores = iter([nan, low, nan, low])
    best = open_session().best_of(lambda _: (lambda x: TrialResult(x, x))(next(scores)), RUNS, gaussian(1.0))
    assert best == low
    for result in (TrialResult(1, nan), TrialResult(1, None), "text"):  # type: ignore[arg-type]
        assert open_session().best_of(lambda _, result=result: result, RUNS, gaussian(1.0)) is None


@pytest.mark.parametrize("through", ["score", "batch", "fork", "raw", "selection", "utilities"])
def test_a_trial_asks_no_account_but_its_own(open_session, through: str) -> None:
    """An outer score of a trial's model was charged by composition: quoted 4.18, and truly at least 20.6."""
    step = poisson_sampled(0.5, gaussian(100.0))
    runs = UniformCount(3, 6)
    event = compose(
        best_of(gaussian(2.0), runs), repeat(gaussian(100.0), 99), repeat(step, 99), repeat(pure_dp(1.0), 99)
    )
    session = open_session(Ledger(event))
    opened = session.sample(step)
    sealed = SealedUtilities(session._access, [0.5], 0.1)

    def trial(own: Session) -> TrialResult:
        model = own.build_model()
        match through:
            case "score":
                bench.recipes.mean_score(session, model, 100.0)
            case "fork":
                bench.recipes.mean_score(session.fork("x"), model, 100.0)
            case "batch":
                opened.gradient(model, bench.clipping.AutoS(), 100.0)
            case "raw":
                session.nonprivate()
            case "selection":
                session.best_of(trial, runs, gaussian(2.0))
            case "utilities":
                ask(sealed)
        return TrialResult(None, 0.0)

    with pytest.raises(OverBudgetError, match="account that is locked"):
        session.best_of(trial, runs, gaussian(2.0))
    assert "locked" in str(session._access.ledger.refused)


def test_a_selection_within_a_trial(open_session) -> None:
    """The inner one is charged to the trial; its trials may not ask the trial around them."""
    inner = best_of(gaussian(9.0), RUNS)
    session = open_session(Ledger(repeat(best_of(compose(inner, gaussian(5.0)), RUNS), 2)))

    def trial(own: Session) -> TrialResult:
        best = own.best_of(
            lambda innermost: TrialResult(None, bench.recipes.mean_score(innermost, model, 9.0)), RUNS, gaussian(9.0)
        )
        assert best is None
        return TrialResult("won", bench.recipes.mean_score(own, model, 5.0))

    def cheating(own: Session) -> TrialResult:
        own.best_of(lambda _: TrialResult(None, bench.recipes.mean_score(own, model, 5.0)), RUNS, gaussian(9.0))
        return TrialResult("won", 0.0)

    model = session.build_model()
    assert session.best_of(trial, RUNS, compose(inner, gaussian(5.0))) == "won"
    with pytest.raises(OverBudgetError, match="account that is locked"):
        session.best_of(cheating, RUNS, compose(inner, gaussian(5.0)))


def test_what_a_trial_changes_in_its_candidate_no_other_trial_sees(open_session) -> None:
    """It would count the trials, and hand on what earlier ones computed, which no theorem of selections allows."""

    def trial(own: Session) -> TrialResult:
        candidate: Any = own.candidate()
        candidate["seen"].append(candidate.setdefault("tried", 0))
        candidate["tried"] += 1
        return TrialResult([len(candidate["seen"]), candidate["tried"]], candidate["tried"])

    candidate: Any = {"seen": []}
    proposals = bench.search.Proposals((candidate,), lambda *_: [1.0], 0.5, 1.5)
    assert open_session().best_of(trial, UniformCount(3, 5), gaussian(9.0), proposals=proposals) == [1, 1]


def test_an_adaptive_search_is_held_to_its_bounds(open_session, here) -> None:
    """Weights of a method's own are clamped: no candidate is drawn more often than the bounds allow.

    Of 1,000 draws, each frequency errs by less than six standard deviations but for 1e-8.
    """
    prior = tuple({"learning_rate": 0.1 * (i + 1)} for i in range(4))
    seen: list[float] = []
    told: list[tuple[list[int], list[float]]] = []

    def weights(tried: list[int], scores: list[float]) -> list[float]:
        told.append((list(tried), list(scores)))
        return [1e6, 1.0, 1.0, 1e-6]

    def trial(own: Session) -> TrialResult:
        seen.append(own.candidate()["learning_rate"])
        return TrialResult(seen[-1], seen[-1])

    proposals = bench.search.Proposals(prior, weights, 0.5, 1.5)
    session, runs, n = open_session(), UniformCount(4, 6), 0
    while n < 1000:
        before = len(seen)
        best = session.best_of(trial, runs, gaussian(9.0), proposals=proposals)
        assert best == max(seen[before:])
        n = len(seen)
    for candidate, density in zip(prior, [1.5, 1.0, 1.0, 0.5], strict=True):
        share = seen.count(candidate["learning_rate"]) / n
        assert share == pytest.approx(density / 4, abs=6 * (0.25 / n) ** 0.5)
    assert all([prior[i]["learning_rate"] for i in tried] == scores for tried, scores in told)
    assert spent(session).keys() == {best_of(gaussian(9.0), runs, 0.5, 1.5)}


@pytest.mark.parametrize(
    "ask",
    [
        lambda own: (
            bench.recipes.mean_score(own, own.build_model(), 9.0)
            + bench.recipes.mean_score(own, own.build_model(), 9.0)
        ),
        lambda own: own.nonprivate(),
    ],
)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_trial_beyond_its_base_event_is_refused(open_session, ask: Any, sampled: bool) -> None:
    session = open_session()
    searched = session.subsample(poisson_sampled(0.5, best_of(gaussian(9.0), RUNS))) if sampled else session
    with pytest.raises(OverBudgetError):
        searched.best_of(lambda own: TrialResult(ask(own), 0.0), RUNS, gaussian(9.0))
    assert session._access.ledger.refused  # the harness sees it even if the method swallows the error


@pytest.mark.parametrize("runs", [Poisson(1e-6), Binomial(1e-6, 9)], ids=str)
def test_no_trial_no_winner(open_session, runs: RunCount) -> None:
    """A number of mean 1e-6 is 0 but for one time in a million."""
    session = open_session()
    assert session.best_of(lambda _: pytest.fail("ran"), runs, gaussian(9.0)) is None
    assert spent(session) == multiset(best_of(gaussian(9.0), runs))


def test_the_first_above_a_threshold(open_session, here) -> None:
    session = open_session()
    scores = iter([0.1, 0.3, 0.9, 0.95])
    found = session.threshold_search(lambda _: (lambda x: TrialResult(x, x))(next(scores)), 0.8, 1e-3, gaussian(1.0))
    assert found == 0.9
    assert spent(session) == multiset(threshold_search(gaussian(1.0), 1e-3))


# -------------------------------------------------------------------------------------------- trained together


@pytest.mark.parametrize(("model", "rate"), [("linear", 1.0), ("mlp", 0.5)])
def test_training_together_is_training_alone(open_session, tiny_task, model: str, rate: float) -> None:
    tiny_task.model_name = model
    session = open_session()
    runs = [
        bench.recipes.DpSgd(rate, 5, 1.0, lr, optimizer="SGD", clipping=rule)
        for lr, rule in ((0.1, "auto_s"), (1.0, "abadi:2"))
    ]
    alone = [run.train(session.holdout(0.2)[0].fork(f"a{i}")) for i, run in enumerate(runs)]
    session = open_session()
    together = bench.recipes.DpSgd.train_together([session.holdout(0.2)[0].fork(f"a{i}") for i in range(2)], runs)
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------- sealed utilities


def test_sealed_utilities_find_the_good_candidate(open_session) -> None:
    session = open_session()
    runs = [bench.recipes.DpSgd(1.0, 20, 0.0, lr, optimizer="SGD", averaging=0.0) for lr in (1e-9, 0.5)]
    sealed = session.sealed_utilities(runs, partitions=3, validation=0.25)
    assert sealed._sensitivity == pytest.approx(1 / 3)
    assert not session._access.ledger.entries  # nothing has been released
    test = sealed.open_test(1e7)
    assert [test.first(threshold) for threshold in (1.9, 0.9999, 0.6)] == [None, None, 1]
    assert spent(session) == multiset(pure_dp(1e7))  # rounds that find nothing are free
    with pytest.raises(InvalidValueError, match="Open another"):
        test.first(0.6)
    assert sealed.open_test(1e7).first(0.6) == 1
    assert spent(session) == multiset(repeat(pure_dp(1e7), 2))


def test_above_threshold_on_two_neighbours_is_private(open_session) -> None:
    """Dwork and Roth's bound on each answer, at the worst pair of utility vectors: one rises, the other falls.

    Each frequency errs by less than six standard deviations but for 1e-8 or so.
    """
    session, epsilon, n = open_session(), 1.0, 2_000
    counts = []
    for values in ([0.5, 0.4], [0.4, 0.5]):
        sealed = SealedUtilities(session._access, list(values), 0.1)
        answers = [sealed.open_test(epsilon).first(0.5) for _ in range(n)]
        counts.append([answers.count(answer) / n for answer in (0, 1, None)])
    for p, q in zip(*counts, strict=True):
        deviation = 6 * ((p * (1 - p) + 9 * q * (1 - q)) / n) ** 0.5
        assert p <= torch.e**epsilon * q + deviation
        assert q <= torch.e**epsilon * p + deviation
    assert counts[0] != counts[1]


def test_above_threshold_beyond_the_plan_releases_nothing(open_session) -> None:
    sealed = SealedUtilities(open_session(Ledger(allowance=pure_dp(0.5)))._access, [1.0], 0.1)
    with pytest.raises(OverBudgetError):
        sealed.open_test(0.6)


# ---------------------------------------------------------------------------------------- the number of trials


def test_the_number_of_trials_is_drawn_from_its_distribution(open_session, here) -> None:
    """K of a geometric distribution of mean 3: the mean of n is within six standard deviations but for 2e-9."""
    n = 400
    ran: list[int] = []
    for seed in range(n):
        open_session(seed=seed).best_of(lambda _: TrialResult(ran.append(1), 0.0), geometric(3), gaussian(1.0))
    assert len(ran) / n == pytest.approx(3, abs=6 * (6 / n) ** 0.5)


def test_a_coin_ends_the_search_for_a_threshold(open_session, here) -> None:
    """Trials until a coin of probability 1/4: the mean of n numbers is within six standard deviations but for 2e-9."""
    n = 300
    ran: list[int] = []
    for seed in range(n):
        session = open_session(seed=seed)
        trial = lambda _: TrialResult(ran.append(1), 0.0)  # noqa: E731
        assert session.threshold_search(trial, 1.0, 0.25, gaussian(1.0)) is None
    assert len(ran) / n == pytest.approx(4, abs=6 * (12 / n) ** 0.5)


def test_the_state_of_the_process_is_as_before_a_selection(open_session, monkeypatch) -> None:
    """A trial that changed it would tell the next one, and the method, that it was there."""
    monkeypatch.setenv("DPHPO_TEST_OLD", "as it was")
    threads = torch.get_num_threads()

    def state() -> list[Any]:
        variables = [os.environ.get(f"DPHPO_TEST_{name}") for name in ("OLD", "NEW")]
        generators = map(repr, (random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist()))
        defaults = torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device().type
        return [*variables, *defaults, *generators]

    def trial(own: Session) -> TrialResult:
        seen, score = state()[:5], own.uniform("score") + 0 * (random.random() + numpy.random.random())
        torch.rand(())
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(threads + 1)
        os.environ["DPHPO_TEST_NEW"] = "left behind"
        del os.environ["DPHPO_TEST_OLD"]
        return TrialResult(seen, score)

    before = state()
    try:
        for seed in range(4):  # so that now the first trial wins and now a later one
            assert open_session(seed=seed).best_of(trial, UniformCount(2, 4), gaussian(1.0)) == before[:5]
            assert state() == before
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
        os.environ.pop("DPHPO_TEST_NEW", None)
