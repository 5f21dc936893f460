"""Arrays that are computed once and kept on disk.

An array is a `.npy` file that appears only when it is complete. A lock keeps processes from computing the same array
at once; on a file system that ignores locks, as on some clusters, the work is done twice and the last writer wins.
Arrays are memory-mapped, so that processes side by side share one copy.

Behind the rows, where readers of `.npy` files do not look, stands a table of the blocks in which they were computed:
the row after the block, and the CRC-32 of its bytes. It is checked whenever the array is opened. An unfinished file
looks the same, with an entry for each block that is complete, and the next process copies those blocks and goes on.
"""

import hashlib
import io
import logging
import math
import os
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import TORN, read_whole
from dphpo_bench.data.datasets import CACHE_VARIABLE

logger = logging.getLogger(__name__)

Array = NDArray[Any]
_ENTRY = struct.Struct("<QI")  # of the table of blocks


def cached_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    compute: Callable[[int], Iterable[Array]],
    check: Callable[[Array], bool] | None = None,
) -> Array:
    """The array stored at `path`, computed first if it is missing or damaged.

    Args:
        path: a `.npy` file whose name identifies all that `compute` depends on.
        shape: of the array.
        dtype: of the array.
        compute: yields consecutive blocks of rows from a given one on, so that the whole need not fit into memory.
            That row is 0, or the first after a block of an earlier, interrupted computation.
        check: whether a stored array of the right shape, type and size is intact.

    Returns:
        The array, memory-mapped copy-on-write: writing to it changes neither the file nor other processes.

    Raises:
        DataError: if the folder cannot be written to.
    """
    array = _open(path, shape, dtype, check)
    if array is not None:
        return array
    with locked(path):
        array = _open(path, shape, dtype, check)  # another process may have finished it while we waited
        if array is None:
            if path.exists():
                logger.warning("Cached file %s is damaged; computing it again.", path)
            with _writing(path):
                _write(path, shape, dtype, _resumed(path, shape, dtype, compute))
            array = _open(path, shape, dtype, check)
    if array is None:
        raise DataError(f"Cached file {path} cannot be read back after it was written; is the disk failing?")
    return array


def rows_kept(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """How many rows `cached_array` need not compute.

    All of them if there is a file of the right size, whose content is not looked at; else those of the intact blocks
    that an interrupted computation has left.
    """
    with suppress(OSError):
        if path.stat().st_size > len(_header(shape, dtype)) + math.prod(shape) * dtype.itemsize:  # a table follows
            return shape[0]
    return _unfinished_rows(path, shape, dtype)[1][-1]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that belongs to `path`, whose folder is made; the lock of a process that dies is released.

    Raises:
        DataError: if the folder cannot be written to.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
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
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], check: Callable[[Array], bool] | None
) -> Array | None:
    """The array if the file is exactly as it was written."""
    array, ends = _intact(path, shape, dtype)
    if array is None or ends[-1] != len(array):
        return None
    return array if check is None or check(array) else None


def _intact(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array | None, list[int]]:
    """A file's rows, and the rows at which its intact blocks meet or end: 0 at least. Nothing is ever unpickled.

    What follows a block that is not intact does not count. A file of another array has no rows.
    """
    header, ends = _header(shape, dtype), [0]
    try:
        if read_whole(path, len(header))[: len(header)] != header:
            return None, ends
        array: Array = np.memmap(path, dtype, "c", len(header), shape)
        with path.open("rb") as file:
            file.seek(len(header) + array.nbytes)
            table = file.read(len(array) * _ENTRY.size)
    except (OSError, ValueError):  # missing, or without all the bytes to map
        return None, ends
    for i in range(0, len(table) - _ENTRY.size + 1, _ENTRY.size):
        end, checksum = _ENTRY.unpack_from(table, i)
        if not ends[-1] < end <= len(array) or zlib.crc32(array[ends[-1] : end].data) != checksum:
            break
        ends.append(end)
    return array, ends


def _resumed(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], compute: Callable[[int], Iterable[Array]]
) -> Iterator[Array]:
    """All blocks: those that an interrupted computation left in its file, and the rest, computed."""
    array, ends = _unfinished_rows(path, shape, dtype)
    if array is not None:
        yield from (array[start:end] for start, end in pairwise(ends))
    if ends[-1] < shape[0]:
        yield from compute(ends[-1])


def _unfinished_rows(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array | None, list[int]]:
    """What `_intact` says of the unfinished file that has most."""
    return max((_intact(file, shape, dtype) for file in _unfinished(path)), key=_last, default=(None, [0]))


def _last(found: tuple[Array | None, list[int]]) -> int:
    return found[1][-1]


def _unfinished(path: Path) -> list[Path]:
    return list(path.parent.glob(f".{path.name}.*{TORN}"))


def _write(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], blocks: Iterator[Array]) -> None:
    """Write a file block by block beside its place and move it there. Unless the disk is full, what is done is kept."""
    header = _header(shape, dtype)
    start, row = len(header), math.prod(shape[1:]) * dtype.itemsize
    table, end = start + shape[0] * row, 0
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TORN}")
    try:
        with temporary.open("xb") as file:
            file.write(header)
            for i, block in enumerate(blocks):
                content = np.ascontiguousarray(block, dtype=dtype).data.cast("B")
                file.seek(start + end * row)
                file.write(content)
                end += len(block)
                file.seek(table + i * _ENTRY.size)  # only now: an entry says that the block is there
                file.write(_ENTRY.pack(end, zlib.crc32(content)))
                file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):  # where locks are ignored, another process may have finished and cleaned up
            temporary.replace(path)
    except BaseException as error:
        if not end or isinstance(error, OSError):
            temporary.unlink(missing_ok=True)
        raise
    for leftover in _unfinished(path):
        leftover.unlink(missing_ok=True)


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """How a `.npy` file of this array begins."""
    file = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot write {path.name} into the cache folder {path.parent}: {error.strerror or error}. "
            f"Make room there or choose another folder with {CACHE_VARIABLE}."
        ) from error
