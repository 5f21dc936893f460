"""The commands about plug-ins: `list`, `data`, `describe`, `check` and `new`."""

import shlex
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dphpo_bench as bench
from dphpo_bench.base.displays import flat
from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import count, unknown_name_message, value_text
from dphpo_bench.cli import options
from dphpo_bench.cli.output import facts, say, show, show_json, table
from dphpo_bench.contract.descriptions import explanation, parameters, search_space
from dphpo_bench.contract.registry import TaskFiles, methods, tasks

if TYPE_CHECKING:
    from dphpo_bench.data.source import Weights
    from dphpo_bench.testing.scaffold import Kind

new_app = typer.Typer(
    help="Write a package with a method or a task of your own, ready to install.", no_args_is_help=True
)


def list_command(as_json: options.JsonOption = False) -> None:
    """List methods and tasks, the tasks' models and the public ones they start from, and where plug-ins come from."""

    def row(name: str, item: Any) -> dict[str, Any]:
        return {"name": name, "summary": item.cls.summary, "origin": item.origin}

    of_tasks = [
        row(name, item) | {"models": list(item.cls.models), "pretrained": _pretrained_models(item.cls)}
        for name, item in tasks().loaded().items()
    ]
    plug_ins = {"methods": [row(name, item) for name, item in methods().loaded().items()], "tasks": of_tasks}
    if as_json:
        show_json(plug_ins)
        return
    for kind, rows in plug_ins.items():
        say(kind.capitalize())
        width = max((len(row["name"]) for row in rows), default=0)
        for plug_in in rows:
            say(f"  {plug_in['name']:<{width}}  {plug_in['summary']}  [{plug_in['origin']}]")
            if "models" in plug_in:
                say(f"  {'':<{width}}    models: {', '.join(plug_in['models'])}")
            for weights in plug_in.get("pretrained", ()):
                seen = ", which has seen the task's records" if weights["has_seen_records"] else ""
                say(f"  {'':<{width}}    {', '.join(weights['models'])}: on {weights['name']}{seen}")
    say("More of one: dphpo-bench describe NAME")


def data_command(data_dir: options.DataDirOption = None, as_json: options.JsonOption = False) -> None:
    """Show which datasets are here, which are missing, and how to get them."""
    source = bench.DataSource.resolve(data_dir)
    rows = [row for task in tasks().loaded().values() for row in _dataset_status(task.cls(), source)]
    if as_json:
        show_json(rows)
        return
    cells = [[row["task"], row["split"], f"{row['rows']:,}", row["state"], row["where"]] for row in rows]
    headers = "task", "split", ">rows", "state", "where / how to get it"
    show(table(headers, cells, title="Datasets"))


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
    known_methods, known_tasks = methods(), tasks()
    if name is None and task_file is None:
        raise InvalidValueError("Missing argument METHOD|TASK, or --task-file FILE for a task of your own.")
    of_file = {} if task_file is None else TaskFiles.of([task_file]).tasks
    if task_file is not None and (name is None or name in of_file):
        description = _task_json(options.resolve_task(name, model, task_file), task_file, task_file)
    elif name and name in known_methods and model is None:
        cls = known_methods[name].cls
        description = {
            "method": name,
            "version": cls.version,
            "origin": known_methods[name].origin,
            "summary": cls.summary,
            "reference": cls.reference,
            "tuning": list(cls.tuning),
            "end_to_end_private": cls.end_to_end_private,
            "explanation": explanation(cls),
            "parameters": parameters(cls),
        }
    elif name and name in known_tasks:
        description = _task_json(known_tasks[name].cls(model), known_tasks[name].origin)
    else:
        kind, known = "task", {*known_tasks, *of_file}
        if model is None:
            kind, known = "method or task", {*known_methods, *known}
        raise UnknownNameError(unknown_name_message(kind, str(name), known))
    if as_json:
        show_json(description)
    else:
        _print(description)


def _task_json(task: "bench.Task", origin: str, task_file: str | None = None) -> dict[str, Any]:
    """Return a task as JSON values, with the facts for its model; `task_file` is the place of one of your own."""
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
        "pretrained": _pretrained_models(cls),
        "datasets": [
            {name: getattr(dataset, name) for name in ("name", "licence", "homepage", "published_at")}
            for dataset in task.datasets
        ],
    }


def _print(description: dict[str, Any]) -> None:
    from rich.text import Text

    values = {name: value for name, value in description.items() if name != "facts"}
    values = {**description.get("facts", {}), **values}
    kind = "method" if "method" in values else "task"
    name, parameters, own_file = values.pop(kind), values.pop("parameters", []), values.pop("task_file", None)
    show(Text(f"{name}: {values.pop('summary')}", style="bold"))
    paragraphs = values.pop("explanation")
    rows = [(label.replace("_", " "), text) for label, text in flat(values) if text]
    show(facts(rows, box=None), *([Text(), *map(Text, paragraphs)] if paragraphs else []), Text())
    if parameters:
        cells = []
        for field in parameters:
            default = "none" if field["default"] is None else value_text(field["default"])
            cells.append([field["name"], default, field["type"], field["meaning"]])
        headers = "parameter", "default", "what it may be", "meaning"
        lines = table(headers, cells, plain=True, padding=(0, 1))
        lines.columns[2].max_width = 26
        show(lines)
        say(f"Set one with --set NAME=VALUE: dphpo-bench run -m {name} -t digits --set ...")
    elif kind == "task":
        task_file = f" --task-file {shlex.quote(own_file)}" if own_file else ""
        say(f"A first run: dphpo-bench run -m hyfreedp -t {name}{task_file}")


def _pretrained_models(task_class: "type[bench.Task]") -> list[dict[str, Any]]:
    """Return a row for each public model that the task's models start from; none for a plug-in that fails."""
    users: dict[Weights, list[str]] = {}
    try:
        for model in task_class.models:
            for weights in task_class(model).pretrained_models:
                users.setdefault(weights, []).append(model)
    except Exception:  # it is somebody else's code
        return []
    return [
        {
            "name": weights.name,
            "models": models,
            "trained_on": list(weights.trained_on),
            "has_seen_records": weights.has_seen_any(task_class.datasets),
        }
        for weights, models in users.items()
    ]


def _dataset_status(task: "bench.Task", source: "bench.DataSource") -> list[dict[str, Any]]:
    from dphpo_bench.data.rows import doubt
    from dphpo_bench.data.source import download_command

    rows = []
    for dataset in task.datasets:
        for split in dataset.published:
            paths = source.find(dataset, split)
            if paths:
                wrong = doubt(paths, split)
                state = f"damaged: {wrong}" if wrong else "mirror" if source.data_dir else "downloaded"
                where = ", ".join(map(str, paths))
            else:
                state, where = "missing", f"downloaded on first use from {dataset.published_at}"
                if source.data_dir:
                    where = download_command(dataset, str(source.data_dir))
            size = sum(path.stat().st_size for path in paths)
            rows.append((split.name, split.rows, state, size, where, dataset.licence, dataset.homepage))
    rows = rows or [("all", task.facts.n_records, "own", 0, "the task brings its records", "", "")]
    names = ("split", "rows", "state", "bytes", "where", "licence", "source")
    return [{"task": task.name, **dict(zip(names, row, strict=True))} for row in rows]


def check_command(
    plug_ins: Annotated[
        list[str],
        typer.Argument(
            metavar="PLUGIN...", help="A method, a task, MODULE:CLASS, FILE.py:CLASS, or an installed distribution."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Check tasks with this model only; default: all.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run the contract tests on a plug-in: a line for each test, with the reason if it fails.

    Exit code: 0 all tests pass, 1 some do not, 2 a mistake in the call.
    """
    from dphpo_bench.testing.check import run_contract, subjects

    chosen = list(dict.fromkeys(subject for plug_in in plug_ins for subject in subjects(plug_in)))
    if model is not None:
        known = {subject.model for subject in chosen if subject.model is not None}
        if model not in known:
            raise UnknownNameError(unknown_name_message("model", model, known))
        chosen = [subject for subject in chosen if subject.model in (model, None)]

    start = time.perf_counter()
    outcomes: Counter[str] = Counter()
    rows = []
    for subject in chosen:
        if not as_json:
            say(subject.title)
        tests = []
        for checked in run_contract(subject):
            mark = "✗" if checked.reason is not None else "?" if checked.unchecked is not None else "✓"
            outcomes[mark] += 1
            tests.append({**asdict(checked), "passed": mark == "✓"})
            if not as_json:
                say(f"  {mark} {checked.description}")
            if not as_json and mark != "✓":
                say(f"    {checked.name}: {checked.reason}" if mark == "✗" else f"    not checked: {checked.unchecked}")
        rows.append(
            {
                "kind": subject.kind,
                "name": getattr(subject.cls, "name", None),
                "model": subject.model,
                "class": f"{subject.cls.__module__}:{subject.cls.__qualname__}",
                "origin": subject.origin,
                "tests": tests,
            }
        )
    failed = outcomes["✗"]
    if as_json:
        show_json({"failed": failed, "plug_ins": rows})
    else:
        outcome = f"{failed} of {outcomes.total()} tests fail" if failed else f"All {outcomes['✓']} tests pass"
        if outcomes["?"]:
            outcome += f", {outcomes['?']} could not tell"
        say(f"{outcome} ({count(len(chosen), 'plug-in')}, {time.perf_counter() - start:.0f} seconds).")
    raise typer.Exit(1 if failed else 0)


NameArgument = Annotated[str, typer.Argument(help="Its name for --method or --task, such as two_rates.")]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="The folder in which the package's folder is made.")
]
RepositoryOption = Annotated[
    bool, typer.Option("--repository", help="Also write a repository's CI, and a suite for rows on the board.")
]


@new_app.command("method")
def method_command(name: NameArgument, output: OutputOption = Path(), repository: RepositoryOption = False) -> None:
    """Write a small private tuning method: its source, its entry point, its contract test."""
    _write("method", name, output, repository)


@new_app.command("task")
def task_command(name: NameArgument, output: OutputOption = Path(), repository: RepositoryOption = False) -> None:
    """Write a small task on data that scikit-learn packages: its source, its entry point, its contract test."""
    _write("task", name, output, repository)


def _write(kind: "Kind", name: str, output: Path, repository: bool) -> None:
    from dphpo_bench.testing.scaffold import write_package

    folder = output / name
    paths = write_package(kind, name, output, repository=repository)
    files = ", ".join(path.relative_to(folder).as_posix() for path in paths)
    run = f"--method {name} --task digits" if kind == "method" else f"--method hyfreedp --task {name}"
    row = f"  dphpo-bench sweep {folder / 'suite.toml'}\n  dphpo-bench publish results  # in a clone of the project\n"
    sys.stdout.write(
        f"Wrote {folder}: {files}. Next:\n"
        f"  pip install -e {folder}\n  dphpo-bench check {name}\n  dphpo-bench run {run}\n{row if repository else ''}"
    )
