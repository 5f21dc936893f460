"""The scripts beside the paper run on a small board, and the board's metadata are of today."""

import csv
import hashlib
import json
from pathlib import Path

import pytest

from dphpo_bench import curves
from dphpo_bench.leaderboard.entries import Standard
from dphpo_bench.records.store import read_record
from tests.docs.scripts import script
from tests.leaderboard.submitted import read, runs_of, submit

croissant, robustness = script("research/croissant"), script("research/robustness")


def test_croissant_describes_the_board_of_today() -> None:
    text = (croissant.LEADERBOARD / "croissant.json").read_text(encoding="utf-8")
    assert text == croissant.of_today(croissant.LEADERBOARD), "Write it again: python research/croissant.py"


@pytest.mark.parametrize("name", ["digits/grid_oracle", "e2e/hyfreedp", "adult/dp_sgd"])
def test_every_place_that_croissant_names_is_in_a_record(name: str) -> None:
    record = json.loads(read_record(min((croissant.LEADERBOARD / "results" / name).glob("*.json"))).to_json())
    for _, place in croissant.RECORD.values():
        value = record
        for part in place.split("."):
            value = value[part]


def test_the_curves_go_into_a_package_of_csv_and_croissant(tmp_path: Path) -> None:
    croissant.of_curves(tmp_path)
    with (tmp_path / "curves.csv").open(encoding="utf-8", newline="") as file:
        header, first, *rest = csv.reader(file)
    assert first[:3] == ["1", "tumours", "classes, linear"]
    assert 1 + len(rest) == sum(
        104 * len(each.metric) for path in curves.FILES.values() for each in curves.read(path)[1]
    )
    metadata = json.loads((tmp_path / "croissant.json").read_text(encoding="utf-8"))
    (record_set,), (file_object,) = metadata["recordSet"], metadata["distribution"]
    assert [field["name"] for field in record_set["field"]] == header
    assert file_object["sha256"] == hashlib.sha256((tmp_path / "curves.csv").read_bytes()).hexdigest()


def test_robustness_reports_orders_and_power(tmp_path: Path) -> None:
    """On two of three tasks hyfreedp is a little ahead; the first task decides the mean."""
    for at, (task, mean) in enumerate((("one", 0.5), ("two", 0.801), ("three", 0.801))):
        seeds = range(5 * at, 5 * at + 5)
        for method, center in (("auto_clipping", 0.8), ("hyfreedp", mean), ("grid_oracle", 0.9)):
            submit(tmp_path, *runs_of(method, center, task, seeds))
    compared = robustness.Compared.of(read(tmp_path), Standard.builtin())
    variations = {each.title: each for each in robustness.variations_of(compared)}
    assert [who.label for who, _ in variations["without one task"].firsts] == ["auto_clipping", "hyfreedp"]
    assert variations["without one task"].worst == "without one (linear)"
    assert [who.label for who, _ in variations["by mean rank"].firsts] == ["hyfreedp"]
    ((claims, power),) = robustness.powers(compared)
    assert (claims.title, power.seeds) == ("all tasks, ε = 1", 5)
    assert power.smallest > 0
    report = robustness.report(compared)
    assert "| 1 | by mean rank | hyfreedp (1) | 1 of 1 | " in report
    assert "| all tasks, ε = 1 | 5 | " in report
