"""What `list` and `data` print."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dphpo_bench.contract.task import Task

from dphpo_bench.data.datasets import HubDataset, HubSplit, download_command
from dphpo_bench.data.source import DataSource


def dataset_status(task: "Task", source: DataSource) -> list[dict[str, Any]]:
    """What is here of the datasets a task reads, one JSON-ready row per split; reads no record.

    Returns:
        Rows with the keys task, split, rows, state ("mirror", "downloaded", "missing" or "not needed"),
        bytes (of the file), where (its path, or how to get it), licence and source (where it was published).
    """
    return [
        _split_status(task.name, dataset, split, source) for dataset in task.datasets for split in dataset.splits
    ] or [
        {
            "task": task.name,
            "split": "all",
            "rows": task.facts.n_records,
            "state": "not needed",
            "bytes": 0,
            "where": "no download",
            "licence": "",
            "source": "",
        }
    ]


def _split_status(task: str, dataset: HubDataset, split: HubSplit, source: DataSource) -> dict[str, Any]:
    path = source.find(dataset, split)
    if path:
        state, where = ("mirror" if source.data_dir else "downloaded"), str(path)
    elif source.data_dir:
        state, where = "missing", download_command(dataset, str(source.data_dir))
    else:
        state, where = "missing", f"downloaded on first use from {dataset.repo_id} on the Hugging Face hub"
    return {
        "task": task,
        "split": split.name,
        "rows": split.rows,
        "state": state,
        "bytes": path.stat().st_size if path else 0,
        "where": where,
        "licence": dataset.licence,
        "source": dataset.homepage,
    }
