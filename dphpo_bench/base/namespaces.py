"""Public names of a namespace, which load on first use."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path


def attach_names(namespace: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module of the package, from the stub beside its file.

    `lazy_loader.attach_stub` would also put the names at the top of the package, once somebody has used them.
    """
    package = namespace if Path(file).stem == "__init__" else namespace.rpartition(".")[0]
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    modules = {node: resolve_name(f"{'.' * node.level}{node.module}", package) for node in imports}
    places = {alias.name: module for node, module in modules.items() for alias in node.names}
    names = sorted(places)

    def load(name: str) -> object:
        if name not in places:
            raise AttributeError(f"No {namespace} attribute {name}")
        value: object = getattr(import_module(places[name]), name)
        setattr(sys.modules[namespace], name, value)
        return value

    return load, names.copy, names
