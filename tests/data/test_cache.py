"""Cached arrays appear whole or not at all."""

import logging
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
WHOLE = {"array.npy", "array.npy.blocks", "array.npy.lock"}


def blocks(start: int) -> Iterator[np.ndarray]:
    for row in range(start, 6, 2):
        yield EXPECTED[row : row + 2]


def never(start: int) -> Iterator[np.ndarray]:
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


class Counted:
    """Computes as `blocks` does, and remembers what; `fail` is raised in place of the block of row `at`."""

    def __init__(self, at: int | None = None, fail: type[BaseException] = KeyboardInterrupt) -> None:
        self.at, self.fail = at, fail
        self.rows: list[int] = []

    def __call__(self, start: int) -> Iterator[np.ndarray]:
        for row, block in zip(range(start, 6, 2), blocks(start), strict=True):
            if row == self.at:
                raise self.fail
            self.rows.append(row)
            yield block


def test_failure_in_the_middle_loses_no_block(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    for at in (2, 4):  # twice, the second from where the first left off
        with pytest.raises(KeyboardInterrupt):
            cached_array(path, (6, 2), DTYPE, Counted(at))
        assert not path.exists()
    rest = Counted()
    assert (cached_array(path, (6, 2), DTYPE, rest) == EXPECTED).all()
    assert rest.rows == [4]
    assert {file.name for file in tmp_path.iterdir()} <= WHOLE


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("file", "at"), [("", 0), ("", 151), (".blocks", 30)])
def test_damage_inside_is_found(tmp_path: Path, file: str, at: int, caplog: pytest.LogCaptureFixture) -> None:
    """In the header, in a block, and in the checksums."""
    path = tmp_path / "array.npy"
    cached_array(path, (6, 2), DTYPE, blocks)
    assert path.stat().st_size == 128 + 24
    flip(tmp_path / f"array.npy{file}", at)
    with caplog.at_level(logging.WARNING):
        assert (cached_array(path, (6, 2), DTYPE, blocks) == EXPECTED).all()
    assert caplog.text.count("is damaged; computing it again") == 1
    assert (cached_array(path, (6, 2), DTYPE, never) == EXPECTED).all()


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Cannot write array\.npy into .* DPHPO_BENCH_CACHE") as error:
        cached_array(tmp_path / "file/array.npy", (6, 2), DTYPE, blocks)
    assert "\n" not in str(error.value)


SLOW_WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from dphpo_bench.data.cache import cached_array

def blocks(start):
    for i in range(start, 100, 5):
        with open(sys.argv[1] + ".rows", "a") as log:
            log.write(f"{i} ")
        yield np.arange(2 * i, 2 * i + 10, dtype=np.uint16).reshape(5, 2)
        time.sleep(float(sys.argv[2]) / 20)

print(cached_array(Path(sys.argv[1]), (100, 2), np.dtype(np.uint16), blocks).sum())
"""


def start_writer(path: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_at_once(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path / "array.npy", 0.5) for _ in range(2)]
    assert [int(writer.communicate()[0]) for writer in writers] == [19900, 19900]


def test_killed_writer_is_continued(tmp_path: Path) -> None:
    """With the same bytes as in one go, and at most one block computed twice."""
    path, log = tmp_path / "array.npy", tmp_path / "array.npy.rows"
    writer = start_writer(path, 6)
    deadline = time.monotonic() + 60
    while not log.exists() or len(log.read_text().split()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert not path.exists()
    writer = start_writer(path, 0)
    assert int(writer.communicate()[0]) == 19900
    rows = [int(row) for row in log.read_text().split()]
    assert sorted(set(rows)) == list(range(0, 100, 5))
    assert len(rows) <= 20 + 1
    start_writer(tmp_path / "whole.npy", 0).communicate()
    assert path.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert not list(tmp_path.glob(".*.tmp"))
