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
    other, before = [
        [next(row for row in table.rows if row.entry.method == "hyfreedp").utility for table in board.tables]
        for board in (fallen, calm)
    ]
    assert other[0] == before[0]  # nobody fell there
    assert other[1].low < before[1].low


def test_a_fall_in_a_table_that_counts_says_nothing_of_one_that_does_not(tmp_path: Path) -> None:
    numbers = [make_record("hyfreedp", "numbers", seed=seed, accuracy=0.5, metric="r2") for seed in range(3)]
    submit(tmp_path, *runs("mechanic", 0.7, "classes", 0, 0.3), *numbers)
    every = contests_of(frame_of(read(tmp_path).runs), Standard.builtin())
    contests = with_falls(every, lambda contest: contest.task_model.task == "classes")
    assert {contest.task_model.task: contest.members[0].falls.deepest for contest in contests}["numbers"] == 0


@pytest.mark.parametrize("tasks", [1, 7])
def test_how_deep_an_entry_may_fall(tmp_path: Path, tasks: int) -> None:
    """Where one fell, all may; with fewer than 30 runs, who fell may fall anywhere. References share nothing."""
    falls = {"liu_talwar": 0.3, "papernot_steinke": 0.11, "mechanic": 0.0, "grid_oracle": 0.0}
    records = [
        record
        for at in range(tasks)
        for method, drop in falls.items()
        for record in runs(method, 0.7, f"task_{at}", 10 * at, drop if at == 0 else 0.0)
    ]
    submit(tmp_path, *records)
    contests = contests_of(frame_of(read(tmp_path).runs), Standard.builtin())
    found = [{member.entry.label: member.falls.deepest for member in contest.members} for contest in contests]
    few = {"liu_talwar": math.inf, "papernot_steinke": math.inf, "mechanic": 0.3, "grid_oracle": 0.0}
    many = {**falls, "papernot_steinke": 0.3, "mechanic": 0.3}
    assert found[0] == pytest.approx(few if tasks == 1 else many, abs=0.002)
    assert found[-1] == pytest.approx(few if tasks == 1 else falls, abs=0.002)


@pytest.mark.parametrize(
    ("task", "model", "development"),
    [
        ("adult_few", "linear_300", True),  # the first records of Adult
        ("synthetic", "17", True),
        ("synthetic", "teacher_300", False),
        ("synthetic", "rule_10000", False),
        ("cifar10", "pretrained", True),
        ("cifar10", "linear", True),  # on its ScatterNet features
        ("mnist", "cnn", False),
    ],
)
def test_records_on_which_constants_were_settled_are_development_data(task: str, model: str, development: bool) -> None:
    assert TaskModel(task, model, 1e-5, "", "", "", ACCURACY).development == development
