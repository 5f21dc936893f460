"""Sources of datasets: a local mirror, or files downloaded once from where they are published.

A mirror holds `<dataset>/<split>.parquet`, or the files that `hf download` or `curl` put into `<mirror>/<dataset>`.
Downloads in the cache have the second form, so the cache's folder `datasets` is itself a mirror.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import DataError
from dphpo_bench.base.progress import NullProgress, Progress
from dphpo_bench.base.terminal import TerminalProgress
from dphpo_bench.data.datasets import CACHE_VARIABLE, DATA_VARIABLE, Dataset, Split, download_command


@dataclass(frozen=True)
class DataSource:
    """The places that datasets are read from and derived data are written to.

    Attributes:
        data_dir: a local mirror, or None for downloads from the hub.
        cache_dir: folder for downloads, decoded images and features; safe to delete.
        progress: where decoding and feature extraction report to.
    """

    data_dir: Path | None
    cache_dir: Path
    progress: Progress

    def __post_init__(self) -> None:
        data_dir, cache_dir, _ = _checked(self.data_dir, self.cache_dir, self.progress)
        object.__setattr__(self, "data_dir", None if data_dir is None else Path(data_dir))
        object.__setattr__(self, "cache_dir", Path(cache_dir))

    @classmethod
    @typed
    def resolve(
        cls,
        data_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "DataSource":
        """Return the source that the arguments or else the environment mean.

        Args:
            data_dir: a local mirror; default: the environment variable DPHPO_BENCH_DATA, else downloads.
            cache_dir: default: the environment variable DPHPO_BENCH_CACHE, else the platform's cache folder.
            progress: default: on standard error, for people.
        """
        data_dir = data_dir or os.environ.get(DATA_VARIABLE)
        cache_dir = cache_dir or os.environ.get(CACHE_VARIABLE)
        if not cache_dir:
            from platformdirs import user_cache_path

            cache_dir = user_cache_path("dphpo-bench", appauthor=False)
        return cls(
            data_dir=Path(data_dir).expanduser() if data_dir else None,
            cache_dir=Path(cache_dir).expanduser(),
            progress=progress or TerminalProgress(),
        )

    @property
    def root(self) -> Path:
        """The mirror: `data_dir`, or that of the downloads."""
        return self.data_dir or self.cache_dir / "datasets"

    @property
    def silent(self) -> "DataSource":
        """The same places without a display: for what is copied or sent to other processes."""
        return replace(self, progress=NullProgress())

    def find(self, dataset: Dataset, split: Split) -> tuple[Path, ...]:
        """Return the split's files if all are on this machine, else none.

        Raises:
            DataError: if the folder is not readable.
        """
        folder = self.root / dataset.name
        candidates = ((folder / f"{split.name}.parquet",), tuple(folder / path for path in split.paths))
        try:
            return next((paths for paths in candidates if all(path.is_file() for path in paths)), ())
        except OSError as error:
            raise DataError(
                f"Cannot look for dataset {dataset.name} in {folder}: {error.strerror}. Make the folder readable, or "
                "choose another one with --data-dir."
            ) from None

    def check_mirror(self, dataset: Dataset) -> None:
        """Refuse a mirror that lacks a split: that is a mistake, whatever is cached.

        Raises:
            DataError: if it lacks one.
        """
        if self.data_dir:
            for split in dataset.published:
                self.files(dataset, split)

    def files(self, dataset: Dataset, split: Split) -> tuple[Path, ...]:
        """Return the split's files; download them if need be.

        Raises:
            DataError: if the mirror lacks one, or it cannot be downloaded.
        """
        if paths := self.find(dataset, split):
            return paths
        if self.data_dir:
            expected = self.data_dir / dataset.name / f"{split.name}.parquet"
            raise DataError(
                f"Expected dataset {dataset.name} at {expected}, which does not exist. "
                f"Get it with `{download_command(dataset, str(self.data_dir))}`, "
                f"or leave out --data-dir and {DATA_VARIABLE} to download it."
            )
        from dphpo_bench.data.download import download

        return download(dataset, split, self.root / dataset.name)

    def pin(self, dataset: Dataset, split: Split) -> str:
        """Return what identifies a split's records: their content hash, else the SHA-256 of the published files.

        Where neither is known, that of the files on this machine. The dataset's `form` belongs to it.

        Raises:
            DataError: if files are needed and cannot be had.
        """
        if split.content_hash:
            return split.content_hash
        from dphpo_bench.data.cache import sha256_of_file

        hashes = split.sha256 or tuple(map(sha256_of_file, self.files(dataset, split)))
        parts = [*hashes, dataset.form] if dataset.form else hashes
        return parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()


@typed
def _checked(
    data_dir: Path | str | None, cache_dir: Path | str, progress: Progress
) -> tuple[Path | str | None, Path | str, Progress]:
    """Return the fields of a source; reject other types."""
    return data_dir, cache_dir, progress
