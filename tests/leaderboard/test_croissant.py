"""The board as a data set: what its metadata say holds for the files, and `mlcroissant` reads them.

`mlcroissant` is in no extra: it brings another pandas and its stubs, by which mypy would judge this package. The test
that needs it says so where it is skipped.
"""

import hashlib
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.leaderboard.build import render
from dphpo_bench.leaderboard.columns import to_csv
from dphpo_bench.leaderboard.croissant import RECORD, read_about, to_croissant
from dphpo_bench.records.store import read_record
from tests.leaderboard.boards import sample_board

ROOT = Path(__file__).parents[2]
LEADERBOARD = ROOT / "leaderboard"
RECORDS = ("digits/grid_oracle", "e2e/hyfreedp", "adult/dp_sgd")


def dataset(folder: Path) -> dict[str, Any]:
    """A board of made-up rows and of three published records, with its metadata, in a folder."""
    shutil.copy(LEADERBOARD / "dataset.toml", folder)
    for name in RECORDS:
        (folder / "results" / name).mkdir(parents=True)
        shutil.copy(min((LEADERBOARD / "results" / name).glob("*.json")), folder / "results" / name)
    about, table = read_about(folder), to_csv(sample_board())
    assert about
    (folder / "leaderboard.csv").write_text(table, encoding="utf-8")
    (folder / "croissant.json").write_text(to_croissant(about, sample_board(), table), encoding="utf-8")
    content: dict[str, Any] = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    return content


def test_sizes_sums_columns_and_places_are_those_of_the_files(tmp_path: Path) -> None:
    content = dataset(tmp_path)
    table, results = content["distribution"]
    written = (tmp_path / table["contentUrl"]).read_bytes()
    assert table["sha256"] == hashlib.sha256(written).hexdigest()
    assert table["contentSize"] == f"{len(written)} B"
    rows, runs = content["recordSet"]
    assert [field["name"] for field in rows["field"]] == written.decode().splitlines()[0].split(",")
    assert len(list(tmp_path.glob(results["includes"]))) == len(RECORDS)
    paths = {field["source"]["transform"]["jsonPath"] for field in runs["field"]}
    assert len(paths) == len(RECORD) + 2  # accuracy, cross entropy


@pytest.mark.parametrize("name", RECORDS)
def test_every_place_is_in_a_record(name: str) -> None:
    record = json.loads(read_record(min((LEADERBOARD / "results" / name).glob("*.json"))).to_json())
    for _, place in RECORD.values():
        value = record
        for part in place.split("."):
            value = value[part]


def test_the_metadata_are_a_file_of_the_board_only_where_somebody_says_whose_it_is(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    assert "croissant.json" not in render(sample_board(), tmp_path)
    shutil.copy(LEADERBOARD / "dataset.toml", tmp_path)
    assert json.loads(render(sample_board(), tmp_path)["croissant.json"])["@type"] == "sc:Dataset"


def test_the_boards_own_description_is_in_step_with_the_package() -> None:
    about = read_about(LEADERBOARD)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert about
    assert (about.version, about.keywords) == (project["version"], project["keywords"])
    assert about.creators == [author["name"] for author in project["authors"]]
    assert about.license.rsplit("/", 1)[1] == project["license"]
    assert f"Version {about.version}" in about.cite_as


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("name = 3", "name: Input should be a valid string"),
        ("x = 1", "name: Field required"),
        ("[", "is not TOML"),
    ],
)
def test_a_wrong_description_is_one_line(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "dataset.toml").write_text(content)
    with pytest.raises(InvalidValueError, match=r"dataset\.toml") as raised:
        read_about(tmp_path)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_mlcroissant_validates_it_and_loads_rows_and_runs(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="needs mlcroissant, in an environment of its own")
    dataset(tmp_path)
    loaded = mlcroissant.Dataset(jsonld=tmp_path / "croissant.json")
    assert not loaded.metadata.ctx.issues.errors
    rows = list(loaded.records("rows"))
    assert len(rows) == len(to_csv(sample_board()).splitlines()) - 1
    runs = {run["runs/task"].decode(): run for run in loaded.records("runs")}
    assert set(runs) == {"digits", "e2e", "adult"}
    for name in RECORDS:
        record = read_record(min((LEADERBOARD / "results" / name).glob("*.json")))
        assert record.privacy
        run = runs[record.identity.task]
        assert (run["runs/seed"], run["runs/epsilon"]) == (record.identity.seed, record.privacy.epsilon)
        assert run["runs/accuracy"] == record.metrics["accuracy"]
