"""The command line, run as a user runs it: output, one-line errors, exit codes."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench import read_record
from dphpo_bench.cli import entry
from dphpo_bench.contract import registry

COMMAND = [sys.executable, "-m", "dphpo_bench"]
BOARD = Path(__file__).parents[2] / "leaderboard" / "results"
FAST = ("--set", "epochs=2")


def dphpo_bench(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "DPHPO_BENCH_CACHE": str(cwd / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_run_prints_a_table_and_writes_a_record(tmp_path: Path, main_here: Any) -> None:
    code, out, err = main_here("run", "-m", "hyfreedp", "-t", "digits", *FAST)
    assert code == 0, err
    for part in (
        "test accuracy",
        "ε target",
        "ε planned",
        "ε recomputed from the ledger",
        "(pld, quoted)",
        "(rdp)",
        "share spent on tuning",
        "of records found at 1 % false alarms",
        "as Gaussian DP",
        "Risk is what no attack can exceed; what leaks may be far less.",
        "steps",
        "seconds",
        "peak memory",
    ):
        assert part in out
    (path,) = (tmp_path / "results").rglob("*.json")
    assert str(path.relative_to(tmp_path)) in out
    record = read_record(path)
    assert record.status == "ok"
    assert record.privacy.epsilon <= record.identity.epsilon


def test_json_is_the_record(tmp_path: Path, main_here: Any) -> None:
    _, out, _ = main_here("run", "-m", "auto_clipping", "-t", "digits", *FAST, "--json")
    (path,) = (tmp_path / "results").rglob("*.json")
    assert out == path.read_text()
    assert json.loads(out)["privacy"]["tuning_share"] == 0


PLAN = ("plan", "-m", "hyfreedp", "-t", "cifar10", "--epsilon", "1")
AUDIT = ("audit", "-m", "hyfreedp", "-t", "digits", "--canaries", "-1")
LEARNING = ("torch", "optuna", "sklearn", "pyarrow", "pandas")


@pytest.mark.parametrize(
    ("command", "code", "heavy"),
    [
        (("--help",), 0, (*LEARNING, "numpy", "scipy", "dp_accounting")),
        (("list",), 0, (*LEARNING, "numpy", "scipy", "dp_accounting", "pydantic", "rich")),
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


def test_plan_of_a_reference_bounds_no_risk(main_here: Any) -> None:
    out = main_here("plan", "-m", "nonprivate", "-t", "digits")[1]
    assert "unbounded: an attack may be certain" in out
    plan = json.loads(main_here("plan", "-m", "nonprivate", "-t", "digits", "--json")[1])
    assert plan["risk"] == {"advantage": 1, "tpr_at_1pct": 1, "tpr_at_01pct": 1, "mu": "Infinity", "mu_fit": 0}


def test_help_breaks_lines_only_where_the_terminal_ends(tmp_path: Path) -> None:
    told = dphpo_bench("explain", "--help", cwd=tmp_path, COLUMNS="1000").stdout
    (extra,) = [line for line in told.splitlines() if "Two extra runs tell" in line]
    assert extra.strip().endswith("must lie in the same folder of results.")


def test_list_names_public_models_and_the_records_that_they_have_seen(tmp_path: Path) -> None:
    lines = [line.strip() for line in dphpo_bench("list", cwd=tmp_path).stdout.splitlines()]
    qqp = next(n for n, line in enumerate(lines) if line.startswith("qqp "))
    assert lines[qqp + 1] == "models: linear, roberta, roberta_bitfit, roberta_lora"
    assert lines[qqp + 2] == "linear: on all-minilm-l6-v2, which has seen the task's records"
    assert "linear, bitfit, lora: on all-minilm-l6-v2" in lines
    told = {task["name"]: task for task in json.loads(dphpo_bench("list", "--json", cwd=tmp_path).stdout)["tasks"]}
    assert [one["has_seen_records"] for one in told["qqp"]["pretrained"]] == [True, False]
    assert "Quora Question Pairs" in told["qqp"]["pretrained"][0]["trained_on"]
    assert told["mnist"]["pretrained"] == []
    assert told["digits"]["models"] == ["linear", "mlp"]


def test_data_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    done = dphpo_bench("data", "--json", cwd=tmp_path, DPHPO_BENCH_DATA="")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["task"] for row in rows} == set(registry.tasks())
    assert {row["state"] for row in rows if row["task"] == "cifar10"} == {"missing"}
    assert all(row["where"] for row in rows)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "--nonsense"), "No such option: --nonsense"),
        (("run", "-m", "hyfree", "-t", "digits"), "Did you mean 'hyfreedp'?"),
        (("run", "-m", "hyfreedp", "-t", "cifar"), "Did you mean 'cifar10'?"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--model", "cnn"), "Unknown model 'cnn'"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--epsilon", "-1"), "epsilon=-1.0"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--epsilon", "nan"), "epsilon=nan"),
        (("plan", "-m", "hyfreedp", "-t", "digits", "--delta", "1"), "delta=1.0"),
        (("plan", "-m", "hyfreedp", "-t", "digits", "--epsilon", "1e-7", "--delta", "1e-9"), "Raise epsilon or delta"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--set", "K=5"), "Unknown parameter of hyfreedp 'K'"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--set", "update_interval"), "NAME=VALUE"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--results-dir", "/proc/none"), "--results-dir"),
        (("run", "-m", "hyfreedp", "-t", "digits", "--device", "abacus"), "Cannot use device 'abacus'"),
        (("audit", "-m", "hyfreedp", "-t", "digits", "--device", "meta"), "Cannot use device 'meta'"),
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


@pytest.mark.parametrize(
    ("task", "file", "missing"),
    [
        ("mnist", "train.parquet", "test.parquet"),
        ("adult", "adult.data", "test.parquet"),
    ],
)
def test_a_missing_test_file_stops_the_run_before_it_trains(
    tmp_path: Path, main_here: Any, task: str, file: str, missing: str
) -> None:
    path = tmp_path / "mirror" / task / file
    path.parent.mkdir(parents=True)
    path.touch()
    code, out, err = main_here("run", "-m", "dp_sgd", "-t", task, "--data-dir", "mirror")
    assert code == 2
    assert missing in err
    assert "does not exist" in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert not list((tmp_path / "results").rglob("*.json"))


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-m", "dp_sgd", "--set", "optimizer=Foo"), "Unknown optimizer 'Foo'. Available: adadelta"),
        (("-m", "hyfreedp_paper", "--set", "optimizer=LBFGS"), "'LBFGS' cannot be used here"),
        (("-m", "adaptive_clipping", "--set", "optimizer=task"), "Unknown optimizer 'task'"),
        (("-m", "dp_sgd", "--set", "clipping=Foo"), "Unknown clipping 'foo'"),
        (("-m", "dp_sgd", "--model", ""), "Unknown model ''"),
    ],
)
def test_a_plan_refuses_what_a_run_refuses(
    tmp_path: Path, main_here: Any, command: str, args: tuple[str, ...], message: str
) -> None:
    code, out, err = main_here(command, "-t", "digits", *args)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["list", "data"])
def test_a_full_disk_is_one_line(tmp_path: Path, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, command], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=240
        )
    assert done.returncode == 2
    assert done.stderr == "Cannot write the output: No space left on device.\n"


def test_who_closes_the_output_hears_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m dphpo_bench list | head -c 5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.stdout, done.stderr) == ("Metho", "")


def test_files_that_cannot_be_the_dataset_are_told(tmp_path: Path, main_here: Any) -> None:
    for task, name in (("mnist", "train.parquet"), ("adult", "adult.data")):
        (tmp_path / "mirror" / task).mkdir(parents=True)
        (tmp_path / "mirror" / task / name).write_bytes(b"ab")
    rows = json.loads(main_here("data", "--data-dir", "mirror", "--json")[1])
    states = {(row["task"], row["split"]): row["state"] for row in rows}
    assert states["mnist", "train"] == "damaged: train.parquet is no parquet file"
    assert states["adult", "train"] == "damaged: 2 bytes cannot hold 32,561 rows"
    assert states["mnist", "test"] == "missing"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--epsilon", "1e-300"), "Warning: epsilon=1e-300 is not above 1/N = 0.000695"),
        (("--epsilon", "1e9"), "Warning: epsilon=1e+09 protects nobody"),
        (("--delta", "0.01"), "Warning: delta=0.01 is not below 1/N"),
        (("--epsilon", "0.01"), ""),
    ],
)
def test_a_budget_that_means_nothing_is_a_warning(main_here: Any, args: tuple[str, ...], message: str) -> None:
    code, _, err = main_here("plan", "-m", "auto_clipping", "-t", "digits", *args)
    assert code == 0
    assert err.startswith(message)
    assert len(err.splitlines()) == (1 if message else 0)


def test_interrupt_leaves_no_record(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "-m", "auto_clipping", "-t", "digits", "--set", "epochs=30000"],
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


GREEDY = """
import dphpo_bench as bench
from dphpo_bench.methods.auto_clipping import AutoClipping

class Greedy(AutoClipping):
    name = "greedy"
    summary = "Takes one gradient more than it planned."

    def run(self, plan, session):
        outcome = super().run(plan, session)
        noise = plan.parameters.noise_multiplier
        batch = session.sample(bench.events.poisson_sampled(plan.parameters.sample_rate, bench.events.gaussian(noise)))
        batch.gradient(outcome.model, bench.clipping.AutoS(), noise)
        return outcome
"""


def test_a_method_that_exceeds_its_plan_is_recorded_and_exits_with_3(
    tmp_path: Path, main_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "greedy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dphpo_bench.methods]\ngreedy = greedy_method:Greedy\n")
    (tmp_path / "greedy_method.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = main_here("run", "-m", "greedy", "-t", "digits", *FAST, "--quiet")
    assert code == 3
    assert err.startswith("Run over_budget: The plan does not cover the release")
    (path,) = (tmp_path / "results").rglob("*.json")
    record = read_record(path)
    assert (record.status, record.metrics) == ("over_budget", {})


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing of use"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, main_here: Any, content: bytes) -> None:
    folder = tmp_path / "mirror" / "mnist"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        (folder / f"{name}.parquet").write_bytes(content)
    code, _, err = main_here("run", "-m", "dp_sgd", "-t", "mnist", "--data-dir", "mirror", "--quiet")
    assert code == 2
    assert "train.parquet" in err
    assert len(err.strip().splitlines()) == 1


def test_an_interrupt_while_modules_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "dphpo_bench.cli.commands":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "dphpo_bench.cli.commands", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted.\n"
