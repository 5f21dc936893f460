"""The command `describe`: a method or a task, for people."""

import shlex
from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import unknown_name_message, value_text
from dphpo_bench.cli import options
from dphpo_bench.cli.output import say, show, show_json

if TYPE_CHECKING:
    from rich.table import Table

    from dphpo_bench.contract.method import Method
    from dphpo_bench.contract.registry import Registered
    from dphpo_bench.contract.task import Task


def describe_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD|TASK",
            help="A name from `dphpo-bench list`, or of a task in --task-file.",
            autocompletion=options.method_and_task_names,
        ),
    ] = None,
    task_file: options.TaskFileOption = None,
    model: options.ModelOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Describe a method: its parameters, what it tunes, its paper. Or a task: its models, facts, search space, data."""
    from dphpo_bench.contract.registry import methods, tasks
    from dphpo_bench.contract.task_files import TaskFiles

    known_methods, known_tasks = methods(), tasks()
    if name is None and task_file is None:
        raise InvalidValueError("Missing argument METHOD|TASK, or --task-file FILE for a task of your own.")
    own = {} if task_file is None else TaskFiles.of([task_file]).own
    if task_file is not None and (name is None or name in own):
        told = task_json(options.resolve_task(name, model, task_file), task_file, task_file)
        shown_by = _print_task
    elif name in known_methods and model is None:
        told = method_json(name, known_methods[name])
        shown_by = _print_method
    elif name in known_tasks:
        told = task_json(known_tasks[name].cls(model), known_tasks[name].origin)
        shown_by = _print_task
    else:
        kind, known = (
            ("task", {*known_tasks, *own}) if model else ("method or task", {*known_methods, *known_tasks, *own})
        )
        raise UnknownNameError(unknown_name_message(kind, str(name), known))
    if as_json:
        show_json(told)
    else:
        shown_by(told)


def method_json(name: str, found: "Registered[Method]") -> dict[str, Any]:
    """A method as JSON values."""
    from dphpo_bench.contract.descriptions import explanation, parameters

    cls = found.cls
    return {
        "method": name,
        "version": cls.version,
        "origin": found.origin,
        "summary": cls.summary,
        "reference": cls.reference,
        "tuning": list(cls.tuning),
        "end_to_end_private": cls.end_to_end_private,
        "explanation": explanation(cls),
        "parameters": [
            {"name": one.name, "type": one.kind, "default": one.default, "meaning": one.meaning}
            for one in parameters(cls)
        ],
    }


def task_json(task: "Task", origin: str, task_file: str | None = None) -> dict[str, Any]:
    """A task as JSON values, with the facts for its model; `task_file` is where it lies if it is not registered."""
    from dphpo_bench.cli.listing import pretrained_models
    from dphpo_bench.contract.descriptions import explanation, search_space

    cls, facts = type(task), task.facts.to_json()
    own = cls.__module__.startswith("dphpo_bench.recipes")  # whose documentation is not about this task
    return {
        "task": task.name,
        "version": task.version,
        "origin": origin,
        "task_file": task_file,
        "summary": task.summary,
        "explanation": [] if own else explanation(cls),
        "models": list(cls.models) or [task.model_name],
        "model": facts.pop("model"),
        "public": task.public,
        "default_delta": task.facts.default_delta,
        "steps": task.facts.steps,
        "facts": facts,
        "search_space": search_space(task.facts.search_space()) if task.facts.states_a_space else {},
        "metrics": [one.name for one in task.metrics],
        "pretrained": pretrained_models(cls),
        "datasets": [
            {"name": one.name, "licence": one.licence, "homepage": one.homepage, "published_at": one.published_at}
            for one in task.datasets
        ],
    }


def _print_method(told: dict[str, Any]) -> None:
    facts = _facts()
    facts.add_row("paper", told["reference"])
    facts.add_row("tunes", ", ".join(told["tuning"]) or "nothing")
    private = "(ε, δ) covers tuning and training" if told["end_to_end_private"] else "no: a reference, its true ε is ∞"
    facts.add_row("private", private)
    facts.add_row("version", f"{told['version']}, from {told['origin']}")
    show(*_headed(told["method"], told, facts))
    if told["parameters"]:
        show(_parameters(told["parameters"]))
        say(f"Set one with --set NAME=VALUE: dphpo-bench run -m {told['method']} -t digits --set ...")


def _parameters(rows: list[dict[str, Any]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table("parameter", "default", box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column("what it may be", max_width=26)
    table.add_column("meaning")
    for row in rows:
        default = "none" if row["default"] is None else value_text(row["default"])
        table.add_row(row["name"], default, Text(row["type"]), Text(row["meaning"]))
    return table


def _print_task(told: dict[str, Any]) -> None:
    facts, given = _facts(), told["facts"]
    first, *others = told["models"]
    facts.add_row("models", ", ".join([f"{first} (default)", *others]))
    for one in told["pretrained"]:
        seen = ", which has seen the task's records" if one["has_seen_records"] else ""
        facts.add_row("", f"{', '.join(one['models'])}: on {one['name']}{seen}")
    classes = f" of {given['n_classes']}" if given["n_classes"] else ""
    public = "public: runs have seed 0 by default" if told["public"] else "private: runs have no seed by default"
    several = f" units ({given['unit']}) of several records each" if "unit" in given else ""
    facts.add_row("records", f"N = {given['n_records']:,}{several}, {public}")
    facts.add_row("asked for", f"{given['kind']}{classes}; measured: {', '.join(told['metrics'])}")
    facts.add_row("default δ", f"{told['default_delta']:.3g}, N^-1.1 and at most 1e-3")
    schedule = f"{told['steps']:,} steps: batches of {given['batch_size']:,}, {given['epochs']:g} epochs"
    facts.add_row(f"schedule of {told['model']}", f"{schedule}; {given['optimizer']} at {given['learning_rate']:g}")
    if not told["search_space"]:
        facts.add_row("search space", "none stated: searches take their own (describe METHOD)")
    for title, (name, text) in zip(_once("search space"), told["search_space"].items(), strict=False):
        facts.add_row(title, f"{name}: {text}")
    for title, one in zip(_once("data"), told["datasets"], strict=False):
        facts.add_row(title, f"{one['name']}, {one['homepage']}; licence: {one['licence']}")
    facts.add_row("version", f"{told['version']}, from {told['origin']}")
    show(*_headed(told["task"], told, facts))
    first_run = f"A first run: dphpo-bench run -m hyfreedp -t {told['task']}"
    if told["task_file"]:
        say(f"{first_run} --task-file {shlex.quote(told['task_file'])}")
    else:
        say(f"Where its data are: dphpo-bench data. {first_run}")


def _once(title: str) -> Iterator[str]:
    """The title for the first row, nothing for the others."""
    return chain([title], repeat(""))


def _headed(name: str, told: dict[str, Any], facts: "Table") -> list[Any]:
    """Name and summary, the facts, and the paragraphs of its docstring."""
    from rich.text import Text

    paragraphs = [Text(one) for one in told["explanation"]]
    return [
        Text(f"{name}: {told['summary']}", style="bold"),
        facts,
        *([Text(), *paragraphs] if paragraphs else []),
        Text(),
    ]


def _facts() -> "Table":
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    return table
