"""Read and write files as a whole or not at all; name the key of a mistake in one that people write."""

import errno
import hashlib
import os
import stat
import tempfile
import time
import tomllib
import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Buffer

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

if TYPE_CHECKING:
    from pydantic import ValidationError

Place = tuple[str | int, ...]

TORN = ".tmp"
TORN_SECONDS = 3600.0


def read_whole(path: Path, limit: int) -> bytes:
    """Read a regular file: at most `limit` bytes and one more, which tells that it is too large.

    Anything else raises an `OSError`: a pipe would wait for a writer, and a device may never end.
    """
    try:
        # Not blocking, since opening a pipe that nobody writes to would wait; regular files are not affected.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a path with a null character
        raise OSError(errno.EINVAL, str(error)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit + 1)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes | Iterable[Buffer], mode: int = 0o666) -> Path:
    """Write a file, at once or in pieces, beside its place, flush it to disk, move it there; makes the folder.

    Readers of `path` find the old content or the new, even if the process dies. A killed process leaves a file behind
    whose name starts with a dot and that of the file, and ends in `TORN`. After an `OSError` there is none. Permissions
    are `mode` without those that the process's umask takes away. Returns the path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TORN}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            content = content.encode() if isinstance(content, str) else content
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        return temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_aside(path: Path, content: str | bytes) -> Path:
    """Write what cannot be written to its path into a new folder for temporary files, and return its new path."""
    return write_whole(Path(tempfile.mkdtemp(prefix="dphpo-bench-")) / path.name, content)


def remove_torn(folder: Path) -> None:
    """Remove what killed processes left of files, anywhere in a folder.

    Files that are still being written are younger than `TORN_SECONDS`.
    """
    with suppress(OSError):
        for path in folder.rglob(f".*{TORN}"):
            if time.time() - path.stat().st_mtime > TORN_SECONDS:
                path.unlink(missing_ok=True)


@cache
def engine_hash(*parts: str) -> str:
    """Return a hash of this package's source, or of some of its folders, and of the versions of numerical libraries."""
    digest = hashlib.sha256()
    for part in parts or ("",):
        for path in sorted((Path(__file__).parents[1] / part).rglob("*.py")):
            digest.update(path.read_bytes())
    digest.update(repr([version(name) for name in ("dp-accounting", "numpy", "scipy", "optuna")]).encode())
    return digest.hexdigest()


def bytes_in(path: Path, limit: int, what: str) -> bytes:
    """Return the content of a file of at most `limit` bytes; `what` it is stands in the messages."""
    try:
        data = read_whole(path, limit)
    except OSError as error:
        raise InvalidValueError(f"Cannot read the {what} {path}: {error.strerror}.") from None
    if len(data) > limit:
        raise InvalidValueError(f"The {what} {path} is larger than {limit} bytes.")
    return data


def toml_values(path: Path, data: bytes) -> dict[str, Any]:
    """Return the values of a file of TOML."""
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{path} is not TOML: {shown(error, 300)}.") from None


def misplaced(path: Path, place: Place, reason: str) -> InvalidValueError:
    """Return the error of a file, with the place of the key."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return InvalidValueError(f"{path}, {shown(key, 200)}: {reason}")


def misfit(path: Path, error: "ValidationError") -> InvalidValueError:
    """Return the error of a file, with the first mistake that Pydantic names."""
    # Of a misspelt key pydantic says, too, that the right one is missing: name the misspelt one.
    first = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    place = tuple(part for part in first["loc"] if not str(part).startswith("function-"))
    return misplaced(path, place, f"{shown(first['msg'], 300)}, got {shown(shown(first['input']), 90, repr)}.")


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; of two values under one name, readers would see different ones.

    Raises:
        ValueError: if a name is there twice.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{shown(twice)} is there twice")
    return values
