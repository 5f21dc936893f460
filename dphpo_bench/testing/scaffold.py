"""Write a package with a method or a task, ready to install, to check and to be changed."""

import keyword
import re
import sys
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Literal

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.registry import points

Kind = Literal["method", "task"]

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MAX_NAME = 50
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "module.py": "src/{name}.py",
    "test_contract.py": "test_contract.py",
}
"""Template → file of the package.

The module lies in `src`. Beside a folder of the module's name Python takes that folder for the module, unless the one
that holds the module is on its path; where pip installs a package editable, that is so for this layout alone.
"""

REPOSITORY = {"tests.yml": ".github/workflows/tests.yml", "gitignore": ".gitignore", "suite.toml": "suite.toml"}
"""Template → file that a repository has beside the package: its CI, and the runs that a row on the board needs."""


def write_package(kind: Kind, name: str, parent: Path, *, repository: bool = False) -> list[Path]:
    """Write an installable package with one plug-in into a new folder of its name, and return the files.

    Args:
        name: of the plug-in, its module, and the folder.
        parent: where the folder goes.
        repository: also write the files of a repository.
    """
    check_name(kind, name)
    folder = parent / name
    values = {
        "kind": kind,
        "what": "tuning method" if kind == "method" else "task",
        "name": name,
        "class_name": "".join(word.capitalize() for word in name.split("_")),
        "distribution": name.replace("_", "-"),
        "version": version("dphpo-bench"),
        "also_needs": ', "scikit-learn>=1.4"' if kind == "task" else "",
    }
    templates = files("dphpo_bench.testing") / "templates"
    written = []
    try:
        folder.mkdir(parents=True)
        for template, target in (FILES | REPOSITORY if repository else FILES).items():
            source = templates / kind / f"{template}.template"
            source = source if source.is_file() else templates / "both" / f"{template}.template"
            path = folder / target.format(name=name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(source.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
            written.append(path)
    except FileExistsError:
        raise InvalidValueError(
            f"{folder} exists, and nothing is overwritten. Remove it, or name another place with --output."
        ) from None
    except OSError as error:
        raise InvalidValueError(f"Cannot write {folder}: {error.strerror}. Name another place with --output.") from None
    return written


def check_name(kind: Kind, name: str) -> None:
    """Reject a name unless it is lower-case words joined by underscores that stand for nothing else yet."""
    written = shown(name, form=repr)
    if not (NAME.fullmatch(name) and len(name) <= MAX_NAME) or keyword.iskeyword(name) or name.startswith("test"):
        raise InvalidValueError(
            f"Expected a name of at most {MAX_NAME} lower-case letters and digits, with single underscores between "
            f"words, that is no word of Python and does not begin with test, got {written}."
        )
    is_plug_in = name in {point.name for point in points(f"dphpo_bench.{kind}s")}
    if is_plug_in or name in sys.stdlib_module_names or find_spec(name) is not None:
        raise InvalidValueError(f"A {kind} or a module {written} is installed already. Try {'my_' + name!r}.")
