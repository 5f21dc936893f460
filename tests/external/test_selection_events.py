"""Events, noise and numbers of trials of a study, against what our methods plan and what dp_accounting computes."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from scipy.stats import chi2

import dphpo_bench as bench
from dphpo_bench.contract.registry import make_method
from dphpo_bench.external import study as studies
from dphpo_bench.external.memory import Memory
from dphpo_bench.external.procedure import WEAKER_SCORE, Procedure
from dphpo_bench.harness.journal import Journal
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.run_counts import RunCount, geometric
from dphpo_bench.search import Study
from dphpo_bench.training.randomness import Streams

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("papernot_steinke", {}),
    ("papernot_steinke", {"distribution": "poisson", "accounting": "rdp", "mean": 5.0}),
    ("papernot_steinke", {"distribution": "uniform", "mean": 3.0}),
    ("papernot_steinke", {"shape": 0.0, "accounting": "profile"}),
    ("liu_talwar", {}),
    ("liu_talwar", {"threshold": 0.8, "mean": 10.0}),
    ("dp_hyper", {}),
    ("dp_hyper", {"accounting": "rdp", "final_share": 0.7}),
]
BUDGETS = [(1.0, 1e-5), (6.0, 1e-4), (3.0, 1e-6)]
FACTS = bench.TaskFacts(
    task="mine",
    model="linear",
    n_records=2000,
    inputs=bench.recipes.Input((5,)),
    n_classes=3,
    batch_size=100,
    epochs=5,
    optimizer="SGD",
    learning_rate=0.05,
)


def event(noise: float) -> Any:
    return bench.recipes.dp_sgd_event(FACTS.sample_rate, FACTS.steps, noise)


def dp_sgd(q: float, steps: int, noise: float) -> Any:
    """The event in dp_accounting's own words."""
    return dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(float(noise))), steps
    )


def renyi(*events: Any) -> float:
    accountant = rdp.RdpAccountant()
    for each in events:
        accountant.compose(each)
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize(
    ("name", "parameters", "epsilon", "delta"),
    [
        pytest.param(*method, *budget, marks=[] if (index + place) % 3 == 0 else pytest.mark.slow)
        for index, method in enumerate(METHODS)
        for place, budget in enumerate(BUDGETS)
    ],
)
def test_a_study_is_what_its_method_plans(name: str, parameters: dict[str, Any], epsilon: float, delta: float) -> None:
    budget = bench.PrivacyBudget(epsilon, delta)
    method: Any = make_method(name, {**parameters, "space": "learning_rate"})
    plan = method.plan(FACTS, budget)
    study = Procedure.calibrated(method, event, budget, method.validation)
    trial = getattr(plan.parameters, "trial", plan.parameters)
    final = getattr(plan.parameters, "final", None)
    assert study.event == plan.event
    assert study.noise_multiplier == trial.training.noise_multiplier
    assert study.score_noise == trial.score_noise
    assert study.final_noise == (None if final is None else final.noise_multiplier)
    assert study.training_event == event_trees.frozen(plan.training_event)
    assert study.selection.runs == method.runs


@pytest.mark.parametrize(
    ("name", "parameters", "epsilon", "noise"),
    [
        ("liu_talwar", {"mean": 10.0, "accounting": "rdp"}, 1.0, 3.9446),
        ("papernot_steinke", {"mean": 10.0, "shape": 0.0, "accounting": "rdp"}, 1.0, 3.2962),
        ("liu_talwar", {"mean": 10.0, "accounting": "rdp"}, 3.0, 1.5284),
        ("papernot_steinke", {"mean": 10.0, "shape": 1.0, "accounting": "rdp"}, 8.0, 0.854),
    ],
)
def test_noise_is_that_of_papernot_and_steinkes_theorem_2(
    name: str, parameters: dict[str, Any], epsilon: float, noise: float
) -> None:
    """`accounting_reference.csv`, I4_inv: q = .02, 500 steps, δ = 1e-5, by dp_accounting and by hand."""
    budget = bench.PrivacyBudget(epsilon, 1e-5)
    method = make_method(name, parameters)
    planned = Procedure.calibrated(method, lambda s: bench.recipes.dp_sgd_event(0.02, 500, s), budget, 0.1)
    assert planned.noise_multiplier == pytest.approx(noise, rel=3e-3)


def selected(trial: Any, shape: float, mean: float) -> Any:
    return dp_event.RepeatAndSelectDpEvent(trial, mean, shape)


@pytest.mark.parametrize("held_out", [0.1, None])
@pytest.mark.parametrize("budget", [bench.PrivacyBudget(1.0, 1e-5), bench.PrivacyBudget(4.0, 1e-5)])
def test_epsilon_of_a_selection_by_dp_accounting(held_out: float | None, budget: bench.PrivacyBudget) -> None:
    """Its Rényi accountant on events built by hand: the worse of the two parts, or both composed."""
    method = make_method("papernot_steinke", {"accounting": "rdp", "shape": 2.0, "mean": 6.0})
    study = study_of(method, budget, held_out)
    planned = study._plan
    training = dp_sgd(FACTS.sample_rate, FACTS.steps, planned.noise_multiplier)
    score = dp_event.GaussianDpEvent(float(planned.score_noise))
    if held_out is None:
        outside = renyi(selected(dp_event.ComposedDpEvent([training, score]), 2.0, 6.0))
    else:
        outside = max(renyi(selected(part, 2.0, 6.0)) for part in (training, score))
        assert renyi(selected(score, 2.0, 6.0)) == pytest.approx(budget.epsilon, rel=5e-3)
    assert study.epsilon == pytest.approx(outside, rel=2e-3)
    assert study.epsilon <= budget.epsilon


@pytest.mark.parametrize("held_out", [0.3, None])
def test_epsilon_of_a_selection_and_a_final_run_by_dp_accounting(held_out: float | None) -> None:
    budget = bench.PrivacyBudget(3.0, 1e-5)
    method = make_method("dp_hyper", {"accounting": "rdp", "mean": 5.0})
    study = study_of(method, budget, held_out)
    planned = study._plan
    assert planned.final_noise is not None
    training = dp_sgd(FACTS.sample_rate, FACTS.steps, planned.noise_multiplier)
    final = dp_sgd(FACTS.sample_rate, FACTS.steps, planned.final_noise)
    score = dp_event.GaussianDpEvent(float(planned.score_noise))
    trials = [dp_event.ComposedDpEvent([training, score])] if held_out is None else [training, score]
    assert study.epsilon == pytest.approx(max(renyi(selected(each, 1.0, 5.0), final) for each in trials), rel=2e-3)
    assert renyi(final) == pytest.approx(0.85 * 3, rel=2e-3)


def study_of(method: Any, budget: bench.PrivacyBudget, held_out: float | None) -> Study:
    return Study(
        {"rate": [0.1, 1.0]},
        budget=budget,
        event=event,
        method=method,
        held_out=held_out,
        n_scored=100,
        results_dir=None,
    )


@pytest.mark.parametrize("name", ["papernot_steinke", "liu_talwar", "dp_hyper"])
def test_scores_on_trained_records_cost_more_noise(name: str) -> None:
    """Both are then part of one trial; the score takes about a ninth of μ², so training has about 6 % more noise."""
    budget = bench.PrivacyBudget(3.0, 1e-5)
    apart, together = (study_of(make_method(name), budget, share)._plan for share in (0.3, None))
    assert together.score_noise == pytest.approx(WEAKER_SCORE * apart.score_noise, rel=0.02)
    assert 1.02 < together.noise_multiplier / apart.noise_multiplier < 1.15
    assert together.final_noise == apart.final_noise


# ------------------------------------------------------------------------------------------- the number of trials


def numbers(method: Any, budget: bench.PrivacyBudget, runs: int, monkeypatch: Any) -> list[int]:
    """Numbers of trials of studies of many seeds."""
    study = Study(
        {"rate": [1, 2]}, budget=budget, event=bench.events.gaussian, method=method, n_scored=10, results_dir=None
    )
    monkeypatch.setattr(studies, "hidden", lambda *_: nullcontext())
    study._place = studies._place()
    counts = []
    for seed in range(runs):
        run: Any = SimpleNamespace(journal=Journal(), state_path=None)
        count = 0
        for trial in study._search(Memory(run), Streams(seed).within("selection")):
            study.tell(trial, None, None)
            count += 1
        counts.append(count)
    return counts


@pytest.mark.parametrize("studies", [500, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "parameters", "runs"),
    [
        ("papernot_steinke", {}, None),
        pytest.param("papernot_steinke", {"distribution": "poisson"}, None, marks=pytest.mark.slow),
        ("liu_talwar", {"threshold": 0.9}, geometric(4.0)),
        pytest.param("dp_hyper", {}, geometric(10.0), marks=pytest.mark.slow),
    ],
)
def test_the_number_of_trials_follows_its_distribution(
    name: str, parameters: dict[str, Any], runs: RunCount | None, studies: int, monkeypatch: Any
) -> None:
    """A χ² test of many studies; a false alarm has a chance of 1e-7."""
    method: Any = make_method(name, parameters)
    runs = runs or method.runs
    counts = Counter(numbers(method, bench.PrivacyBudget(5.0, 1e-5), studies, monkeypatch))
    expected = studies * runs.probability(np.arange(200))
    common = [k for k in range(200) if expected[k] >= 10]
    rest = studies - sum(expected[k] for k in common), studies - sum(counts[k] for k in common)
    cells = [(expected[k], counts[k]) for k in common] + ([rest] if rest[0] >= 5 else [])
    statistic = sum((seen - mean) ** 2 / mean for mean, seen in cells)
    assert statistic < chi2.isf(1e-7, len(cells) - 1)
