"""A small dataset in parquet, and a server that answers like the Hugging Face hub."""

import hashlib
import io
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dphpo_bench.data.images import content_hash, record_type
from dphpo_bench.data.source import DataSource, Images, Split

ROWS = 30
SHAPE = (3, 8, 8)


def png(pixels: np.ndarray, **options: Any) -> bytes:
    """Encode (channels, height, width)."""
    file = io.BytesIO()
    array = pixels.transpose(1, 2, 0)
    Image.fromarray(array if array.shape[2] == 3 else array[..., 0]).save(file, "png", **options)
    return file.getvalue()


def write_parquet(path: Path, images: list[Any], labels: list[Any], column: str = "img") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
    pq.write_table(pa.table({column: pictures, "label": labels}), path)


def write_records(path: Path, records: np.ndarray, **options: Any) -> None:
    write_parquet(path, [png(one, **options) for one in records["pixels"]], records["label"].tolist())


def random_records(seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    records = np.empty(ROWS, record_type(SHAPE))
    records["pixels"] = generator.integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8)
    records["label"] = generator.integers(0, 10, ROWS)
    records[1] = records[0]  # duplicates exist in real data
    return records


@pytest.fixture
def records() -> np.ndarray:
    return random_records(0)


def small_dataset(records: np.ndarray) -> Images:
    """A dataset with these records as the training split; test split alike with another seed."""
    return Images(
        name="small",
        repo_id="someone/small",
        image_column="img",
        image_shape=SHAPE,
        n_classes=10,
        splits=(
            Split("train", "plain/train-0.parquet", ROWS, content_hash(records)),
            Split("test", "plain/test-0.parquet", ROWS, content_hash(random_records(1))),
        ),
        licence="none",
        homepage="https://example.org",
    )


@pytest.fixture
def dataset(records: np.ndarray) -> Images:
    """`records` as the training split; test split alike with another seed."""
    return small_dataset(records)


@pytest.fixture
def mirror(tmp_path: Path, records: np.ndarray) -> DataSource:
    """A source with both splits in a local mirror and an empty cache."""
    write_records(tmp_path / "mirror/small/train.parquet", records)
    write_records(tmp_path / "mirror/small/test.parquet", random_records(1))
    return DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSource:
    """A source without a mirror."""
    monkeypatch.delenv("DPHPO_BENCH_DATA", raising=False)
    return DataSource.resolve(cache_dir=tmp_path / "cache")


@dataclass
class FakeHub:
    """What the server holds and how it misbehaves.

    Attributes:
        files: content by path of the URL.
        break_first: close the first download's connection after half of the bytes.
        requests: (method, path) in order.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    break_first: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)

    def add(self, dataset: Images, split: Split, path: Path, branch: str = "main") -> None:
        for revision in (branch, "0" * 40):
            url = f"/datasets/{dataset.repo_id}/resolve/{revision}/{split.path}"
            self.files[url] = path.read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub, announced by HF_ENDPOINT."""
    state = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            state.requests.append((self.command, self.path))
            content = state.files.get(self.path)
            if content is None:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"a-tag-of-the-content-network"')
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            if self.command == "HEAD":
                return
            if state.break_first:
                state.break_first = False
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
                return
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            del args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", state.url)
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
