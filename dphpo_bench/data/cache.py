"""Arrays that are computed once and cached on disk.

An array is a `.npy` file that appears only when it is complete. A lock keeps processes from computing the same array
at once; on a file system that ignores locks, as on some clusters, the work is done twice, with the same bytes.
Arrays are memory-mapped, so that processes side by side share one copy.
"""

import io
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import dtype_to_descr, open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import remove_torn, write_whole
from dphpo_bench.data.source import locked, writing

logger = logging.getLogger(__name__)

Array = NDArray[Any]


def cached_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], compute: Callable[[], Iterable[Array]]
) -> Array:
    """Return the array stored at `path`; compute it first if it is missing or damaged.

    Args:
        path: a `.npy` file whose name identifies all that `compute` depends on.
        compute: yields consecutive blocks of rows, so that the whole need not fit into memory.

    Returns:
        The array, memory-mapped copy-on-write: writing to it changes neither the file nor other processes.
    """
    array = _opened(path, shape, dtype)
    if array is None:
        with locked(path):
            array = _opened(path, shape, dtype)  # another process may have computed it while we waited
            if array is None:
                if path.exists():
                    logger.warning("Cached file %s is damaged; computing it again.", path)
                with writing(path):
                    remove_torn(path.parent)
                    write_whole(path, _content(shape, dtype, compute()))
                array = _opened(path, shape, dtype)
    if array is None:
        raise DataError(f"Cached file {path} cannot be read back after it was written; is the disk failing?")
    return array


def is_cached(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether `cached_array` need not compute the array."""
    return _opened(path, shape, dtype) is not None


def _opened(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """Map the array in a file; None if there is none of this shape and type. Never unpickle."""
    try:
        array: Array | None = open_memmap(path, mode="c") if path.is_file() else None
    except Exception:  # NumPy raises many types for broken files
        return None
    fits = array is not None and array.shape == shape and array.dtype == dtype and array.flags.c_contiguous
    return array if fits else None


def _content(shape: tuple[int, ...], dtype: np.dtype[Any], blocks: Iterable[Array]) -> Iterator[bytes]:
    """Yield the header and the blocks of a `.npy` file; a full disk would end a process that writes through a map."""
    header = io.BytesIO()
    write_array_header_1_0(header, {"descr": dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    yield header.getvalue()
    for block in blocks:
        yield np.ascontiguousarray(block, dtype=dtype).tobytes()
