"""Runs that are repeated: which ones, and what is compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench.contract.registry import methods
from dphpo_bench.data.source import DataSource
from dphpo_bench.leaderboard.reruns import Difference, Repeat, choose, compared, repeats
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell
from dphpo_bench.sweep.executors import Resources
from dphpo_bench.sweep.extra_runs import Workshop
from tests.leaderboard.submitted import make_record, read, submit


def test_one_of_each_method_before_another_the_cheapest_first(tmp_path: Path) -> None:
    def timed(method: str, seed: int, seconds: float, accuracy: float | None = 0.9):
        return make_record(
            method, "digits", seed=seed, accuracy=accuracy, seconds={"train": seconds},
            method_version=methods()[method].cls.version if method in methods() else 1
        )  # fmt: skip

    submit(tmp_path, timed("hyfreedp", 0, 5), timed("hyfreedp", 1, 4), timed("auto_clipping", 0, 3),
           timed("auto_clipping", 1, 2), timed("auto_clipping", 2, 1), timed("dowg", 0, 9),
           timed("dowg", 1, 1, accuracy=None), timed("strange", 0, 1))  # fmt: skip
    submit(tmp_path, make_record("dowg", "strange", seconds={"train": 0.1}))
    runs = read(tmp_path).runs
    found = [(run.method, run.seconds) for run in choose(runs, 5)]
    assert found == [("auto_clipping", 1), ("hyfreedp", 4), ("dowg", 9), ("auto_clipping", 2), ("hyfreedp", 5)]
    assert choose(runs[::-1], 5) == choose(runs, 5)
    assert len(choose(runs, 100)) == 6


def test_what_is_another_run_here_is_not_repeated(tmp_path: Path) -> None:
    submit(tmp_path, make_record("auto_clipping", "digits"))
    runs = read(tmp_path).runs
    workshop = Workshop(DataSource.resolve(tmp_path, tmp_path), Resources())
    made, refused, others = repeats(runs, [tmp_path], workshop)
    assert (made, refused) == ([], [])
    assert [one.path for one in others] == [runs[0].path]
    assert "another method or task" in others[0].reason


@pytest.mark.parametrize(
    ("metrics", "differences"),
    [
        ({"accuracy": 0.9, "cross_entropy": 0.5 + 1e-9}, []),
        ({"accuracy": 0.8, "cross_entropy": 0.5}, [("accuracy", 0.9, 0.8)]),
        ({"accuracy": 0.9}, [("cross_entropy", 0.5, None)]),
    ],
)
def test_metrics_are_compared(
    tmp_path: Path, metrics: dict[str, float], differences: Sequence[tuple[str, Any, Any]]
) -> None:
    record = make_record("auto_clipping").model_copy(update={"metrics": {"accuracy": 0.9, "cross_entropy": 0.5}})
    repeat = Repeat("path", record, Cell(None, None, None, record.identity, Resources()))  # type: ignore[arg-type]
    store = RecordStore(tmp_path)
    assert compared(repeat, store) == "it failed: it has no record"
    store.write(record.model_copy(update={"metrics": metrics}))
    assert repr(compared(repeat, store)) == repr([Difference(*one) for one in differences])
    store.write(make_record("auto_clipping", accuracy=None))
    assert compared(repeat, store) == "it failed: ValueError: it broke"


def test_all_that_follows_from_the_seed_is_compared(tmp_path: Path) -> None:
    """A record with right metrics could claim any ε, with a ledger to match."""
    record = make_record("auto_clipping", released={"path": [{"step": 0, "learning_rate": 0.5}]})
    repeat = Repeat("path", record, Cell(None, None, None, record.identity, Resources()))  # type: ignore[arg-type]
    less = make_record("auto_clipping", noise_multiplier=8.0, examples=10.0, released={"path": []})
    store = RecordStore(tmp_path)
    store.write(less.model_copy(update={"privacy": less.privacy.model_copy(update={"end_to_end_private": False})}))
    found = compared(repeat, store)
    assert not isinstance(found, str)
    names = {one.name for one in found}
    assert {"privacy.epsilon", "privacy.planned.epsilon", "privacy.recomputed.by_accountant.pld"} < names
    assert {"privacy.end_to_end_private", "cost.examples", "released.path.0.learning_rate"} < names
    assert any(name.startswith("privacy.ledger.entries.0.") for name in names)
    assert "metrics.accuracy" not in names
