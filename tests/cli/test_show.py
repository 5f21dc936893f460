"""The command `show`, on runs of small tasks, and its plots."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench import read_record
from dphpo_bench.cli.plots import bar, step_plot
from tests.sweep.conftest import plugin  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("plugin")

BUDGET = ("-t", "blobs", "--epsilon", "3", "--delta", "1e-4", "-q")


@pytest.fixture
def made(main_here: Any, tmp_path: Path) -> Any:
    """Make a record on the blobs, and return its file."""

    def make(*arguments: str, expected: int = 0) -> Path:
        before = set((tmp_path / "results").rglob("*.json"))
        code, _, err = main_here("run", *arguments, *BUDGET)
        assert code == expected, err
        (path,) = set((tmp_path / "results").rglob("*.json")) - before
        return path

    return make


def test_a_run_beside_the_oracle(made: Any, main_here: Any, tmp_path: Path) -> None:
    path = made("-m", "hyfreedp_paper", "--set", "update_interval=2", "--set", "rule=paper")
    alone = main_here("show", str(path))[1]
    assert "grid_oracle" not in alone

    made("-m", "grid_oracle")
    code, out, err = main_here("show", str(path))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("hyfreedp_paper on blobs (linear), ε = 3 at δ = 0.0001, seed 0: ok")
    assert lines[2].split() == ["hyfreedp_paper", "grid_oracle,", "seed", "0"]
    assert [line for line in lines if line.startswith("learning_rate ")]
    (drawn,) = (line for line in lines if line.startswith("learning_rate, by step (also released: "))
    assert "probe_0" in drawn
    (share,) = (line for line in lines if line.startswith("  tuning"))
    assert "█" in share
    assert any("× Poisson(" in line for line in lines)
    assert any(line.startswith("  proven risk, at most: ") for line in lines)
    assert max(len(line) for line in lines if not line.startswith("Again: ")) <= 100

    # The command makes the same record.
    (again,) = (line.removeprefix("Again: ") for line in lines if line.startswith("Again: "))
    assert "--set update_interval=2" in again
    words = shlex.split(again)
    assert words[0] == "env"
    code, _, err = main_here(*words[3:], "--results-dir", "other", "-q")
    assert code == 0, err
    (second,) = Path("other").rglob("*.json")
    assert second.name == path.name
    assert read_record(second).metrics == read_record(path).metrics

    told = json.loads(main_here("show", str(path), "--json")[1])
    assert told["oracle"]["chosen"]["learning_rate"] > 0
    assert told["chosen"]["learning_rate"] == told["paths"]["learning_rate"][-1][1]
    assert told["command"] == again
    assert told["risk"] == read_record(path).privacy.risk.model_dump()


def test_a_reference_and_its_candidates(made: Any, main_here: Any) -> None:
    code, out, err = main_here("show", str(made("-m", "grid_oracle")))
    assert (code, err) == (0, "")
    assert "7 candidates, by score:" in out
    assert "its true ε is infinite" in out


def test_a_run_without_a_seed(made: Any, main_here: Any) -> None:
    out = main_here("show", str(made("-m", "auto_clipping", "--seed", "none")))[1]
    assert ", no seed: ok" in out
    assert "--seed none" in out
    assert "a second release" in out
    assert ": all for training" in out


@pytest.mark.parametrize(
    "points",
    [
        [(1, 0.001), (50, 1.0)],
        [(0, 1e-299), (1, 1e299)],
        [(step, step % 7 + 1) for step in range(1000)],
    ],
)
def test_a_plot_keeps_to_its_size(points: list[tuple[float, float]]) -> None:
    lines = step_plot(points, 60, 6)
    assert len(lines) == 8
    assert max(map(len, lines)) <= 60
    assert any(0x2800 < ord(letter) < 0x2900 for letter in lines[0] + lines[3])
    assert lines[-1].split()[0] == f"{points[0][0]:g}"


@pytest.mark.parametrize(("share", "full"), [(0, 0), (1e-9, 1), (0.5, 5), (1 - 1e-9, 9), (1, 10)])
def test_a_bar_that_is_neither_empty_nor_full_does_not_look_so(share: float, full: int) -> None:
    assert bar(share, 10) == "█" * full + "░" * (10 - full)
