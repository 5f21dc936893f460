"""What holds for every method in the registry: plans within budget and without waste, ledgers within plans."""

import json
import math
from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench import harness, registry
from dphpo_bench.plans import PlanCache
from dphpo_bench.privacy.accountants import epsilon
from dphpo_bench.privacy.ledger import Ledger

METHODS = sorted(registry.methods())
EPSILONS = (1.0, 3.0, 8.0)
# Settings under which a method accounts differently from its default.
VARIANTS = {
    "liu_talwar": [{"accounting": "theorem"}, {"accounting": "rdp"}, {"threshold": "0.9"}],
    "papernot_steinke": [
        {"accounting": "rdp"},
        {"accounting": "layer_cake"},
        {"distribution": "negative_binomial", "shape": "0", "mean": "10"},
        {"distribution": "uniform", "accounting": "layer_cake"},
    ],
    "hyfreedp": [{"loss_batch": "same"}],
    "auto_clipping": [{"clipping": "auto_v"}],
    "subsampled_tuning": [{"optimizer": "SGD"}],
}
ALL = [(name, {}) for name in METHODS]
ALL += [(name, options) for name, variants in VARIANTS.items() for options in variants]


def label(value: Any) -> str:
    return ",".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else str(value)


def check_plan(method: str, options: dict[str, str], task: bench.Task, target: float) -> None:
    checked = bench.plan(bench.make_method(method, options), task, bench.PrivacyBudget(target, 1e-5))
    event = checked.plan.event
    if not checked.method.end_to_end_private:
        assert checked.epsilon.epsilon == math.inf
        return
    # Not the harness's word for it: a fresh evaluation, by the accountant the plan names.
    found = epsilon(event, 1e-5, accountant=checked.plan.accountant).epsilon
    assert 0.9 * target <= found <= target
    assert found == pytest.approx(checked.epsilon.epsilon, rel=1e-9)
    # The ledger of a run can hold what was planned, and comes back from its written form.
    ledger = Ledger(allowance=event)
    ledger.charge(event)
    assert Ledger.from_json(ledger.to_json()).event == ledger.event


@pytest.mark.parametrize("target", EPSILONS)
@pytest.mark.parametrize(("method", "options"), ALL, ids=label)
def test_plan_on_a_small_task(method: str, options: dict[str, str], target: float) -> None:
    check_plan(method, options, bench.make_task("digits"), target)


@pytest.mark.slow
@pytest.mark.parametrize("target", EPSILONS)
@pytest.mark.parametrize("task", sorted(registry.tasks()))
@pytest.mark.parametrize("method", METHODS)
def test_plan_on_every_task(method: str, task: str, target: float) -> None:
    check_plan(method, {}, bench.make_task(task), target)


@pytest.mark.parametrize(("method", "options"), ALL, ids=label)
def test_a_finished_run_costs_no_more_than_its_plan(method: str, options: dict[str, str], tiny_task, budget) -> None:
    made = bench.make_method(method, options)
    record = bench.run(made, tiny_task, budget, seed=0).record
    assert record.status == "ok", record.error
    assert record.privacy.recomputed.epsilon <= record.privacy.planned.epsilon * (1 + 1e-9)
    assert record.metrics["accuracy"] > 0.2  # three classes; some methods choose nearly at random
    if made.end_to_end_private:
        assert record.privacy.epsilon <= budget.epsilon
        ledger = Ledger.from_json(record.privacy.ledger)
        found = harness._quoted(ledger.event, budget.delta, record.privacy.planned.accountant)
        assert found.epsilon == pytest.approx(record.privacy.recomputed.epsilon, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_reads_nothing_and_is_the_same_each_time(method: str, tiny_task, budget, monkeypatch) -> None:
    monkeypatch.setattr(type(tiny_task), "load_train", lambda *_: pytest.fail("private data were read"))
    one, two = (bench.make_method(method).plan(tiny_task.facts, budget) for _ in range(2))
    assert one == two
    assert bench.Plan.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_repeats_a_run_also_from_a_kept_plan(method: str, tiny_task, budget, tmp_path) -> None:
    kept = PlanCache(tmp_path)
    kept.plan(bench.make_method(method), tiny_task, budget)
    assert len(list(tmp_path.glob("*.json"))) == 1
    one, two = (bench.run(method, tiny_task, budget, seed=3, plans=plans).record for plans in (None, kept))
    assert one.metrics == two.metrics
    assert one.released == two.released
    assert one.privacy == two.privacy
