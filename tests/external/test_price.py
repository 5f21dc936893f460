"""`price`: its numbers against dp_accounting, Opacus and the plan of `papernot_steinke`, and what it says."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant

import dphpo_bench as bench
from dphpo_bench.external.price import SHAPE
from dphpo_bench.privacy import events, run_counts

DELTA = 1e-5
RUN = ("dp-sgd", 0.01, 1.1, 300)


def by_dp_accounting(*runs: tuple[float, float, int, int]) -> float:
    """ε of runs (q, σ, T, how many), composed by dp_accounting itself."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for rate, noise, steps, times in runs:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps * times))
    return float(accountant.get_epsilon(DELTA))


def test_the_winner_and_the_total_are_those_of_other_accountants() -> None:
    answer = bench.price([RUN] * 40, delta=DELTA)
    assert answer.runs == 40
    assert answer.winner == answer.least == answer.published
    assert answer.winner == pytest.approx(by_dp_accounting((0.01, 1.1, 300, 1)), rel=2e-3)
    assert answer.total.together == pytest.approx(by_dp_accounting((0.01, 1.1, 300, 40)), rel=2e-3)
    assert answer.total.together is not None
    assert answer.total.adaptively is not None
    assert answer.total.adaptively > answer.total.together > answer.winner
    opacus = PRVAccountant()
    opacus.history = [(1.1, 0.01, 300)]
    assert answer.winner <= opacus.get_epsilon(DELTA) * 1.001 <= answer.winner * 1.03


def test_different_runs_are_composed_as_they_are() -> None:
    runs = [RUN, RUN, ("dp-sgd", 0.05, 2.0, 100), {"mechanism": "gaussian", "noise_multiplier": 8, "count": 3}]
    answer = bench.price(runs, delta=DELTA)
    expected = by_dp_accounting((0.01, 1.1, 300, 2), (0.05, 2.0, 100, 1), (1.0, 8.0, 1, 3))
    assert answer.total.together == pytest.approx(expected, rel=2e-3)
    assert answer.runs == 6
    alone = [bench.price([run], delta=DELTA).winner for run in (RUN, runs[2], ("gaussian", 8))]
    assert (answer.least, answer.winner) == (min(alone), max(alone))
    assert "The history does not say which run won." in " ".join(str(answer).split())


def test_a_selection_costs_what_the_method_plans() -> None:
    """The planned event of papernot_steinke, read back as noise: its ε is the one that `price` states."""
    facts = bench.make_task("digits").facts
    method = bench.make_method("papernot_steinke", {"mean": 12})
    assert method.runs == run_counts.TruncatedNegativeBinomial(12, SHAPE)  # type: ignore[attr-defined]
    plan = method.plan(facts, bench.PrivacyBudget(2.0, DELTA))
    answer = bench.price([plan.training_event] * 12, delta=DELTA)
    assert answer.selection is not None
    assert answer.selection.epsilon == pytest.approx(2.0, rel=2e-3)
    assert answer.selection.score_noise == pytest.approx(plan.parameters.score_noise, rel=5e-3)
    again = bench.price([plan.training_event] * 12, delta=DELTA, epsilon=2.0)
    assert again.selection is not None
    assert again.selection.noise_factor == pytest.approx(1.0, abs=2e-3)


def test_the_noise_that_a_selection_needs_meets_the_published_epsilon() -> None:
    selection = bench.price([RUN] * 40, delta=DELTA).selection
    assert selection is not None
    assert selection.noise_factor is not None
    step = events.poisson_sampled(0.01, events.gaussian(1.1 * selection.noise_factor))
    runs = run_counts.TruncatedNegativeBinomial(40, SHAPE)
    report = bench.events.epsilon(events.best_of(events.repeat(step, 300), runs), DELTA)
    assert 0.998 * selection.target <= report.epsilon <= selection.target
    assert selection.run_epsilon == pytest.approx(
        by_dp_accounting((0.01, 1.1 * selection.noise_factor, 300, 1)), rel=2e-3
    )
    assert selection.run_epsilon < selection.target < selection.epsilon


def test_the_noise_of_objective_perturbation_grows_too() -> None:
    selection = bench.price([events.objective_perturbation(4.0, 5.0, 3)] * 40, delta=DELTA).selection
    assert selection is not None
    assert selection.noise_factor is not None
    run = events.objective_perturbation(4.0 * selection.noise_factor, 5.0, 3)
    report = bench.events.epsilon(events.best_of(run, run_counts.TruncatedNegativeBinomial(40, SHAPE)), DELTA)
    assert 0.998 * selection.target <= report.epsilon <= selection.target


@pytest.mark.parametrize(
    ("runs", "delta"), [([("gaussian", 50)] * 2, 1e-2), ([("gaussian", 1), *[("gaussian", 20)] * 9], DELTA)]
)
def test_a_selection_that_is_dearer_is_said_to_be(runs: list[Any], delta: float) -> None:
    """It is at a large δ, and where the costliest of the runs is much dearer than the others."""
    answer = bench.price(runs, delta=delta)
    assert answer.selection is not None
    assert answer.total.together is not None
    assert answer.selection.epsilon > answer.total.together
    assert "That is not less than" in " ".join(str(answer).split())
    cheaper = bench.price([RUN] * 40, delta=DELTA)
    assert "That is less than" in " ".join(str(cheaper).split())


def test_one_run_has_no_choice() -> None:
    answer = bench.price([RUN], delta=DELTA)
    assert answer.selection is None
    assert answer.total.together == answer.total.adaptively == answer.winner
    text = str(answer)
    assert "nothing was chosen among runs" in text
    assert "Scores" not in text
    assert "bench.select" not in text


def test_raw_scores_leave_held_out_records_nothing() -> None:
    answer = bench.price([RUN] * 4, delta=DELTA)
    assert answer.held_out is not None
    assert answer.held_out.together == math.inf
    assert "have no guarantee" in str(answer)
    public = bench.price([RUN] * 4, delta=DELTA, scores="public")
    assert public.held_out is None
    assert "guarantee" not in str(public)
    assert public.selection is not None
    assert public.selection.score_noise is None
    noisy = bench.price([RUN] * 4, delta=DELTA, score_noise=8)
    assert noisy.held_out is not None
    assert noisy.held_out.together == pytest.approx(by_dp_accounting((1.0, 8.0, 1, 4)), rel=2e-3)
    with pytest.raises(bench.errors.InvalidValueError, match="got both"):
        bench.price([RUN], delta=DELTA, scores="public", score_noise=2)


def test_a_stated_epsilon_stands_beside_that_of_the_winner() -> None:
    answer = bench.price([RUN] * 4, delta=DELTA, epsilon=0.3)
    assert answer.published == 0.3
    assert answer.winner > 0.3
    assert "ε = 0.3, as stated" in str(answer)
    assert "PrivacyBudget(0.3, 1e-05)" in str(answer)


def test_the_code_that_the_text_proposes_is_about_these_runs() -> None:
    answer = bench.price([RUN] * 4, delta=DELTA)
    names = {"PrivacyBudget": bench.PrivacyBudget, "make_method": bench.make_method, "recipes": bench.recipes}
    select = SimpleNamespace(select=lambda *_, **arguments: arguments, **names)
    call = str(answer).partition("Next time: ")[2]
    arguments = eval(call, {"bench": select, "train": None, "space": None})
    assert arguments["budget"].epsilon == pytest.approx(answer.published, rel=1e-5)
    assert arguments["method"].runs == run_counts.TruncatedNegativeBinomial(4, SHAPE)
    assert arguments["event"](1.1) == events.repeat(events.poisson_sampled(0.01, events.gaussian(1.1)), 300)


def test_many_runs_and_long_ones_take_seconds() -> None:
    many = bench.price([("dp-sgd", 0.01, 1 + number / 100, 300) for number in range(200)], delta=DELTA)
    assert many.runs == len(many.counts) == 200
    assert many.least < many.winner < many.total.together  # type: ignore[operator]
    ends = [by_dp_accounting((0.01, noise, 300, 1)) for noise in (2.99, 1.0)]
    assert (many.least, many.winner) == pytest.approx(tuple(ends), rel=2e-3)
    assert "and 197 other kinds of runs" in str(many)
    alike = bench.price([{"mechanism": "dp-sgd", **NUMBERS, "count": 10_000}], delta=DELTA)
    assert alike.selection is not None
    assert bench.price([{"mechanism": "dp-sgd", **NUMBERS, "count": 10_001}], delta=DELTA).selection is None
    long = bench.price([[(1.1, 1e-4, 10**8)]], delta=DELTA)
    assert math.isfinite(long.winner)


NUMBERS = {"sample_rate": 0.01, "noise_multiplier": 50, "steps": 10}


def test_a_run_of_many_noises_has_a_bound() -> None:
    scheduled = [(1.1 + step / 1000, 0.01, 3) for step in range(100)]
    answer = bench.price([scheduled] * 3, delta=DELTA)
    assert answer.selection is not None
    assert answer.selection.epsilon > answer.winner
    assert answer.selection.noise_factor is None
    assert bench.price([[(1.1 + step / 10000, 0.01, 1) for step in range(1001)]] * 2, delta=DELTA).selection is None


def test_runs_without_privacy_cost_everything() -> None:
    answer = bench.price([RUN, ("gaussian", 0)], delta=DELTA)
    assert (answer.total.together, answer.winner) == (math.inf, math.inf)
    assert "∞" in str(answer)
    json.dumps(answer.to_json())


@settings(max_examples=6)
@given(st.lists(st.sampled_from([RUN, ("gaussian", 5.0), ("laplace", 4.0), ("pure", 0.2)]), min_size=1, max_size=4))
def test_the_order_of_runs_does_not_count_and_totals_grow(runs: list[Any]) -> None:
    answer = bench.price(runs, delta=DELTA)
    assert bench.price(runs[::-1], delta=DELTA) == answer
    assert answer.total.together is not None
    assert answer.total.adaptively is not None
    assert answer.least <= answer.winner <= answer.total.together * 1.0001 <= answer.total.adaptively * 1.001
    more = bench.price([*runs, RUN], delta=DELTA).total
    assert more.together is not None
    assert more.together > answer.total.together


def test_json_reads_back() -> None:
    answer = bench.price([RUN] * 3, delta=DELTA)
    values = answer.to_json()
    assert values["counts"][0]["count"] == 3
    assert bench.price(values["counts"], delta=DELTA) == answer


def test_the_screen_is_one(main_here: Any, tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text(json.dumps([RUN] * 40))
    code, out, err = main_here("price", "history.json", "--delta", "1e-5", "--chosen-by", "validation accuracy")
    assert (code, err) == (0, "")
    assert out == str(bench.price([RUN] * 40, delta=DELTA, chosen_by="validation accuracy")) + "\n"
    assert len(out.splitlines()) <= 28
    code, out, err = main_here("price", "history.json", "--delta", "1e-5", "--json", "--public-scores")
    assert (code, err) == (0, "")
    assert json.loads(out) == bench.price([RUN] * 40, delta=DELTA, scores="public").to_json()


def test_options_win_over_the_file(main_here: Any, tmp_path: Path) -> None:
    (tmp_path / "h.toml").write_text("delta = 1e-3\nscores = 'public'\nruns = [['gaussian', 8]]\n")
    assert json.loads(main_here("price", "h.toml", "--json")[1])["delta"] == 1e-3
    assert json.loads(main_here("price", "h.toml", "--json", "--delta", "1e-6", "--count", "4")[1])["delta"] == 1e-6
    assert bench.price(tmp_path / "h.toml").scores == "public"
    assert bench.price(tmp_path / "h.toml", score_noise=3).scores == "noisy"
    assert bench.price(tmp_path / "h.toml", scores="raw").scores == "raw"
