"""Boards of metrics other than the accuracy: errors, of which the lower is better, and areas under curves."""

import math
from pathlib import Path

import pytest

from dphpo_bench.leaderboard.build import render
from dphpo_bench.leaderboard.sentences import sentences
from dphpo_bench.leaderboard.tables import Board
from dphpo_bench.records.measure import Measure
from dphpo_bench.records.record import RunRecord
from tests.leaderboard.submitted import board_of, make_record, read, submit

ERRORS = {
    "auto_clipping": [4000.0, 4100.0, 4050.0],
    "hyfreedp": [3500.0, 3600.0, 3550.0],
    "liu_talwar": [3800.0, 3850.0, None],
    "grid_oracle": [3000.0, 3100.0, 3050.0],
}


def _records(metric: str, higher: bool, values: dict[str, list[float | None]], task: str = "toy") -> list[RunRecord]:
    return [
        make_record(method, task, seed=seed, accuracy=value, metric=metric, higher_is_better=higher)
        for method, by_seed in values.items()
        for seed, value in enumerate(by_seed)
    ]


@pytest.fixture
def errors(tmp_path: Path) -> Board:
    return board_of(tmp_path, *_records("mean_squared_error", False, ERRORS))


def test_the_lower_error_is_ranked_first(errors: Board) -> None:
    (table,) = errors.tables
    assert table.measure == Measure("mean_squared_error", higher_is_better=False)
    # The failed run counts as the worst of the table, 4100: (3800 + 3850 + 4100) / 3 is below 4050.
    assert [row.entry.method for row in table.rows] == ["hyfreedp", "liu_talwar", "auto_clipping"]
    best, searched, untuned = table.rows
    assert best.utility is not None
    assert best.utility.mean == pytest.approx(3550)
    assert searched.utility is not None
    assert searched.utility.mean == pytest.approx(3825)
    assert (best.worst, searched.worst, untuned.worst) == (3600, 3850, 4100)
    assert (best.ranks, untuned.ranks) != (None, None)
    assert best.ranks.low == 1  # type: ignore[union-attr]
    assert untuned.ranks.high == 3  # type: ignore[union-attr]


def test_metrics_of_several_tasks_are_ranked_together_and_not_averaged(tmp_path: Path) -> None:
    accuracies = {"auto_clipping": [0.7, 0.8, 0.75], "hyfreedp": [0.9, 0.85, 0.8]}
    board = board_of(
        tmp_path,
        *_records("mean_squared_error", False, ERRORS),
        *_records("accuracy", True, accuracies, task="digits_too"),
    )
    assert board.measure is None
    best = board.overalls[0].rows[0]
    assert best.entry.method == "hyfreedp"
    assert (best.utility, best.gap_to_oracle) == (None, None)
    readme = render(board, tmp_path)["README.md"]
    assert "mean squared error (lower is better)" in readme
    assert "accuracy, %" in readme


@pytest.mark.parametrize(
    ("metric", "values", "reason"),
    [
        ("roc_auc", [1.2, -0.1, math.nan], "no ROC-AUC between 0 and 1"),
        ("mean_squared_error", [1e10, -1.0, math.inf, math.nan], "no mean squared error between 0 and 1e+09"),
        ("r2", [1.5, -1e10], "no R² between -1e+09 and 1"),
        ("perplexity", [0.5], "no perplexity between 1 and 1e+09"),
    ],
)
def test_a_value_that_nobody_can_rank_is_rejected(
    metric: str, values: list[float], reason: str, tmp_path: Path
) -> None:
    records = (make_record(metric=metric, higher_is_better=metric == "roc_auc", accuracy=value, seed=seed)
               for seed, value in enumerate(values))  # fmt: skip
    submit(tmp_path, *records)
    rejected = read(tmp_path).rejected
    assert len(rejected) == len(values)
    assert all(reason in refused.reason for refused in rejected)


def test_a_collapsed_perplexity_counts_as_that_of_a_guess_of_all_tokens_alike(tmp_path: Path) -> None:
    """As an accuracy stays above that of a guess: without a limit, one collapse would be all that a table shows."""
    values = {"auto_clipping": [18.0, 18.2, 17.8], "hyfreedp": [10.8, 10.9, 10.7], "liu_talwar": [math.inf, 9.0, 9.0]}
    facts = {"n_records": 1000, "n_classes": 628, "metrics": [{"name": "perplexity", "higher_is_better": False}]}
    records = [
        make_record(method, seed=seed, accuracy=value, metric="perplexity", facts=facts)
        for method, by_seed in values.items()
        for seed, value in enumerate(by_seed)
    ]
    (table,) = board_of(tmp_path, *records).tables
    best, untuned, searched = table.rows
    assert (best.entry.method, searched.entry.method) == ("hyfreedp", "liu_talwar")
    assert (best.ranks.low, best.ranks.high) != (untuned.ranks.low, untuned.ranks.high)  # type: ignore[union-attr]
    assert searched.utility is not None
    assert searched.utility.mean == pytest.approx((628 * 9 * 9) ** (1 / 3))
    assert (searched.worst, searched.failed, searched.lacks_seeds) == (628, 0, False)


def test_a_metric_that_knows_no_collapse_has_no_runs_that_could(tmp_path: Path) -> None:
    """On the board 160 runs with an R², one of -37.6, stood among the 600 of which none had collapsed."""
    (table,) = board_of(tmp_path, *_records("r2", True, {"hyfreedp": [0.5, 0.6, -37.6]})).tables
    (row,) = table.rows
    assert (row.collapsed, row.collapses.runs) == (None, 0)


def test_perplexities_are_compared_by_their_logarithms(tmp_path: Path) -> None:
    values = {"auto_clipping": [20.0, 30.0, 20.0], "hyfreedp": [10.0, 15.0, 10.0], "grid_oracle": [5.0, 7.5, 5.0]}
    (table,) = (board := board_of(tmp_path, *_records("perplexity", False, values))).tables
    best, untuned = table.rows
    assert best.utility is not None
    assert best.utility.mean == pytest.approx(math.cbrt(1500))
    assert best.utility.low is not None
    assert best.utility.high is not None
    assert best.utility.low * best.utility.high == pytest.approx(best.utility.mean**2)
    assert best.gap_to_oracle is not None
    assert untuned.gap_to_oracle is not None
    assert best.gap_to_oracle.mean == pytest.approx(math.log(2))
    assert untuned.gap_to_oracle.mean == pytest.approx(math.log(4))
    assert board.overalls[0].rows[0].utility == best.utility
    page = render(board, tmp_path)["tables/toy-linear.md"].replace("\u00a0", " ")
    assert "11.4 \\[6.4, 20.5\\]" in page
    assert "to the oracle, nats" in page
    assert "−0.693 ± " in page


def test_an_r2_near_zero_has_the_margin_of_any_other(tmp_path: Path) -> None:
    steps = (-0.001, 0.0, 0.001)
    means = {"hyfreedp": 0.010, "mechanic": 0.008, "dowg": -0.2, "grid_oracle": 0.012}
    values = {method: [mean + step for step in steps] for method, mean in means.items()}
    (answer,) = board_of(tmp_path, *_records("r2", True, values)).answers
    assert {place.entry.label: place.verdict for place in answer.places} == {
        "hyfreedp": "equivalent",
        "mechanic": "equivalent",
        "dowg": "behind",
    }
    first, near, *_ = sentences(answer)
    assert first.startswith("hyfreedp is 0.002 of R² behind the oracle")
    assert near == "Shown to be within 0.01 of hyfreedp: mechanic."
