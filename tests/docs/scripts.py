"""The scripts of the documentation, which belong to no package, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    """Return the module of the script `NAME.py`, such as "docs/site_links"."""
    spec = importlib.util.spec_from_file_location(Path(name).name, ROOT / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
