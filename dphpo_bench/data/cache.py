"""Arrays that are computed once and kept on disk.

An array is a `.npy` file that appears only when it is complete. A lock keeps processes from computing the same array
at once; on a file system that ignores locks, as on some clusters, the work is done twice and the last writer wins.
Arrays are memory-mapped, so that processes side by side share one copy.
"""

import hashlib
import io
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import read_whole, remove_torn, write_whole
from dphpo_bench.data.datasets import CACHE_VARIABLE

logger = logging.getLogger(__name__)

Array = NDArray[Any]


def cached_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    compute: Callable[[], Iterable[Array]],
    check: Callable[[Array], bool] | None = None,
) -> Array:
    """The array stored at `path`, computed first if it is missing or damaged.

    Args:
        path: a `.npy` file whose name identifies all that `compute` depends on.
        shape: of the array.
        dtype: of the array.
        compute: yields consecutive blocks of rows, so that the whole need not fit into memory.
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
            blocks = compute()
            with _writing(path):
                remove_torn(path.parent, path.name)
                rows = (np.ascontiguousarray(block, dtype=dtype).data.cast("B") for block in blocks)
                write_whole(path, chain([_header(shape, dtype)], rows))
            array = _open(path, shape, dtype, check)
    if array is None:
        raise DataError(f"Cached file {path} cannot be read back after it was written; is the disk failing?")
    return array


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
    """The array if the file is exactly as it was written. Nothing in it is interpreted, hence nothing unpickled."""
    header = _header(shape, dtype)
    size = len(header) + math.prod(shape) * dtype.itemsize
    try:
        if read_whole(path, len(header))[: len(header)] != header or path.stat().st_size != size:
            return None
        array: Array = np.memmap(path, dtype, "c", len(header), shape)
    except (OSError, ValueError):  # missing, or without any bytes to map
        return None
    return array if check is None or check(array) else None


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
