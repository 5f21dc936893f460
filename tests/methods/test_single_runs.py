"""Methods that spend the whole budget on one run: what they cost, and that their rules are the papers'."""

from dataclasses import asdict, replace

import pytest
import torch
from opacus.accountants import PRVAccountant

import dphpo_bench as bench
from dphpo_bench.methods.adaptive_clipping import AdaptiveClipping, Planned
from dphpo_bench.methods.auto_clipping import AutoClipping
from dphpo_bench.methods.dp_adam_wosm import DpAdamWosm
from dphpo_bench.methods.dp_sgd import FixedDpSgd
from dphpo_bench.methods.recommended import Recommended
from dphpo_bench.methods.slaclip import SlaClip
from tests.conftest import TinyTask, asking, session_on


def test_dp_sgd_without_a_schedule_of_its_own_is_that_of_the_task(tiny_task: TinyTask, budget) -> None:
    plan = FixedDpSgd().plan(tiny_task.facts, budget)
    expected = {"clipping": "abadi:1", "learning_rate": 0.05, "optimizer": "AdamW", "steps": 30, "averaging": 0.99}
    assert expected.items() <= asdict(plan.parameters).items()
    given = FixedDpSgd(clipping="auto_v", learning_rate=0.1, optimizer="SGD", batch_size=60, epochs=2, averaging=0.0)
    expected = {"clipping": "auto_v", "learning_rate": 0.1, "optimizer": "SGD", "steps": 20, "sample_rate": 0.1}
    assert expected.items() <= asdict(given.plan(tiny_task.facts, budget).parameters).items()


# ------------------------------------------------------------------------------------------------ auto clipping


def test_noise_of_automatic_clipping_is_what_opacus_needs() -> None:
    """Opacus' PRV bound, with its error of 1e-3 in ε, lies just above ours."""
    facts = bench.make_task("cifar10").facts
    plan = AutoClipping().plan(facts, bench.PrivacyBudget(3, 1e-5))
    accountant = PRVAccountant()
    accountant.history = [(plan.parameters.noise_multiplier, facts.sample_rate, facts.steps)]
    assert accountant.get_epsilon(1e-5, eps_error=1e-3) == pytest.approx(3.0, abs=0.01)


# ------------------------------------------------------------------------------------------------- recommended


def test_recommended_is_plain_sgd_at_one_rate_on_every_task(tiny_task: TinyTask, budget) -> None:
    """At the task's own batch size and epochs; and those of a task have no say in the rest."""
    expected = {"optimizer": "SGD", "learning_rate": 2.0, "momentum": 0.0, "weight_decay": None, "schedule": "constant"}
    expected |= {"clipping": "abadi:1", "averaging": 0.9999}
    for facts in (tiny_task.facts, bench.make_task("digits").facts, bench.make_task("diabetes").facts):
        run = Recommended().training(facts)
        assert expected.items() <= asdict(run).items()
        assert (run.sample_rate, run.steps) == (facts.sample_rate, facts.steps)


# ----------------------------------------------------------------------------------------------- random search


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


def test_adaptive_clipping_pays_for_the_counts_with_a_little_more_noise(tiny_task: TinyTask, budget) -> None:
    plan = AdaptiveClipping().plan(tiny_task.facts, budget)
    noise, count_noise = plan.parameters.noise_multiplier, plan.parameters.count_noise
    alone = FixedDpSgd().plan(tiny_task.facts, budget).parameters.noise_multiplier
    assert count_noise == 100 / 20
    assert noise == pytest.approx((alone**-2 - (2 * count_noise) ** -2) ** -0.5, rel=2e-3)


@pytest.mark.parametrize(("feedback", "start"), [(False, 50.0), (False, 0.01), (True, 0.1)])
def test_slaclip_has_the_noise_of_dp_sgd_and_follows_the_slacks(
    tiny_task: TinyTask, budget, feedback: bool, start: float
) -> None:
    """C settles where the first share is γ, on weights that stay; two slots, so that the last is not empty."""
    method = SlaClip(clipping=f"abadi:{start}", feedback=feedback, slots=2)
    plan = method.plan(tiny_task.facts, budget)
    assert plan.event == FixedDpSgd().plan(tiny_task.facts, budget).event
    still = replace(plan.parameters, sample_rate=1.0, steps=150, noise_multiplier=0.01, learning_rate=1e-12)
    outcome = method.run(replace(plan, parameters=still), session_on(tiny_task, tiny_task.load_train(None)))
    train = tiny_task.load_train(None)
    model = session_on(tiny_task, train).build_model()
    residuals = model(train.inputs).softmax(1) - torch.nn.functional.one_hot(train.targets, 3)
    norms = residuals.norm(dim=1) * (train.inputs.square().sum(1) + 1).sqrt()
    last = outcome.released["max_grad_norm"][-1]
    first, second = (((2 * (1 - norms / last)) - slot).clamp(0, 1).mean().item() for slot in (0, 1))
    assert first == pytest.approx((1 + min(second / last, 1)) / 2 if feedback else 0.5, abs=1e-3)
    assert second > 0.02


@pytest.mark.parametrize(("quantile", "start"), [(0.3, 50.0), (0.9, 0.01)])
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
