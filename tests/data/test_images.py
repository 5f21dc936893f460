"""Decoding: canonical order, content hashes, and every way a file can be wrong."""

import hashlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.images import canonical_order, content_hash, load_records
from dphpo_bench.data.source import DataSource, Images, Split
from tests.data.conftest import ROWS, SHAPE, png, write_parquet, write_records


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


def test_order_and_encoding_of_the_file_do_not_matter(
    mirror: DataSource, dataset: Images, records: np.ndarray, tmp_path: Path
) -> None:
    shuffled = records[np.random.default_rng(3).permutation(ROWS)]
    write_records(tmp_path / "other/small/train.parquet", shuffled, compress_level=0)
    other = DataSource.resolve(tmp_path / "other", tmp_path / "cache of the other")
    first, second = (load_records(source, dataset, dataset.train) for source in (mirror, other))
    assert (first == second).all()
    assert sorted(record.tobytes() for record in first) == sorted(record.tobytes() for record in records)


def test_content_hash_is_what_its_definition_says(records: np.ndarray) -> None:
    digests = sorted(hashlib.sha256(one["pixels"].tobytes() + bytes([one["label"]])).digest() for one in records)
    assert content_hash(records) == hashlib.sha256(b"".join(digests)).hexdigest()
    assert content_hash(canonical_order(records)) == content_hash(records)


@pytest.mark.parametrize("part", ["pixels", "label"])
def test_one_altered_value_is_caught(mirror: DataSource, dataset: Images, records: np.ndarray, part: str) -> None:
    records[part][7] = (records[part][7] + 1) % 10
    write_records(train_file(mirror), records)
    assert "not those of the published dataset" in refused(mirror, dataset)


def test_other_columns_or_rows(mirror: DataSource, dataset: Images, records: np.ndarray) -> None:
    write_parquet(train_file(mirror), [b""] * ROWS, [0] * ROWS, column="image")
    assert '"img"' in refused(mirror, dataset)
    write_records(train_file(mirror), records[1:])
    assert "expected 30 rows, got 29" in refused(mirror, dataset)


@pytest.mark.parametrize("label", [10, None])
def test_wrong_label(mirror: DataSource, dataset: Images, records: np.ndarray, label: object) -> None:
    images = [png(one) for one in records["pixels"]]
    write_parquet(train_file(mirror), images, [label] * ROWS)
    assert f"row 0 has label {label}, expected 0 ... 9" in refused(mirror, dataset)


class TestAnySize:
    """Pictures that are published in several sizes and colour modes."""

    SIZES = ((8, 8), (5, 9), (40, 31), (1, 1))

    @pytest.fixture
    def fitted(self, dataset: Images, mirror: DataSource) -> Images:
        """A dataset of such pictures, in the mirror."""
        write_parquet(
            train_file(mirror), [encoded(n, self.SIZES[n % 4]) for n in range(ROWS)], [n % 10 for n in range(ROWS)]
        )
        splits = (Split("train", "plain/train-0.parquet", ROWS), dataset.test)
        return replace(dataset, any_size=True, splits=splits)

    def test_each_becomes_one_of_the_public_shape(self, mirror: DataSource, fitted: Images) -> None:
        found = load_records(mirror, fitted, fitted.train)
        assert found["pixels"].shape == (ROWS, *SHAPE)
        by_hand = set()
        for n in range(ROWS):
            picture = Image.open(io.BytesIO(encoded(n, self.SIZES[n % 4]))).convert("RGB")
            pixels = np.asarray(picture.resize(SHAPE[:0:-1], Image.Resampling.BICUBIC)).transpose(2, 0, 1)
            by_hand.add((pixels.tobytes(), n % 10))
        assert {(one["pixels"].tobytes(), int(one["label"])) for one in found} == by_hand

    def test_the_shape_is_part_of_what_identifies_them(self, mirror: DataSource, fitted: Images) -> None:
        other = replace(fitted, image_shape=(3, 4, 4))
        pins = {mirror.pin(one, one.train) for one in (fitted, other, replace(fitted, any_size=False))}
        assert len(pins) == 3
        assert load_records(mirror, other, other.train)["pixels"].shape == (ROWS, 3, 4, 4)


def encoded(n: int, size: tuple[int, int]) -> bytes:
    """The n-th picture: coloured, grey or with a palette."""
    pixels = np.random.default_rng(n).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(("RGB", "L", "P")[n % 3]).save(file, "png")
    return file.getvalue()


class TestMatlab:
    """Files as those of SVHN."""

    @pytest.fixture
    def numbers(self, dataset: Images, mirror: DataSource, records: np.ndarray) -> Images:
        """The same records as the parquet file's, in MATLAB's form."""
        train_file(mirror).unlink()
        split = Split("train", "train.mat", ROWS, content_hash(records), url="http://example.org/train.mat")
        found = replace(dataset, image_column="X", label_column="y", splits=(split, dataset.test))
        self.put(mirror, records)
        return found

    def put(self, mirror: DataSource, records: np.ndarray, **others: object) -> None:
        labels = np.where(records["label"] == 0, 10, records["label"])[:, None]
        arrays = {"X": records["pixels"].transpose(2, 3, 1, 0), "y": labels, **others}
        chosen = {name: array for name, array in arrays.items() if array is not None}
        savemat(train_file(mirror).with_suffix(".mat"), chosen, do_compression=True)

    def refused(self, mirror: DataSource, numbers: Images) -> str:
        with pytest.raises(DataError) as error:
            load_records(mirror, numbers, numbers.train)
        assert "\n" not in str(error.value)
        assert f"File {train_file(mirror).with_suffix('.mat')} is not usable as small" in str(error.value)
        assert not list(mirror.cache_dir.rglob("*.npy"))
        return str(error.value)

    def test_pictures_and_labels_survive(self, mirror: DataSource, numbers: Images, records: np.ndarray) -> None:
        assert (records["label"] == 0).any()
        assert (load_records(mirror, numbers, numbers.train) == canonical_order(records)).all()

    def test_other_contents(self, mirror: DataSource, numbers: Images, records: np.ndarray) -> None:
        self.put(mirror, records, y=None)
        assert "'y'" in self.refused(mirror, numbers)
        self.put(mirror, records, y=np.full((ROWS, 1), 11))
        assert "row 0 has label 11, expected 1 ... 10" in self.refused(mirror, numbers)
        self.put(mirror, records, X=np.zeros((8, 8, 3, ROWS)))
        assert "not those of the published dataset" in self.refused(mirror, numbers)
        train_file(mirror).with_suffix(".mat").write_bytes(b"")
        self.refused(mirror, numbers)
