"""Labelled pictures: decoded, checked, and put in an order that does not depend on the file.

A record is its pixels and its label. Its digest is a SHA-256 of both. Records are sorted by digest, and the
content hash of a split is the SHA-256 of the sorted digests: mirrors of one dataset that differ in the order
of rows or in how the pictures are encoded give the same records in the same order.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from dphpo_bench.data.cache import Array, cached_array
from dphpo_bench.data.rows import hash_of_digests, published_files, unusable
from dphpo_bench.data.source import DataSource, Images, Split

_ROWS_PER_BLOCK = 500  # 75 MB of the largest pictures here, 224x224 in colour


def record_type(image_shape: tuple[int, int, int]) -> np.dtype[Any]:
    """Return the NumPy type of one record: `pixels` of shape (channels, height, width), then `label`, all uint8."""
    return np.dtype([("pixels", np.uint8, image_shape), ("label", np.uint8)])


def record_digests(records: Array) -> list[bytes]:
    """Return the SHA-256 of each record's bytes, for records of shape (n,)."""
    rows = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1)
    return [hashlib.sha256(row.data).digest() for row in rows]


def canonical_order(records: Array) -> Array:
    """Sort records by digest; equal records are interchangeable."""
    digests = record_digests(records)
    return records[sorted(range(len(digests)), key=digests.__getitem__)]


def content_hash(records: Array) -> str:
    """Hash the multiset of records, whatever their order."""
    return hash_of_digests(record_digests(records))


def prepare_records(source: DataSource, dataset: Images) -> None:
    """Decode the splits that are not cached; what is cached is not opened."""
    source.check_mirror(dataset)
    for split in dataset.published:
        load_records(source, dataset, split)


def load_records(source: DataSource, dataset: Images, split: Split) -> Array:
    """Return the records of a split in canonical order, shape (n,) of `record_type`; decoded once, then cached."""
    if source.data_dir:
        source.files(dataset, split)  # a mirror that lacks the dataset is a mistake, whatever is cached

    name = f"{dataset.name}-{split.name}-{source.pin(dataset, split)[:16]}.npy"
    path, dtype = source.cache_dir / "decoded" / name, record_type(dataset.image_shape)

    def compute() -> Iterator[Array]:
        paths, digests = published_files(source, dataset, split), list[bytes]()
        with TemporaryFile(dir=path.parent) as file:  # so records are sorted while memory holds a few at a time
            for block in decode(paths, dataset, split, source):
                digests += record_digests(block)
                file.write(block.tobytes())
            file.flush()
            if split.content_hash not in ("", hash_of_digests(digests)):
                raise unusable(paths[0], dataset, "its images or labels are not those of the published dataset")
            records = np.memmap(file, dtype, "r", shape=(len(digests),))
            order = sorted(range(len(digests)), key=digests.__getitem__)
            for first in range(0, len(order), _ROWS_PER_BLOCK):
                yield records[order[first : first + _ROWS_PER_BLOCK]]

    return cached_array(path, (split.rows,), dtype, compute)


def decode(paths: Sequence[Path], dataset: Images, split: Split, source: DataSource) -> Iterator[Array]:
    """Decode a split's files, parquet or MATLAB's by their endings, into records, shape (n,) in all.

    Yields:
        Blocks of them, in the files' order.
    """
    row, path = 0, paths[0]
    try:
        with source.progress.track(f"Decoding {dataset.name} ({split.name})", split.rows) as advance:
            for path in paths:
                read = _from_matlab if path.suffix == ".mat" else _from_parquet
                for block in read(path, dataset, row):
                    row += len(block)
                    if row > split.rows:
                        raise ValueError(f"expected {split.rows} rows, got {row} or more")
                    yield block
                    advance(len(block))
        if row < split.rows:
            raise ValueError(f"expected {split.rows} rows, got {row}")
    except Exception as error:  # Arrow and SciPy raise many types for broken files
        raise unusable(path, dataset, error) from error


def _from_parquet(path: Path, dataset: Images, row: int) -> Iterator[Array]:
    """Yield blocks of a file's records, which begin at `row` of the split."""
    columns = [dataset.image_column, dataset.label_column]
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS_PER_BLOCK, columns=columns):
            images, labels = (batch[column].to_pylist() for column in columns)
            records = np.empty(len(batch), record_type(dataset.image_shape))
            for n, (image, label) in enumerate(zip(images, labels, strict=True)):
                records[n] = decode_picture(image, label, row + n, dataset)
            yield records
            row += len(records)


def _from_matlab(path: Path, dataset: Images, row: int) -> Iterator[Array]:
    """Yield blocks of a MATLAB file: pictures of shape (height, width, channels, n), and labels of shape (n, 1).

    Labels count from 1, and the last stands for the class 0, as in SVHN.
    """
    from scipy.io import loadmat

    arrays = loadmat(path, variable_names=(dataset.image_column, dataset.label_column))
    pictures, labels = arrays[dataset.image_column], arrays[dataset.label_column].ravel()
    wrong = np.flatnonzero(~np.isin(labels, np.arange(1, dataset.n_classes + 1)))
    if len(wrong):
        raise ValueError(f"row {row + wrong[0]} has label {labels[wrong[0]]}, expected 1 ... {dataset.n_classes}")
    for start in range(0, len(labels), _ROWS_PER_BLOCK):
        some = slice(start, start + _ROWS_PER_BLOCK)
        records = np.empty(len(labels[some]), record_type(dataset.image_shape))
        records["pixels"] = pictures[..., some].transpose(3, 2, 0, 1)
        records["label"] = labels[some] % dataset.n_classes
        yield records


def decode_picture(image: Any, label: Any, row: int, dataset: Images) -> tuple[NDArray[np.uint8], int]:
    """Decode one parquet row into (pixels of shape (c, h, w), label); reject what is not of the dataset."""
    if not isinstance(label, int) or not 0 <= label < dataset.n_classes:
        raise ValueError(f"row {row} has label {label!r}, expected 0 ... {dataset.n_classes - 1}")
    channels, height, width = dataset.image_shape
    mode, size = "RGB" if channels == 3 else "L", (width, height)
    try:
        picture: Image.Image = Image.open(io.BytesIO(image["bytes"]))
        if dataset.any_size:
            picture = picture.convert(mode).resize(size, Image.Resampling.BICUBIC)  # antialiased
        elif (picture.mode, picture.size) != (mode, size):
            raise ValueError(f"expected {(mode, size)}, got {(picture.mode, picture.size)}")
        pixels = np.asarray(picture).reshape(height, width, channels)
    except Exception as error:  # Pillow raises many types for broken pictures
        raise ValueError(f"row {row} holds no picture of this dataset: {error}") from error
    return pixels.transpose(2, 0, 1), label
