"""Files that are there whole or not at all."""

import os
import uuid
from pathlib import Path

TORN = ".tmp"


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file beside its place, flush it to disk, move it there; makes the folder.

    Whoever reads `path` finds the old content or the new, whenever the process dies. What a killed process
    leaves behind starts with a dot and the file's name, and ends in `TORN`.

    Returns:
        The path.

    Raises:
        OSError: if it cannot be written; there is no temporary file left then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TORN}")
    try:
        with temporary.open("xb") as file:  # readable by whom the user's mask lets, as any other file
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        return temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
