"""Public names of a namespace, which load on first use."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def attach_names(namespace: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module of the package, from the stub beside its file.

    `lazy_loader.attach_stub` would also put the names at the top of the package, once somebody has used them.
    """
    package = namespace.partition(".")[0]
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    places = {alias.name: f"{package}.{node.module}" for node in imports for alias in node.names}
    names = sorted(places)

    def load(name: str) -> object:
        if name not in places:
            raise AttributeError(f"No {namespace} attribute {name}")
        value: object = getattr(import_module(places[name]), name)
        setattr(sys.modules[namespace], name, value)
        return value

    return load, names.copy, names
