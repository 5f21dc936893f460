"""Sweeps on private records: without seeds, counted before they run, told before the first."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import AccountError, DataError, InvalidValueError
from dphpo_bench.cli import commands as cli
from dphpo_bench.harness.account import Account
from dphpo_bench.harness.account_report import open_account
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.records.reading import read_results
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import Cell, PrivateCells, failed_record
from dphpo_bench.sweep.executors import Resources
from dphpo_bench.sweep.running import executor_for
from tests.conftest import FixedNoise
from tests.own_task import array_task

X = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()

TASK_FILE = """
import dphpo_bench as bench, torch
from torch import nn
X = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
data, training = (X, (X[:, 0] > 0).long()), bench.TrainingOptions(epochs=1)
own = bench.ArrayTask("own_rows", data, nn.Linear(4, 2), data, training=training)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def own_task(**changes) -> bench.ArrayTask:
    return array_task("own_rows", (X, Y), nn.Linear(4, 2), (X, Y), **{"epochs": 1, **changes})


class FileRows(bench.Task):
    """A class of tasks on private records; where they come from is up to its subclasses."""

    summary = "Rows of a file."
    models = ("linear",)

    @property
    def facts(self) -> bench.TaskFacts:
        return bench.TaskFacts(self.name, "linear", 240, bench.recipes.Input((4,)), 60, 1, "SGD", 0.1, n_classes=2)

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 2)


def compared(methods, **options) -> bench.Comparison:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return bench.compare(methods, own_task(), [2], delta=1e-4, workers=2, **options)


def test_a_comparison_on_private_records_has_no_seeds_and_says_first_what_it_costs(capsys) -> None:
    table = compared(["dp_sgd", "auto_clipping"])
    assert [one.identity.seed for one in table.records] == [None] * 6
    assert len({one.identity.run for one in table.records}) == 6
    assert len({tuple(one.metrics.values()) for one in table.records}) > 1
    err = capsys.readouterr().err
    assert "On private records: 6 runs, together ε = " in err
    assert err.index("On private records: 6 runs") < err.index("Preparing")
    assert "6 runs on these records; all 6 together: ε = " in err
    assert "mean of 3 runs ± 95 % interval" in str(table)
    report = bench.account("results")
    assert {one.record for one in report.releases} == {one.identity.key for one in table.records}
    assert all(one.status == "ok" and one.digest for one in report.releases)
    assert not list(Path("results/.unfinished").iterdir())

    again = compared(["dp_sgd", "auto_clipping"])  # goes on where it ended: nothing is run, nothing is counted
    assert [one.identity for one in again.records] == [one.identity for one in table.records]
    assert len(bench.account("results").releases) == 6


def test_seeds_that_are_asked_for_are_heeded_with_a_warning_and_share_no_noise() -> None:
    tables = []
    for name in ("one", "two"):  # the thresholds that a run releases hold noise
        how: dict[str, Any] = {"delta": 1e-4, "quiet": True, "workers": 1, "results_dir": name}
        with pytest.warns(UserWarning, match="whoever learns a seed can subtract the noise"):
            tables.append(bench.compare(["adaptive_clipping"], own_task(), [2], [4], **how))
        assert len(bench.account(name).releases) == 1
        hidden = [*Path(name).glob(".*"), *Path(name).glob(".*/*")]
        assert not [path.name for path in hidden if path.stat().st_mode & 0o077]
    first, second = (record for table in tables for record in table.records)
    assert first.identity == second.identity
    assert first.identity.seed == 4
    assert first.released["max_grad_norm"] != second.released["max_grad_norm"]


@pytest.mark.filterwarnings("ignore:Task own_rows has private data")
def test_a_run_that_its_worker_refuses_is_not_counted() -> None:
    task = own_task(search_space={"momentum": [0.5]})  # which AdamW does not take
    table = bench.compare(["random_search", "dp_sgd"], task, [2], [4], delta=1e-4, quiet=True, workers=1)
    assert {record.identity.method: record.status for record in table.records} == {
        "random_search": "failed",
        "dp_sgd": "ok",
    }
    assert [release.method for release in bench.account("results").releases] == ["dp_sgd"]


def test_methods_without_privacy_are_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidValueError, match="grid_oracle has no privacy"):
        compared(["dp_sgd", "grid_oracle"])
    assert not bench.account("results").releases
    table = compared(
        [bench.make_method("nonprivate", {"learning_rate": 0.01})], account=bench.AccountOptions(not_private=True)
    )
    assert len(table.records) == 3
    assert bench.account("results").totals[0].together == float("inf")


def test_a_cap_covers_all_cells_or_none_runs() -> None:
    one = bench.plan("dp_sgd", own_task(), bench.PrivacyBudget(2, 1e-4))
    three = bench.events.epsilon(bench.events.repeat(one.plan.event, 3), 1e-4).epsilon
    Account(Path("results")).open_with_cap(three * 0.99, 1e-4)
    with pytest.raises(AccountError, match="does not cover these 3 releases"):
        compared(["dp_sgd"])
    assert not bench.account("results").releases
    Account(Path("results"), "wide").open_with_cap(three * 1.001, 1e-4)  # enough for a list, not for single runs
    assert len(compared(["dp_sgd"], account="wide").records) == 3
    with pytest.raises(AccountError, match="Nothing more fits"):
        compared(["auto_clipping"], account="wide")


@pytest.mark.parametrize("capped", [False, True])
def test_a_cell_starts_again_with_its_noise_under_the_same_conditions_only(capped: bool, tmp_path: Path) -> None:
    task, source = own_task(), bench.DataSource.resolve("unused", tmp_path)
    budget = bench.PrivacyBudget(3.0, 1e-4)
    identity = identity_of(FixedNoise(), task_identity(task, task.facts, source), budget, None)
    cell = Cell(FixedNoise(), task, budget, identity.model_copy(update={"run": "0" * 16}), Resources())
    if capped:
        Account(tmp_path / "r").open_with_cap(20, 1e-4)

    def prepared(cell: Cell = cell) -> PrivateCells:
        private = PrivateCells(RecordStore(tmp_path / "r"))
        with executor_for([cell], "serial") as (ready, executor):
            private.prepare(ready, executor, source)
        private.check_data([cell], source)
        return private

    def entries() -> list[tuple[str, bool]]:
        return [(entry.status, entry.joined) for entry in Account(tmp_path / "r").read()[1]]

    private = prepared()
    first = private.start(cell)
    assert private.start(cell) is first  # its process did not start
    assert entries() == [("open", False)]
    private.killed(cell)
    assert private.start(cell) == first
    private = prepared()  # the sweep was killed
    assert private.start(cell) == first
    assert entries() == [("open", True)]
    private.end(cell, failed_record(identity, "The process was killed.", 1.0))
    assert private.start(cell).values.items() & first.values.items() == {("run", 0)}
    for other in ({"threads": 2}, {"gpus": 1.0}, {"gpus": 1.0}):
        cell = dataclasses.replace(cell, resources=Resources(**other))
        private = prepared(cell)
        before, first = first, private.start(cell)
        assert first.values.items() & before.values.items() == {("run", 0)}
    assert entries() == [("failed", True), *[("open", False)] * 4]


def test_private_records_in_classes_that_changed_are_no_old_results(tmp_path: Path) -> None:
    class Rows(FileRows):
        name = "rows"

        def load_train(self, source: bench.DataSource) -> bench.Records:
            moved = float((tmp_path / "moved").read_text())
            return bench.Records(X + moved, Y)

        load_test = load_train

    (tmp_path / "moved").write_text("0")
    bench.compare(["dp_sgd"], Rows(), [2], delta=1e-4, quiet=True, workers=1)
    (tmp_path / "moved").write_text("1")
    with pytest.raises(DataError, match=r"others than those that results in .*results are of"):
        bench.compare(["auto_clipping"], Rows(), [2], delta=1e-4, quiet=True, workers=1)


def command(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["dphpo-bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    return int(str(ended.value.code)), told.out, told.err


def test_a_suite_numbers_its_runs_on_private_records(monkeypatch, capsys) -> None:
    Path("numbered_rows.py").write_text(TASK_FILE)
    Path("suite.toml").write_text(
        'methods = ["dp_sgd"]\ntasks = ["own_rows", "digits"]\nepsilons = [2]\nseeds = [0, 1]\ndelta = 1e-4\n'
    )
    arguments = ["sweep", "suite.toml", "--task-file", "numbered_rows.py", "--only", "task=own_rows", "--workers", "1"]
    code, _, err = command(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "On private records: 2 runs, together ε = " in err
    results, _ = read_results(Path("results"))
    assert [one.record.identity.seed for one in results] == [None, None]
    code, _, err = command(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "2 finished" in err
    code, out, _ = command(monkeypatch, capsys, *arguments[:-2], "--dry-run", "--json")
    assert code == 0
    assert [row["state"] for row in json.loads(out)] == ["finished", "finished"]

    code, out, _ = command(monkeypatch, capsys, "account", "results", "--json")
    assert code == 0
    assert json.loads(out)["totals"][0]["releases"] == 2
    code, out, _ = command(monkeypatch, capsys, "account", "results")
    assert "2 runs on these records; both together: ε = " in out
    assert "dp_sgd on own_rows (Linear), ε = " in " ".join(out.split())


def test_the_command_repeats_a_run_by_its_number(monkeypatch, capsys) -> None:
    Path("repeated_rows.py").write_text(TASK_FILE)
    budget = ["--epsilon", "2", "--delta", "1e-4", "--seed", "7"]
    call = ["run", "-t", "own_rows", "--task-file", "repeated_rows.py", *budget, "-q", "-m"]
    assert command(monkeypatch, capsys, *call, "dp_sgd")[0] == 0
    number = bench.account("results").releases[0].number
    code, out, _ = command(monkeypatch, capsys, *call, "dp_sgd", "--again", number, "--save-model", "m.safetensors")
    assert (code, Path("m.safetensors").exists()) == (0, True)
    assert "run 1 on these records" in out
    code, _, err = command(monkeypatch, capsys, *call, "auto_clipping", "--again", number)
    assert code == 2
    assert f"The run {number} was of another task, method" in err


def test_an_audit_that_a_cap_does_not_cover_makes_no_run(monkeypatch, capsys) -> None:
    Path("capped_rows.py").write_text(TASK_FILE)
    open_account("results", epsilon=3, delta=1e-3)
    attack = ("audit", "-m", "dp_sgd", "-t", "own_rows", "--task-file", "capped_rows.py", "--epsilon", "2")
    code, _, err = command(monkeypatch, capsys, *attack, "--delta", "1e-4", "--private-records", "--runs", "20", "-q")
    assert (code, "cap" in err) == (2, True), err
    assert not Account(Path("results"), "main").read()[1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["account", "nowhere"], "Expected a folder of results, got nowhere."),
        (["account", "results", "--open"], "Expected --open with --epsilon and --delta"),
        (["account", "results", "--open", "--epsilon", "-3", "--delta", "1e-5"], "epsilon=-3"),
        (["account", "results", "--account", "../x"], "Expected an account's name"),
        (["run", "-m", "dp_sgd", "-t", "digits", "--account", "x"], "the data of task digits are public"),
    ],
)
def test_mistakes_with_accounts_are_one_line(arguments, reason, monkeypatch, capsys) -> None:
    Path("results").mkdir()
    code, out, err = command(monkeypatch, capsys, *arguments)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert reason in err


def test_explain_on_private_records_is_asked_for_and_counted(monkeypatch, capsys) -> None:
    Path("explained_rows.py").write_text(TASK_FILE)
    runs = [
        "-t",
        "own_rows",
        "--task-file",
        "explained_rows.py",
        "--epsilon",
        "2",
        "--delta",
        "1e-4",
        "--seed",
        "0",
        "-q",
    ]
    for method in (["hyfreedp"], ["grid_oracle", "--not-private"]):
        code, _, err = command(monkeypatch, capsys, "run", "-m", *method, *runs)
        assert code == 0, err
    explain = ["explain", "results/own_rows/hyfreedp", "--task-file", "explained_rows.py", "--workers", "1", "-q"]
    code, _, err = command(monkeypatch, capsys, *explain)
    assert code == 2
    assert "The data of task own_rows are private" in err
    assert "--private-records" in err
    assert len(bench.account("results").releases) == 2
    code, _, err = command(monkeypatch, capsys, *explain, "--private-records")
    assert code == 0, err
    counted = bench.account("results").releases
    assert [one.what for one in counted] == ["run", "run", *["extra run"] * (len(counted) - 2)]
    assert len(counted) > 2
    assert counted[-1].epsilon == float("inf")


def test_an_audit_of_private_records_is_asked_for_and_counted(monkeypatch, capsys) -> None:
    Path("audited_rows.py").write_text(TASK_FILE)
    audit = [
        "audit",
        "-m",
        "dp_sgd",
        "-t",
        "own_rows",
        "--task-file",
        "audited_rows.py",
        "--epsilon",
        "2",
        "--delta",
        "1e-4",
        "-q",
    ]
    code, _, err = command(monkeypatch, capsys, *audit)
    assert code == 2
    assert "--private-records" in err
    assert not Path("results/.accounts").exists()
    code, out, err = command(monkeypatch, capsys, *audit, "--private-records", "--canaries", "20", "--json")
    assert code == 0, err
    assert not json.loads(out)["refutes"]
    counted = bench.account("results").releases
    assert [one.what for one in counted] == ["run", "audit", "audit"]


def test_a_cell_that_cannot_be_planned_costs_nothing_and_leaves_the_total_known() -> None:
    @dataclasses.dataclass(frozen=True)
    class Planless(FixedNoise):
        name = "planless"

        def plan(self, facts, budget):
            raise ValueError("no plan")

    table = bench.compare(["dp_sgd", Planless()], own_task(), [2], delta=1e-4, quiet=True, workers=2)
    assert sorted({one.status for one in table.records}) == ["failed", "ok"]
    report = bench.account("results")
    assert (len(report.releases), report.uncounted) == (3, ())
    assert report.totals[0].together is not None


def test_an_error_that_quotes_a_private_record_is_in_no_record(tmp_path: Path) -> None:
    """The data are read for their preparation, their digest and the run, where a record breaks it."""

    class Rows(FileRows):
        name = "quoted"

        def load_train(self, source: bench.DataSource) -> bench.Records:
            with (tmp_path / "read").open("a+") as file:
                if file.write("x") and file.tell() > 2:
                    raise KeyError("Alice")
            return bench.Records(X, Y)

        def load_test(self, source: bench.DataSource) -> bench.Records:
            return bench.Records(X, Y)

    table = bench.compare(["dp_sgd"], Rows(), [2], delta=1e-4, quiet=True, workers=1)
    assert [one.status for one in table.records] == ["failed"] * 3
    assert "KeyError" in str(table.records[0].error)
    assert "Alice" not in "".join(one.to_json() for one in table.records)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_run_that_died_without_a_seed_leaves_no_time(seed: int | None) -> None:
    """It may have been a private selection, whose time tells how many trials it drew."""
    task, source = own_task(), bench.DataSource.resolve("unused", "unused")
    budget = bench.PrivacyBudget(3.0, 1e-4)
    identity = identity_of(FixedNoise(), task_identity(task, task.facts, source), budget, seed)
    record = failed_record(identity, "The process was killed.", 12.5)
    assert record.seconds == ({} if seed is None else {"total": 12.5})
    assert (record.created.strftime("%H%M%S") == "000000") >= (seed is None)
