"""The public names: about thirty at the top, the rest in namespaces, all loaded on first use."""

import doctest
import importlib
import subprocess
import sys
from collections import Counter

import pytest

import dphpo_bench

NAMESPACES = (
    "clipping",
    "errors",
    "events",
    "features",
    "hyfreedp",
    "lightning",
    "losses",
    "metrics",
    "optuna",
    "parameters",
    "recipes",
    "search",
    "transformers",
)
HEAVY = ("torch", "pandas", "optuna", "sklearn", "lightning", "transformers")
PER_LIBRARY = {"BudgetCallback"}  # one name for one thing, of several libraries


def test_the_top_is_small() -> None:
    assert len(set(dphpo_bench.__all__) - set(NAMESPACES)) <= 45
    assert set(NAMESPACES) <= set(dphpo_bench.__all__)


@pytest.mark.parametrize("name", ["", *NAMESPACES])
def test_every_public_name_loads_and_a_strange_one_does_not(name: str) -> None:
    module = importlib.import_module(f"dphpo_bench.{name}".rstrip("."))
    assert module.__all__
    assert all(getattr(module, public) is not None for public in module.__all__)
    assert not hasattr(module, "nothing_of_this_name")


def test_a_name_of_a_namespace_says_where_it_is() -> None:
    assert dphpo_bench.events.gaussian  # its use puts no name at the top
    with pytest.raises(AttributeError, match=r"No dphpo_bench attribute gaussian; it is in bench\.events\."):
        dphpo_bench.gaussian  # type: ignore[attr-defined]  # noqa: B018


def test_a_name_has_one_place() -> None:
    spaces = [getattr(dphpo_bench, name) for name in NAMESPACES]
    counts = Counter(public for module in (dphpo_bench, *spaces) for public in module.__all__)
    assert [public for public, count in counts.items() if count > 1 and public not in PER_LIBRARY] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        f"import sys, dphpo_bench; from dphpo_bench import {', '.join(NAMESPACES)}; "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespaces_open_with_a_lesson(name: str) -> None:
    module = importlib.import_module(f"dphpo_bench.{name}")
    lesson = doctest.DocTestParser().get_doctest(module.__doc__ or "", {}, name, None, 0)
    assert len(lesson.examples) >= 2
    assert doctest.DocTestRunner().run(lesson).failed == 0
