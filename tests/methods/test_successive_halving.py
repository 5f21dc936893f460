"""Successive halving: its arithmetic, and that nothing is trained or scored beyond the plan."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dphpo_bench as bench
from dphpo_bench.methods.successive_halving import SuccessiveHalving
from dphpo_bench.privacy.accountants.report import epsilon_by
from dphpo_bench.privacy.ledger import Ledger
from tests.conftest import TinyTask, session_on

RUN = bench.recipes.DpSgd(1 / 6, 30, 2.0, 0.05, optimizer="AdamW")


@given(candidates=st.integers(2, 60), keep=st.integers(2, 8), steps=st.integers(1, 300))
@settings(max_examples=200)
def test_the_winner_takes_all_steps_of_a_run_and_fewer_go_on_each_time(candidates: int, keep: int, steps: int) -> None:
    rungs = SuccessiveHalving(candidates=candidates, keep=keep).rungs(bench.recipes.DpSgd(0.1, steps, 2.0, 0.1))
    assert sum(rung.steps for rung in rungs) == steps
    assert all(rung.steps >= 0 for rung in rungs)
    assert [rung.trials for rung in rungs] == sorted((rung.trials for rung in rungs), reverse=True)
    assert (rungs[0].trials, rungs[-1].trials) == (candidates, 1)
    assert [rung.is_last for rung in rungs] == [rung.trials == 1 for rung in rungs]


def test_rungs_of_nine() -> None:
    rungs = SuccessiveHalving(scouting_noise=3.0).rungs(bench.recipes.DpSgd(0.1, 90, 2.0, 0.1))
    assert [(rung.trials, rung.steps, rung.noise_multiplier) for rung in rungs] == [(9, 10, 6), (3, 20, 6), (1, 60, 2)]


@pytest.mark.parametrize("scouting", [1.0, 2.0])
def test_epsilon_against_another_accountant(scouting: float) -> None:
    """Opacus' RDP of the steps that a record of the training part is exposed to, which is what the event says."""
    from opacus.accountants import RDPAccountant

    method, facts, budget = SuccessiveHalving(scouting_noise=scouting), TinyTask().facts, bench.PrivacyBudget(2.0, 1e-4)
    plan = method.plan(facts, budget)
    run, other = plan.parameters.run, RDPAccountant()
    for _ in range(9 * 3 + 3 * 7):  # 30 steps end at 3, 10 and 30
        other.step(noise_multiplier=scouting * run.noise_multiplier, sample_rate=run.sample_rate)
    for _ in range(20):
        other.step(noise_multiplier=run.noise_multiplier, sample_rate=run.sample_rate)
    ours = epsilon_by(method.training_event(run), budget.delta, "rdp")
    assert ours == pytest.approx(other.get_epsilon(budget.delta), rel=5e-3)
    exact = epsilon_by(method.training_event(run), budget.delta, "pld")
    assert 0.99 * budget.epsilon <= exact <= min(ours, budget.epsilon)


def test_scores_alone_cost_no_more_than_the_budget() -> None:
    """Twelve Gaussians of multiplier σ are one of σ/√12, whose curve is in closed form (Balle and Wang 2018)."""
    from scipy.stats import norm

    budget = bench.PrivacyBudget(2.0, 1e-4)
    mu = 12**0.5 / SuccessiveHalving().plan(TinyTask().facts, budget).parameters.score_noise
    delta = norm.cdf(mu / 2 - 2.0 / mu) - 7.38905609893065 * norm.cdf(-mu / 2 - 2.0 / mu)
    assert 0.97 * 1e-4 < delta <= 1e-4


def test_a_run_in_pieces_is_the_run(tiny_task: TinyTask) -> None:
    train = tiny_task.load_train(None)  # type: ignore[arg-type]
    whole = RUN.train(session_on(tiny_task, train))
    pieces = bench.recipes.Training(session_on(tiny_task, train), RUN)
    for steps in (0, 1, 12, 17):
        pieces.advance(steps)
    torch.testing.assert_close(list(pieces.model().parameters()), list(whole.parameters()))
    with pytest.raises(bench.errors.InvalidValueError, match="steps <= 0, what is left, got 1"):
        pieces.advance(1)


def test_whichever_trial_goes_on_the_plan_holds_its_steps_and_no_more(tiny_task: TinyTask) -> None:
    ledger = Ledger(bench.events.repeat(RUN.step, 40))
    session = session_on(tiny_task, tiny_task.load_train(None), ledger)  # type: ignore[arg-type]
    first, second = (bench.recipes.Training(session.fork(str(index)), RUN) for index in range(2))
    first.advance(10)
    second.advance(30)
    with pytest.raises(bench.errors.OverBudgetError):
        first.advance(1)


def test_steps_with_less_noise_than_planned_are_refused(tiny_task: TinyTask) -> None:
    ledger = Ledger(bench.events.repeat(RUN.step, 40))
    session = session_on(tiny_task, tiny_task.load_train(None), ledger)  # type: ignore[arg-type]
    with pytest.raises(bench.errors.OverBudgetError):
        bench.recipes.Training(session, RUN).advance(1, noise_multiplier=1.9)


def test_all_of_the_plan_is_released_and_nothing_else(tiny_task: TinyTask, budget) -> None:
    record = bench.run(SuccessiveHalving(candidates=4, keep=2), tiny_task, budget, seed=0).record
    assert record.status == "ok"
    assert record.privacy is not None
    assert record.privacy.recomputed is not None
    assert record.privacy.recomputed.epsilon == pytest.approx(record.privacy.planned.epsilon, rel=1e-6)
    assert [len(scores) for scores in record.released["scores"]] == [4, 2]
    best = [max(scores, key=scores.get) for scores in record.released["scores"]]
    assert best[0] in record.released["scores"][1]
    winner = record.released["candidates"][int(best[1])]
    assert winner.items() <= record.released.items()
