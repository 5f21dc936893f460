"""The rooms of docs/concepts.md: which may import which, and how large a file may grow.

The core knows none of the rest. Edges use the core. Nobody but its commands uses the board, and only `tasks/` the zoo.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = (
    ("base",),
    ("privacy", "training", "data"),
    ("contract", "records"),
    ("session",),
    ("recipes",),
    ("zoo",),
    ("harness",),
    ("audit", "curves", "external", "sweep", "testing"),
    ("leaderboard",),
    ("comparison", "estimators"),
    ("cli",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
PLUGINS = ("methods", "tasks")
NAMESPACES = tuple(f"dphpo_bench.{path.stem}" for path in (ROOT / "dphpo_bench").glob("[a-z]*.pyi"))
"""Modules of public names, beside the package itself, `dphpo_bench.recipes` and `dphpo_bench.zoo`."""

MAX_FILE = 800
MAX_CLASS = 250


def modules() -> dict[str, Path]:
    """Every module of the package, by name; `methods` and `tasks` as they are installed."""
    found = {}
    for folder in ("dphpo_bench", *PLUGINS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if folder == "dphpo_bench" else ("dphpo_bench", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imports(name: str) -> tuple[tuple[str, str], ...]:
    """(module, what is taken from it) of the package; those for type checkers and inside functions count, too."""
    found = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dphpo_bench":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.append((inner, "") if inner in MODULES else (str(node.module), alias.name))
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "dphpo_bench"]
    return tuple(found)


def room_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


INSIDE = [name for name in MODULES if room_of(name) in FLOOR_OF]


def test_every_module_is_in_a_room() -> None:
    outside = [name for name in MODULES if room_of(name) not in {*FLOOR_OF, *PLUGINS, "", "__main__"}]
    assert sorted(outside) == sorted(NAMESPACES)


@pytest.mark.parametrize("room", FLOOR_OF)
def test_a_room_imports_no_room_above_it(room: str) -> None:
    own = [name for name in INSIDE if room_of(name) == room]
    assert own
    upward = [
        f"{name} -> {target}"
        for name in own
        for target, _ in imports(name)
        if room_of(target) in (*FLOOR_OF, *PLUGINS) and room_of(target) != room
        if FLOOR_OF.get(room_of(target), len(FLOORS)) >= FLOOR_OF[room]
    ]
    assert upward == []


CORE = {"base", "privacy", "training", "data", "contract", "records", "session", "recipes", "harness"}
BOARD, ZOO = "leaderboard", "zoo"
BOARD_USERS = {"dphpo_bench.cli.leaderboard"}


def test_borders() -> None:
    crossings = []
    for name in INSIDE:
        room, rooms = room_of(name), {room_of(target) for target, _ in imports(name)} - {""}
        beyond = rooms - CORE if room in CORE else rooms & {ZOO} if room != ZOO else set()
        if room != BOARD and name not in BOARD_USERS:
            beyond |= rooms & {BOARD}
        crossings += [f"{name} -> {target}" for target in sorted(beyond)]
    assert crossings == []


def test_no_modules_import_each_other() -> None:
    graph = {name: {target for target, _ in imports(name) if target in INSIDE and target != name} for name in INSIDE}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"A circle of imports: {' -> '.join(error.args[1])}")


def test_nothing_private_is_imported_by_another_module() -> None:
    taken = [
        f"{name} takes {target}.{what}"
        for name in MODULES
        for target, what in imports(name)
        if what.startswith("_") and not what.startswith("__")
    ]
    assert taken == []


@pytest.mark.parametrize("folder", PLUGINS)
def test_plug_ins_use_public_names_only(folder: str) -> None:
    own = [name for name in MODULES if room_of(name) == folder]
    allowed = {"dphpo_bench", "dphpo_bench.recipes", *NAMESPACES, *own}
    if folder == "tasks":
        allowed |= {name for name in INSIDE if room_of(name) in ("data", "recipes", "training", "zoo")}
    found = [f"{name} -> {target}" for name in own for target, _ in imports(name) if target not in allowed]
    assert found == []


def classes(name: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree(name)) if isinstance(node, ast.ClassDef))


def test_files_and_classes_stay_small() -> None:
    files = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    large = {name: lines for name, lines in files.items() if lines > MAX_FILE}
    for name in MODULES:
        for one in classes(name):
            lines = (one.end_lineno or 0) - one.lineno + 1
            if lines > MAX_CLASS:
                large[f"{name}.{one.name}"] = lines
    assert large == {}
