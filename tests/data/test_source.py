"""Where files are found, and how they are downloaded."""

import json
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.cli.listing import dataset_status
from dphpo_bench.data.datasets import Images
from dphpo_bench.data.images import load_records
from dphpo_bench.data.source import DataSource
from dphpo_bench.tasks.digits import Digits
from dphpo_bench.tasks.mnist import Mnist
from tests.data.conftest import FakeHub


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


class TestResolve:
    def test_argument_wins_over_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DPHPO_BENCH_DATA", "/elsewhere")
        monkeypatch.setenv("DPHPO_BENCH_CACHE", "/elsewhere-too")
        source = DataSource.resolve(tmp_path, tmp_path / "cache")
        assert (source.data_dir, source.cache_dir) == (tmp_path, tmp_path / "cache")

    def test_environment_wins_over_defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DPHPO_BENCH_DATA", "~/data")
        monkeypatch.setenv("DPHPO_BENCH_CACHE", "/cache")
        source = DataSource.resolve()
        assert (source.data_dir, source.cache_dir) == (Path.home() / "data", Path("/cache"))

    def test_default_is_downloads_into_the_users_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DPHPO_BENCH_DATA", "")
        monkeypatch.delenv("DPHPO_BENCH_CACHE", raising=False)
        source = DataSource.resolve()
        assert source.data_dir is None
        assert source.cache_dir.name == "dphpo-bench"


class TestMirror:
    def test_hub_layout_is_found_too(self, mirror: DataSource, dataset: Images) -> None:
        assert mirror.data_dir
        plain = mirror.data_dir / "small/train.parquet"
        as_on_hub = mirror.data_dir / "small" / dataset.train.path
        as_on_hub.parent.mkdir()
        plain.rename(as_on_hub)
        assert mirror.file(dataset, dataset.train) == as_on_hub

    def test_missing_dataset(self, tmp_path: Path, dataset: Images) -> None:
        with pytest.raises(DataError) as error:
            load_records(DataSource.resolve(tmp_path, tmp_path / "cache"), dataset, dataset.train)
        message = one_line(error)
        assert str(tmp_path / "small/train.parquet") in message
        assert f"hf download someone/small --repo-type dataset --local-dir {tmp_path}/small" in message


class TestDownload:
    def test_downloads_once_and_leaves_a_mirror(
        self, hub: FakeHub, mirror: DataSource, downloads: DataSource, dataset: Images
    ) -> None:
        file = mirror.file(dataset, dataset.train)
        hub.add(dataset, dataset.train, file)
        path = downloads.file(dataset, dataset.train)
        assert path.read_bytes() == file.read_bytes()
        before = len(hub.requests)
        assert downloads.file(dataset, dataset.train) == path
        assert len(hub.requests) == before
        copied = DataSource.resolve(downloads.cache_dir / "datasets", downloads.cache_dir)
        assert copied.find(dataset, dataset.train) == path

    def test_a_branch_of_the_repository(
        self, hub: FakeHub, mirror: DataSource, downloads: DataSource, dataset: Images
    ) -> None:
        branch = replace(dataset, revision="refs/convert/parquet")
        file = mirror.file(dataset, dataset.train)
        hub.add(branch, branch.train, file, "refs%2Fconvert%2Fparquet")
        assert downloads.file(branch, branch.train).read_bytes() == file.read_bytes()
        with pytest.raises(DataError, match="--repo-type dataset --revision refs/convert/parquet --local-dir DIR/sm"):
            downloads.file(branch, branch.test)

    def test_records_come_out_right(
        self, hub: FakeHub, mirror: DataSource, downloads: DataSource, dataset: Images
    ) -> None:
        hub.add(dataset, dataset.train, mirror.file(dataset, dataset.train))
        records = load_records(downloads, dataset, dataset.train)
        assert (records == load_records(mirror, dataset, dataset.train)).all()

    def test_wrong_checksum(self, hub: FakeHub, mirror: DataSource, downloads: DataSource, dataset: Images) -> None:
        hub.add(dataset, dataset.train, mirror.file(dataset, dataset.train))
        hub.announced = "ab" * 32
        with pytest.raises(DataError) as error:
            downloads.file(dataset, dataset.train)
        assert "ab" * 32 in one_line(error)
        assert downloads.find(dataset, dataset.train) is None
        hub.announced = None
        assert downloads.file(dataset, dataset.train).is_file()

    def test_truncated_download_is_tried_again(
        self, hub: FakeHub, mirror: DataSource, downloads: DataSource, dataset: Images
    ) -> None:
        file = mirror.file(dataset, dataset.train)
        hub.add(dataset, dataset.train, file)
        hub.break_first = True
        assert downloads.file(dataset, dataset.train).read_bytes() == file.read_bytes()
        assert [method for method, _ in hub.requests].count("GET") == 2

    def test_file_that_is_gone_from_the_hub(self, hub: FakeHub, downloads: DataSource, dataset: Images) -> None:
        with pytest.raises(DataError) as error:
            downloads.file(dataset, dataset.train)
        assert hub.url in one_line(error)

    def test_no_network_fails_at_once_and_says_what_to_do(
        self, downloads: DataSource, dataset: Images, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
            started = time.monotonic()
            with pytest.raises(DataError) as error:
                load_records(downloads, dataset, dataset.train)
        assert time.monotonic() - started < 10
        message = one_line(error)
        assert "hf download someone/small --repo-type dataset --local-dir DIR/small" in message
        assert "--data-dir DIR or set DPHPO_BENCH_DATA=DIR" in message

    def test_offline_mode_is_honoured(
        self, hub: FakeHub, downloads: DataSource, dataset: Images, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(DataError) as error:
            downloads.file(dataset, dataset.train)
        assert "offline mode" in one_line(error)
        assert not hub.requests

    def test_unwritable_cache(self, tmp_path: Path, mirror: DataSource, dataset: Images) -> None:
        (tmp_path / "file").touch()
        source = DataSource.resolve(mirror.data_dir, tmp_path / "file" / "cache")
        with pytest.raises(DataError) as error:
            load_records(source, dataset, dataset.train)
        assert "DPHPO_BENCH_CACHE" in one_line(error)


class TestStatus:
    def test_missing_then_downloaded(self, downloads: DataSource) -> None:
        rows = dataset_status(Mnist(), downloads)
        assert [(row["split"], row["rows"], row["state"]) for row in rows] == [
            ("train", 60_000, "missing"),
            ("test", 10_000, "missing"),
        ]
        assert "ylecun/mnist" in rows[0]["where"]
        path = downloads.root / "mnist" / Mnist().dataset.train.path
        path.parent.mkdir(parents=True)
        path.write_bytes(b"1234")
        row = dataset_status(Mnist(), downloads)[0]
        assert (row["state"], row["bytes"], row["where"]) == ("downloaded", 4, str(path))

    def test_mirror_that_lacks_it_says_how_to_fill_it(self, tmp_path: Path) -> None:
        row = dataset_status(Mnist(), DataSource.resolve(tmp_path, tmp_path / "cache"))[0]
        assert row["state"] == "missing"
        assert row["where"].startswith("hf download ylecun/mnist")

    def test_task_without_downloads(self, downloads: DataSource) -> None:
        (row,) = dataset_status(Digits(), downloads)
        assert row["state"] == "not needed"
        json.dumps(row)
