"""Which datasets are here."""

from typing import TYPE_CHECKING, Any

from dphpo_bench.data.datasets import download_command
from dphpo_bench.data.source import DataSource

if TYPE_CHECKING:
    from dphpo_bench.contract.task import Task


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
