"""Tasks in files and modules: found, named, and refused in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.contract.registry import TaskFiles
from dphpo_bench.testing import check

SOURCE = """
import torch
from torch import nn
import dphpo_bench as bench
from helper_of_own_rows import ROWS

rows = torch.arange(ROWS * 2.0).reshape(ROWS, 2)
short = bench.TrainingOptions(epochs=1)
one = bench.ArrayTask("first_rows", (rows, torch.arange(ROWS) % 2), nn.Linear(2, 2), public=True, training=short)

def larger():
    return bench.ArrayTask("larger_rows", (rows, torch.arange(ROWS) % 2), nn.Linear(2, 2))

def broken():
    raise ZeroDivisionError("not today")

def nothing():
    return 3

class Rows(bench.Task):
    name = "class_rows"
    summary = "Rows."
    models = ("linear", "mlp")

    @property
    def facts(self):
        inputs = bench.recipes.Input((2,))
        return bench.TaskFacts("class_rows", self.model_name, ROWS, inputs, 10, 1, "SGD", 0.1, n_classes=2)

    def load_train(self, source):
        return bench.Records(rows, torch.arange(ROWS) % 2)

    load_test = load_train

    def build_model(self):
        return nn.Linear(2, 2)

    def fingerprint(self, source):
        return "1"
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_of_own_rows.py").write_text("ROWS = 40\n")
    (tmp_path / "own_rows.py").write_text(SOURCE)
    (tmp_path / "json.py").write_text("")
    (tmp_path / "no_task_here.py").write_text("import dphpo_bench\n")
    (tmp_path / "raises_here.py").write_text("1 / 0\n")
    yield tmp_path
    for name in ("own_rows", "helper_of_own_rows", "no_task_here", "raises_here"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("place", ["own_rows.py", "./own_rows.py", "own_rows"])
def test_all_tasks_that_a_module_defines(place: str) -> None:
    tasks = TaskFiles.of([place])
    assert sorted(tasks.tasks) == ["class_rows", "first_rows"]
    assert tasks.make("class_rows").model_name == "linear"
    assert tasks.make("class_rows", "mlp").model_name == "mlp"
    assert tasks.make("first_rows", "Linear") is tasks.make("first_rows") is tasks.make("first_rows", "own")
    assert tasks.make("digits", "mlp").model_name == "mlp"


@pytest.mark.parametrize(("name", "task"), [("larger", "larger_rows"), ("one", "first_rows"), ("Rows", "class_rows")])
def test_one_of_them(name: str, task: str) -> None:
    assert list(TaskFiles.of([f"own_rows.py:{name}"]).tasks) == [task]
    assert list(TaskFiles.of([f"own_rows:{name}"]).tasks) == [task]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("missing.py", "no such file"),
        ("json.py", "A module 'json' is installed already. Rename json.py"),
        ("no_task_here.py", "defines no task"),
        ("raises_here.py", "Cannot import raises_here: ZeroDivisionError"),
        ("own_rows.py:onne", "Unknown task in own_rows 'onne'. Did you mean 'one'"),
        ("own_rows.py:broken", r"broken\(\) raises ZeroDivisionError: not today"),
        ("own_rows.py:nothing", "Expected nothing of own_rows to be a task, got int"),
        ("", "Cannot import : ValueError"),
    ],
)
def test_mistakes(place: str, reason: str) -> None:
    with pytest.raises(DphpoBenchError, match=reason):
        TaskFiles.of([place])


def test_names_and_models_that_are_not_there() -> None:
    tasks = TaskFiles.of(["own_rows.py"])
    for name, model, reason in (
        ("first_row", None, "Did you mean 'first_rows'"),
        ("first_rows", "mlp", "Unknown model"),
    ):
        with pytest.raises(DphpoBenchError, match=reason):
            tasks.make(name, model)


def test_two_of_one_name_are_refused(files: Path) -> None:
    (files / "second_rows.py").write_text("from own_rows import Rows as Other\nclass Rows(Other):\n    pass\n")
    for places in (["own_rows.py", "second_rows.py"], ["own_rows.py:larger", "own_rows.py:larger"]):
        with pytest.raises(DphpoBenchError, match="Two tasks are named"):
            TaskFiles.of(places)
    sys.modules.pop("second_rows")


def test_a_class_in_a_file_can_be_checked() -> None:
    found = [(subject.model, subject.make().name) for subject in check.subjects("own_rows.py:Rows")]
    assert found == [("linear", "class_rows"), ("mlp", "class_rows")]
    with pytest.raises(DphpoBenchError, match="no such file"):
        check.subjects("missing.py:Rows")
