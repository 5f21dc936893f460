"""`--task-file`: a task of one's own on the command line, without a package."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
import torch
from torch import nn
import dphpo_bench as bench

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs):
        return self.layer(inputs)

labels = torch.arange(160) % 2
rows = torch.randn(160, 2, generator=torch.Generator().manual_seed(0)) + 2 * labels[:, None]
training = bench.TrainingOptions(epochs=2, learning_rate=0.1)
task = bench.ArrayTask(
    "file_rows", (rows[:120], labels[:120]), Net, (rows[120:], labels[120:]), public=True, training=training
)
"""


@pytest.fixture
def main_with_file(main_here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "rows_in_a_file.py").write_text(SOURCE)
    yield main_here
    sys.modules.pop("rows_in_a_file", None)


def test_a_run_and_its_plan(main_with_file: Any) -> None:
    own = ("-m", "dp_sgd", "--task-file", "rows_in_a_file.py", "--delta", "1e-4")
    code, out, err = main_with_file("plan", *own, "--json")
    assert (code, err) == (0, "")
    code, out, err = main_with_file("run", *own, "--json", "--quiet", "--task", "file_rows")
    assert code == 0, err
    record = json.loads(out)
    assert record["identity"]["task"] == "file_rows"
    assert record["identity"]["seed"] == 0  # its data are public
    assert record["metrics"]["accuracy"] > 0.6


def test_a_sweep(main_with_file: Any, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text('methods = ["dp_sgd"]\ntasks = ["file_rows"]\nepsilons = [3]\nseeds = [0]\n')
    own = ("sweep", "suite.toml", "--task-file", "rows_in_a_file.py", "--executor", "serial")
    code, out, err = main_with_file(*own)
    assert code == 0, out + err
    assert "1 ok, 0 failed" in out
    code, out, err = main_with_file(*own)
    assert "1 cell: 1 finished, 0 to run." in err
    text = (tmp_path / "rows_in_a_file.py").read_text()
    # Of another length, for Python takes compiled code by time and size.
    (tmp_path / "rows_in_a_file.py").write_text(text.replace("manual_seed(0)", "manual_seed(12)"))
    sys.modules.pop("rows_in_a_file")
    code, out, err = main_with_file(*own)
    assert code == 2
    assert "The records of task file_rows are others" in err


def test_what_it_is_and_the_command_that_repeats_a_run(main_with_file: Any, tmp_path: Path) -> None:
    own = ("--task-file", "rows_in_a_file.py")
    code, out, err = main_with_file("describe", *own)
    assert (code, err) == (0, "")
    assert re.search(r"n records +120 ", out)
    assert out.rstrip().endswith("dphpo-bench run -m hyfreedp -t file_rows --task-file rows_in_a_file.py")
    assert json.loads(main_with_file("describe", "file_rows", *own, "--json")[1])["task_file"] == "rows_in_a_file.py"
    assert main_with_file("run", "-m", "dp_sgd", *own, "-q")[0] == 0
    (record,) = (tmp_path / "results").glob("*/*/*.json")
    code, out, err = main_with_file("show", str(record))
    assert "--task-file" not in out
    assert "file_rows is not installed here: give --task-file" in err
    code, out, err = main_with_file("show", str(record), *own)
    assert (code, err) == (0, "")
    assert " -t file_rows --model Net --task-file rows_in_a_file.py --epsilon 3 " in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("run", "-m", "dp_sgd"), "Missing option --task NAME, or --task-file FILE"),
        (("run", "-m", "dp_sgd", "--task-file", "rows_in_a_file.py", "-t", "other"), "Unknown task 'other'"),
        (("describe", "dp_sgd", "--task-file", "none.py"), "no such file"),
        (
            ("sweep", "suite.toml", "--task-file", "rows_in_a_file.py", "--executor", "ray"),
            "Expected --executor process",
        ),
    ],
)
def test_mistakes(main_with_file: Any, tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    (tmp_path / "suite.toml").write_text('methods = ["dp_sgd"]\ntasks = ["file_rows"]\nepsilons = [3]\nseeds = [0]\n')
    code, out, err = main_with_file(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
