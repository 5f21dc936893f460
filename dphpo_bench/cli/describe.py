"""The command `describe`."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import unknown_name_message, value_text
from dphpo_bench.cli import options
from dphpo_bench.cli.listing import pretrained_lines, pretrained_models
from dphpo_bench.cli.output import Columns, facts, say, show, show_json, table

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
            autocompletion=lambda: options.names("methods", "tasks"),
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
    of_file = {} if task_file is None else TaskFiles.of([task_file]).tasks
    if task_file is not None and (name is None or name in of_file):
        description = task_json(options.resolve_task(name, model, task_file), task_file, task_file)
        shown_by = _print_task
    elif name in known_methods and model is None:
        description = method_json(name, known_methods[name])
        shown_by = _print_method
    elif name in known_tasks:
        description = task_json(known_tasks[name].cls(model), known_tasks[name].origin)
        shown_by = _print_task
    else:
        kind, known = "task", {*known_tasks, *of_file}
        if model is None:
            kind, known = "method or task", {*known_methods, *known}
        raise UnknownNameError(unknown_name_message(kind, str(name), known))
    if as_json:
        show_json(description)
    else:
        shown_by(description)


def method_json(name: str, registered: "Registered[Method]") -> dict[str, Any]:
    from dphpo_bench.contract.descriptions import explanation, parameters

    cls = registered.cls
    return {
        "method": name,
        "version": cls.version,
        "origin": registered.origin,
        "summary": cls.summary,
        "reference": cls.reference,
        "tuning": list(cls.tuning),
        "end_to_end_private": cls.end_to_end_private,
        "explanation": explanation(cls),
        "parameters": [
            {"name": field.name, "type": field.kind, "default": field.default, "meaning": field.meaning}
            for field in parameters(cls)
        ],
    }


def task_json(task: "Task", origin: str, task_file: str | None = None) -> dict[str, Any]:
    """Return a task as JSON values, with the facts for its model; `task_file` is the place of one of your own."""
    from dphpo_bench.contract.descriptions import explanation, search_space

    cls, facts = type(task), task.facts.to_json()
    is_recipe = cls.__module__.startswith("dphpo_bench.recipes")  # whose documentation is not about this task
    return {
        "task": task.name,
        "version": task.version,
        "origin": origin,
        "task_file": task_file,
        "summary": task.summary,
        "explanation": [] if is_recipe else explanation(cls),
        "models": list(cls.models) or [task.model_name],
        "model": facts.pop("model"),
        "public": task.public,
        "default_delta": task.facts.default_delta,
        "steps": task.facts.steps,
        "facts": facts,
        "search_space": search_space(task.facts.search_space()) if task.facts.states_a_space else {},
        "metrics": [metric.name for metric in task.metrics],
        "further_tests": {test.name: test.about for test in task.further_tests},
        "pretrained": pretrained_models(cls),
        "datasets": [
            {name: getattr(dataset, name) for name in ("name", "licence", "homepage", "published_at")}
            for dataset in task.datasets
        ],
    }


def _print_method(description: dict[str, Any]) -> None:
    covered, reference = "(ε, δ) covers tuning and training", "no: a reference, its true ε is ∞"
    _show_headed(
        description["method"],
        description,
        [
            ("paper", description["reference"]),
            ("tunes", ", ".join(description["tuning"]) or "nothing"),
            ("private", covered if description["end_to_end_private"] else reference),
            ("version", f"{description['version']}, from {description['origin']}"),
        ],
    )
    if description["parameters"]:
        show(_parameters(description["parameters"]))
        say(f"Set one with --set NAME=VALUE: dphpo-bench run -m {description['method']} -t digits --set ...")


def _parameters(rows: list[dict[str, Any]]) -> "Table":
    columns: Columns = [
        ("parameter", lambda row: row["name"]),
        ("default", lambda row: "none" if row["default"] is None else value_text(row["default"])),
        ("what it may be", lambda row: row["type"]),
        ("meaning", lambda row: row["meaning"]),
    ]
    lines = table(columns, rows, plain=True, padding=(0, 1))
    lines.columns[2].max_width = 26
    return lines


def _print_task(description: dict[str, Any]) -> None:
    task, (first, *others) = description["facts"], description["models"]
    rows = [("models", ", ".join([f"{first} (default)", *others]))]
    rows += [("", line) for line in pretrained_lines(description["pretrained"])]
    classes = f" of {task['n_classes']}" if task["n_classes"] else ""
    public = "public: runs have seed 0 by default" if description["public"] else "private: runs have no seed by default"
    several = f" units ({task['unit']}) of several records each" if "unit" in task else ""
    schedule = f"{description['steps']:,} steps: batches of {task['batch_size']:,}, {task['epochs']:g} epochs"
    space = [f"{name}: {text}" for name, text in description["search_space"].items()]
    data = [f"{each['name']}, {each['homepage']}; licence: {each['licence']}" for each in description["datasets"]]
    rows += [
        ("records", f"N = {task['n_records']:,}{several}, {public}"),
        ("asked for", f"{task['kind']}{classes}; measured: {', '.join(description['metrics'])}"),
        *((f"test {name}", about) for name, about in description["further_tests"].items()),
        ("default δ", f"{description['default_delta']:.3g}, N^-1.1 and at most 1e-3"),
        (f"schedule of {description['model']}", f"{schedule}; {task['optimizer']} at {task['learning_rate']:g}"),
        *_below("search space", space or ["none stated: searches take their own (describe METHOD)"]),
        *_below("data", data),
        ("version", f"{description['version']}, from {description['origin']}"),
    ]
    _show_headed(description["task"], description, rows)
    first_run = f"A first run: dphpo-bench run -m hyfreedp -t {description['task']}"
    if description["task_file"]:
        say(f"{first_run} --task-file {shlex.quote(description['task_file'])}")
    else:
        say(f"Where its data are: dphpo-bench data. {first_run}")


def _below(title: str, texts: list[str]) -> list[tuple[str, str]]:
    return list(zip([title, *[""] * len(texts)], texts, strict=False))


def _show_headed(name: str, description: dict[str, Any], rows: list[tuple[str, str]]) -> None:
    from rich.text import Text

    paragraphs = [Text(paragraph) for paragraph in description["explanation"]]
    show(
        Text(f"{name}: {description['summary']}", style="bold"),
        facts(rows, box=None),
        *([Text(), *paragraphs] if paragraphs else []),
        Text(),
    )
