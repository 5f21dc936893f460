"""Names are nouns and docstrings begin as a reader expects; ruff's D401 to D404 hold the mood of functions.

The documents keep the field's words: query, tolerate, significant, entry, task–model pair.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("dphpo_bench", "methods", "tasks", "examples")
VAGUE = {"one", "found", "told", "given", "own", "kept", "made", "wanted"}
PRIVATE = re.compile(
    r"\b(votes?|looks at|bears?|stand-ins?|alike|told apart|contestants?|(task|board)'s settings?)\b", re.IGNORECASE
)
PAGES = (
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
)
QUESTIONS = {"what", "whether", "how", "of", "who", "why", "where", "when", "which"}


def names(node: ast.AST) -> Iterator[str]:
    """Yield each name that the node introduces, or reads from an object."""
    match node:
        case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def faults(text: str) -> list[str]:
    """Return the faults of a module's source, with their lines."""
    listed = []
    for node in ast.walk(ast.parse(text)):
        listed += [f"{node.lineno}: {name}" for name in names(node) if name.strip("_") in VAGUE]  # type: ignore[attr-defined]
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            first = (ast.get_docstring(node) or "-").split()[0].strip(",.:;")
            if first.lower() in QUESTIONS:
                listed.append(f"{getattr(node, 'lineno', 1)}: a docstring begins with {first}")
    return listed


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_nouns_and_docstrings_begin_with_a_verb_or_a_noun(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [f"{path.relative_to(ROOT)}:{fault}" for path in files for fault in faults(path.read_text("utf-8"))] == []


def test_a_vague_name_and_a_question_are_found() -> None:
    assert faults("for one in range(3):\n    pass\n") == ["1: one"]
    assert faults('def f(told):\n    """Whether it is."""\n') == ["1: a docstring begins with Whether", "1: told"]
    assert faults('def f(count):\n    """Return it."""\n    return count\n') == []


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_documents_have_no_private_words(page: Path) -> None:
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", page.read_text("utf-8"))
    assert [match[0] for match in PRIVATE.finditer(prose)] == []
