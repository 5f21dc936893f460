"""The metric on shifted test records: a column where records have it, and nothing new where none has."""

from pathlib import Path

from dphpo_bench.contract.metrics import SHIFTED
from dphpo_bench.leaderboard.columns import to_csv
from dphpo_bench.leaderboard.pages import to_html, to_markdown
from dphpo_bench.leaderboard.tables import Board, Row
from dphpo_bench.records.measure import mean_interval
from dphpo_bench.records.record import FurtherMetrics, RunRecord
from tests.leaderboard.submitted import board_of, make_record, read, submit

HEADER = "shifted accuracy, %"


def shifted(method: str, seed: int, value: float, about: str = "noise") -> RunRecord:
    test = FurtherMetrics(about=about, metrics={"accuracy": value, "cross_entropy": 1.0})
    return make_record(method, seed=seed, accuracy=0.9 - 0.01 * seed, further={SHIFTED: test})


def rows_of(board: Board) -> dict[str, Row]:
    (table,) = board.tables
    return {row.entry.method: row for row in table.everyone}


def test_a_row_has_the_mean_if_all_its_runs_have_the_metric(tmp_path: Path) -> None:
    board = board_of(
        tmp_path,
        *(shifted("auto_clipping", seed, value) for seed, value in enumerate((0.5, 0.6, 0.7))),
        *(shifted("dp_sgd", seed, 0.8) for seed in (0, 1)),
        make_record("dp_sgd", seed=2),
        make_record("hyfreedp", seed=0),
    )
    rows = rows_of(board)
    assert rows["auto_clipping"].shifted == mean_interval([0.5, 0.6, 0.7])
    assert rows["dp_sgd"].shifted is None
    assert rows["hyfreedp"].shifted is None
    assert board.shifts
    for page in ("".join(to_markdown(board, []).values()), to_html(board, [])):
        assert HEADER in page
        assert "60.0" in page.replace("\u00a0", " ")
    assert {"shifted", "shifted_low", "shifted_high"} <= set(to_csv(board).splitlines()[0].split(","))


def test_values_on_other_shifted_records_are_not_compared(tmp_path: Path) -> None:
    board = board_of(
        tmp_path,
        *(shifted("auto_clipping", seed, 0.5) for seed in range(3)),
        *(shifted("dp_sgd", seed, 0.9, "fog") for seed in range(2)),
    )
    rows = rows_of(board)
    assert rows["auto_clipping"].shifted is not None
    assert rows["dp_sgd"].shifted is None


def test_a_share_out_of_range_is_refused(tmp_path: Path) -> None:
    submit(tmp_path, shifted("auto_clipping", 0, 1.5))
    (refused,) = read(tmp_path).rejected
    assert "it has no accuracy between 0 and 1" in refused.reason
