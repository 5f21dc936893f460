"""The command line, run as a user runs it: output, one-line errors, exit codes."""

import json
import math
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench import read_record
from dphpo_bench.contract import registry

COMMAND = [sys.executable, "-m", "dphpo_bench"]
FAST = ("--set", "epochs=2")


def test_run_prints_a_table_and_writes_a_record(tmp_path: Path, main_here: Any) -> None:
    code, out, err = main_here("run", "-m", "hyfreedp", "-t", "digits", *FAST)
    assert code == 0, err
    for part in (
        "test accuracy",
        "ε recomputed from the ledger",
        "of records found at 1 % false alarms",
        "Risk is what",
    ):
        assert part in out
    (path,) = (tmp_path / "results").rglob("*.json")
    assert str(path.relative_to(tmp_path)) in out
    record = read_record(path)
    assert record.status == "ok"
    assert record.privacy.epsilon <= record.identity.epsilon
    out = main_here("run", "-m", "auto_clipping", "-t", "digits", *FAST, "--json")[1]
    assert json.loads(out) == json.loads(next((tmp_path / "results").rglob("auto_clipping/*.json")).read_text())


PLAN = ("plan", "-m", "hyfreedp", "-t", "cifar10", "--epsilon", "1")
AUDIT = ("audit", "-m", "hyfreedp", "-t", "digits", "--canaries", "-1")
LEARNING = ("torch", "optuna", "sklearn", "pyarrow", "pandas")


@pytest.mark.parametrize(
    ("command", "code", "heavy"),
    [
        (("--help",), 0, (*LEARNING, "numpy", "scipy", "dp_accounting")),
        (("list",), 0, (*LEARNING, "numpy", "scipy", "dp_accounting", "rich")),
        (PLAN, 0, LEARNING),
        (AUDIT, 2, ("torch",)),
    ],
)
def test_a_command_imports_only_what_it_needs(
    tmp_path: Path, command: tuple[str, ...], code: int, heavy: tuple[str, ...]
) -> None:
    """So that it starts fast; and a plan reads no data."""
    script = (
        f"import sys; from dphpo_bench.cli import commands as cli; sys.argv[1:] = {command}\n"
        f"try: cli.main()\nexcept SystemExit as end: assert end.code == {code}, end.code\n"
        f"found = {{*{heavy}}} & {{*sys.modules}}\nassert not found, found"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert command is not PLAN or "Poisson(q=" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_plan_json(main_here: Any) -> None:
    plan = json.loads(main_here("plan", "-m", "hyfreedp", "-t", "mnist", "--json")[1])
    assert 0.99 * 3 <= plan["epsilon"] <= 3
    assert 0 < plan["tuning_share"] < 0.5
    assert plan["event"]["type"] == "composed"
    assert 0.01 < plan["risk"]["tpr_at_1pct"] < 0.01 * math.exp(3) + 1e-3
    assert plan["risk"]["advantage"] < math.tanh(3 / 2)
    assert 0 < plan["risk"]["mu"] < 1
    plan = json.loads(main_here("plan", "-m", "nonprivate", "-t", "digits", "--json")[1])
    assert plan["risk"] == {"advantage": 1, "tpr_at_1pct": 1, "tpr_at_01pct": 1, "mu": "Infinity", "mu_fit": 0}


def test_list_names_public_models_and_the_records_that_they_have_seen(main_here: Any) -> None:
    lines = [line.strip() for line in main_here("list")[1].splitlines()]
    qqp = next(n for n, line in enumerate(lines) if line.startswith("qqp "))
    assert lines[qqp + 1] == "models: linear, roberta, roberta_bitfit, roberta_lora"
    assert lines[qqp + 2] == "linear: on all-minilm-l6-v2, which has seen the task's records"
    told = {task["name"]: task for task in json.loads(main_here("list", "--json")[1])["tasks"]}
    assert [one["has_seen_records"] for one in told["qqp"]["pretrained"]] == [True, False]
    assert told["adult"]["pretrained"] == []


def test_data_says_what_is_missing_and_how_to_get_it(main_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPHPO_BENCH_DATA", "")
    rows = json.loads(main_here("data", "--json")[1])
    assert {row["task"] for row in rows} == set(registry.tasks())
    assert {row["state"] for row in rows if row["task"] == "cifar10"} == {"missing"}
    assert all(row["where"] for row in rows)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "--nonsense"), "No such option: --nonsense"),
        (("run", "-t", "digits"), "Try dphpo-bench run --help."),
        (("leaderboard", "build", "--nonsense"), "Try dphpo-bench leaderboard build --help."),
        (("run", "-m", "hyfree", "-t", "digits"), "Did you mean 'hyfreedp'?"),
        (("plan", "-m", "hyfreedp", "-t", "digits", "--epsilon", "1e-7", "--delta", "1e-9"), "Raise epsilon or delta"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--set", "K=5"), "Unknown parameter of hyfreedp 'K'"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--results-dir", "/proc/none"), "--results-dir"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--device", "abacus"), "Cannot use device 'abacus'"),
        (("run", "-m", "hyfreedp", "-t", "mnist", "--data-dir", "nowhere"), "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, main_here: Any, args: tuple[str, ...], message: str
) -> None:
    code, out, err = main_here(*args)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert not list((tmp_path / "results").rglob("*.json"))


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "list"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=240
        )
    assert done.returncode == 2
    assert done.stderr == "Cannot write the output: No space left on device.\n"


def test_a_closed_output_is_no_failure(tmp_path: Path) -> None:
    command = f"{shlex.join(COMMAND)} --help >&- <&- 2>&-"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_budget_that_means_nothing_is_a_warning(main_here: Any) -> None:
    code, _, err = main_here("plan", "-m", "auto_clipping", "-t", "digits", "--epsilon", "5e-4")
    assert code == 0
    assert err.startswith("Warning: epsilon=0.0005 is not above 1/N = 0.000695")
    assert len(err.splitlines()) == 1


def test_interrupt_leaves_no_record(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "-m", "noiseless", "-t", "digits", "--set", "epochs=3000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background of a script, children ignore interrupts unless told otherwise.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and "Training" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].startswith("Interrupted. What was not finished left no record")
    assert "Traceback" not in errors
    assert [path for path in (tmp_path / "results").rglob("*") if path.is_file()] == []


def test_a_method_that_exceeds_its_plan_is_recorded_and_exits_with_3(
    tmp_path: Path, main_here: Any, monkeypatch: pytest.MonkeyPatch, fixed_noise: Any
) -> None:
    greedy = registry.Registered(fixed_noise, "a test")
    monkeypatch.setattr(registry, "methods", lambda: {"fixed_noise": greedy})
    greed = ("-m", "fixed_noise", "--set", "extra_steps=1")
    code, _, err = main_here("run", *greed, "-t", "digits", "--quiet")
    assert code == 3
    assert err.startswith("Run over_budget: The plan does not cover the release")
    (path,) = (tmp_path / "results").rglob("*.json")
    record = read_record(path)
    assert (record.status, record.metrics) == ("over_budget", {})
