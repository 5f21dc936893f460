"""Subjects: one test for pictures and claims, development and test data, collapses over all tables of an entry."""

import math
from pathlib import Path

import pytest

from dphpo_bench.leaderboard.entries import Standard, contests_of, frame_of, with_falls
from dphpo_bench.leaderboard.means import Rate
from dphpo_bench.leaderboard.submissions import TaskModel
from dphpo_bench.records.measure import ACCURACY
from dphpo_bench.records.record import RunRecord
from tests.leaderboard.submitted import board_of, make_record, read, submit

FACTS = {"n_records": 1000, "inputs": {"shape": [9], "dtype": "float", "vocabulary": None}}
STEADY = {"auto_clipping": 0.7, "grid_oracle": 0.9, "hyfreedp": 0.88, "mechanic": 0.878, "dowg": 0.6}


def runs(method: str, mean: float, task: str, start: int, drop: float = 0.0, **more: object) -> list[RunRecord]:
    values = [mean + step for step in (-0.002, -0.001, 0.0, 0.001, 0.002)]
    values[2] -= drop
    return [make_record(method, task, seed=start + at, accuracy=value, facts={**FACTS, "task": task}, **more)
            for at, value in enumerate(values)]  # fmt: skip


def tables(*tasks: str, **drops: float) -> list[RunRecord]:
    """Return the records of five methods; `drops` are how deep a method falls in one run of the last task."""
    return [
        record
        for at, task in enumerate(tasks)
        for method, mean in STEADY.items()
        for record in runs(method, mean, task, 10 * at, drops.get(method, 0.0) if task == tasks[-1] else 0.0)
    ]


def test_pictures_and_claims_name_the_same(tmp_path: Path) -> None:
    board = board_of(tmp_path, *tables("one", "two", "three"))
    (claims,) = board.claims
    answer = board.answers[0]
    assert answer.subject == claims.subject
    first = answer.places[0].entry
    beaten = {pair.worse.label for pair in claims.beaten(first)}
    verdicts = {place.entry.label: place.verdict for place in answer.places}
    # Mechanic is significantly worse, and within a point: bold, not "behind".
    assert verdicts == {
        "hyfreedp": "equivalent",
        "mechanic": "equivalent",
        "auto_clipping": "behind",
        "dowg": "behind",
    }
    assert beaten >= {label for label, standing in verdicts.items() if standing == "behind"}
    better = {pair.better.label for pair in claims.significant if pair.worse.label == "auto_clipping"}
    assert {place.entry.label for place in answer.places if place.untuned == 1} == better


def test_a_collapse_in_one_table_is_allowed_for_in_the_others(tmp_path: Path) -> None:
    calm, fallen = (
        board_of(tmp_path / name, *tables("one", "two", dowg=drop)) for name, drop in (("a", 0.0), ("b", 0.3))
    )
    rows = [next(row for row in board.tables[0].rows if row.entry.method == "dowg") for board in (calm, fallen)]
    lows = [row.utility.low for row in rows if row.utility and row.utility.low is not None]
    assert [row.collapses for row in rows] == [Rate(0, 5), Rate(0, 5)]  # the rate of this task–model pair
    # No run of the task–model pair is below this entry's lowest, so that is how deep a collapse may be here.
    assert lows[0] - lows[1] == pytest.approx(Rate(0, 5).high * (0.6 - 0.598))
    whole = next(row for row in fallen.overalls[0].rows if row.entry.method == "dowg")
    assert whole.collapses == Rate(1, 10)
    assert (
        next(row for row in fallen.tables[0].rows if row.entry.method == "hyfreedp").utility
        == next(row for row in calm.tables[0].rows if row.entry.method == "hyfreedp").utility
    )


def test_a_search_in_a_table_that_does_not_count_by_a_metric_that_none_has_that_counts(tmp_path: Path) -> None:
    numbers = [make_record("liu_talwar", "numbers", seed=seed, accuracy=0.5, metric="r2", runs=2) for seed in range(3)]
    submit(tmp_path, *runs("liu_talwar", 0.7, "classes", 0, runs=2), *numbers)
    every = contests_of(frame_of(read(tmp_path).runs), Standard.builtin())
    contests = with_falls(every, lambda contest: contest.task_model.task == "classes")
    assert {contest.task_model.task: contest.members[0].falls.deepest for contest in contests}["numbers"] == 0


@pytest.mark.parametrize("tasks", [1, 7])
def test_how_deep_a_entry_may_fall(tmp_path: Path, tasks: int) -> None:
    """A search that never fell may fall as deep as others; with fewer than 30 runs, who may fall may fall anywhere."""
    falls = {"liu_talwar": (2, 0.3), "papernot_steinke": (2, 0.11), "subsampled_tuning": (2, 0.0), "dowg": (1, 0.2),
             "mechanic": (1, 0.0)}  # fmt: skip
    records = [
        record
        for at in range(tasks)
        for method, (trials, drop) in falls.items()
        for record in runs(method, 0.7, f"task_{at}", 10 * at, drop if at == 0 else 0.0, runs=trials)
    ]
    submit(tmp_path, *records)
    contests = contests_of(frame_of(read(tmp_path).runs), Standard.builtin())
    found = {member.entry.label: member.falls.deepest for member in contests[0].members}
    searches = dict.fromkeys(("liu_talwar", "papernot_steinke", "subsampled_tuning"), 0.3)
    anywhere = dict.fromkeys((*searches, "dowg"), math.inf)
    few, many = {**anywhere, "mechanic": 0.0}, {**searches, "papernot_steinke": 0.11, "dowg": 0.2, "mechanic": 0.0}
    assert found == pytest.approx(few if tasks == 1 else many, abs=0.002)


@pytest.mark.parametrize(
    ("task", "model", "development"),
    [
        ("adult_few", "linear_300", True),  # the first records of Adult
        ("synthetic", "17", True),
        ("synthetic", "teacher_300", False),
        ("synthetic", "rule_10000", False),
        ("cifar10", "pretrained", True),
        ("cifar10", "linear", False),
    ],
)
def test_records_on_which_constants_were_settled_are_development_data(task: str, model: str, development: bool) -> None:
    assert TaskModel(task, model, 1e-5, "", "", "", ACCURACY).development == development
