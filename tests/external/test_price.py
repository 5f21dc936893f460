"""`price`: its numbers against dp_accounting, Opacus and the plan of `papernot_steinke`, and what it says."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import optuna
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from optuna.trial import TrialState, create_trial

import dphpo_bench as bench
from dphpo_bench.external.price import SHAPE, read_history
from dphpo_bench.privacy import events, run_counts
from dphpo_bench.privacy.event_trees import to_json

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
    assert "which run won is not known" in str(answer)


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
    answer = bench.price([RUN] * 40, delta=DELTA)
    assert answer.selection is not None
    assert answer.selection.noise_factor is not None
    step = events.poisson_sampled(0.01, events.gaussian(1.1 * answer.selection.noise_factor))
    runs = run_counts.TruncatedNegativeBinomial(40, SHAPE)
    report = bench.events.epsilon(events.best_of(events.repeat(step, 300), runs), DELTA)
    assert 0.998 * answer.published <= report.epsilon <= answer.published < answer.selection.epsilon


def test_one_run_has_no_choice() -> None:
    answer = bench.price([RUN], delta=DELTA)
    assert answer.selection is None
    assert answer.total.together == answer.total.adaptively == answer.winner
    text = str(answer)
    assert "nothing was chosen among runs" in text
    assert "scores" not in text
    assert "bench.select" not in text


def test_raw_scores_leave_held_out_records_nothing() -> None:
    answer = bench.price([RUN] * 4, delta=DELTA)
    assert answer.held_out is not None
    assert answer.held_out.together == math.inf
    assert "have no guarantee" in " ".join(str(answer).split())
    public = bench.price([RUN] * 4, delta=DELTA, scores="public")
    assert public.held_out is None
    assert "guarantee" not in str(public)
    assert public.selection is not None
    assert public.selection.score_noise is None
    noisy = bench.price([RUN] * 4, delta=DELTA, score_noise=8)
    assert noisy.held_out is not None
    assert noisy.held_out.together == pytest.approx(by_dp_accounting((1.0, 8.0, 1, 4)), rel=2e-3)


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
    call = dict(answer.display()[1])["next time"]
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
    assert "197 other kinds of runs" in str(many)
    same = bench.price([{"mechanism": "dp-sgd", **NUMBERS, "count": 10_000}], delta=DELTA)
    assert same.selection is not None
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


# Histories


def sgd(rate: float, noise: float, steps: int) -> Any:
    return events.repeat(events.poisson_sampled(rate, events.gaussian(noise)), steps)


def runs_of(history: object) -> Any:
    return dict(read_history(history, None).runs)


EVENT = sgd(0.01, 1.1, 300)
THEIRS = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1)), 300
)


def engine() -> Any:
    made = PrivacyEngine(accountant="prv")
    made.accountant.history = [(1.1, 0.01, 300)]
    return made


def accountant(kind: Any = RDPAccountant) -> Any:
    made = kind()
    for _ in range(300):
        made.step(noise_multiplier=1.1, sample_rate=0.01)
    return made


@pytest.mark.parametrize(
    "history",
    [
        [("dp-sgd", 0.01, 1.1, 300)],
        ("dp_sgd", 0.01, 1.1, 300),
        [{"mechanism": "dp-sgd", "sample_rate": 0.01, "noise_multiplier": 1.1, "steps": 300}],
        [{"event": to_json(EVENT)}],
        to_json(EVENT),
        EVENT,
        THEIRS,
        [(1.1, 0.01, 300)],
        [[1.1, 0.01, 100.0], (1.1, 0.01, 200)],
        accountant(),
        engine(),
    ],
    ids=lambda form: type(form).__name__,
)
def test_one_run_in_many_forms(history: object) -> None:
    assert runs_of(history) == {EVENT: 1}
    if not isinstance(history, list | tuple):
        assert runs_of([history, history]) == {EVENT: 2}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h.toml", "[[runs]]\nmechanism='dp-sgd'\nsample_rate=0.01\nnoise_multiplier=1.1\nsteps=300\ncount=2"),
        ("h.toml", f"[[runs]]\ncount = 2\nevent = {{type='repeated', count=300, event={{type='poisson_sampled', {''}"
         "sample_rate=0.01, event={type='gaussian', noise_multiplier=1.1}}}"),
        ("h.json", json.dumps({"delta": 1e-5, "runs": [["dp-sgd", 0.01, 1.1, 300]] * 2})),
        ("h", json.dumps([to_json(EVENT)] * 2)),
        ("h.json", "\ufeff" + json.dumps([[[1.1, 0.01, 300]]] * 2)),
    ],
)  # fmt: skip
def test_two_runs_in_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert runs_of(tmp_path / name) == {EVENT: 2}
    assert runs_of(str(tmp_path / name)) == {EVENT: 2}


def test_values_of_a_file_are_its_history(tmp_path: Path) -> None:
    path = tmp_path / "h.toml"
    path.write_text("delta=1e-6\nchosen_by='F1'\nepsilon=2.0\nscore_noise=5.0\nruns=[['gaussian', 3], ['laplace', 2]]")
    assert read_history(path, None).said == {"delta": 1e-6, "chosen_by": "F1", "epsilon": 2.0, "score_noise": 5.0}
    assert bench.price(path).chosen_by == "F1"


def test_an_opacus_history_says_what_its_accountants_assume() -> None:
    assert "poisson_sampling=False" in " ".join(str(bench.price(accountant(), delta=DELTA)).split())
    assert "Opacus" not in str(bench.price(EVENT, delta=DELTA))


def nested(depth: int) -> Any:
    event = dp_accounting.GaussianDpEvent(1.0)
    for _ in range(depth):
        event = dp_accounting.SelfComposedDpEvent(event, 1)
    return event


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (3, "Expected a run"),
        ([], "number of runs"),
        ([("dp-sgd", 0.01, 1.1)], r"history\[0\]: Expected a mechanism and its numbers .dp-sgd: sample_rate, noise"),
        ([("gaussian", 1)] * 3 + [("gaussian", math.nan)], r"history\[3\].*nan"),
        ([("dp-sgd", 0, 1.1, 300)], "sample_rate=0"),
        ([("dp-sgd", 0.01, 1.1, 2.5)], "steps=2.5"),
        ([{"mechanism": "gaussian", "noise_multiplier": 1, "count": 0}], "count=0"),
        ([{"event": EVENT, "steps": 3}], "a mechanism and its numbers"),
        ([(1.1, 0.01, 300), (1.1, "0.01", 300)], "sample_rate='0.01'"),
        (RDPAccountant(), "Opacus accountant after training"),
        ([dp_accounting.ComposedDpEvent([dp_accounting.ZCDpEvent(0.1)])], "ZCDpEvent"),
        (nested(100_000), "too deep"),
        ("no such file.toml", "No such file"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_mistake_in_python_is_one_line(history: object, message: str) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message) as error:
        bench.price(history, delta=DELTA)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass delta"),
        ({"delta": DELTA, "score_noise": 1, "scores": "public"}, "got both"),
        ({"delta": DELTA, "run": len}, "about an Optuna study"),
    ],
)
def test_wrong_options_are_one_line(options: Any, message: str) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match=message):
        bench.price([("gaussian", 1)], **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("h.toml", b"", "runs: Field required"),
        ("h.toml", b"delta = 'x'\nruns = [['gaussian', 1]]", "delta:"),
        ("h.toml", b"dleta = 1e-5\nruns = [['gaussian', 1]]", "dleta: Extra inputs are not permitted"),
        ("h.toml", b"runs = [['gaussian', nan]]", r"runs\[0\]: .*nan"),
        ("h.json", b'{"runs": [["gaussian", 1]], "runs": []}', "is there twice"),
        ("h.json", b"[" * 100_000 + b"]" * 100_000, "too deep"),
        ("h.json", b'{"type": "gaussian", "noise_multiplier": "1"}', "noise_multiplier='1'"),
        ("h.db", b"SQLite format 3\0" + bytes(2000), r"bench\.price\(optuna\.load_study"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line(
    main_here: Any, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    code, out, err = main_here("price", name, "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    with pytest.raises(bench.errors.DphpoBenchError, match=message):
        bench.price(name, delta=DELTA)


# Optuna's studies


TRIAL = {"sample_rate": 0.01, "noise_multiplier": 1.1, "steps": 300}


def forty(trial: optuna.Trial) -> float:
    """Trials of two noises; one is pruned after it recorded its steps; one fails."""
    rate = trial.suggest_float("lr", 1e-3, 1, log=True)
    trial.set_user_attr("sigma", 1.1 if trial.number % 2 else 1.5)
    if trial.number == 5:
        trial.set_user_attr("T", 100)
        raise optuna.TrialPruned
    if trial.number == 7:
        raise ArithmeticError
    return 1 - abs(rate - 0.1)


def test_a_study_of_forty_trials() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial({"lr": 0.1})
    study.optimize(forty, n_trials=40, catch=(ArithmeticError,))
    study.enqueue_trial({"lr": 0.2})  # waits for ever: it has read nothing

    def run(trial: Any) -> Any:
        return "dp-sgd", 0.01, trial.user_attrs["sigma"], trial.user_attrs.get("T", 300)

    answer = bench.price(study, delta=DELTA, run=run)
    assert dict(answer.counts) == {sgd(0.01, 1.5, 300): 20, sgd(0.01, 1.1, 300): 19, sgd(0.01, 1.1, 100): 1}
    assert answer.winner == answer.least == pytest.approx(by_dp_accounting((0.01, 1.5, 300, 1)), rel=2e-3)
    expected = by_dp_accounting((0.01, 1.5, 300, 20), (0.01, 1.1, 300, 19), (0.01, 1.1, 100, 1))
    assert answer.total.together == pytest.approx(expected, rel=2e-3)
    assert answer.by_results
    text = " ".join(str(answer).split())
    assert "38 COMPLETE, 1 PRUNED, 1 FAIL" in text
    assert "Results decided how long some runs trained: this ε counts." in text
    assert bench.price(study, delta=DELTA, run=run, count=2).runs == 80


def study_of(*trials: tuple[str, dict[str, Any], dict[str, Any]]) -> optuna.Study:
    """A study of trials, each by state, parameters and user attributes."""
    study = optuna.create_study()
    for state, params, attributes in trials:
        choices = {name: optuna.distributions.CategoricalDistribution([value]) for name, value in params.items()}
        value = 1.0 if state == "COMPLETE" else None
        study.add_trial(
            create_trial(
                state=TrialState[state], value=value, params=params, distributions=choices, user_attrs=attributes
            )
        )
    return study


@pytest.mark.parametrize(
    ("trials", "steps"),
    [
        ([("COMPLETE", TRIAL, {})], [300]),
        ([("COMPLETE", {}, {**TRIAL, "steps": 300.0}), ("WAITING", {}, {})], [300]),
        ([("PRUNED", TRIAL, {"steps": 40})], [40]),
        # One that failed or still runs may have gone on after it wrote down its steps.
        ([("FAIL", TRIAL, {"steps": 40}), ("RUNNING", TRIAL, {"steps": 40})], [300, 300]),
    ],
)
def test_a_trial_has_its_numbers_in_its_names(trials: Any, steps: list[int]) -> None:
    answer = bench.price(study_of(*trials), delta=DELTA)
    assert answer.counts == bench.price([("dp-sgd", 0.01, 1.1, number) for number in steps], delta=DELTA).counts


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([("WAITING", {}, {})], "no trial that began"),
        ([("COMPLETE", TRIAL, {}), ("FAIL", {}, TRIAL)], r"Trial 1 \(FAIL\) began, so it counts.*'sample_rate'"),
        ([("COMPLETE", {}, {**TRIAL, "steps": "many"})], "steps='many'"),
    ],
)
def test_a_trial_that_lacks_something_is_named(trials: Any, message: str) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match=message):
        bench.price(study_of(*trials), delta=DELTA)


def test_scores_during_training_count_and_several_objectives_have_no_single_winner() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    study.optimize(lambda trial: (1.0, trial.suggest_float("sigma", 1, 2)), n_trials=3)
    answer = bench.price(study, delta=DELTA, run=lambda trial: ("dp-sgd", 0.01, trial.params["sigma"], 10))
    assert answer.least < answer.winner
    reporting = optuna.create_study()
    reporting.optimize(lambda trial: [trial.report(1.0, step) for step in range(4)] and 1.0, n_trials=3)
    answer = bench.price(reporting, delta=DELTA, score_noise=9, run=lambda _: ("gaussian", 5))
    assert answer.held_out is not None
    assert answer.held_out.releases == 15
