"""Options of several commands, and the objects that they name."""

from pathlib import Path
from typing import Annotated

import typer

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.registry import TaskFiles

MAX_SEED_DIGITS = 40


def names(*kinds: str) -> list[str]:
    """Return the names of plug-ins, for a shell that completes them; nothing is loaded."""
    from importlib.metadata import entry_points

    return [name for kind in kinds for name in sorted({*entry_points(group=f"dphpo_bench.{kind}").names})]


MethodOption = Annotated[
    str, typer.Option("--method", "-m", help="A name from `dphpo-bench list`.", autocompletion=lambda: names("methods"))
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        "-t",
        help="A name from `dphpo-bench list`, or of a task in --task-file.",
        autocompletion=lambda: names("tasks"),
    ),
]
TaskFileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py|MODULE[:NAME]", help="Your own task: an ArrayTask, a class, or a function that returns one."
    ),
]
TaskFilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--task-file", metavar="FILE.py|MODULE[:NAME]", help="Tasks of your own, found by their names. Repeatable."
    ),
]
OnlyRunsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=VALUE,...",
        help="Only these runs; fields: method, task, model, epsilon, seed, status. Repeatable: "
        "values of one field are alternatives, and all fields must fit.",
    ),
]
ModelOption = Annotated[str | None, typer.Option(help="The task's model; default: its first.")]
EpsilonOption = Annotated[float, typer.Option(help="Budget ε for tuning and training together.")]
DeltaOption = Annotated[float | None, typer.Option(help="Budget δ; default: N^-1.1, at most 1e-3.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method. Repeatable.")
]
SeedOption = Annotated[
    str | None,
    typer.Option(
        metavar="INTEGER|none",
        help="Repeats a run exactly, its noise included. Default: 0 if the task's data are public, else none.",
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(help="Local mirror with <dataset>/<split>.parquet; default: $DPHPO_BENCH_DATA, else the hub."),
]
AccountOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Account that counts runs on private data; default: main.")
]
NotPrivateOption = Annotated[
    bool, typer.Option("--not-private", help="Let methods with ε = ∞ run on private data; their output stays inside.")
]
PrivateRecordsOption = Annotated[
    bool, typer.Option("--private-records", help="Run on private records, too: each run is a release, and counted.")
]
CheckpointOption = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Write a checkpoint every so many steps of a single training run. After a kill, the same command "
        "continues from the last one. Keep its file private: see docs/commands.md.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
RetryFailedOption = Annotated[bool, typer.Option("--retry-failed", help="Run again what has the record of a failure.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: as many as fit.")]


def resolve(
    method: str,
    task: str | None,
    model: str | None,
    epsilon: float,
    delta: float | None,
    settings: list[str] | None,
    task_file: str | None = None,
) -> "tuple[bench.Method, bench.Task, bench.PrivacyBudget]":
    made_task = resolve_task(task, model, task_file)
    budget = bench.PrivacyBudget(epsilon, made_task.facts.default_delta if delta is None else delta)
    parsed: dict[str, str] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise InvalidValueError(f"Expected --set NAME=VALUE, got {shown(setting, form=repr)}.")
        if name in parsed:
            raise InvalidValueError(f"Parameter {shown(name, form=repr)} is set twice.")
        parsed[name] = value
    return bench.make_method(method, parsed), made_task, budget


def resolve_task(task: str | None, model: str | None, task_file: str | None = None) -> "bench.Task":
    tasks = TaskFiles.of([] if task_file is None else [task_file])
    if task is None:
        if task_file is None:
            raise InvalidValueError("Missing option --task NAME, or --task-file FILE for a task of your own.")
        if len(tasks.tasks) > 1:
            raise InvalidValueError(
                f"{task_file} has the tasks {', '.join(sorted(tasks.tasks))}. Choose one with --task."
            )
        (task,) = tasks.tasks
    return tasks.make(task, model)


def parse_seed(text: str | None, default: int | None) -> int | None:
    """Return the seed that --seed names: "none" means no seed, and None the default."""
    if text is None:
        return default
    if text.lower() == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_SEED_DIGITS):
        raise InvalidValueError(f"Expected --seed to be an integer >= 0, or none, got {shown(text, form=repr)}.")
    return int(text)
