"""Rows of texts and whole numbers: read from a file, checked, and put in an order that does not depend on the file.

The digest of a row is the SHA-256 of its values as a JSON list. Rows are sorted by digest, and the content hash of a
split is the SHA-256 of the sorted digests: copies of one dataset that differ in the order or in other columns give the
same rows in the same order.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.text import shown
from dphpo_bench.data.source import Dataset, DataSource, Split, Table, sha256_of_file

Row = tuple[str | int, ...]
"""One record's values, in the order of `Table.columns`."""


def load_rows(source: DataSource, dataset: Table, split: Split) -> list[Row]:
    """Return the rows of a split in canonical order."""
    rows: list[Row] = []
    for path in published_files(source, dataset, split):
        try:
            rows += _from_csv(path, dataset) if path.suffix != ".parquet" else _from_parquet(path, dataset)
        except Exception as error:  # Arrow raises many types for broken files
            raise unusable(path, dataset, error) from error
    if len(rows) != split.rows:
        raise unusable(path, dataset, f"expected {split.rows} rows, got {len(rows)}")
    if split.content_hash and content_hash(rows) != split.content_hash:
        raise unusable(path, dataset, "its rows are not those of the published dataset")
    return sorted(rows, key=row_digest)


def published_files(source: DataSource, dataset: Dataset, split: Split) -> tuple[Path, ...]:
    """Return the split's files; check the files themselves where their records cannot be checked."""
    paths = source.files(dataset, split)
    if split.sha256 and not split.content_hash:
        if len(paths) != split.parts:
            raise unusable(paths[0], dataset, f"expected {split.parts} files with the names that they have on the hub")
        for path, expected in zip(paths, split.sha256, strict=True):
            if (actual := sha256_of_file(path)) != expected:
                raise unusable(path, dataset, f"expected sha256 {expected}, got {actual}")
    return paths


def doubt(paths: Sequence[Path], split: Split) -> str:
    """Return why the files are wrong, without decoding any, or an empty string."""
    import pyarrow.parquet as pq

    rows = 0
    for path in paths:
        if path.suffix != ".parquet":
            size = path.stat().st_size
            return "" if size * len(paths) >= split.rows else f"{size:,} bytes cannot hold {split.rows:,} rows"
        try:
            rows += pq.read_metadata(path).num_rows
        except Exception:  # Arrow raises many types for broken files
            return f"{path.name} is no parquet file"
    return "" if rows == split.rows else f"{rows:,} rows instead of {split.rows:,}"


def row_digest(row: Row) -> bytes:
    """Return the SHA-256 of one row."""
    return hashlib.sha256(json.dumps(row, ensure_ascii=False).encode()).digest()


def content_hash(rows: Iterable[Row]) -> str:
    """Hash the multiset of rows, whatever their order."""
    return hash_of_digests(map(row_digest, rows))


def hash_of_digests(digests: Iterable[bytes]) -> str:
    """Hash records by their digests, whatever their order."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def unusable(path: Path, dataset: Dataset, reason: object) -> DataError:
    """Return the error of a file that does not hold what it should."""
    first_line = shown(str(reason).strip().split("\n")[0], 200).rstrip(".")
    return DataError(
        f"File {path} is not usable as {dataset.name}: {first_line}. Delete it and get it again from "
        f"{dataset.published_at}."
    )


def _from_parquet(path: Path, dataset: Table) -> list[Row]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read([name for name, _ in dataset.columns])
    columns = []
    for name, cls in dataset.columns:
        columns.append(table[name].to_pylist())
        if wrong := [value for value in columns[-1] if type(value) is not cls]:
            raise ValueError(f"column {name!r} holds {wrong[0]!r}, expected {cls.__name__}")
    return list(zip(*columns, strict=True))


def _from_csv(path: Path, dataset: Table) -> list[Row]:
    """Read the form of UCI's tables: cells with blanks around them, no header, notes that begin with a bar.

    Labels of some splits end with a full stop.
    """
    rows: list[Row] = []
    with path.open(encoding="utf-8", newline="") as file:
        for cells in csv.reader(file, skipinitialspace=True):
            if not cells or cells[0].startswith("|"):
                continue
            if len(cells) != len(dataset.columns):
                raise ValueError(f"row {len(rows)} has {len(cells)} cells, expected {len(dataset.columns)}")
            stripped = [cell.strip().removesuffix(".") for cell in cells]
            rows.append(tuple(cls(cell) for cell, (_, cls) in zip(stripped, dataset.columns, strict=True)))
    return rows
