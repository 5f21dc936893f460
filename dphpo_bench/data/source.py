"""Where the parquet files of a dataset are: in a local mirror, or downloaded once from the Hugging Face hub.

A mirror holds `<dataset>/<split>.parquet`, or what `hf download` leaves in `<mirror>/<dataset>`. Downloads in
the cache have that second form, so the cache's `datasets` folder is a mirror to copy elsewhere.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.errors import DataError
from dphpo_bench.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from dphpo_bench.task import Task

DATA_VARIABLE = "DPHPO_BENCH_DATA"
CACHE_VARIABLE = "DPHPO_BENCH_CACHE"


@dataclass(frozen=True)
class HubSplit:
    """One split of a dataset on the hub.

    Attributes:
        name: "train" or "test".
        hub_path: path of its parquet file in the hub's repository.
        rows: number of records.
        content_hash: `images.content_hash` of its records; it does not depend on the order of rows or on how
            the pictures are encoded, both of which differ between mirrors (CIFAR-10's do).
    """

    name: str
    hub_path: str
    rows: int
    content_hash: str


@dataclass(frozen=True)
class HubDataset:
    """A labelled image dataset on the Hugging Face hub.

    Attributes:
        name: name of its folder in a mirror.
        repo_id: name of its repository on the hub.
        image_column: the parquet column that holds the encoded pictures; labels are in `label`.
        image_shape: (channels, height, width).
        n_classes: labels are 0 ... n_classes - 1.
        splits: the training split and the test split.
        licence: terms of use, as far as the publisher states any.
        homepage: where it was first published.
    """

    name: str
    repo_id: str
    image_column: str
    image_shape: tuple[int, int, int]
    n_classes: int
    splits: tuple[HubSplit, HubSplit]
    licence: str
    homepage: str

    @property
    def train(self) -> HubSplit:
        """The private training records."""
        return self.splits[0]

    @property
    def test(self) -> HubSplit:
        """The records for the harness alone."""
        return self.splits[1]


@dataclass(frozen=True)
class DataSource:
    """Where datasets are read from, and where what is derived from them is kept.

    Attributes:
        data_dir: a local mirror, or None for downloads from the hub.
        cache_dir: folder for downloads, decoded images and features; safe to delete.
        progress: where decoding and feature extraction report to.
    """

    data_dir: Path | None
    cache_dir: Path
    progress: Progress

    @classmethod
    def resolve(
        cls,
        data_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "DataSource":
        """The source meant by the arguments, else by the environment, else the hub and the user's cache.

        Args:
            data_dir: a local mirror; default: the environment variable DPHPO_BENCH_DATA, else downloads.
            cache_dir: default: the environment variable DPHPO_BENCH_CACHE, else the platform's cache folder.
            progress: default: silent.
        """
        data_dir = data_dir or os.environ.get(DATA_VARIABLE)
        cache_dir = cache_dir or os.environ.get(CACHE_VARIABLE)
        if not cache_dir:
            from platformdirs import user_cache_path

            cache_dir = user_cache_path("dphpo-bench", appauthor=False)
        return cls(
            data_dir=Path(data_dir).expanduser() if data_dir else None,
            cache_dir=Path(cache_dir).expanduser(),
            progress=progress or SilentProgress(),
        )

    @property
    def root(self) -> Path:
        """The mirror that files are looked up in: the given one, or that of the downloads."""
        return self.data_dir or self.cache_dir / "datasets"

    def find(self, dataset: HubDataset, split: HubSplit) -> Path | None:
        """The split's parquet file if it is here, without a download.

        Raises:
            DataError: if one may not look there.
        """
        folder = self.root / dataset.name
        candidates = (folder / f"{split.name}.parquet", folder / split.hub_path)
        try:
            return next((path for path in candidates if path.is_file()), None)
        except OSError as error:
            raise DataError(
                f"Cannot look for dataset {dataset.name} in {folder}: {error.strerror}. Make the folder readable, or "
                "choose another one with --data-dir."
            ) from None

    def parquet(self, dataset: HubDataset, split: HubSplit) -> Path:
        """The split's parquet file, downloaded if need be.

        Raises:
            DataError: if the given mirror lacks it, or it cannot be downloaded.
        """
        path = self.find(dataset, split)
        if path:
            return path
        if self.data_dir:
            expected = self.data_dir / dataset.name / f"{split.name}.parquet"
            raise DataError(
                f"Expected dataset {dataset.name} at {expected}, which does not exist. "
                f"Get it with `{download_command(dataset, str(self.data_dir))}`, "
                f"or leave out --data-dir and {DATA_VARIABLE} to download it."
            )
        from dphpo_bench.data.hub import download

        return download(dataset, split, self.root / dataset.name)


def download_command(dataset: HubDataset, mirror: str) -> str:
    """The shell command that puts a dataset into a mirror, for use on any machine with a network."""
    return f"hf download {dataset.repo_id} --repo-type dataset --local-dir {mirror}/{dataset.name}"


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
