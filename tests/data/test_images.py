"""Decoding: canonical order, content hashes, and every way a file can be wrong."""

import hashlib
import logging
from pathlib import Path

import numpy as np
import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.datasets import Images
from dphpo_bench.data.images import canonical_order, content_hash, load_records
from dphpo_bench.data.source import DataSource
from tests.data.conftest import ROWS, png, write_parquet, write_records


def train_file(source: DataSource) -> Path:
    assert source.data_dir
    return source.data_dir / "small/train.parquet"


def refused(source: DataSource, dataset: Images) -> str:
    """The one-line message with which the training split is refused."""
    with pytest.raises(DataError) as error:
        load_records(source, dataset, dataset.train)
    message = str(error.value)
    assert "\n" not in message
    assert str(train_file(source)) in message
    assert "Delete it and get it again from https://huggingface.co/datasets/someone/small." in message
    return message


def test_pixels_and_labels_survive(mirror: DataSource, dataset: Images, records: np.ndarray) -> None:
    loaded = load_records(mirror, dataset, dataset.train)
    assert sorted(one.tobytes() for one in loaded) == sorted(one.tobytes() for one in records)


def test_order_and_encoding_of_the_file_do_not_matter(
    mirror: DataSource, dataset: Images, records: np.ndarray, tmp_path: Path
) -> None:
    shuffled = records[np.random.default_rng(3).permutation(ROWS)]
    write_records(tmp_path / "other/small/train.parquet", shuffled, compress_level=0)
    other = DataSource.resolve(tmp_path / "other", tmp_path / "cache of the other")
    first, second = (load_records(source, dataset, dataset.train) for source in (mirror, other))
    assert (first == second).all()


def test_content_hash_is_what_its_definition_says(records: np.ndarray) -> None:
    digests = sorted(hashlib.sha256(one["pixels"].tobytes() + bytes([one["label"]])).digest() for one in records)
    assert content_hash(records) == hashlib.sha256(b"".join(digests)).hexdigest()
    assert content_hash(canonical_order(records)) == content_hash(records)


def test_content_hash_counts_duplicates(records: np.ndarray) -> None:
    assert content_hash(records[1:]) != content_hash(records)


def test_one_altered_pixel_is_caught(mirror: DataSource, dataset: Images, records: np.ndarray) -> None:
    records["pixels"][7, 0, 0, 0] ^= 1
    write_records(train_file(mirror), records)
    assert "not those of the published dataset" in refused(mirror, dataset)


def test_one_altered_label_is_caught(mirror: DataSource, dataset: Images, records: np.ndarray) -> None:
    records["label"][7] = (records["label"][7] + 1) % 10
    write_records(train_file(mirror), records)
    assert "not those of the published dataset" in refused(mirror, dataset)


def test_truncated_file(mirror: DataSource, dataset: Images) -> None:
    file = train_file(mirror)
    file.write_bytes(file.read_bytes()[:-100])
    refused(mirror, dataset)


def test_empty_file(mirror: DataSource, dataset: Images) -> None:
    train_file(mirror).write_bytes(b"")
    refused(mirror, dataset)


def test_wrong_column(mirror: DataSource, dataset: Images) -> None:
    write_parquet(train_file(mirror), [b""] * ROWS, [0] * ROWS, column="image")
    assert "lacks column 'img'" in refused(mirror, dataset)


def test_wrong_number_of_rows(mirror: DataSource, dataset: Images, records: np.ndarray) -> None:
    write_records(train_file(mirror), records[1:])
    assert "expected 30 rows, got 29" in refused(mirror, dataset)


@pytest.mark.parametrize("label", [10, -1, None, 1.0])
def test_wrong_label(mirror: DataSource, dataset: Images, records: np.ndarray, label: object) -> None:
    images = [png(one) for one in records["pixels"]]
    write_parquet(train_file(mirror), images, [label] * ROWS)
    assert f"row 0 has label {label}, expected 0 ... 9" in refused(mirror, dataset)


def test_broken_pictures(mirror: DataSource, dataset: Images, records: np.ndarray) -> None:
    good = png(records["pixels"][0])
    grey = png(records["pixels"][0, :1])
    small = png(records["pixels"][0, :, :4, :4])
    for bad in (b"no picture", good[:60], grey, small, None):
        write_parquet(train_file(mirror), [good, bad] + [good] * (ROWS - 2), [0] * ROWS)
        assert "row 1 holds no picture of this dataset" in refused(mirror, dataset)


def test_second_load_reads_the_cache_alone(mirror: DataSource, dataset: Images) -> None:
    first = load_records(mirror, dataset, dataset.train)
    train_file(mirror).write_bytes(b"no longer parquet")
    assert (load_records(mirror, dataset, dataset.train) == first).all()


@pytest.mark.parametrize("damage", ["truncated", "altered", "garbage"])
def test_damaged_cache_is_made_again(
    mirror: DataSource, dataset: Images, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = np.array(load_records(mirror, dataset, dataset.train))
    (file,) = (mirror.cache_dir / "decoded").glob("*.npy")
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        content = content[:-10]
    elif damage == "altered":
        content[-500] ^= 1
    else:
        content = bytearray(b"garbage")
    file.unlink()  # the old file may still be mapped
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        again = load_records(mirror, dataset, dataset.train)
    assert (again == first).all()
    assert len(caplog.records) == 1
    assert "is damaged; computing it again" in caplog.text
