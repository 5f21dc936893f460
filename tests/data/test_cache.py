"""Cached arrays appear whole or not at all."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.cache import cached_array

DTYPE = np.dtype(np.uint16)
EXPECTED = np.arange(12, dtype=DTYPE).reshape(6, 2)


def blocks() -> Iterator[np.ndarray]:
    yield EXPECTED[:4]
    yield EXPECTED[4:]


def never() -> Iterator[np.ndarray]:
    raise AssertionError("computed although it is cached")


def test_computed_once(tmp_path: Path) -> None:
    path = tmp_path / "deep/array.npy"
    assert (cached_array(path, (6, 2), DTYPE, blocks) == EXPECTED).all()
    assert (cached_array(path, (6, 2), DTYPE, never) == EXPECTED).all()
    assert (np.load(path) == EXPECTED).all()


def test_writing_to_the_array_leaves_the_file_alone(tmp_path: Path) -> None:
    array = cached_array(tmp_path / "array.npy", (6, 2), DTYPE, blocks)
    array[:] = 0
    assert (cached_array(tmp_path / "array.npy", (6, 2), DTYPE, never) == EXPECTED).all()


def test_failure_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> Iterator[np.ndarray]:
        yield EXPECTED[:4]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_array(tmp_path / "array.npy", (6, 2), DTYPE, fails)
    assert [path.suffix for path in tmp_path.iterdir()] in ([], [".lock"])
    assert (cached_array(tmp_path / "array.npy", (6, 2), DTYPE, blocks) == EXPECTED).all()


@pytest.mark.parametrize("keep", [0, 5, 140, -1])
def test_truncated_file_is_computed_again(tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "array.npy"
    cached_array(path, (6, 2), DTYPE, blocks)
    content = path.read_bytes()[:keep]
    path.unlink()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert (cached_array(path, (6, 2), DTYPE, blocks) == EXPECTED).all()
    assert len(caplog.records) == 1


def test_other_shape_or_type_is_computed_again(tmp_path: Path) -> None:
    for other in (EXPECTED.reshape(2, 6), EXPECTED.astype(np.int64)):
        np.save(tmp_path / "array.npy", other)
        assert (cached_array(tmp_path / "array.npy", (6, 2), DTYPE, blocks) == EXPECTED).all()


def test_no_pickle_is_ever_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.array([print], dtype=object), allow_pickle=True)
    assert (cached_array(tmp_path / "array.npy", (6, 2), DTYPE, blocks) == EXPECTED).all()


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Cannot write array\.npy into .* DPHPO_BENCH_CACHE") as error:
        cached_array(tmp_path / "file/array.npy", (6, 2), DTYPE, blocks)
    assert "\n" not in str(error.value)


def test_leftovers_of_killed_processes_go_away(tmp_path: Path) -> None:
    old, young = tmp_path / ".array.npy.aaaa.tmp", tmp_path / ".array.npy.bbbb.tmp"
    for file in (old, young):
        file.touch()
    os.utime(old, (0, 0))
    cached_array(tmp_path / "array.npy", (6, 2), DTYPE, blocks)
    assert not old.exists()
    assert young.exists()  # may be in use where the file system ignores locks


SLOW_WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from dphpo_bench.data.cache import cached_array

def blocks():
    Path(sys.argv[1] + ".started").touch()
    for i in range(100):
        time.sleep(float(sys.argv[2]) / 100)
        yield np.full((1, 2), i, np.uint16)

print(cached_array(Path(sys.argv[1]), (100, 2), np.dtype(np.uint16), blocks).sum())
"""


def start_writer(path: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_processes_at_once(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path / "array.npy", 0.5) for _ in range(2)]
    assert [int(writer.communicate()[0]) for writer in writers] == [9900, 9900]


def test_killed_writer_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    writer = start_writer(path, 60)
    wait_for(Path(f"{path}.started"))
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert not path.exists()
    assert (cached_array(path, (6, 2), DTYPE, blocks) == EXPECTED).all()
