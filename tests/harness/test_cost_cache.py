"""Cached ε and risk: the same to the last bit as computed ones, or computed again."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dphpo_bench as bench
from dphpo_bench.harness import cost_cache
from dphpo_bench.harness.cost_cache import CachedValues, CostCache
from dphpo_bench.leaderboard.submissions import read_submissions
from dphpo_bench.privacy.accountants import report
from dphpo_bench.privacy.accountants.report import OUT_OF_MEMORY, epsilon
from dphpo_bench.privacy.events import best_of, gaussian, non_private, on_part, poisson_sampled, pure_dp, repeat
from dphpo_bench.privacy.risk import risk
from dphpo_bench.privacy.run_counts import Poisson

EVENT = repeat(poisson_sampled(0.1, gaussian(2.0)), 20)
DELTA = 1e-5


@pytest.fixture
def computed(monkeypatch):
    """The events whose ε or risk is computed."""
    calls = []

    def counting(function):
        return lambda event, delta: calls.append(event) or function(event, delta)

    monkeypatch.setattr(cost_cache.reports, "epsilon", counting(epsilon))
    monkeypatch.setattr(cost_cache, "risk", counting(risk))
    return calls


def test_delta_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    costs, delta = CostCache(tmp_path), np.float32(DELTA)
    assert costs.epsilon(EVENT, delta) == epsilon(EVENT, float(delta)) == CostCache(tmp_path).epsilon(EVENT, delta)
    assert costs.risk(EVENT, delta) == risk(EVENT, float(delta)) == CostCache(tmp_path).risk(EVENT, delta)


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
    first, second = CostCache(tmp_path), CostCache(tmp_path)
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


def test_memory_serves_before_the_disk(tmp_path: Path, computed) -> None:
    cache = CostCache(tmp_path / "costs")
    first = cache.epsilon(EVENT, DELTA)
    (path,) = (tmp_path / "costs").iterdir()
    path.unlink()
    assert cache.epsilon(EVENT, DELTA) == first
    assert len(computed) == 1


def test_a_damaged_or_foreign_file_is_computed_again(tmp_path: Path) -> None:
    CostCache(tmp_path).epsilon(EVENT, DELTA)
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    CostCache(tmp_path / "other").epsilon(gaussian(50.0), DELTA)
    (other,) = (tmp_path / "other").iterdir()
    lower = whole.replace('"epsilon": ', '"epsilon": 0.0')
    for content in ("", whole[:-1], whole[:30], lower, whole[64:], other.read_text(), "x" * 2**20, "[" * 2**15):
        path.write_text(content)
        assert CostCache(tmp_path).epsilon(EVENT, DELTA) == epsilon(EVENT, DELTA)
        assert path.read_text() == whole
    path.write_bytes(b"\xff" * 80)
    assert CostCache(tmp_path).epsilon(EVENT, DELTA) == epsilon(EVENT, DELTA)
    path.unlink()
    path.mkdir()  # cannot be replaced
    assert CostCache(tmp_path).epsilon(EVENT, DELTA) == epsilon(EVENT, DELTA)


def test_a_value_depends_on_event_delta_code_and_what_is_computed(tmp_path: Path, monkeypatch) -> None:
    def size() -> int:
        return len(list(tmp_path.iterdir()))

    CostCache(tmp_path).epsilon(EVENT, DELTA)
    CostCache(tmp_path).epsilon(repeat(poisson_sampled(0.1, gaussian(2.0)), 20), DELTA)
    assert size() == 1
    changed = [
        (gaussian(2.0), DELTA),
        (EVENT, 2 * DELTA),
        (repeat(poisson_sampled(0.1, gaussian(2.0000001)), 20), DELTA),
    ]
    for number, (event, delta) in enumerate(changed, 2):
        assert CostCache(tmp_path).epsilon(event, delta) == epsilon(event, delta)
        assert size() == number
    monkeypatch.setattr(cost_cache, "engine_hash", lambda *rooms: f"other code of {rooms}")
    CostCache(tmp_path).epsilon(EVENT, DELTA)
    assert size() == 5
    assert CostCache(tmp_path).risk(EVENT, DELTA) == risk(EVENT, DELTA)
    assert size() == 6


def test_what_another_machine_may_compute_is_not_cached(tmp_path: Path, monkeypatch) -> None:
    event = repeat(poisson_sampled(0.011, gaussian(2.0)), 21)
    real = report.ACCOUNTANTS["rdp"]

    def too_large(*_):
        raise MemoryError

    monkeypatch.setattr(report, "ACCOUNTANTS", {**report.ACCOUNTANTS, "rdp": replace(real, epsilon=too_large)})
    assert CostCache(tmp_path).epsilon(event, DELTA).refused["rdp"] == OUT_OF_MEMORY
    CostCache(tmp_path).risk(event, DELTA)
    assert not list(tmp_path.iterdir())
    report._report.cache_clear()


def test_a_full_disk_and_an_unwritable_folder_cost_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert CostCache(tmp_path / "file" / "costs").epsilon(EVENT, DELTA) == epsilon(EVENT, DELTA)


def test_a_run_with_cached_costs_has_the_same_record(tmp_path: Path, fixed_noise, tiny_task, budget) -> None:
    def privacy():
        return bench.run(
            fixed_noise(), tiny_task, budget, seed=0, execution=bench.ExecutionOptions(costs=CostCache(tmp_path))
        ).record.privacy

    assert privacy() == privacy() == bench.run(fixed_noise(), tiny_task, budget, seed=0).record.privacy
    assert len(list(tmp_path.iterdir())) >= 2


def test_the_board_reads_nothing_that_runs_have_cached(tmp_path: Path, fixed_noise, tiny_task, budget) -> None:
    """Even in one folder, where every file of the run is forged."""
    bench.run(
        fixed_noise(),
        tiny_task,
        budget,
        seed=0,
        execution=bench.ExecutionOptions(costs=CostCache(tmp_path / "costs")),
        results_dir=tmp_path / "r",
    )
    for path in (tmp_path / "costs").iterdir():
        value = json.loads(path.read_text()[64:])
        forged = {**value, "epsilon": 9e9} if isinstance(value, dict) else [1.0, 1.0, 1.0, 9e9, 0.0]
        CachedValues(tmp_path / "costs").keep(path.stem, forged)
    submissions = read_submissions([tmp_path / "r"], tmp_path / "costs")
    assert submissions == read_submissions([tmp_path / "r"], None)
