"""Cached arrays appear whole or not at all."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.cache import cached_array

DTYPE = np.dtype(np.uint16)
EXPECTED = np.arange(12, dtype=DTYPE).reshape(6, 2)


def blocks() -> Iterator[np.ndarray]:
    for row in range(0, 6, 2):
        yield EXPECTED[row : row + 2]


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
    def failing() -> Iterator[np.ndarray]:
        yield EXPECTED[:2]
        raise KeyboardInterrupt

    path = tmp_path / "array.npy"
    with pytest.raises(KeyboardInterrupt):
        cached_array(path, (6, 2), DTYPE, failing)
    assert [file.name for file in tmp_path.iterdir()] == ["array.npy.lock"]
    assert (cached_array(path, (6, 2), DTYPE, blocks) == EXPECTED).all()


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"x" + data[1:]])
def test_a_damaged_file_is_computed_again(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "array.npy"
    cached_array(path, (6, 2), DTYPE, blocks)
    path.write_bytes(damage(path.read_bytes()))
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

def blocks():
    for i in range(0, 100, 5):
        yield np.arange(2 * i, 2 * i + 10, dtype=np.uint16).reshape(5, 2)
        time.sleep(0.02)

print(cached_array(Path(sys.argv[1]), (100, 2), np.dtype(np.uint16), blocks).sum())
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW_WRITER, str(tmp_path / "array.npy")]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [int(writer.communicate()[0]) for writer in writers] == [19900, 19900]
