"""A stranger's package with a method and a task, tests/plugin_package, works beside the built-in ones."""

import tomllib
from pathlib import Path

import pytest
import typer

import dphpo_bench as bench
from dphpo_bench.cli.plugins import check_command
from dphpo_bench.contract import registry

PACKAGE = Path(__file__).parent / "plugin_package"


def install(package: Path, sources: Path, site: Path) -> str:
    """Do what pip does to the entry points of a package, without pip; returns the distribution's name."""
    declared = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name, version = declared["name"], declared["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in declared["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (site / "sources.pth").write_text(str(sources))
    return str(name)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = install(PACKAGE, PACKAGE / "src", tmp_path)
    monkeypatch.syspath_prepend(str(PACKAGE / "src"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_it_stands_beside_the_built_ins(installed: str) -> None:
    assert registry.methods()["few_optimizers"].origin == registry.tasks()["wines"].origin == "dphpo-example 0.1.0"
    assert {"hyfreedp", "few_optimizers"} < set(registry.methods())


def test_its_method_tunes_on_its_task(installed: str, tmp_path: Path) -> None:
    result = bench.run(
        "few_optimizers", "wines", bench.PrivacyBudget(8, 1e-3), seed=0, results_dir=tmp_path / "results"
    )
    record = result.record
    assert record.status == "ok", record.error
    assert result.path == tmp_path / "results" / "wines" / "few_optimizers" / f"{record.identity.key}.json"
    assert bench.read_record(result.path) == record
    assert 7.9 < record.privacy.epsilon <= 8
    assert set(record.released) == {"learning_rate", "optimizer"}


@pytest.mark.slow
def test_it_keeps_its_contracts(installed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end:
        check_command([installed])
    assert end.value.exit_code == 0, capsys.readouterr().out
