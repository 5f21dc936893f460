"""Methods that spend the whole budget on one run: what they cost, and that their rules are the papers'."""

import math
from dataclasses import asdict
from typing import Any

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.contract.task import default_search_space
from dphpo_bench.methods.adaptive_clipping import THRESHOLDS, AdaptiveClipping, Planned
from dphpo_bench.methods.dadaptation import DAdaptation
from dphpo_bench.methods.dp_adam_wosm import DpAdamWosm
from dphpo_bench.methods.dp_sgd import FixedDpSgd
from dphpo_bench.methods.prodigy import Prodigy
from dphpo_bench.methods.random_search import RandomSearch
from dphpo_bench.methods.recommended import Recommended
from tests.conftest import TinyTask, asking, session_on

METHODS = [FixedDpSgd, RandomSearch, DpAdamWosm, AdaptiveClipping, DAdaptation, Prodigy, Recommended]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("epsilon", [1, 8])
def test_plans_spend_the_budget_and_no_more(method: type[bench.Method], epsilon: float, tiny_task: TinyTask) -> None:
    """On the digits: test_all_methods."""
    checked = bench.plan(method(), tiny_task, bench.PrivacyBudget(epsilon, 1e-5))
    assert 0.99 * epsilon <= checked.epsilon.epsilon <= epsilon
    assert checked.plan.cost.runs == 1
    assert sum(release.count for release in checked.plan.releases) % checked.plan.parameters.steps == 0


@pytest.mark.parametrize(
    "method",
    [FixedDpSgd(), AdaptiveClipping(), DAdaptation(), Prodigy(), Recommended(), DpAdamWosm(step_size=0.01)],
)
def test_they_learn(plain_run, method: bench.Method) -> None:
    """Chance is 1/3. The rate of 0.001 per coordinate of DPAdamWOSM is too little for 30 steps."""
    assert plain_run(method).record.metrics["accuracy"] > 0.7


def test_dp_sgd_without_a_schedule_of_its_own_is_that_of_the_task(tiny_task: TinyTask, budget) -> None:
    plan = FixedDpSgd().plan(tiny_task.facts, budget)
    expected = {"clipping": "abadi:1", "learning_rate": 0.05, "optimizer": "AdamW", "steps": 30, "averaging": 0.99}
    assert expected.items() <= asdict(plan.parameters).items()
    given = FixedDpSgd(clipping="auto_v", learning_rate=0.1, optimizer="SGD", batch_size=60, epochs=2, averaging=0.0)
    expected = {"clipping": "auto_v", "learning_rate": 0.1, "optimizer": "SGD", "steps": 20, "sample_rate": 0.1}
    assert expected.items() <= asdict(given.plan(tiny_task.facts, budget).parameters).items()


# ------------------------------------------------------------------------------------------------- recommended


def test_recommended_is_plain_sgd_at_one_rate_on_every_task(tiny_task: TinyTask, budget) -> None:
    """At the task's own batch size and epochs; and those of a task have no say in the rest."""
    expected = {"optimizer": "SGD", "learning_rate": 2.0, "momentum": 0.0, "weight_decay": None, "schedule": "constant"}
    expected |= {"clipping": "abadi:1", "averaging": 0.9999}
    for facts in (tiny_task.facts, bench.make_task("digits").facts, bench.make_task("diabetes").facts):
        run = Recommended().training(facts)
        assert expected.items() <= asdict(run).items()
        assert (run.sample_rate, run.steps) == (facts.sample_rate, facts.steps)


def test_recommended_steps_by_the_gradient_itself(tiny_task: TinyTask, budget) -> None:
    method = Recommended(epochs=0.5, averaging=0.0)  # three steps
    plan = method.plan(tiny_task.facts, budget)
    noise = plan.parameters.noise_multiplier
    model = method.run(plan, session_on(tiny_task, tiny_task.load_train(None))).model
    session = session_on(tiny_task, tiny_task.load_train(None))
    expected = session.build_model()
    for _ in range(3):
        gradient = session.sample(asking(1 / 6, bench.events.gaussian(noise))).gradient(
            expected, bench.clipping.Abadi(1.0), noise
        )
        with torch.no_grad():
            for weight, value in zip(expected.parameters(), gradient, strict=True):
                weight -= 2 * value
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()))


# ----------------------------------------------------------------------------------------------- random search


def test_random_search_draws_within_the_space_and_trains_with_what_it_drew(plain_run) -> None:
    drawn = {plain_run(RandomSearch(), seed=seed).record.released["learning_rate"] for seed in range(5)}
    assert len(drawn) == 5
    assert all(1e-4 <= rate <= 1 for rate in drawn)


class WideTask(TinyTask):
    """Whose search space is a test's."""

    space: Any = staticmethod(default_search_space)

    @property
    def facts(self) -> bench.TaskFacts:
        from dataclasses import replace

        return replace(super().facts, search_space=self.space)


def test_random_search_takes_whatever_a_run_has(budget) -> None:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    task = WideTask()
    task.space = lambda: {
        "learning_rate": FloatDistribution(0.3, 0.4),
        "optimizer": CategoricalDistribution(["SGD"]),
        "clipping": CategoricalDistribution(["auto_v", "abadi:0.5"]),
    }
    record = bench.run(RandomSearch(), task, budget, seed=0).record
    assert record.status == "ok"
    assert 0.3 <= record.released["learning_rate"] <= 0.4
    assert record.released["optimizer"] == "SGD"
    assert record.released["clipping"] in ("auto_v", "abadi:0.5")


def test_random_search_refuses_what_would_change_the_privacy(budget) -> None:
    from optuna.distributions import IntDistribution

    task = WideTask()
    task.space = lambda: {"steps": IntDistribution(1, 100)}
    with pytest.raises(bench.errors.InvalidValueError, match="steps"):
        bench.run(RandomSearch(), task, budget, seed=0)


# ------------------------------------------------------------------------------------------------- DPAdamWOSM


def test_wosm_follows_its_formula(tiny_task: TinyTask, budget) -> None:
    method = DpAdamWosm(step_size=0.02, momentum=0.8, clipping="abadi:0.5", averaging=0.0)
    plan = method.plan(tiny_task.facts, budget)
    noise = plan.parameters.noise_multiplier
    rate = 0.02 / (noise * 0.5 / 100 + 1e-8)
    assert plan.parameters.learning_rate == pytest.approx(rate)

    model = method.run(plan, session_on(tiny_task, tiny_task.load_train(None))).model
    session = session_on(tiny_task, tiny_task.load_train(None))
    expected = session.build_model()
    first = [torch.zeros_like(weight) for weight in expected.parameters()]
    with torch.no_grad():
        for t in range(1, 31):
            gradient = session.sample(asking(1 / 6, bench.events.gaussian(noise))).gradient(
                expected, bench.clipping.Abadi(0.5), noise
            )
            for weight, moment, value in zip(expected.parameters(), first, gradient, strict=True):
                moment.copy_(0.8 * moment + 0.2 * value)
                weight -= rate * moment / (1 - 0.8**t)
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()))


# ------------------------------------------------------------------------------------------ adaptive clipping


@pytest.mark.parametrize(
    ("joint", "count_noise", "gradient_noise"),
    [(1.0, 50, 1.000050004), (1.0, 5, 1.005037815), (0.9639, 50, 0.9639447812)],
)
def test_centred_count_costs_what_theorem_1_says(joint: float, count_noise: float, gradient_noise: float) -> None:
    """z_Δ of Theorem 1, computed independently; and the joint event against a single Gaussian."""

    def report(*noises: float) -> float:
        step = bench.events.compose(*(bench.events.gaussian(noise) for noise in noises))
        return bench.events.epsilon(
            bench.events.repeat(bench.events.poisson_sampled(0.02, step), 50), 1e-5, coarseness=4
        ).epsilon

    assert (joint**-2 - (2 * count_noise) ** -2) ** -0.5 == pytest.approx(gradient_noise, rel=1e-9)
    assert report(gradient_noise, 2 * count_noise) == pytest.approx(report(joint), rel=1e-6)


def test_adaptive_clipping_pays_for_the_counts_with_a_little_more_noise(tiny_task: TinyTask, budget) -> None:
    plan = AdaptiveClipping().plan(tiny_task.facts, budget)
    noise, count_noise = plan.parameters.noise_multiplier, plan.parameters.count_noise
    alone = FixedDpSgd().plan(tiny_task.facts, budget).parameters.noise_multiplier
    assert count_noise == 100 / 20
    assert noise == pytest.approx((alone**-2 - (2 * count_noise) ** -2) ** -0.5, rel=2e-3)


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.01, 50.0])
def test_threshold_converges_to_the_quantile_of_the_norms(tiny_task: TinyTask, quantile: float, start: float) -> None:
    """On full batches, with weights that do not move; the plan's noise is replaced by next to none."""
    method = AdaptiveClipping(quantile=quantile, initial_max_grad_norm=start)
    parameters = Planned(1.0, 150, noise_multiplier=0.01, count_noise=1.0, learning_rate=1e-12, optimizer="SGD")
    event = bench.events.non_private()
    plan = bench.Plan(bench.PrivacyBudget(1, 1e-5), event, event, parameters, (), bench.Cost(1, 1, 1))
    outcome = method.run(plan, session_on(tiny_task, tiny_task.load_train(None)))
    model, train = session_on(tiny_task, tiny_task.load_train(None)).build_model(), tiny_task.load_train(None)  # type: ignore[arg-type]
    residuals = model(train.inputs).softmax(1) - torch.nn.functional.one_hot(train.targets, 3)
    norms = residuals.norm(dim=1) * (train.inputs.square().sum(1) + 1).sqrt()
    assert outcome.released["max_grad_norm"][0] == pytest.approx(start)
    assert outcome.released["max_grad_norm"][-1] == pytest.approx(norms.quantile(quantile).item(), rel=0.05)


def test_threshold_stays_within_public_limits(tiny_task: TinyTask) -> None:
    parameters = Planned(1.0, 20, noise_multiplier=1.0, count_noise=1e8, learning_rate=1e-3, optimizer="SGD")
    event = bench.events.non_private()
    plan = bench.Plan(bench.PrivacyBudget(1, 1e-5), event, event, parameters, (), bench.Cost(1, 1, 1))
    path = AdaptiveClipping().run(plan, session_on(tiny_task, tiny_task.load_train(None))).released["max_grad_norm"]
    assert (min(path), max(path)) == pytest.approx(THRESHOLDS)


# ------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (FixedDpSgd, {"clipping": "abadi:0"}, "max_grad_norm"),
        (FixedDpSgd, {"clipping": "none"}, "Unknown clipping"),
        (FixedDpSgd, {"learning_rate": math.inf}, "learning_rate > 0"),
        (FixedDpSgd, {"epochs": 0.0}, "epochs > 0"),
        (Recommended, {"learning_rate": 0.0}, "learning_rate > 0"),
        (RandomSearch, {"clipping": "auto_x"}, "Did you mean"),
        (RandomSearch, {"batch_size": 601}, "batch_size"),
        (DpAdamWosm, {"step_size": 0.0}, "step_size > 0"),
        (DpAdamWosm, {"momentum": 1.0}, "momentum < 1"),
        (DpAdamWosm, {"clipping": "x"}, "Unknown clipping"),
        (AdaptiveClipping, {"quantile": 1.0}, "quantile < 1"),
        (AdaptiveClipping, {"initial_max_grad_norm": 0.0}, "initial_max_grad_norm"),
        (AdaptiveClipping, {"threshold_learning_rate": -0.2}, "threshold_learning_rate > 0"),
        (AdaptiveClipping, {"learning_rate": math.nan}, "learning_rate > 0"),
        (AdaptiveClipping, {"count_noise": 0.5}, "Raise count_noise"),
    ],
)
def test_parameters_out_of_range(
    method: type[bench.Method], options: dict[str, Any], message: str, tiny_task: TinyTask, budget
) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message) as error:
        method(**options).plan(tiny_task.facts, budget)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", METHODS)
def test_averaging_out_of_range_is_found_before_the_first_release(method: Any, tiny_task: TinyTask, budget) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="0 <= averaging < 1"):
        bench.run(method(averaging=1.0), tiny_task, budget, seed=0)
