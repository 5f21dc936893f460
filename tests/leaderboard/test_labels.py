"""Labels of entries: the defaults have the bare name, whoever else is on the board."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench.leaderboard.submissions import defaults_of
from dphpo_bench.leaderboard.tables import Board
from dphpo_bench.records.record import RunRecord
from tests.leaderboard.submitted import board_of, make_record


def runs(method: str, **changes: Any) -> list[RunRecord]:
    """Three runs of a method with other parameters than its defaults; without those that are ...."""
    more = {name: changes.pop(name) for name in ("method_version", "target", "private") if name in changes}
    parameters = {**(defaults_of(method) or {}), **changes}
    present = {name: value for name, value in parameters.items() if value is not ...}
    return [make_record(method, seed=seed, parameters=present, **more) for seed in range(3)]


def labels(board: Board) -> list[list[str]]:
    return [sorted(row.entry.label for row in table.everyone) for table in board.tables]


@pytest.mark.parametrize(
    ("method", "changes", "label"),
    [
        ("recommended", {"clipping": "psac"}, "recommended (clipping=psac)"),
        ("liu_talwar", {"threshold": 0.5, "mean": 8.0}, "liu_talwar (mean=8.0, threshold=0.5)"),
        ("hyfreedp", {"optimizer": None}, "hyfreedp (optimizer=null)"),  # its default is SGD
        ("hyfreedp", {"share": ...}, "hyfreedp (without share)"),  # as of an older version
        ("liu_talwar", {"mean": 4}, "liu_talwar (mean=4)"),  # a stranger's 4.0
        ("liu_talwar", {"threshold": "null"}, "liu_talwar (threshold=null)"),
    ],
)
def test_variants_of_our_methods_never_rename_the_defaults(
    method: str, changes: Mapping[str, Any], label: str, tmp_path: Path
) -> None:
    both = board_of(tmp_path, *runs(method, **changes), *runs(method))
    assert labels(both) == [sorted([method, label])]


def test_a_variant_alone_has_its_name_too(tmp_path: Path) -> None:
    assert labels(board_of(tmp_path, *runs("recommended", clipping="psac"))) == [["recommended (clipping=psac)"]]


def test_a_strangers_configurations_are_named_by_what_differs(tmp_path: Path) -> None:
    assert defaults_of("somebody_elses") is None
    assert labels(board_of(tmp_path / "single", *runs("somebody_elses", rate=0.5))) == [["somebody_elses"]]
    several = board_of(
        tmp_path / "several",
        *runs("somebody_elses", rate=0.5, epochs=None),
        *runs("somebody_elses", rate=0.1, epochs=None),
    )
    assert labels(several) == [["somebody_elses (rate=0.1)", "somebody_elses (rate=0.5)"]]


def test_defaults_that_are_not_private_say_so_beside_those_that_are(tmp_path: Path) -> None:
    board = board_of(tmp_path, *runs("hyfreedp"), *runs("hyfreedp", target=3.0, private=False))
    assert labels(board) == [["hyfreedp"], ["hyfreedp (not private)"]]


def test_cut_labels_stay_different_and_the_defaults_bare(tmp_path: Path) -> None:
    long = [runs("liu_talwar", clipping="x" * 100 + end) for end in "ab"]
    ((bare, first, second),) = labels(board_of(tmp_path, *runs("liu_talwar"), *long[0], *long[1]))
    assert bare == "liu_talwar"
    assert (first[-2:], second[-2:]) == ("#1", "#2")
    assert max(len(first), len(second)) <= 70
