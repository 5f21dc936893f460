"""The command `sweep`, as a user runs it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dphpo_bench.records.store import RecordStore
from tests.sweep.conftest import contents

COMMAND = [sys.executable, "-m", "dphpo_bench"]


@pytest.fixture
def suite(plugin: Path, tmp_path: Path):
    def suite(methods: str, seeds: int = 2) -> str:
        (tmp_path / "suite.toml").write_text(
            f'methods = [{methods}]\ntasks = ["blobs"]\nepsilons = [1, 3]\nseeds = {list(range(seeds))}\n'
        )
        return "suite.toml"

    return suite


def start(folder: Path, *arguments: str, more: dict[str, str] | None = None, **options):
    environment = {
        **os.environ,
        "COLUMNS": "160",
        **(more or {}),
        "DPHPO_BENCH_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
    )


def test_a_sweep_tells_what_it_does_and_how_it_ended(suite, main_here, tmp_path) -> None:
    name = suite('"auto_clipping", { name = "faulty", parameters = { fault = "raise" } }', seeds=1)
    code, out, err = main_here("sweep", name)
    assert code == 1
    assert "Traceback" not in out + err
    assert "4 cells: 0 finished, 4 to run." in err
    failure = "faulty on blobs (linear), ε 3, seed 0: failed"
    assert f"{failure}: ZeroDivisionError: a bug with a second line" in err
    assert "4 cells run in" in out
    assert "2 ok, 2 failed" in out
    assert failure in out
    assert "--retry-failed runs them again" in out
    # What the summary says to do can be done.
    (log, *_) = re.findall(r"its output: (\S+)", out)
    assert "ZeroDivisionError" in (tmp_path / log).read_text()
    (command, *_) = re.findall(r"alone: env OMP_NUM_THREADS=1 dphpo-bench (.*)", out)
    assert "--set fault=raise" in command.replace("'", "")
    code, _, err = main_here(*shlex.split(command))
    assert (code, "ZeroDivisionError" in err) == (1, True)
    alone, all_of_them = (contents(RecordStore(tmp_path / folder)) for folder in ("alone", "results"))
    assert set(alone) < set(all_of_them)

    code, out, err = main_here("sweep", name)
    assert (code, "4 cells: 2 finished, 2 failed before, 0 to run." in err) == (1, True)
    assert "0 cells run" in out
    code, out, err = main_here("sweep", name, "--retry-failed", "--only", "method=faulty,epsilon=3", "--quiet")
    assert (code, "1 cell run in" in out, "to run" in err) == (1, True, False)


def test_a_dry_run_plans_everything_and_runs_nothing(suite, main_here, tmp_path) -> None:
    name = suite('"auto_clipping", "nonprivate", { name = "faulty", parameters = { fault = "plan raises" } }', seeds=2)
    code, out, _ = main_here("sweep", name, "--dry-run", "--json")
    assert code == 1
    rows = json.loads(out)
    assert len(rows) == 12
    assert not (tmp_path / "results").exists()
    for row in rows:
        assert row["state"] == "to run"
        assert row["estimated_seconds"] is None
        if row["method"] == "auto_clipping":
            assert 0.99 * row["epsilon"] < row["plan"]["epsilon"] <= row["epsilon"]
            assert row["plan"]["examples"] == 1200
        elif row["method"] == "nonprivate":
            assert row["plan"]["epsilon"] == "Infinity"
        else:
            assert row["error"].startswith("KeyError: 'no plan' (faulty_plugin.py:")
    assert len(list((tmp_path / "cache" / "costs").glob("*.json"))) >= 4

    only = ("--only", "method=auto_clipping", "--only", "epsilon=3")
    assert main_here("sweep", name, *only, "--only", "seed=0")[0] == 0
    code, out, _ = main_here("sweep", name, *only, "--dry-run")
    assert code == 0
    assert re.search(r"auto_clipping +blobs \(linear\) +3 +2\.99\d+ pld +0% +1 +1\.2e\+03 +\d+ s +1 of 2", out)
    assert "2 cells: 1 finished, 1 to run. To run: 1,200 example passes. About " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.toml",), "Cannot read the suite nowhere.toml"),
        (("suite.toml", "--only", "method=auto"), "Did you mean 'auto_clipping'?"),
        (("suite.toml", "--only", "methods=auto"), "Did you mean 'method'?"),
        (("many.toml", "--only", "model=mlp,task=blobs"), "No cell of the suite is all of --only model=mlp,task=blobs"),
        (("suite.toml", "--executor", "serial", "--workers", "2"), "--workers with --executor process only"),
        (("suite.toml", "--address", "auto"), "--address with --executor ray only"),
        (("suite.toml", "--json"), "--json with --dry-run"),
        (("suite.toml", "--results-dir", "/proc/none"), "--results-dir"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    suite, main_here, tmp_path, arguments: tuple[str, ...], message: str
) -> None:
    text = (tmp_path / suite('"auto_clipping"')).read_text()
    (tmp_path / "many.toml").write_text(text.replace('["blobs"]', '["blobs", { name = "digits", models = ["mlp"] }]'))
    code, out, err = main_here("sweep", *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_keeps_what_is_finished(suite, tmp_path, number: int) -> None:
    name = suite('"auto_clipping", { name = "faulty", parameters = { sleep = 100.0 } }', seeds=1)
    process = start(
        tmp_path, "sweep", name, "--workers", "1",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    store = RecordStore(tmp_path / "results")
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not list(store.root.rglob("*.json")):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(number)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith("Interrupted. What was not finished left no record")
    assert "Traceback" not in err
    kept = contents(store)
    assert kept
    assert {record.identity.method for record in kept.values()} == {"auto_clipping"}
