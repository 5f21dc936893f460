"""Records of short runs on the blobs, made by the command line."""

from pathlib import Path
from typing import Any

import pytest

from tests.sweep.conftest import plugin  # noqa: F401  (a fixture)


@pytest.fixture
def new_record(main_here: Any, tmp_path: Path) -> Any:
    """Make a record on the blobs, by these arguments, and return its file."""

    def make(*arguments: str) -> Path:
        before = set((tmp_path / "results").rglob("*.json"))
        code, _, err = main_here("run", *arguments, "-t", "blobs", "--epsilon", "3", "--delta", "1e-4", "-q")
        assert code == 0, err
        (path,) = set((tmp_path / "results").rglob("*.json")) - before
        return path

    return make
