"""Parquet files of a mirror and arrays of the cache: refused in a line that names the file, or made again."""

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.images import load_records
from dphpo_bench.data.source import DataSource
from tests.data.conftest import ROWS, content_hash, png, random_records, small_dataset
from tests.fuzz.hostile import GARBAGE, check_message, examples, torn

RECORDS = random_records(0)
PICTURES = [{"bytes": png(one), "path": f"{row}.png"} for row, one in enumerate(RECORDS["pixels"])]
LABELS = [int(label) for label in RECORDS["label"]]
DATASET = small_dataset(RECORDS)


def written(table: pa.Table, **options: Any) -> bytes:
    """A table as a parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is this large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\x00" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


GOOD = written(pa.table({"img": PICTURES, "label": LABELS}))
ODD_TABLES = [
    *({"img": images, "label": LABELS} for images in ([None, *PICTURES[1:]], [b"text"] * ROWS)),
    *({"img": [{"bytes": bomb(*size)}] * ROWS, "label": LABELS} for size in ((60_000, 60_000), (2**31 - 1, 2), (0, 0))),
    *({"img": PICTURES, "label": labels} for labels in ([-1] * ROWS, [2**63 - 1] * ROWS, ["a\n\x1b" * 1000] * ROWS)),
    {"img": PICTURES, "label": pa.array([2**62] * ROWS, pa.timestamp("us"))},
    {"img\n": PICTURES, "label\x00": LABELS},
]
PLAIN = written(pa.table({"img": PICTURES, "label": LABELS}), compression="none", use_dictionary=False)
CONTENT = st.one_of(
    st.sampled_from([written(pa.table(columns)) for columns in ODD_TABLES]),
    torn(st.sampled_from([GOOD, PLAIN])),
    GARBAGE,
    GARBAGE.map(lambda data: b"PAR1" + data + struct.pack("<I", len(data)) + b"PAR1"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@examples(40)
@given(CONTENT)
def test_parquet(folder: Path, content: bytes) -> None:
    """The published records, or a message that names the file."""
    path = folder / "mirror/small/train.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for old in (folder / "cache").rglob("*.npy"):
        old.unlink()
    source = DataSource.resolve(folder / "mirror", folder / "cache")
    try:
        with warnings.catch_warnings(action="error"):
            found = load_records(source, DATASET, DATASET.train)
    except DataError as error:
        check_message(error, path, names=path)
    else:
        assert content_hash(found) == content_hash(RECORDS)
