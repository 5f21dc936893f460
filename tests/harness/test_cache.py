"""Cached plans, ε and risk: the same to the last bit as computed ones, or computed again."""

import importlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution

import dphpo_bench as bench
from dphpo_bench.harness import cache as cache_module
from dphpo_bench.harness.cache import Cache, CachedValues
from dphpo_bench.leaderboard.submissions import read_submissions
from dphpo_bench.privacy.accountants import report
from dphpo_bench.privacy.accountants.report import OUT_OF_MEMORY, epsilon
from dphpo_bench.privacy.events import best_of, gaussian, non_private, on_part, poisson_sampled, pure_dp, repeat
from dphpo_bench.privacy.risk import risk
from dphpo_bench.privacy.run_counts import Poisson

EVENT = repeat(poisson_sampled(0.1, gaussian(2.0)), 20)
DELTA = 1e-5


def cached_in(folder: Path) -> bench.ExecutionOptions:
    return bench.ExecutionOptions(cache=Cache(folder))


@pytest.fixture
def computed(monkeypatch):
    """The events whose ε or risk is computed."""
    calls = []

    def counting(function):
        return lambda event, delta: calls.append(event) or function(event, delta)

    monkeypatch.setattr(cache_module.reports, "epsilon", counting(epsilon))
    monkeypatch.setattr(cache_module, "risk", counting(risk))
    return calls


@pytest.mark.parametrize(
    "event",
    [
        EVENT,
        pure_dp(0.3),
        non_private(),
        on_part("parts", "a", gaussian(3.0)),
        best_of(repeat(poisson_sampled(0.05, gaussian(6.0)), 5), Poisson(3.0)),
    ],
    ids=["samples", "pure", "non-private", "part", "selection"],
)
def test_another_process_gets_the_same_without_computing(tmp_path: Path, computed, event) -> None:
    first, second = Cache(tmp_path), Cache(tmp_path)
    costs = first.epsilon(event, DELTA), first.risk(event, DELTA)
    computed.clear()
    assert (
        (second.epsilon(event, DELTA), second.risk(event, DELTA))
        == costs
        == (epsilon(event, DELTA), risk(event, DELTA))
    )
    assert list(second.epsilon(event, DELTA).by_accountant) == list(costs[0].by_accountant)
    assert not computed
    assert costs == (epsilon(event, DELTA), risk(event, DELTA))


def test_a_damaged_or_foreign_file_is_computed_again(tmp_path: Path) -> None:
    Cache(tmp_path).epsilon(EVENT, DELTA)
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    Cache(tmp_path / "other").epsilon(gaussian(50.0), DELTA)
    (other,) = (tmp_path / "other").iterdir()
    lower = whole.replace('"epsilon": ', '"epsilon": 0.0')
    for content in ("", whole[:-1], whole[:30], lower, whole[64:], other.read_text(), "x" * 2**20, "[" * 2**15):
        path.write_text(content)
        assert Cache(tmp_path).epsilon(EVENT, DELTA) == epsilon(EVENT, DELTA)
        assert path.read_text() == whole
    path.write_bytes(b"\xff" * 80)
    assert Cache(tmp_path).epsilon(EVENT, DELTA) == epsilon(EVENT, DELTA)
    path.unlink()
    path.mkdir()  # cannot be replaced
    assert Cache(tmp_path).epsilon(EVENT, DELTA) == epsilon(EVENT, DELTA)


def test_a_value_depends_on_event_delta_code_and_what_is_computed(tmp_path: Path, monkeypatch) -> None:
    def size() -> int:
        return len(list(tmp_path.iterdir()))

    Cache(tmp_path).epsilon(EVENT, DELTA)
    Cache(tmp_path).epsilon(repeat(poisson_sampled(0.1, gaussian(2.0)), 20), DELTA)
    assert size() == 1
    changed = [
        (gaussian(2.0), DELTA),
        (EVENT, 2 * DELTA),
        (repeat(poisson_sampled(0.1, gaussian(2.0000001)), 20), DELTA),
    ]
    for number, (event, delta) in enumerate(changed, 2):
        assert Cache(tmp_path).epsilon(event, delta) == epsilon(event, delta)
        assert size() == number
    monkeypatch.setattr(cache_module, "engine_hash", lambda *rooms: f"other code of {rooms}")
    Cache(tmp_path).epsilon(EVENT, DELTA)
    assert size() == 5
    assert Cache(tmp_path).risk(EVENT, DELTA) == risk(EVENT, DELTA)
    assert size() == 6


def test_what_another_machine_may_compute_is_not_cached(tmp_path: Path, monkeypatch) -> None:
    event = repeat(poisson_sampled(0.011, gaussian(2.0)), 21)
    real = report.ACCOUNTANTS["rdp"]

    def too_large(*_):
        raise MemoryError

    monkeypatch.setattr(report, "ACCOUNTANTS", {**report.ACCOUNTANTS, "rdp": replace(real, epsilon=too_large)})
    assert Cache(tmp_path).epsilon(event, DELTA).refused["rdp"] == OUT_OF_MEMORY
    Cache(tmp_path).risk(event, DELTA)
    assert not list(tmp_path.iterdir())
    report._report.cache_clear()


def test_a_run_with_cached_costs_has_the_same_record(tmp_path: Path, fixed_noise, tiny_task, budget) -> None:
    def privacy():
        return bench.run(fixed_noise(), tiny_task, budget, seed=0, execution=cached_in(tmp_path)).record.privacy

    assert privacy() == privacy() == bench.run(fixed_noise(), tiny_task, budget, seed=0).record.privacy
    assert len(list(tmp_path.iterdir())) >= 2


def test_the_board_reads_nothing_that_runs_have_cached(tmp_path: Path, fixed_noise, tiny_task, budget) -> None:
    """Even in one folder, where every file of the run is forged."""
    bench.run(
        fixed_noise(),
        tiny_task,
        budget,
        seed=0,
        execution=cached_in(tmp_path / "costs"),
        results_dir=tmp_path / "r",
    )
    for path in (tmp_path / "costs").iterdir():
        value = json.loads(path.read_text()[64:])
        forged = {**value, "epsilon": 9e9} if isinstance(value, dict) else [1.0, 1.0, 1.0, 9e9, 0.0]
        CachedValues(tmp_path / "costs").keep(path.stem, forged)
    submissions = read_submissions([tmp_path / "r"], tmp_path / "costs")
    assert submissions == read_submissions([tmp_path / "r"], None)


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


def test_a_plan_is_made_once(counting, tiny_task, budget, tmp_path) -> None:
    plans = [Cache(tmp_path).plan(counting(), tiny_task, budget) for _ in range(2)]
    assert counting.planned == 1
    assert plans[0] == plans[1] == counting().plan(tiny_task.facts, budget)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"steps": ', '"steps": 1'))
    assert Cache(tmp_path).plan(counting(), tiny_task, budget) == plans[0]


@pytest.mark.parametrize(("noise", "status"), [(100.0, "over_budget"), (0.3, "")])
def test_a_forged_plan_cannot_under_report(counting, tiny_task, budget, tmp_path, noise: float, status: str) -> None:
    """Neither by an event cheaper than the releases, nor by one dearer than the budget."""
    sampled = bench.events.poisson_sampled(tiny_task.facts.sample_rate, bench.events.gaussian(noise))
    event = bench.events.repeat(sampled, 6)
    forged = replace(Cache(tmp_path).plan(counting(), tiny_task, budget), event=event, training_event=event)
    (path,) = tmp_path.iterdir()
    CachedValues(tmp_path).keep(path.stem, forged.to_json())
    if status:
        record = bench.run(counting(), tiny_task, budget, seed=0, execution=cached_in(tmp_path), check=False).record
        assert record.status == status
    else:
        with pytest.raises(bench.errors.DphpoBenchError, match="more than the budget"):
            bench.run(counting(), tiny_task, budget, seed=0, execution=cached_in(tmp_path))


def test_a_plan_for_another_budget_is_refused(counting, tiny_task, budget) -> None:
    class Elsewhere(counting):
        def plan(self, facts, budget):
            return replace(super().plan(facts, budget), budget=bench.PrivacyBudget(3.0, 0.9))

    with pytest.raises(bench.errors.InvalidValueError, match=r"to plan for .*delta=0.0001.*, got .*delta=0.9"):
        bench.run(Elsewhere(), tiny_task, budget, seed=0)


def test_other_facts_are_another_plan_even_from_the_same_code(
    counting, tiny_task, budget, tmp_path, monkeypatch
) -> None:
    cache = Cache(tmp_path)
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
        cache_module._neighbours.cache_clear()
        made = importlib.import_module("own_method").Own()
        steps.append(Cache(tmp_path / "plans").plan(made, tiny_task, budget).cost.steps)
    assert steps[1] == 2 * steps[0]
