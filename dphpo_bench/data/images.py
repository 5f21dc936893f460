"""Labelled pictures: decoded from parquet, checked, and put in an order that does not depend on the file.

A record is its pixels and its label. Its digest is a SHA-256 of both. Records are sorted by digest, and the
content hash of a split is the SHA-256 of the sorted digests: mirrors of one dataset that differ in the order
of rows or in how the pictures are encoded give the same records in the same order.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from dphpo_bench.data.cache import Array, cached_array, rows_kept
from dphpo_bench.data.datasets import Images, Split
from dphpo_bench.data.rows import published_files, unusable
from dphpo_bench.data.source import DataSource

_ROWS_PER_BLOCK = 1000


def record_type(image_shape: tuple[int, int, int]) -> np.dtype[Any]:
    """NumPy type of one record: `pixels` of shape (channels, height, width), then `label`, all uint8."""
    return np.dtype([("pixels", np.uint8, image_shape), ("label", np.uint8)])


def record_digests(records: Array) -> list[bytes]:
    """SHA-256 of each record's bytes, for records of shape (n,)."""
    rows = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1)
    return [hashlib.sha256(row.data).digest() for row in rows]


def canonical_order(records: Array) -> Array:
    """The records sorted by digest; equal records are interchangeable."""
    digests = record_digests(records)
    return records[sorted(range(len(digests)), key=digests.__getitem__)]


def content_hash(records: Array) -> str:
    """Hash of the multiset of records, whatever their order."""
    return hashlib.sha256(b"".join(sorted(record_digests(records)))).hexdigest()


def prepare_records(source: DataSource, dataset: Images) -> None:
    """Decode the splits that are not cached; what is cached is not opened.

    Raises:
        DataError: if a file is missing, damaged, or holds other records than it should.
    """
    source.check_mirror(dataset)
    for split in dataset.splits:
        if rows_kept(*_place(source, dataset, split)) < split.rows:
            load_records(source, dataset, split)


def load_records(source: DataSource, dataset: Images, split: Split) -> Array:
    """The records of a split in canonical order, shape (n,) of `record_type`; decoded once, then cached.

    Raises:
        DataError: if the file is missing, damaged, or holds other records than it should.
    """
    if source.data_dir:
        source.files(dataset, split)  # a mirror that lacks the dataset is a mistake, whatever is cached

    def compute(start: int) -> Iterator[Array]:
        paths = published_files(source, dataset, split)
        records = canonical_order(decode_parquet(paths, dataset, split, source))
        if not is_right(records):
            raise unusable(paths[0], dataset, "its images or labels are not those of the published dataset")
        yield records[start:]

    def is_right(records: Array) -> bool:
        return split.content_hash in ("", content_hash(records))

    return cached_array(*_place(source, dataset, split), compute, check=is_right)


def _place(source: DataSource, dataset: Images, split: Split) -> tuple[Path, tuple[int], np.dtype[Any]]:
    """The cached file's path, and the shape and type of its array."""
    name = f"{dataset.name}-{split.name}-{source.pin(dataset, split)[:16]}.npy"
    return source.cache_dir / "decoded" / name, (split.rows,), record_type(dataset.image_shape)


def decode_parquet(paths: Sequence[Path], dataset: Images, split: Split, source: DataSource) -> Array:
    """Decode a split's parquet files into records, shape (n,), in the files' order.

    Raises:
        DataError: if a file is damaged, or its columns, rows, pictures or labels are not those of the dataset.
    """
    columns = [dataset.image_column, dataset.label_column]
    records, row, path = np.empty(split.rows, record_type(dataset.image_shape)), 0, paths[0]
    try:
        with source.progress.track(f"Decoding {dataset.name} ({split.name})", split.rows) as advance:
            for path in paths:
                with pq.ParquetFile(path) as file:
                    missing = [column for column in columns if column not in file.schema_arrow.names]
                    if missing:
                        raise ValueError(f"it lacks column {missing[0]!r}")
                    if row + file.metadata.num_rows > split.rows:
                        raise ValueError(f"expected {split.rows} rows, got {row + file.metadata.num_rows}")
                    for batch in file.iter_batches(_ROWS_PER_BLOCK, columns=columns):
                        images, labels = (batch[column].to_pylist() for column in columns)
                        for image, label in zip(images, labels, strict=True):
                            records[row] = _decode(image, label, row, dataset)
                            row += 1
                        advance(len(batch))
        if row != split.rows:
            raise ValueError(f"expected {split.rows} rows, got {row}")
    except Exception as error:  # Arrow raises many types for broken files
        raise unusable(path, dataset, error) from error
    return records


def _decode(image: Any, label: Any, row: int, dataset: Images) -> tuple[NDArray[np.uint8], int]:
    """One parquet row as (pixels of shape (c, h, w), label)."""
    if not isinstance(label, int) or not 0 <= label < dataset.n_classes:
        raise ValueError(f"row {row} has label {label!r}, expected 0 ... {dataset.n_classes - 1}")
    channels, height, width = dataset.image_shape
    expected = ("RGB" if channels == 3 else "L", (width, height))
    try:
        picture = Image.open(io.BytesIO(image["bytes"]))
        if (picture.mode, picture.size) != expected:
            raise ValueError(f"expected {expected}, got {(picture.mode, picture.size)}")
        pixels = np.asarray(picture).reshape(height, width, channels)
    except Exception as error:  # Pillow raises many types for broken pictures
        raise ValueError(f"row {row} holds no picture of this dataset: {error}") from error
    return pixels.transpose(2, 0, 1), label
