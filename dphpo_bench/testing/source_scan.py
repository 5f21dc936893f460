"""Finds attributes in a plug-in's source that begin with an underscore and belong to other objects.

In a session they hold the private records, their rows and the random streams. The scan finds mistakes; it does not
stop somebody who means to cheat.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENGINE = "dphpo_bench"
BUILT_IN = ("dphpo_bench.methods", "dphpo_bench.tasks")

OWN = frozenset({"self", "cls"})
PUBLIC = frozenset({"_asdict", "_fields", "_field_defaults", "_make", "_replace"})
"""Of named tuples."""

INSIDES = frozenset({"__closure__", "__dict__", "__func__", "__globals__", "__self__", "__wrapped__"})
"""Double underscores that lead into an object."""

BY_NAME = frozenset({"getattr", "setattr", "delattr", "hasattr", "attrgetter", "methodcaller"})


@dataclass(frozen=True)
class Finding:
    """An expression and its place in a source file."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def private_accesses(cls: type, contract: type) -> list[Finding]:
    """Where a plug-in's source uses names that begin with an underscore and are not its own.

    The scan covers the modules of the class and of its bases below the contract (`Method` or `Task`), except the
    engine's, and the modules that these import from their own package.
    """
    bases = cls.__mro__[: cls.__mro__.index(contract)]
    names = list(dict.fromkeys(base.__module__ for base in bases if not _is_engine(base.__module__)))
    findings: list[Finding] = []
    for name in names:  # it grows meanwhile
        module = sys.modules.get(name)
        try:
            path = inspect.getsourcefile(module) if module else None
            tree = ast.parse(Path(path).read_text(encoding="utf-8")) if path else None
        except (OSError, TypeError, SyntaxError):
            continue
        if path is None or tree is None:
            continue
        findings += [
            Finding(path, node.lineno, ast.unparse(node)[:100])
            for node in ast.walk(tree)
            if isinstance(node, ast.expr) and _is_private(node)
        ]
        package = getattr(module, "__package__", None) or ""
        names += dict.fromkeys(found for found in _imported(tree, name, package) if found not in names)
    return findings


def _is_engine(module: str) -> bool:
    inside = module == ENGINE or module.startswith(f"{ENGINE}.")
    return inside and not any(module == name or module.startswith(f"{name}.") for name in BUILT_IN)


def _imported(tree: ast.AST, module: str, package: str) -> Iterator[str]:
    """The loaded modules that this one imports from its own top-level package."""
    first = module.partition(".")[0]
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in found:
            if name.partition(".")[0] == first and name in sys.modules and not _is_engine(name):
                yield name


def _is_private(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return not _is_own(node.value) and _hides(node.attr)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "vars" and node.args:
            return not _is_own(node.args[0])
        if called in BY_NAME and node.args and not _is_own(node.args[0]):
            texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            return any(isinstance(text, str) and any(map(_hides, text.split("."))) for text in texts)
    return False


def _hides(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name in INSIDES
    return name.startswith("_") and name not in PUBLIC


def _is_own(node: ast.expr) -> bool:
    """The plug-in itself; torch counts too, since its fused operations begin with an underscore."""
    return isinstance(node, ast.Name) and (node.id in OWN or node.id == "torch")
