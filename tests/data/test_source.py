"""Where files are found, and how they are downloaded."""

import hashlib
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.images import canonical_order, load_records
from dphpo_bench.data.source import DataSource, Images, Split, download_command
from tests.data.conftest import ROWS, FakeHub, write_records


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_arguments_win_over_the_environment_and_that_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPHPO_BENCH_DATA", "")
    monkeypatch.delenv("DPHPO_BENCH_CACHE", raising=False)
    source = DataSource.resolve()
    assert (source.data_dir, source.cache_dir.name) == (None, "dphpo-bench")
    monkeypatch.setenv("DPHPO_BENCH_DATA", "~/data")
    monkeypatch.setenv("DPHPO_BENCH_CACHE", "/cache")
    source = DataSource.resolve()
    assert (source.data_dir, source.cache_dir) == (Path.home() / "data", Path("/cache"))
    source = DataSource.resolve(tmp_path, tmp_path / "cache")
    assert (source.data_dir, source.cache_dir) == (tmp_path, tmp_path / "cache")


class TestMirror:
    def test_hub_layout_is_found_too(self, mirror: DataSource, dataset: Images) -> None:
        assert mirror.data_dir
        plain = mirror.data_dir / "small/train.parquet"
        as_on_hub = mirror.data_dir / "small" / dataset.train.path
        as_on_hub.parent.mkdir()
        plain.rename(as_on_hub)
        assert mirror.files(dataset, dataset.train) == (as_on_hub,)


class TestDownload:
    def test_downloads_once_and_leaves_a_mirror(
        self, hub: FakeHub, mirror: DataSource, downloads: DataSource, dataset: Images
    ) -> None:
        (file,) = mirror.files(dataset, dataset.train)
        hub.add(dataset, dataset.train, file)
        (path,) = downloads.files(dataset, dataset.train)
        assert path.read_bytes() == file.read_bytes()
        before = len(hub.requests)
        assert downloads.files(dataset, dataset.train) == (path,)
        assert len(hub.requests) == before
        copied = DataSource.resolve(downloads.cache_dir / "datasets", downloads.cache_dir)
        assert copied.find(dataset, dataset.train) == (path,)

    def test_truncated_download_is_tried_again(
        self, hub: FakeHub, mirror: DataSource, downloads: DataSource, dataset: Images
    ) -> None:
        (file,) = mirror.files(dataset, dataset.train)
        hub.add(dataset, dataset.train, file)
        hub.break_first = True
        assert downloads.files(dataset, dataset.train)[0].read_bytes() == file.read_bytes()
        assert [method for method, _ in hub.requests].count("GET") == 2

    def test_no_network_fails_at_once_and_says_what_to_do(
        self, downloads: DataSource, dataset: Images, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
            with pytest.raises(DataError) as error:
                load_records(downloads, dataset, dataset.train)
        message = one_line(error)
        assert "hf download someone/small --repo-type dataset --local-dir DIR/small" in message
        assert "--data-dir DIR or set DPHPO_BENCH_DATA=DIR" in message


class TestPins:
    """Datasets whose records nobody has hashed: their files are checked, or at least told apart."""

    @pytest.fixture
    def in_parts(self, mirror: DataSource, dataset: Images, records: np.ndarray) -> Images:
        assert mirror.data_dir
        folder = mirror.data_dir / "small"
        (folder / "train.parquet").unlink()
        hashes = []
        for part, rows in enumerate((records[:10], records[10:])):
            path = folder / f"data/train-{part:05}-of-00002.parquet"
            write_records(path, rows)
            hashes.append(hashlib.sha256(path.read_bytes()).hexdigest())
        split = Split("train", "data/train-{:05}-of-00002.parquet", len(records), sha256=tuple(hashes), parts=2)
        return replace(dataset, splits=(split, dataset.test))

    def test_several_files_are_one_split(self, mirror: DataSource, in_parts: Images, records: np.ndarray) -> None:
        assert (load_records(mirror, in_parts, in_parts.train) == canonical_order(records)).all()
        assert download_command(in_parts, "M").startswith("hf download someone/small --repo-type dataset")
        shared = download_command(replace(in_parts, shares_repo=True), "M")
        assert (
            "small data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet plain/test-0.parquet" in shared
        )

    def test_other_files_are_refused(self, mirror: DataSource, in_parts: Images, records: np.ndarray) -> None:
        write_records(mirror.files(in_parts, in_parts.train)[1], records[:20])
        with pytest.raises(DataError) as error:
            load_records(mirror, in_parts, in_parts.train)
        assert "expected sha256" in one_line(error)
        assert mirror.data_dir
        write_records(mirror.data_dir / "small/train.parquet", records)
        with pytest.raises(DataError, match="expected 2 files with the names that they have on the hub"):
            load_records(mirror, in_parts, in_parts.train)

    def test_files_that_nobody_knows_are_told_apart(
        self, mirror: DataSource, dataset: Images, records: np.ndarray
    ) -> None:
        unknown = replace(dataset, splits=(Split("train", "plain/train-0.parquet", ROWS), dataset.test))
        before = mirror.pin(unknown, unknown.train)
        assert (load_records(mirror, unknown, unknown.train) == canonical_order(records)).all()
        other = records.copy()
        other["label"] = 1
        write_records(mirror.files(unknown, unknown.train)[0], other)
        assert mirror.pin(unknown, unknown.train) != before
        assert (load_records(mirror, unknown, unknown.train)["label"] == 1).all()
        assert mirror.pin(dataset, dataset.train) == dataset.train.content_hash
