"""The commands, run as a user runs them."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dphpo_bench.cli.commands import main
from dphpo_bench.records.record import Identity
from tests.leaderboard.submitted import make_record, submit


@dataclass
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recomputed ε, shared by the tests: without it each would start processes."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def leaderboard(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command line in this process, which has loaded what draws."""
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: str, cwd: Path = tmp_path, top: str = "leaderboard") -> Done:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["dphpo-bench", top, *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A leaderboard of three methods, three seeds and two ε, of which nothing is built."""
    folder = tmp_path / "leaderboard"
    methods = (("auto_clipping", 0.8), ("hyfreedp", 0.85), ("grid_oracle", 0.9))
    submit(
        folder / "results",
        *(
            make_record(
                method, seed=seed, target=target, accuracy=accuracy + seed / 100, private=method != "grid_oracle"
            )
            for method, accuracy in methods
            for seed in range(3)
            for target in (1.0, 3.0)
        ),
    )
    return folder


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "results" not in path.parts
    }


def test_build_check_and_stale(leaderboard, records: Path, tmp_path: Path, monkeypatch, cache: Path) -> None:
    missing = leaderboard("build", "--check", "-q")
    assert missing.returncode == 1
    assert "Stale: leaderboard/index.html" in missing.stdout
    assert not (records / "index.html").exists()

    built = leaderboard("build")
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith("18 records, 0 rejected: ")
    first = _contents(records)
    pages = {"README.md", "claims.md", "tables/overall.md", "tables/toy-linear.md"}
    assert {*pages, "leaderboard.csv", "index.html"} < first.keys()
    assert any(name.startswith("plots/") and name.endswith(".svg") for name in first)
    assert leaderboard("build", "--check", "-q").returncode == 0

    # From another folder, without what was kept, with the records written in another order: the same bytes.
    again = tmp_path / "elsewhere"
    files = sorted((records / "results").rglob("*.json"), reverse=True)
    for path in files:
        copy = again / "board" / path.relative_to(records)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "cache"))
    assert leaderboard("build", "board", "-q", cwd=again).returncode == 0
    assert _contents(again / "board") == first
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(cache))

    (records / "leaderboard.csv").write_text("edited")
    (records / "plots" / "old.svg").write_text("<svg/>")
    (records / "tables" / "old.md").write_text((records / "README.md").read_text())
    (records / "queries.md").write_text((records / "README.md").read_text())
    (records / "tables" / "notes.md").write_text("# Written by a person\n")
    submit(records / "results", make_record("hyfreedp", seed=9, accuracy=0.99))
    stale = leaderboard("build", "--check", "-q")
    assert stale.returncode == 1
    for name in ("leaderboard.csv", "plots/old.svg", "tables/old.md", "queries.md", "README.md", "index.html"):
        assert f"Stale: leaderboard/{name}" in stale.stdout
    assert leaderboard("build", "-q").returncode == 0
    for name in ("plots/old.svg", "tables/old.md", "queries.md"):
        assert not (records / name).exists()
    assert (records / "tables" / "notes.md").exists()
    assert leaderboard("build", "--check", "-q").returncode == 0


def test_validate(leaderboard, records: Path, tmp_path: Path) -> None:
    good = leaderboard("validate", "leaderboard/results", "-q")
    assert (good.returncode, good.stdout) == (0, "Passed: 18 records. Rejected: 0.\n")
    path = next((records / "results").rglob("*.json"))
    path.write_text(path.read_text().replace("3.75", "0.75").replace("1.45", "0.45").replace('"type"', '"kind"'))
    (tmp_path / "other.json").write_text("{}")
    bad = leaderboard("validate", str(path), "other.json", "--json", "-q")
    assert bad.returncode == 1
    told = json.loads(bad.stdout)
    assert told["passed"] == 0
    assert [each["path"] for each in told["rejected"]] == sorted([str(path), "other.json"])
    assert leaderboard("validate", "nowhere").returncode == 2
    (tmp_path / "empty").mkdir()
    nothing = leaderboard("validate", "empty")
    assert nothing.returncode == 2
    assert "Expected at least one record" in nothing.stderr


def test_publish_copies_what_passes_builds_the_board_and_says_what_lacks(
    leaderboard, records: Path, tmp_path: Path
) -> None:
    def publish(folder: str = "mine") -> Done:
        return leaderboard(folder, "-q", top="publish")

    mine, other = tmp_path / "mine", {"initial_learning_rate": 0.5}
    submit(records / "results", *(make_record("prodigy", parameters=other, seed=seed) for seed in range(2)))
    submit(mine, *(make_record("prodigy", seed=seed, accuracy=0.8 + seed / 100) for seed in range(2)))
    query = "SELECT COUNT(*) FROM board WHERE method = 'prodigy'"
    (records / "findings.toml").write_text(
        f"[[finding]]\ntitle = 'One'\ntext = 'prodigy has 1 row.'\n[finding.figures]\n'1 row' = \"{query}\"\n"
    )
    assert "Clone the project" in publish().stderr
    (records / "suites").mkdir()
    assert "Expected a folder of records, got nowhere" in publish("nowhere").stderr
    done = publish()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("22 records, 0 rejected: ")
    assert "prodigy: in 1 table, compared in 1.\n" in done.stdout  # the row of other parameters is not theirs
    assert "Wrong with these records" in done.stdout
    assert "it says '1 row', the board gives 2" in done.stdout
    assert "Next: git switch -c records-prodigy && .github/scripts/rebuild-board && " in done.stdout
    assert {path.read_bytes() for path in (records / "results").rglob("prodigy/*.json")} > {
        path.read_bytes() for path in mine.rglob("*.json")
    }
    (records / "findings.toml").unlink()
    assert leaderboard("build", "--check", "-q").returncode == 0
    assert publish().returncode == 0  # again: the same records are no mistake

    before = _contents(records)
    first, second = sorted(mine.rglob("*.json"))
    first.write_text(first.read_text() + " ")
    assert "Each cell runs once" in publish().stderr
    second.write_text("{}")
    refused = publish()
    assert (refused.returncode, "Nothing is copied. Passed: 1. Rejected: 1." in refused.stdout) == (1, True)
    assert _contents(records) == before


def test_a_dispute_marks_the_rows_that_it_is_about(leaderboard, records: Path) -> None:
    path = records / "findings.toml"
    path.write_text('[[dispute]]\nmethod = "hyfreedp"\ntask = "toy"\nreason = "Its rate is wrong."\nlink = "#7"\n')
    leaderboard("build", "-q")
    assert "`hyfreedp` ⚑" in (records / "tables" / "toy-linear.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "hyfreedp on toy: Its rate is wrong. #7" in (records / "README.md").read_text().replace("`", "")
    lines = (records / "leaderboard.csv").read_text().splitlines()
    assert {line.endswith("True") for line in lines[1:] if ",hyfreedp," in line} == {True}
    assert not any(line.endswith("True") for line in lines[1:] if ",hyfreedp," not in line)
    path.write_text(path.read_text().replace("toy", "other"))
    leaderboard("build", "-q")
    assert "⚑" not in (records / "tables" / "toy-linear.md").read_text().split("## ")[0]


def test_query_asks_the_csv(leaderboard, records: Path) -> None:
    refused = leaderboard("query", "SELECT 1").stderr
    assert "Cannot read leaderboard/leaderboard.csv" in refused
    assert "--folder" in refused
    leaderboard("build", "-q")
    query = "SELECT label, COUNT(*) AS tables FROM board WHERE NOT reference GROUP BY label"
    assert leaderboard("query", query).stdout == "label\ttables\nauto_clipping\t2\nhyfreedp\t2\n"
    assert json.loads(leaderboard("query", query, "--json").stdout)[0] == {"label": "auto_clipping", "tables": 2}
    assert "no such column: nowhere. Its columns: setting," in leaderboard("query", "SELECT nowhere FROM board").stderr
    done = leaderboard("query", "DROP TABLE board")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_wrong_finding_fails_the_check_and_is_left_out(leaderboard, records: Path) -> None:
    (records / "findings.toml").write_text(
        "[[finding]]\ntitle = 'Right'\ntext = 'hyfreedp has 86 %.'\n[finding.figures]\n"
        "'86 %' = \"SELECT 100 * mean FROM board WHERE method = 'hyfreedp' AND epsilon_target = 1\"\n"
        "[[finding]]\ntitle = 'Wrong'\ntext = 'hyfreedp has 87 %.'\n[finding.figures]\n"
        "'87 %' = \"SELECT 100 * mean FROM board WHERE method = 'hyfreedp' AND epsilon_target = 1\"\n"
    )
    built = leaderboard("build", "-q")
    assert built.returncode == 0
    line = "Wrong: leaderboard/findings.toml, finding 2: it says '87 %', the board gives 86: SELECT 100 * mean FROM"
    assert built.stdout.startswith(line)
    page, readme, queries = ((records / name).read_text() for name in ("index.html", "README.md", "queries.md"))
    for text in (page, readme, queries):
        assert "86 %" in text
        assert "87 %" not in text
    assert "dphpo-bench leaderboard query" in page
    assert "“86 %”: `dphpo-bench leaderboard query" in queries
    checked = leaderboard("build", "--check", "-q")
    assert checked.returncode == 1
    assert checked.stdout.splitlines()[0].startswith(line)
    assert "Stale" not in checked.stdout


@pytest.mark.slow
def test_rerun_repeats_real_runs(leaderboard, tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "leaderboard" / "results"
    original = sorted((results / "digits" / "auto_clipping").glob("*.json"))[0]
    folder = tmp_path / "results" / "digits" / "auto_clipping"
    folder.mkdir(parents=True)
    path = folder / original.name
    path.write_bytes(original.read_bytes())
    good = leaderboard("validate", "results", "--rerun", "3", "-q")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.endswith("1 run repeated. The same as before: 1. Not the same: 0.\n")
    changed = json.loads(path.read_text())
    changed["metrics"]["accuracy"] = 0.5
    path.write_text(json.dumps(changed))
    bad = leaderboard("validate", "results", "--rerun", "1")
    assert bad.returncode == 1
    assert f"Differs: digits/auto_clipping/{path.name}: accuracy 0.5, now 0." in bad.stdout
    assert "Repeating 1 record of 1 method, which took " in bad.stderr
    told = json.loads(leaderboard("validate", "results", "--rerun", "1", "--json", "-q").stdout)
    assert [one["outcome"] for one in told["repeated"]] == ["differs"]

    forged = json.loads(original.read_text())  # what a run cost follows from its seed, too
    forged["privacy"]["tuning_share"] = 0.9
    path.write_text(json.dumps(forged))
    bad = leaderboard("validate", "results", "--rerun", "1", "-q")
    assert bad.returncode == 1
    assert f"Differs: digits/auto_clipping/{path.name}: privacy.tuning_share 0.9, now 0.0\n" in bad.stdout

    other = json.loads(original.read_text())
    other["identity"]["facts"]["learning_rate"] = 0.00101
    path.unlink()
    path = folder / f"{Identity.model_validate(other['identity']).key}.json"
    path.write_text(json.dumps(other))
    bad = leaderboard("validate", "results", "--rerun", "1", "-q")
    assert bad.returncode == 1
    assert "Not what it says: digits/auto_clipping/" in bad.stdout
    assert "another method or task" in bad.stdout
    assert bad.stdout.endswith("0 runs repeated. The same as before: 0. Not the same: 0.\n")


def test_without_the_extra_the_way_out_is_named(leaderboard, records: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = leaderboard("build")
    assert done.returncode == 2
    assert done.stderr.strip() == "Drawing the leaderboard needs jinja2: pip install 'dphpo-bench[leaderboard]'."
