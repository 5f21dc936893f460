"""A hash of this package's source, by which a cached value shows that other code computed it."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def engine_hash(*parts: str) -> str:
    """Return a hash of this package's source, or of some of its folders, and of the versions of numerical libraries."""
    digest = hashlib.sha256()
    for part in parts or ("",):
        for path in sorted((Path(__file__).parents[1] / part).rglob("*.py")):
            digest.update(path.read_bytes())
    digest.update(repr([version(name) for name in ("dp-accounting", "numpy", "scipy", "optuna")]).encode())
    return digest.hexdigest()
