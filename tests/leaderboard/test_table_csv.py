"""The board as CSV: every row, exact to the digits it has, the same on every machine."""

import io
import math
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dphpo_bench.leaderboard.columns import CSV, to_csv
from dphpo_bench.leaderboard.tables import Board, Row
from dphpo_bench.privacy.risk import CERTAIN, Risk
from dphpo_bench.records.measure import Estimate
from tests.leaderboard.boards import HOSTILE, TASK_MODELS, board, hostile_board, sample_board, table

COLUMNS = [name for name in CSV if not name.startswith(("lost_to", "shifted"))]
"""Those of a board without extra runs and shifted tests."""


def read(content: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(content), keep_default_na=False, na_values=[""])


def rows_of(shown: Board) -> list[Row]:
    return [row for table in shown.tables for row in (*table.rows, *table.references)]


def single(**changes: object) -> pd.Series:
    """The line of a board of one row, changed as told."""
    one = table(TASK_MODELS[0], 3.0)
    row = replace(one.rows[0], **changes)  # type: ignore[arg-type]
    return read(to_csv(board([replace(one, rows=(row,), references=())]))).iloc[0]


def test_every_row_is_a_line_with_what_the_board_says() -> None:
    sample = sample_board()
    data = read(to_csv(sample))
    assert list(data.columns) == COLUMNS
    rows = rows_of(sample)
    assert data["label"].tolist() == [row.entry.label for row in rows]
    assert data["reference"].tolist() == [row.entry.reference for row in rows]
    assert data["mean"].tolist() == pytest.approx(
        [math.nan if row.utility is None else row.utility.mean for row in rows], abs=5e-7, nan_ok=True
    )
    first, line = rows[0], data.iloc[0]
    assert (line["setting"], line["task"], line["epsilon_target"], line["delta"]) == (
        "cifar10 (linear)",
        "cifar10",
        1,
        1e-5,
    )
    assert (line["mean_low"], line["mean_high"], line["worst"]) == (0.618, 0.642, 0.62)
    assert (line["rank_low"], line["rank_high"]) == (1, 2)
    assert (line["gap_to_oracle"], line["gap_to_untuned_low"], line["gap_closed"]) == (0.01, 0.01, 0.875)
    assert data.loc[1, ["rerr", "rerr_low", "rerr_high"]].tolist() == pytest.approx([0.82, 0.62, 1.02])
    assert (line["seeds"], line["failed"], line["accountant"], line["audited"]) == (5, 0, "pld", 0.6)
    assert line["examples"] == pytest.approx(first.examples, rel=1e-5)


def test_what_is_unknown_is_empty_and_infinity_is_inf() -> None:
    content = to_csv(sample_board())
    line = read(content).set_index("label").loc["grid_oracle"].iloc[0]
    assert line["epsilon"] == math.inf
    assert line[["rank_low", "rank_high", "audited", "gap_closed"]].isna().all()
    assert ",inf,none,," in content
    empty = single(utility=None, gap_to_oracle=None, gap_to_untuned=None, test_half=None, ranks=None)
    assert empty[["mean", "mean_low", "gap_to_oracle", "gap_to_untuned", "rank_low", "test_half"]].isna().all()
    assert single(utility=Estimate(0.5))[["mean_low", "mean_high"]].isna().all()


def test_risks_are_rounded_up_to_four_digits() -> None:
    shown = single(risk=Risk(0.382925, 0.0923623, 0.0182991, 1.0, 3e-9))
    told = (shown[name] for name in ("advantage", "tpr_at_1pct", "tpr_at_01pct", "mu", "mu_fit"))
    assert tuple(told) == (0.383, 0.09237, 0.0183, 1.0, 0.0)
    assert single(risk=CERTAIN)["mu"] == math.inf
    assert single(risk=None)[["advantage", "mu"]].isna().all()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=30))
@example([3.0, 2.999991, 2.9999900001])
def test_epsilon_is_never_rounded_down_nor_an_audit_up(epsilons: list[float]) -> None:
    one = table(TASK_MODELS[0], 3.0)
    rows = tuple(replace(one.rows[0], epsilon=epsilon, audited=epsilon) for epsilon in epsilons)
    data = read(to_csv(board([replace(one, rows=rows, references=())])))
    for epsilon, above, below in zip(epsilons, data["epsilon"], data["audited"], strict=True):
        assert epsilon * (1 - 1.1e-9) <= above <= epsilon * (1 + 1e-5)
        assert epsilon * (1 - 1e-5) <= below <= epsilon * (1 + 1.1e-9)
        assert float(f"{above:.6g}") == above


def test_the_last_bits_of_floats_do_not_show() -> None:
    def shifted(factor: float) -> str:
        changes = {"gap_to_oracle": Estimate(factor - 1.0), "epsilon": 3 * factor, "tuning_share": 0.1 * factor}
        return single(utility=Estimate(0.6 * factor), runs=7 * factor, examples=3e5 * factor, **changes).to_json()

    assert shifted(1 + 1e-13) == shifted(1 - 1e-13) == shifted(1.0)


def test_texts_of_strangers_are_one_line_and_no_formula() -> None:
    hostile = hostile_board()
    content = to_csv(hostile)
    assert len(content.splitlines()) == 1 + len(rows_of(hostile))
    texts = read(content)[["label", "method", "setting", "accountant"]].to_numpy().ravel()
    assert set(texts) >= {text for text in HOSTILE if text.isprintable()}
    assert single(accountant="=1+1")["accountant"] == "'=1+1"
    assert single(accountant=" @x")["accountant"] == "' @x"
