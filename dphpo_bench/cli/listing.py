"""The commands `list` and `data`."""

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dphpo_bench.cli import options
from dphpo_bench.cli.output import Columns, say, show, show_json, table

if TYPE_CHECKING:
    from dphpo_bench.contract.task import Task
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.data.weights import Weights


def list_command(as_json: options.JsonOption = False) -> None:
    """List methods and tasks, the tasks' models and the public ones they start from, and where plug-ins come from."""
    from dphpo_bench.contract.registry import methods, tasks

    plug_ins: dict[str, list[dict[str, Any]]] = {
        "methods": [
            {"name": name, "summary": item.cls.summary, "origin": item.origin} for name, item in methods().items()
        ],
        "tasks": [
            {
                "name": name,
                "summary": item.cls.summary,
                "origin": item.origin,
                "models": list(item.cls.models),
                "pretrained": pretrained_models(item.cls),
            }
            for name, item in tasks().items()
        ],
    }
    if as_json:
        show_json(plug_ins)
        return
    for kind, rows in plug_ins.items():
        width = max((len(row["name"]) for row in rows), default=0)
        lines = [kind.capitalize()]
        for row in rows:
            lines.append(f"  {row['name']:<{width}}  {row['summary']}  [{row['origin']}]")
            if kind == "tasks":
                models = [f"models: {', '.join(row['models'])}", *pretrained_lines(row["pretrained"])]
                lines += [f"  {'':<{width}}    {line}" for line in models]
        say("\n".join(lines))
    say("More of one: dphpo-bench describe NAME")


def data_command(data_dir: options.DataDirOption = None, as_json: options.JsonOption = False) -> None:
    """Show which datasets are here, which are missing, and how to get them."""
    from dphpo_bench.contract.registry import tasks
    from dphpo_bench.data.source import DataSource

    source = DataSource.resolve(data_dir)
    rows = [row for task in tasks().values() for row in dataset_status(task.cls(), source)]
    if as_json:
        show_json(rows)
        return
    columns: Columns = [
        ("task", itemgetter("task")),
        ("split", itemgetter("split")),
        ("rows", lambda row: f"{row['rows']:,}"),
        ("state", itemgetter("state")),
        ("where / how to get it", itemgetter("where")),
    ]
    show(table(columns, rows, title="Datasets"))


def pretrained_lines(rows: list[dict[str, Any]]) -> list[str]:
    seen = {True: ", which has seen the task's records", False: ""}
    return [f"{', '.join(row['models'])}: on {row['name']}{seen[row['has_seen_records']]}" for row in rows]


def pretrained_models(task_class: "type[Task]") -> list[dict[str, Any]]:
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


def dataset_status(task: "Task", source: "DataSource") -> list[dict[str, Any]]:
    from dphpo_bench.data.datasets import download_command
    from dphpo_bench.data.rows import doubt

    rows = []
    for dataset in task.datasets:
        for split in dataset.published:
            paths = source.find(dataset, split)
            if paths:
                wrong = doubt(paths, split)
                state = f"damaged: {wrong}" if wrong else "mirror" if source.data_dir else "downloaded"
                where = ", ".join(map(str, paths))
            elif source.data_dir:
                state, where = "missing", download_command(dataset, str(source.data_dir))
            else:
                state, where = "missing", f"downloaded on first use from {dataset.published_at}"
            size = sum(path.stat().st_size for path in paths)
            rows.append(_row(task, split.name, split.rows, state, size, where, dataset.licence, dataset.homepage))
    return rows or [_row(task, "all", task.facts.n_records, "own", 0, "the task brings its records", "", "")]


def _row(task: "Task", *values: Any) -> dict[str, Any]:
    names = ("split", "rows", "state", "bytes", "where", "licence", "source")
    return {"task": task.name, **dict(zip(names, values, strict=True))}
