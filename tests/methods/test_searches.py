"""Methods that search: their own arithmetic, against their papers, and what they make of the tiny task."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

import dphpo_bench as bench
from dphpo_bench.contract.search_space import bounded
from dphpo_bench.methods.dp_hyper import DpHyper
from dphpo_bench.methods.dp_hypo import DpHypo
from dphpo_bench.methods.grid_composed import GridComposed
from dphpo_bench.methods.grid_oracle import GridOracle
from dphpo_bench.methods.linear_scaling import LinearScaling, on_line
from dphpo_bench.methods.liu_talwar import LiuTalwar
from dphpo_bench.methods.papernot_steinke import PapernotSteinke
from dphpo_bench.methods.propose_test import most_successes, propose_and_test
from dphpo_bench.methods.subsampled_tuning import SubsampledTuning
from dphpo_bench.privacy.accountants.report import epsilon, epsilon_by
from dphpo_bench.privacy.event_trees import walk
from dphpo_bench.privacy.events import OneOfDpEvent
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.sweep.extra_runs import final_run
from dphpo_bench.testing.small_tasks import Blobs
from tests.conftest import session_on

LOOSE = bench.PrivacyBudget(50.0, 1e-5)  # so much that noise is no excuse


# -------------------------------------------------------------------------------------------- linear scaling


def test_linear_scaling_meets_the_papers_budget() -> None:
    """ε = 1 from (0.1, 0.2, n = 3): the paper leaves 0.88 for the final run and does not pay for its choices.

    `accounting_reference.csv`: without the six counts 0.9963; the largest final ε is 0.88405. Counts at 2 % of μ²
    leave μ_f² = (1 − 0.02) μ² − 3 μ₁² − 3 μ₂², μ(1) = .2680511, μ(.1) = .03252078, μ(.2) = .06133414, at δ = 1e-5.
    """
    facts = bench.make_task("cifar10").facts
    plan = LinearScaling().plan(facts, bench.PrivacyBudget(1, 1e-5))
    left = 0.98 * 0.2680511**2 - 3 * 0.03252078**2 - 3 * 0.06133414**2
    assert math.sqrt(60) / plan.parameters.final.noise_multiplier == pytest.approx(math.sqrt(left), rel=2e-3)
    assert 0.86 < plan.parameters.final_epsilon < 0.88405


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0.1, 1.0), (0.2, 2.0), 8.8),  # on the line
        ((0.1, 3.0), (0.2, 3.0), 3.0),  # flat
        ((0.1, 9.0), (0.2, 3.0), 3.0),  # falls: taken as flat, at the sweep with less noise
        ((0.1, 1.0), (0.2, 300.0), 300.0),  # leads out of the range
    ],
)
def test_lines(first: tuple[float, float], second: tuple[float, float], expected: float) -> None:
    assert on_line([first, second], 0.88, (1.0, 300.0)) == pytest.approx(expected)


def test_a_parabola_through_three_points() -> None:
    """The paper's Table 15. One that falls after the last point is flat, as a line is."""
    points = [(0.1, 1.0), (0.2, 4.0), (0.3, 9.0)]  # r = 100 ε²
    assert on_line(points, 0.7, (1.0, 300.0), degree=2) == pytest.approx(49.0)
    assert on_line([(0.1, 1.0), (0.2, 9.0), (0.3, 10.0)], 0.9, (1.0, 300.0), degree=2) == 10.0


def test_a_free_step_goes_along_the_momentum_buffer(tiny_task, budget) -> None:
    """Against one more step of torch's SGD, in which its buffer is all there is."""
    run = LinearScaling(steps=4, free_step=True, momentum=0.5).descent(tiny_task.facts, budget)
    assert isinstance(run, bench.recipes.DpSgd)
    rates = [run.having({"learning_rate": 0.5}).rate_at(step) for step in range(4)]
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer, buffer = torch.optim.SGD([weight], lr=0.5, momentum=0.5), torch.zeros(3)
    moved = torch.zeros(3)
    for rate in rates:
        weight.grad = torch.randn(3)
        optimizer.step()
        buffer = 0.5 * buffer + weight.grad
        moved -= rate * buffer
    assert torch.allclose(moved, weight.detach() - 0.5 * buffer)


def test_rates_and_steps_are_searched_together(plain_run, tiny_task, budget) -> None:
    """A run of any number of steps costs the same, so the search costs no more than at a fixed number of steps."""
    method = LinearScaling(steps=5, most_steps=40)
    plan, fixed = method.plan(tiny_task.facts, budget), LinearScaling(steps=5).plan(tiny_task.facts, budget)
    assert plan.parameters.final.noise_multiplier == pytest.approx(fixed.parameters.final.noise_multiplier, rel=1e-6)
    taken = []
    for seed in range(4):
        record = plain_run(method, seed=seed).record
        assert record.status == "ok", record.error
        assert record.privacy.recomputed.epsilon <= budget.epsilon
        sweeps = record.released["sweeps"]
        runs = [*itertools.chain(*(sweep["epochs"] for sweep in sweeps)), record.released["epochs"]]
        assert set(runs) <= {5, 10, 20, 40}
        assert record.released["total_step_size"] == pytest.approx(record.released["learning_rate"] * runs[-1])
        last = final_run(plan, record.released)  # what `explain` trains again
        assert (last.steps, last.learning_rate) == (runs[-1], record.released["learning_rate"])
        taken += runs
    assert set(taken) == {5, 10, 20, 40}
    assert "most_steps" not in LinearScaling().parameters


@pytest.mark.parametrize(
    ("best", "total", "expected"),
    [
        (None, 9.0, [5, 10, 20, 40]),  # nothing is known yet
        ((10, 3.0), 3.0, [10]),
        ((10, 3.0), 6.0, [10, 20]),  # neither the rate nor the number of steps falls
        ((10, 3.0), 1.5, [5, 10]),  # neither rises
    ],
)
def test_neither_rates_nor_steps_move_against_their_product(best, total: float, expected: list[int]) -> None:
    winner = best and ((best[0], 600, 1.0), best[1])
    choices = LinearScaling(steps=5, most_steps=40).choices(600, total, winner)
    assert choices == [(steps, 600, 1.0) for steps in expected]


JOINT = LinearScaling(steps=5, most_steps=10, batch_size=150, joint=True, clipping="abadi:0.25")


@pytest.mark.parametrize("total", [1.5, 3.0, 9.0, 60.0])
def test_no_factor_of_r_moves_against_it(total: float) -> None:
    """Appendix A.4: r = η T B C with the paper's η, that of a sum of gradients; ours is B times that."""
    everything = JOINT.choices(600)
    assert everything == [*itertools.product((5, 10), (150, 300, 600), (0.25, 0.5, 1.0))]
    winner, size = (5, 300, 0.5), 3.0
    moved = [
        (
            *(new / old for new, old in zip(each, winner, strict=True)),
            total / size / math.prod(each) * math.prod(winner),
        )
        for each in everything
    ]
    sign = math.copysign(1, total - size)
    expected = [
        each
        for each, factors in zip(everything, moved, strict=True)
        if (all(sign * math.log(factor) >= 0 for factor in factors) if total != size else each == winner)
    ]
    assert JOINT.choices(600, total, (winner, size)) == expected
    assert winner in expected


def test_below_all_gradients_a_threshold_cancels_in_r(tiny_task) -> None:
    """r = η T C is the longest way of T steps, and where all gradients are clipped it is all that matters."""
    records, ends = tiny_task.load_train(None), []
    for threshold in (1e-4, 1e-3):
        method = LinearScaling(steps=5, momentum=0.0, free_step=False, clipping=f"abadi:{threshold}")
        run = method.descent(tiny_task.facts, LOOSE).with_noise(0.0).having({"learning_rate": 2.0 / (5 * threshold)})
        session = session_on(tiny_task, records)
        pairs = zip(run.train(session).parameters(), session.build_model().parameters(), strict=True)
        ends.append(torch.cat([(new - old).detach().flatten() for new, old in pairs]))
    assert torch.allclose(*ends, rtol=1e-3, atol=1e-4)
    assert 0.2 < float(ends[0].norm()) <= 2.0


def test_batches_and_thresholds_are_searched_with_rates_and_steps(plain_run, tiny_task, budget) -> None:
    """Whatever is drawn costs at most what is charged, by dp_accounting alone, and the largest of it nearly that."""
    method, spent = replace(JOINT, most_steps=None, batch_size=300), []
    plan = method.plan(tiny_task.facts, budget)
    searched = [each.runs for each in (*plan.parameters.sweeps, plan.parameters.final)]
    for first, second, last in itertools.product(*searched):
        accountant = PLDAccountant(value_discretization_interval=1e-3)
        for run, count in ((first, 3), (second, 3), (last, 1)):
            accountant.compose(run.event, count)
        accountant.compose(GaussianDpEvent(plan.parameters.score_noise), 6)
        spent.append(accountant.get_epsilon(budget.delta))
    assert 0.8 * budget.epsilon < min(spent) <= max(spent) <= budget.epsilon * 1.003
    assert max(spent) > 0.99 * budget.epsilon
    record = plain_run(method).record
    assert record.status == "ok", record.error
    assert record.privacy.recomputed.epsilon <= budget.epsilon
    released = record.released
    threshold, share = float(released["clipping"].partition(":")[2]), released["batch_size"] / 600
    assert released["total_step_size"] == pytest.approx(
        released["learning_rate"] * released["epochs"] / share * threshold
    )
    last = final_run(plan, released)
    assert (last.sample_rate, last.steps, last.clipping) == (share, released["epochs"] / share, released["clipping"])


def test_every_run_may_sample(plain_run, tiny_task, budget) -> None:
    """Full batches of the same run have more noise in the sum, and Poisson batches more in the mean."""
    sampled = LinearScaling(steps=5, batch_size=150)
    record = plain_run(sampled).record
    assert record.status == "ok", record.error
    assert record.privacy.recomputed.epsilon <= budget.epsilon
    noise = [
        method.plan(tiny_task.facts, budget).parameters.final.noise_multiplier
        for method in (sampled, LinearScaling(steps=5))
    ]
    assert noise[0] < noise[1] < 4 * noise[0]


# ---------------------------------------------------------------------------------------------- propose-test


@pytest.mark.parametrize("resolution", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("successes", [1, 3, 100])
def test_the_number_of_rounds_and_of_tests_is_bounded(resolution: float, successes: int) -> None:
    """A success doubles the step and a failure halves it, so from 2^k the step is below 1 once failures outnumber
    successes by k + 1, and a search that ends with c successes did not get there.
    """
    most = most_successes(resolution)
    for pattern in range(2**11):
        bits = itertools.chain([pattern >> i & 1 for i in range(11)], itertools.cycle([pattern & 1, 0]))
        opened: list[Callable[[float], int | None]] = []

        def open_test(bits=bits, opened=opened):
            opened.append(lambda _: 0 if next(bits) else None)
            return opened[-1]

        answers = propose_and_test(open_test, resolution, successes)
        assert len(answers) <= 2 * min(successes, most) + most.bit_length() - 2
        assert len(opened) <= min(successes, most)
        assert answers.count(0) <= len(opened)


def test_thresholds_are_whole_multiples_of_the_resolution_from_above() -> None:
    asked: list[float] = []

    def open_test() -> Callable[[float], int | None]:
        return lambda threshold: asked.append(threshold) or (0 if threshold < 0.5 else None)

    assert propose_and_test(open_test, 0.01, 2) == [None, 0, None, None, 0]
    assert asked == pytest.approx([0.64, 0.32, 0.96, 0.64, 0.48])


# ------------------------------------------------------------------------------------------ private selection


@pytest.mark.slow
@pytest.mark.parametrize("method", [LiuTalwar(), PapernotSteinke(), DpHypo(), GridComposed(), DpHyper()])
def test_searches_find_a_learning_rate(method: bench.Method, tiny_task) -> None:
    """Of three searches, two: a search of few trials may draw no good one."""
    records = [bench.run(method, tiny_task, LOOSE, seed=seed).record for seed in range(3)]
    assert sorted(record.metrics["accuracy"] for record in records)[1] > 0.8


def test_only_the_winner_is_released(tiny_task, budget) -> None:
    for method in (LiuTalwar(accounting="rdp"), DpHypo(accounting="rdp")):
        assert set(bench.run(method, tiny_task, budget, seed=0).record.released) == {"learning_rate"}


@pytest.mark.parametrize(
    "method",
    [
        LiuTalwar(threshold=2.0, mean=1.5, accounting="rdp"),
        PapernotSteinke(distribution="poisson", mean=0.01),
    ],
)
def test_a_search_without_a_winner_returns_the_initial_weights(method: bench.Method, tiny_task, budget) -> None:
    """Nothing reaches the threshold; a Poisson number of trials of mean 0.01 is 0 in 99 of 100 runs."""
    result = bench.run(method, tiny_task, budget, seed=0)
    assert result.record.status == "ok"
    assert result.record.released == {"winner": None}
    plain = bench.run("auto_clipping", tiny_task, budget, seed=0)
    assert not torch.equal(result.model.weight, plain.model.weight)


@pytest.mark.parametrize(("optimizer", "factor"), [("SGD", 5.0), ("AdamW", 1.0)])
def test_only_sgd_extrapolates_from_a_sample(optimizer: str, factor: float) -> None:
    found = SubsampledTuning(tuning_rate=0.2).extrapolated({"learning_rate": 0.1}, optimizer)
    assert found == {"learning_rate": pytest.approx(0.1 * factor)}
    assert SubsampledTuning(extrapolation="none").extrapolated({"learning_rate": 0.1}, optimizer) == {
        "learning_rate": 0.1
    }
    assert SubsampledTuning().extrapolated({}, optimizer) == {}  # no trial, nothing found


@pytest.mark.parametrize("wanted", [[1.0, 1.0, 1.0], [3.0, 1.0, 2.0], [1e-300, 1.0, 1e300], [2e-70, 1e-7, 3e-70]])
@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (0.9, 1.1), (0.5, 4.0)])
def test_densities_stay_within_their_bounds(wanted: list[float], low: float, high: float) -> None:
    densities = bounded(wanted, low, high)
    drawn = [density * len(wanted) / sum(densities) for density in densities]  # their shares, relative to the prior
    assert all(low * (1 - 1e-9) <= density <= high * (1 + 1e-9) for density in (*densities, *drawn))
    assert sum(densities) == pytest.approx(len(wanted), rel=1e-6)
    assert sorted(range(3), key=densities.__getitem__) == sorted(range(3), key=wanted.__getitem__) or low == high


def test_learning_costs_what_the_bounds_say() -> None:
    """(α/(α−1) + 1 + η) ln(C/c) at η = 1: without adaptivity, a little less noise."""
    facts, budget = bench.make_task("cifar10").facts, bench.PrivacyBudget(1, 1e-5)
    trials = [
        DpHypo(adaptivity_share=share, mean=4, accounting="rdp").plan(facts, budget).parameters
        for share in (0.0, 0.05, 0.3)
    ]
    noise = [trial.training.noise_multiplier for trial in trials]
    assert noise == sorted(noise)
    rdp = LiuTalwar(mean=4, accounting="rdp").plan(facts, budget).parameters.training.noise_multiplier
    assert noise[0] == pytest.approx(rdp, rel=2e-3)  # without adaptivity, the same search


# ------------------------------------------------------------------------------------- spaces of any kind

MIXED = {
    "learning_rate": FloatDistribution(0.01, 1.0, log=True),
    "clipping": CategoricalDistribution(["auto_s", "abadi:1"]),
    "weight_decay": FloatDistribution(0.0, 0.1),
    "batch_size": CategoricalDistribution([100, 200]),
    "epochs": CategoricalDistribution([1]),
}


class MixedBlobs(Blobs):
    """Blobs whose batch size is searched, too."""

    space: Mapping[str, BaseDistribution] = MIXED

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, search_space=lambda: dict(self.space))


def test_each_combination_has_noise_of_its_own_and_none_costs_more_than_the_budget_where_anybody_chooses() -> None:
    budget = bench.PrivacyBudget(3.0, 1e-5)
    facts = MixedBlobs().facts
    training = bench.recipes.DpSgd.of(facts)
    free = bench.search.searched_run(training, facts, budget, drawn=False).calibrated(budget)
    drawn = bench.search.searched_run(training, facts, budget, drawn=True).calibrated(budget)
    assert isinstance(free, bench.search.SearchedRun)
    assert isinstance(drawn, bench.search.SearchedRun)
    assert [run.steps for run in free.runs] == [6, 3]
    for run, looser in zip(free.runs, drawn.runs, strict=True):
        assert 0.8 * budget.epsilon <= epsilon(run.event, budget.delta).epsilon <= budget.epsilon
        assert looser.noise_multiplier <= run.noise_multiplier
    assert epsilon(drawn.event, budget.delta).epsilon <= budget.epsilon


# --------------------------------------------------------------------------------------------- the joint space


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("papernot_steinke", {"mean": 2.0, "accounting": "layer_cake"}),
        pytest.param("random_search", {}, marks=pytest.mark.slow),
        pytest.param("grid_oracle", {"points": 1, "clipping": "abadi:1", "judge": "metric"}, marks=pytest.mark.slow),
        pytest.param("liu_talwar", {"threshold": 0.4, "accounting": "layer_cake"}, marks=pytest.mark.slow),
        pytest.param("dp_hypo", {"mean": 2.0, "points": 6, "accounting": "rdp"}, marks=pytest.mark.slow),
        pytest.param("subsampled_tuning", {"mean": 2.0, "accounting": "profile"}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_joint_space_is_searched_within_the_budget(method: str, parameters: dict[str, Any]) -> None:
    budget, task = bench.PrivacyBudget(3.0, 1e-5), Blobs(n_records=200, batch_size=40, epochs=2)
    record = bench.run(bench.make_method(method, {"space": "joint", **parameters}), task, budget, seed=0).record
    assert record.status == "ok", record.error
    assert record.privacy is not None
    event = Ledger.from_json(record.privacy.ledger).event
    choices = [event for event in walk(event) if isinstance(event, OneOfDpEvent)]
    assert choices
    assert {len(choice.events) for choice in choices} == {9}
    recomputed = epsilon_by(event, budget.delta, record.privacy.planned.accountant)
    assert recomputed == math.inf if method == "grid_oracle" else recomputed <= budget.epsilon
    if record.released.get("winner", "one"):
        assert record.released["batch_size"] in (10, 40, 160)
        assert record.released["epochs"] in (0.5, 2, 8)


@pytest.mark.parametrize("epsilon_of_budget", [1.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_each_candidate_of_the_joint_space_has_the_noise_that_the_budget_buys_for_its_own_schedule(
    epsilon_of_budget: float,
) -> None:
    """From 10 steps to 1,798, by an accountant that shares no code with the package."""
    facts = bench.make_task("digits").facts
    budget = bench.PrivacyBudget(epsilon_of_budget, facts.default_delta)
    runs = GridOracle(space="joint").plan(facts, budget).parameters.runs
    assert [run.steps for run in runs] == [112, 449, 1798, 28, 112, 449, 10, 40, 160]
    for run in runs:
        accountant = PLDAccountant(value_discretization_interval=1e-3)
        step = PoissonSampledDpEvent(run.sample_rate, GaussianDpEvent(run.noise_multiplier))
        spent = accountant.compose(SelfComposedDpEvent(step, run.steps)).get_epsilon(budget.delta)
        assert spent == pytest.approx(budget.epsilon, rel=0.01)
        assert epsilon(run.event, budget.delta).epsilon <= budget.epsilon


def test_where_releases_may_choose_the_schedule_every_schedule_fits_the_whole_search() -> None:
    facts, budget = Blobs(n_records=200, batch_size=40, epochs=2).facts, bench.PrivacyBudget(3.0, 1e-5)
    method = DpHypo(space="joint", accounting="rdp")
    trial = method.plan(facts, budget).parameters
    for run in trial.training.runs:
        alone = bench.events.best_of(run.event, method.runs, *method.bounds(budget))
        assert epsilon_by(alone, budget.delta, "rdp") <= budget.epsilon
    assert trial.training.event.weights is None
    assert LiuTalwar(space="joint").plan(facts, budget).parameters.training.event.weights is not None
