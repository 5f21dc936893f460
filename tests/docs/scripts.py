"""The scripts of the documentation, which belong to no package, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"


def script(name: str) -> ModuleType:
    """The module of `docs/NAME.py`."""
    spec = importlib.util.spec_from_file_location(Path(name).name, DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
