"""Automatic clipping: all of the budget goes into training."""

import pytest
import torch
from opacus.accountants import PRVAccountant

import dphpo_bench as bench
from dphpo_bench.methods.auto_clipping import AutoClipping


def test_noise_is_what_opacus_needs() -> None:
    """Opacus' PRV bound, with its error of 1e-3 in ε, lies just above ours."""
    facts = bench.make_task("cifar10").facts
    plan = AutoClipping().plan(facts, bench.PrivacyBudget(3, 1e-5))
    accountant = PRVAccountant()
    accountant.history = [(plan.parameters.noise_multiplier, facts.sample_rate, facts.steps)]
    assert accountant.get_epsilon(1e-5, eps_error=1e-3) == pytest.approx(3.0, abs=0.01)


def test_tunes_nothing(plain_run) -> None:
    record = plain_run(AutoClipping()).record
    assert record.privacy.tuning_share == 0
    assert record.privacy.recomputed == record.privacy.planned
    assert record.released == {"learning_rate": 0.05}
    assert record.metrics["accuracy"] > 0.7


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "RMSprop"])
@pytest.mark.parametrize("clipping", ["auto_s", "auto_v", "auto_s:0.1"])
def test_any_optimiser_and_both_styles(plain_run, optimizer: str, clipping: str) -> None:
    assert plain_run(AutoClipping(optimizer=optimizer, clipping=clipping)).record.status == "ok"


def test_styles_differ(plain_run) -> None:
    one, two = (plain_run(AutoClipping(clipping=name)).model for name in ("auto_s:1.0", "auto_v"))
    assert not torch.equal(one.weight, two.weight)


def test_schedule_is_the_tasks_unless_given(tiny_task, budget) -> None:
    plan = AutoClipping(batch_size=60, epochs=2).plan(tiny_task.facts, budget)
    assert (plan.parameters.sample_rate, plan.parameters.steps) == (0.1, 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipping": "abadi:1"}, "auto_s or auto_v"),
        ({"learning_rate": 0.0}, "learning_rate > 0"),
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": -1.0}, "epochs"),
    ],
)
def test_parameters_out_of_range(options: dict[str, object], message: str, tiny_task, budget) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message):
        AutoClipping(**options).plan(tiny_task.facts, budget)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "AdamX"}, "Did you mean"),
        ({"clipping": "auto"}, "Unknown clipping"),
        ({"averaging": 1.0}, "averaging < 1"),
    ],
)
def test_mistakes_found_before_the_first_release_are_raised(
    options: dict[str, object], message: str, tiny_task, budget
) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message):
        bench.run(AutoClipping(**options), tiny_task, budget, seed=0)  # type: ignore[arg-type]
