"""Describe plug-ins: parameters, from their declarations and docstrings, and search spaces."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval

from dphpo_bench.base.checks import rule
from dphpo_bench.base.displays import Display, Displayed, as_texts
from dphpo_bench.contract.method import Method

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Examples?):$")
_ELSEWHERE = re.compile(r"The other parameters are those of every `\w+`\.\s*")
_NAMES = {int: "whole number", float: "number", str: "text", bool: "True or False"}


def parameters(cls: type[Method]) -> list[dict[str, Any]]:
    """Return the parameters of a method as JSON values, its own first, then those that it shares with others.

    `type` is what it may be, such as "0 < number < 1"; `default` is None if a value is required; `meaning` is from the
    docstring of the class that has it, "" if that says nothing.
    """
    hints = get_type_hints(cls, include_extras=True)
    owners: dict[str, type] = {}
    for base in reversed(cls.__mro__):
        owners |= dict.fromkeys(vars(base).get("__annotations__", ()), base)
    described = []
    settable = [field for field in fields(cls) if field.init]  # type: ignore[arg-type]
    for field in sorted(settable, key=lambda field: cls.__mro__.index(owners.get(field.name, cls))):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        meaning = next(filter(None, (attributes(base).get(field.name, "") for base in cls.__mro__)), "")
        default = None if default is MISSING else default
        kind = kind_text(hints[field.name])
        described.append({"name": field.name, "type": kind, "default": default, "meaning": meaning})
    return described


def kind_text(annotation: Any) -> str:
    """Return what an annotation allows, such as "0 < number < 1", "full, grid" or "text or none"."""
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
        return " or ".join([*map(kind_text, parts), *["none"] * (NoneType in get_args(annotation))])
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        kind, *rules = get_args(annotation)
        bounds = next((rule for rule in rules if isinstance(rule, Interval)), Interval())
        return rule(_NAMES[kind], kind, bounds)
    return _NAMES.get(annotation) or str(getattr(annotation, "__name__", annotation))


def explanation(cls: type) -> list[str]:
    """Return the paragraphs and list items of a class's docstring above its sections, each in one line."""
    blocks = []
    for block in re.split(r"\n\s*\n|\n(?=- )", _own_docstring(cls)):
        if _SECTION.match(block.partition("\n")[0]):
            break
        text = _ELSEWHERE.sub("", " ".join(block.split())).strip()
        if text:
            blocks.append(text)
    return blocks


def attributes(cls: type) -> dict[str, str]:
    """Return the section "Attributes" of a class's own docstring, by name, each in one line.

    Lines that are indented further continue an entry.
    """
    section = re.search(r"^Attributes:\n((?: .*\n?|\n)*)", _own_docstring(cls), re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


class DisplayedTask(Displayed):
    """A task that is shown by what it declares, and by nothing of its records."""

    def display(self: Any) -> Display:
        """Return the declarations in short."""
        facts = self.facts
        space = search_space(facts.search_space()) if facts.states_a_space else {}
        schedule = f"batches of {facts.batch_size:,}, {facts.epochs:g} epochs, {facts.optimizer}"
        rows = {
            "model": facts.model,
            "N": f"{facts.n_records:,}, unit: {facts.unit}",
            "inputs": facts.inputs if self.columns is None else ", ".join(self.columns),
            "classes": self.classes or facts.n_classes,
            "schedule": f"{schedule} at {facts.learning_rate:g}",
            "metrics": ", ".join(metric.name for metric in self.metrics) or None,
            "search space": "; ".join(f"{name}: {text}" for name, text in space.items()) or None,
        }
        access = "public" if self.public else "private"
        return f"{type(self).__name__} {self.name}: {facts.kind}, {access} records", as_texts(rows)


def search_space(space: "Mapping[str, BaseDistribution]") -> dict[str, str]:
    """Return each hyperparameter's range or choices, such as "0.0001 to 1, logarithmic"."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    ranges = {}
    for name, distribution in space.items():
        match distribution:
            case CategoricalDistribution(choices=choices):
                ranges[name] = ", ".join(map(str, choices))
            case FloatDistribution(low=low, high=high, log=log) | IntDistribution(low=low, high=high, log=log):
                ranges[name] = f"{low:g} to {high:g}{', logarithmic' if log else ''}"
            case _:
                ranges[name] = str(distribution)
    return ranges


def _own_docstring(cls: type) -> str:
    return inspect.cleandoc(vars(cls).get("__doc__") or "")
