"""Your own task, from options that are not grouped: tests vary one at a time."""

from dataclasses import fields
from typing import Any

from dphpo_bench.recipes.array_task import ArrayTask, Labels, Measures, TrainingOptions

GROUPS = {"labels": Labels, "measures": Measures, "training": TrainingOptions}


def array_task(*arguments: Any, **options: Any) -> ArrayTask:
    """Return an `ArrayTask`, with options of its groups by their own names."""
    for group, kind in GROUPS.items():
        names = {field.name for field in fields(kind)} & options.keys()
        if names:
            options[group] = kind(**{name: options.pop(name) for name in names})
    return ArrayTask(*arguments, **options)
