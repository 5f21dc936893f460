"""Plug-ins that a change touches: they run their whole contract, beside one of each skeleton."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@cache
def touched(folder: str) -> frozenset[str]:
    """Return the modules in a folder that differ from where this branch left main, or that git does not know yet.

    None on main itself, and none where there is no git or no main.
    """
    for main in ("main", "origin/main"):
        if base := _git("merge-base", "HEAD", main):
            files = [*_git("diff", "--name-only", *base, "--", folder), *_git("ls-files", "--others", "--", folder)]
            return frozenset(Path(file).stem for file in files if file.endswith(".py"))
    return frozenset()


def module(plug_in: Any) -> str:
    """Return the name of the file that has a plug-in."""
    cls = plug_in if isinstance(plug_in, type) else type(plug_in)
    return cls.__module__.rpartition(".")[2]


def skeleton(cls: type, package: str) -> type:
    """Return the class that a plug-in is written on: its nearest one outside of the plug-ins' package."""
    return next(base for base in cls.__mro__ if not base.__module__.startswith(package))


def quick(config: pytest.Config, value: Any, is_quick: bool) -> Any:
    """Return a parameter that `pytest -m slow` runs always, and plain `pytest` if it is quick."""
    return value if is_quick and config.getoption("markexpr") != "slow" else pytest.param(value, marks=pytest.mark.slow)


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []
