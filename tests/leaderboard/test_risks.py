"""The board's file of risks: what another machine computes a little differently is shown as before."""

from dataclasses import replace
from pathlib import Path

import pytest

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.leaderboard.submissions import RISKS, Submissions, settled
from tests.leaderboard.submitted import make_record, read, submit


@pytest.fixture
def found(tmp_path: Path) -> Submissions:
    submit(
        tmp_path / "results", make_record(), make_record("nonprivate", private=False), make_record("dp_sgd", target=3.0)
    )
    return read(tmp_path / "results")


def moved(submissions: Submissions, factor: float) -> Submissions:
    runs = [replace(run, risk=replace(run.risk, advantage=run.risk.advantage * factor)) for run in submissions.runs]
    return replace(submissions, runs=tuple(runs))


def test_rounding_changes_nothing_and_more_does(found: Submissions, tmp_path: Path) -> None:
    first, content = settled(found, tmp_path)
    assert first == found
    (tmp_path / RISKS).write_text(content)
    assert settled(moved(found, 1 - 5e-7), tmp_path) == (found, content)
    other = moved(found, 1 - 1e-5)
    changed, another = settled(other, tmp_path)
    assert changed == other
    assert another != content


def test_a_second_build_changes_nothing(found: Submissions, tmp_path: Path) -> None:
    near = replace(found, runs=(*found.runs, *moved(found, 1 - 3e-7).runs, *moved(found, 1 - 9e-7).runs))
    first, content = settled(near, tmp_path)
    (tmp_path / RISKS).write_text(content)
    assert settled(near, tmp_path) == (first, content)
    assert content.count("\n") == 4


@pytest.mark.parametrize("content", ["", "a,b\n", "advantage,tpr_at_1pct,tpr_at_01pct,mu,mu_fit\n1,2\n"])
def test_a_damaged_file_is_named(content: str, found: Submissions, tmp_path: Path) -> None:
    (tmp_path / RISKS).write_text(content)
    with pytest.raises(InvalidValueError, match="Remove it and build again"):
        settled(found, tmp_path)
