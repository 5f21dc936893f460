"""Arrays that are computed once and cached on disk.

An array is a `.npy` file that appears only when it is complete. A lock keeps processes from computing the same array
at once; on a file system that ignores locks, as on some clusters, the work is done twice, with the same bytes.
Arrays are memory-mapped, so that processes side by side share one copy.

Beside the array lies a text file, `.blocks`, with a line for each block of rows that is on disk: the row after the
block, and the CRC-32 of its bytes. Opening an array checks them all. An interrupted computation leaves an unfinished
array and the lines of its blocks; the next process continues after the last intact block.
"""

import hashlib
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import TORN
from dphpo_bench.data.datasets import CACHE_VARIABLE

logger = logging.getLogger(__name__)

Array = NDArray[Any]


def cached_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], compute: Callable[[int], Iterable[Array]]
) -> Array:
    """Return the array stored at `path`; compute it first if it is missing or damaged.

    Args:
        path: a `.npy` file whose name identifies all that `compute` depends on.
        shape: of the array.
        dtype: of the array.
        compute: yields consecutive blocks of rows from a row on, so that the whole need not fit into memory. That row
            is 0, or the first after the intact blocks of an interrupted computation.

    Returns:
        The array, memory-mapped copy-on-write: writing to it changes neither the file nor other processes.

    Raises:
        DataError: if the folder cannot be written to.
    """
    array, rows = _opened(path, path, shape, dtype)
    if array is None or rows < len(array):
        with locked(path):
            array, rows = _opened(path, path, shape, dtype)  # another process may have finished it while we waited
            if array is None or rows < len(array):
                if path.exists():
                    logger.warning("Cached file %s is damaged; computing it again.", path)
                with _writing(path):
                    _compute(path, shape, dtype, compute)
                array, rows = _opened(path, path, shape, dtype)
    if array is None or rows < len(array):
        raise DataError(f"Cached file {path} cannot be read back after it was written; is the disk failing?")
    return array


def cached_rows(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return how many rows `cached_array` need not compute; the content of a finished file is not read."""
    with suppress(OSError):
        if _log(path).is_file() and path.stat().st_size > np.prod(shape) * dtype.itemsize:  # a header precedes the rows
            return shape[0]
    return _opened(_unfinished(path), path, shape, dtype)[1]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that belongs to `path`, whose folder is made; the lock of a process that dies is released.

    Raises:
        DataError: if the folder cannot be written to.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"), mode=0o600)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.warning("Waiting for another process that is preparing %s.", path.name)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sha256_of_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _log(path: Path) -> Path:
    return path.with_name(path.name + ".blocks")


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}{TORN}")


def _opened(file: Path, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array | None, int]:
    """Map the array in `file`, and count its rows up to the first block that is not intact; never unpickle.

    A line of the log that does not fit is skipped: of a block that was damaged and computed again there are two.
    """
    try:
        if not file.is_file():
            return None, 0
        array: Array = open_memmap(file, mode="c")
        blocks = re.findall(r"^(\d{1,18}) (\w{8})$", _log(path).read_text("ascii", errors="replace"), re.MULTILINE)
    except Exception:  # NumPy raises many types for broken files
        return None, 0
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        return None, 0
    rows = 0
    for end, checksum in blocks:
        if rows < int(end) <= len(array) and checksum == _checksum(array[rows : int(end)]):
            rows = int(end)
    return array, rows


def _checksum(block: Array) -> str:
    return f"{zlib.crc32(block.data):08x}"


def _compute(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], compute: Callable[[int], Iterable[Array]]
) -> None:
    """Write an array block by block beside its place, after the blocks that are there, and move it there."""
    unfinished, log = _unfinished(path), _log(path)
    rows = _opened(unfinished, path, shape, dtype)[1]
    if not rows:
        open_memmap(unfinished, mode="w+", dtype=dtype, shape=shape)
    array = open_memmap(unfinished, mode="r")
    start, row_bytes = array.offset, array[:1].nbytes
    try:
        # Not through the map: on a full disk that would end the process without an error.
        with unfinished.open("r+b") as file, log.open("a") as lines:
            lines.write("\n" * bool(lines.tell()))  # the last line may be torn
            for block in compute(rows) if rows < shape[0] else ():
                block = np.ascontiguousarray(block, dtype=dtype)
                file.seek(start + rows * row_bytes)
                file.write(block.data.cast("B"))
                file.flush()
                rows += len(block)
                lines.write(f"{rows} {_checksum(block)}\n")  # only now: it says that the block is there
                lines.flush()
        with suppress(FileNotFoundError):  # where locks are ignored, another process may have moved it
            unfinished.replace(path)
    except BaseException as error:
        if not rows or isinstance(error, OSError):  # nothing to continue from, or a disk to be freed
            unfinished.unlink(missing_ok=True)
            log.unlink(missing_ok=True)
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot write {path.name} into the cache folder {path.parent}: {error.strerror or error}. "
            f"Make room there or choose another folder with {CACHE_VARIABLE}."
        ) from error
