"""What `dphpo-bench new` writes: packages that are complete, keep their contracts, and overwrite nothing."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.sweep.suite import load_suite
from dphpo_bench.testing import MethodContract, TaskContract, check, scaffold
from tests.test_plugin_package import install

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text()
CORE = ROOT / "leaderboard" / "suites" / "core.toml"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write a package and install it for this process, as long as the test lasts."""
    names = []

    def make(kind: scaffold.Kind, name: str, **options: bool) -> Path:
        scaffold.write_package(kind, name, tmp_path / "made", **options)
        folder = tmp_path / "made" / name
        install(folder, folder / "src", tmp_path / f"site_{name}")
        for path in (folder / "src", tmp_path / f"site_{name}"):
            monkeypatch.syspath_prepend(str(path))
        names.append(name)
        return folder

    yield make
    for name in names:
        sys.modules.pop(name, None)


def test_a_written_method_is_private_and_keeps_its_contract(installed: Any) -> None:
    folder = installed("method", "two_rates")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "pyproject.toml",
        "src",
        "test_contract.py",
    ]
    assert [path.name for path in (folder / "src").iterdir()] == ["two_rates.py"]
    (subject,) = check.subjects("two-rates")
    assert subject.title == "method two_rates: two_rates:TwoRates [two-rates 0.1.0]"
    contract, method = MethodContract(), bench.make_method("two_rates", {"candidates": "2", "epochs": "5"})
    for test in (
        "declarations",
        "parameters_come_back_from_json",
        "source_keeps_out_of_the_private_parts_of_others",
        "plan_is_made_from_public_facts_alone",
        "runs_keep_to_the_plan_and_the_plan_to_the_budget",
    ):
        getattr(contract, f"test_{test}")(method)
    record = bench.run(method, "digits", bench.PrivacyBudget(3, 1e-4), seed=0).record
    assert record.status == "ok"
    assert record.privacy.epsilon <= 3
    assert record.metrics["accuracy"] > 0.6
    assert record.released.keys() == {"learning_rate"}


def test_a_written_task_keeps_its_contract(installed: Any) -> None:
    installed("task", "tumour_cells")
    (subject,) = check.subjects("tumour_cells")
    assert subject.title == "task tumour_cells (linear): tumour_cells:TumourCells [tumour-cells 0.1.0]"
    contract, task = TaskContract(), bench.make_task("tumour_cells")
    for test in [name for name in vars(TaskContract) if name.startswith("test_")]:
        getattr(contract, test)(task)
    assert bench.run("dp_sgd", task, bench.PrivacyBudget(3, 1e-3), seed=0).record.metrics["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Two-Rates", "got 'Two-Rates'"),
        ("a\nb", r"got 'a\\nb'"),
        ("../escape", "lower-case letters"),
        ("class", "no word of Python"),
        ("hyfreedp", "A method or a module 'hyfreedp' is installed already. Try 'my_hyfreedp'"),
    ],
)
def test_names_that_cannot_be(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        scaffold.write_package("method", name, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text("precious")
    with pytest.raises(InvalidValueError, match=r"mine exists, and nothing is overwritten.*--output"):
        scaffold.write_package("method", "mine", tmp_path)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["mine.py"]
    assert (tmp_path / "mine" / "mine.py").read_text() == "precious"
    with pytest.raises(InvalidValueError, match="Cannot write"):
        scaffold.write_package("method", "mine", tmp_path / "mine" / "mine.py")


@pytest.mark.parametrize(("kind", "name"), [("method", "two_rates"), ("task", "tumour_cells")])
def test_a_repository_has_its_ci_and_the_suite_of_its_rows(kind: scaffold.Kind, name: str, installed: Any) -> None:
    """Its seeds and ε are those of the core suite, on tasks that both have."""
    folder = installed(kind, name, repository=True)
    workflow = yaml.safe_load((folder / ".github" / "workflows" / "tests.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["contract"]["steps"] if "run" in step]
    assert commands[1:] == [
        "pytest", "dphpo-bench sweep suite.toml --only seed=0", "dphpo-bench leaderboard validate results",
    ]  # fmt: skip
    assert "results/" in (folder / ".gitignore").read_text().splitlines()
    suite = load_suite(folder / "suite.toml")
    core = load_suite(CORE)
    assert suite.epsilons == core.epsilons
    seeds = {(task.facts.task, task.facts.model): core.seeds_of(task) for task, _ in core.made_tasks()}
    for task, _ in suite.made_tasks():
        pair = task.facts.task, task.facts.model
        assert suite.seeds_of(task) == seeds.get(pair, (0, 1, 2, 3, 4))
        assert pair in seeds or task.facts.task == name


def test_the_page_shows_the_method_that_is_written(tmp_path: Path) -> None:
    shown, *_ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    scaffold.write_package("method", "two_rates", tmp_path)
    written = (tmp_path / "two_rates" / "src" / "two_rates.py").read_text()
    head, body = written[written.index("@dataclass") :], written[written.index("    def plan(") :]
    assert shown.endswith("\n\n" + body)
    assert set(shown.splitlines()) <= set(head.splitlines())  # without its docstring and its checks
