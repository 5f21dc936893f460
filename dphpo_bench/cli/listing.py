"""Which datasets are here, and which public models tasks start from."""

from typing import TYPE_CHECKING, Any

from dphpo_bench.data.datasets import download_command
from dphpo_bench.data.source import DataSource

if TYPE_CHECKING:
    from dphpo_bench.contract.task import Task
    from dphpo_bench.data.weights import Weights


def pretrained_models(task_class: "type[Task]") -> list[dict[str, Any]]:
    """The public models that a task's models start from, as JSON-ready rows: one for each of these and all who use it.

    Empty for a plug-in that cannot tell.
    """
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


def dataset_status(task: "Task", source: DataSource) -> list[dict[str, Any]]:
    """What is here of the datasets that a task reads, as one JSON-ready row for each split. Reads no record."""
    rows = []
    for dataset in task.datasets:
        for split in dataset.splits:
            paths = source.find(dataset, split)
            if paths:
                state, where = "mirror" if source.data_dir else "downloaded", ", ".join(map(str, paths))
            elif source.data_dir:
                state, where = "missing", download_command(dataset, str(source.data_dir))
            else:
                state, where = "missing", f"downloaded on first use from {dataset.published_at}"
            size = sum(path.stat().st_size for path in paths)
            rows.append(_row(task, split.name, split.rows, state, size, where, dataset.licence, dataset.homepage))
    return rows or [_row(task, "all", task.facts.n_records, "not needed", 0, "no download", "", "")]


def _row(task: "Task", *values: Any) -> dict[str, Any]:
    names = ("split", "rows", "state", "bytes", "where", "licence", "source")
    return {"task": task.name, **dict(zip(names, values, strict=True))}
