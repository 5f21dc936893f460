"""The command `show`, on runs of small tasks."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench import read_record
from dphpo_bench.contract import registry

pytestmark = pytest.mark.usefixtures("plugin")


def test_a_run_beside_the_oracle(new_record: Any, main_here: Any, tmp_path: Path) -> None:
    path = new_record("-m", "hyfreedp_paper", "--set", "update_interval=2", "--set", "rule=paper")
    alone = main_here("show", str(path))[1]
    assert "grid_oracle" not in alone

    new_record("-m", "grid_oracle")
    code, out, err = main_here("show", str(path))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["hyfreedp_paper", "grid_oracle,", "seed", "0"]
    for text in (
        "hyfreedp_paper on blobs (linear), seed 0: ok",
        "learning_rate, by step",
        "probe_0, by step",
        "× Poisson(",
    ):
        assert text in out
    assert "share spent on tuning" in out
    assert "proven risk, at most" in out

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


def test_a_reference_and_its_candidates(new_record: Any, main_here: Any) -> None:
    code, out, err = main_here("show", str(new_record("-m", "grid_oracle")))
    assert (code, err) == (0, "")
    assert "7, by score:" in out
    assert "the true ε is infinite" in out


def test_a_run_without_a_seed(new_record: Any, main_here: Any) -> None:
    out = main_here("show", str(new_record("-m", "auto_clipping", "--seed", "none")))[1]
    assert ", seed none: ok" in out
    assert "--seed none" in out
    assert "a second release" in out


def test_the_seed_of_a_run_on_private_records_stays_secret(
    new_record: Any, main_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.tasks()["blobs"].cls, "public", False)
    path = new_record("-m", "auto_clipping", "--seed", "31337")
    for options in ((), ("--json",)):
        assert "31337" not in main_here("show", str(path), *options)[1]
    assert "31337" not in main_here("results")[1]
    assert "31337" in path.read_text()
