"""Kept plans: made once, by one process, and never trusted for what they cost."""

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from optuna.distributions import FloatDistribution

import dphpo_bench as bench
from dphpo_bench.harness import plan_cache
from dphpo_bench.harness.plan_cache import PlanCache


@dataclass(frozen=True)
class Extra:
    extra: Any


@pytest.fixture
def counting(fixed_noise):
    """A method that counts how often it plans."""

    @dataclass(frozen=True)
    class Counting(fixed_noise):
        plan_parameters = Extra
        planned = 0
        extra: Any = None

        def plan(self, facts, budget):
            type(self).planned += 1
            return replace(super().plan(facts, budget), parameters=Extra(self.extra))

    return Counting


def test_a_plan_is_made_once_for_all_who_want_it(counting, tiny_task, budget, tmp_path) -> None:
    with ThreadPoolExecutor(4) as threads:
        plans = list(threads.map(lambda _: PlanCache(tmp_path).plan(counting(), tiny_task, budget), range(12)))
    assert counting.planned == 1
    assert all(plan == plans[0] for plan in plans)
    assert plans[0] == counting().plan(tiny_task.facts, budget)


@pytest.mark.parametrize("content", ["", '{"budget": {}}'])
def test_a_damaged_plan_is_made_again(counting, tiny_task, budget, tmp_path, content: str) -> None:
    cache = PlanCache(tmp_path)
    good = cache.plan(counting(), tiny_task, budget)
    (path,) = tmp_path.glob("*.json")
    path.write_text(content)
    assert cache.plan(counting(), tiny_task, budget) == good
    assert counting.planned == 2
    assert cache.plan(counting(), tiny_task, budget) == good
    assert counting.planned == 2


def test_a_forged_plan_cannot_under_report(counting, tiny_task, budget, tmp_path) -> None:
    """Neither by an event cheaper than the releases, nor by one dearer than the budget."""
    cache = PlanCache(tmp_path)
    cache.plan(counting(), tiny_task, budget)
    (path,) = tmp_path.glob("*.json")
    good = path.read_text()

    def forge(noise: float) -> None:
        forged = json.loads(good)
        event = bench.events.repeat(
            bench.events.poisson_sampled(tiny_task.facts.sample_rate, bench.events.gaussian(noise)), 6
        )
        plan = replace(bench.Plan.from_json(forged, Extra), event=event, training_event=event)
        path.write_text(json.dumps(plan.to_json()))

    forge(100.0)
    record = bench.run(
        counting(), tiny_task, budget, seed=0, execution=bench.ExecutionOptions(plans=cache), check=False
    ).record
    assert record.status == "over_budget"
    forged = json.loads(good)
    forged["budget"]["delta"] = 0.9
    path.write_text(json.dumps(forged))
    record = bench.run(
        counting(), tiny_task, budget, seed=0, execution=bench.ExecutionOptions(plans=cache)
    ).record  # it is made again
    assert record.privacy == bench.run(counting(), tiny_task, budget, seed=0).record.privacy
    assert bench.Plan.from_json(json.loads(path.read_text()), Extra).budget == budget
    forge(0.3)
    with pytest.raises(bench.errors.DphpoBenchError, match="more than the budget"):
        bench.run(counting(), tiny_task, budget, seed=0, execution=bench.ExecutionOptions(plans=cache))


def test_a_plan_for_another_budget_is_refused(counting, tiny_task, budget) -> None:
    class Elsewhere(counting):
        def plan(self, facts, budget):
            return replace(super().plan(facts, budget), budget=bench.PrivacyBudget(3.0, 0.9))

    with pytest.raises(bench.errors.InvalidValueError, match=r"to plan for .*delta=0.0001.*, got .*delta=0.9"):
        bench.run(Elsewhere(), tiny_task, budget, seed=0)


def test_other_facts_are_another_plan_even_from_the_same_code(
    counting, tiny_task, budget, tmp_path, monkeypatch
) -> None:
    cache = PlanCache(tmp_path)
    cache.plan(counting(), tiny_task, budget)
    monkeypatch.setattr(type(tiny_task), "n_records", 700)
    assert cache.plan(counting(), tiny_task, budget) == counting().plan(tiny_task.facts, budget)
    narrow = {"learning_rate": FloatDistribution(0.1, 0.2)}
    monkeypatch.setattr(type(tiny_task), "facts", replace(tiny_task.facts, search_space=lambda: narrow))
    cache.plan(counting(), tiny_task, budget)
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_an_edited_helper_of_a_plug_in_makes_another_plan(tiny_task, budget, tmp_path, monkeypatch) -> None:
    """What the method's module imports from its folder counts as its code, since its plan may follow from it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_method.py").write_text(
        "from dphpo_bench.methods.dp_sgd import FixedDpSgd\n"
        "from own_values import STEPS\n"
        "class Own(FixedDpSgd):\n"
        "    name = 'own'\n"
        "    def plan(self, facts, budget):\n"
        "        return super().plan(facts.with_schedule(None, STEPS), budget)\n"
    )
    steps = []
    for epochs in (1, 2):
        (tmp_path / "own_values.py").write_text(f"STEPS = {epochs}\n# {'x' * epochs}")
        for name in ("own_method", "own_values"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        plan_cache._neighbours.cache_clear()
        made = importlib.import_module("own_method").Own()
        steps.append(PlanCache(tmp_path / "plans").plan(made, tiny_task, budget).cost.steps)
    assert steps[1] == 2 * steps[0]
