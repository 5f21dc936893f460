"""Constants, weights and records that a task of private data declares, though its private records have told them."""

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records, leaves
from dphpo_bench.base.text import count, shown
from dphpo_bench.contract.task import TaskFacts

_DIGITS = 1e-5
"""Relative difference of a constant from a statistic that it equals by no chance."""

_AT_ONCE = 2**20


def warn_of_learned(train: Records, model: nn.Module, facts: TaskFacts, **functions: Any) -> None:
    """Warn of scales, shares and weights that equal statistics of the private records, and of what holds records.

    Args:
        model: as a run builds it.
        functions: losses and the like, by name.
    """
    learned, scale = list[str](), facts.target_scale if facts.kind == "regression" else None
    with suppress(Exception):  # the caller's objects may raise anything where they are read
        learned += _holders(train, {"model": model, **functions})
    parts = [(part, "target" if name == "targets" else "input") for name, part in train.named().items()]
    for part, noun in parts:
        if not part.is_floating_point() or part.ndim > 2 or len(train) < 3:
            continue
        columns = part.reshape(len(part), -1)
        columns = scale.apply(columns) if scale is not None and noun == "target" else columns
        sums = torch.zeros(2, columns.shape[1], dtype=torch.float64)
        for some in _pieces(columns):
            sums += torch.stack([some.sum(0, dtype=torch.float64), some.double().square_().sum(0)])
        mean, squares = sums / len(part)
        deviation = (squares - mean**2).clamp(min=0).sqrt()
        deviations = deviation, deviation * math.sqrt(len(part) / (len(part) - 1))
        of_one = torch.stack([(each - 1).abs() < _DIGITS for each in deviations]).any(0) & (mean.abs() < _DIGITS)
        some = columns[:, of_one]
        if n := int((some != some.round()).any(0).sum()):  # as many 1 as -1 have this scale, too
            learned.append(f"{count(n, noun)} of mean 0 and deviation 1")
        varied = [each for each in (mean, *deviations) if bool((each != each[0]).any())]
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            same = weight.numel() == len(mean) and any(
                torch.allclose(weight.flatten().to(each), each, _DIGITS, 0) for each in varied
            )
            learned += [f"{name} of the model"] * same
    if facts.class_shares and facts.class_shares != tuple(round(share, 3) for share in facts.class_shares):
        counts = train.named()["targets"].long().bincount(minlength=len(facts.class_shares))
        if torch.allclose(counts / len(train), torch.tensor(facts.class_shares), _DIGITS, 0):
            learned.append("class_shares")
    if learned:
        warnings.warn(
            f"Expected nothing of the private records in a task but the records, got {shown(', '.join(learned), 200)}: "
            "what is computed from them is a release that no ε covers. Declare typical values, such as "
            "Number(typical=50, spread=20) or class_shares=(0.9, 0.1); draw weights, or take public records.",
            stacklevel=4,
        )


_LIBRARIES = frozenset({"torch", "numpy", "dphpo_bench"})
_DEPTH, _FIRST = 4, 16


def _holders(train: Records, declared: Mapping[str, Any]) -> Iterator[str]:
    """Yield what holds private records: tensors whose first and last row are records. Whole numbers may be by chance.

    Args:
        declared: models and functions of the task, by name.
    """
    parts = [part for part in leaves(train.inputs) if part.is_floating_point() and part[0].numel() > 1]
    for what, value in declared.items():
        for name, ends in _ends(value, what, _DEPTH):
            varied = bool((ends != ends.round()).flatten(1).any(1).all()) and not torch.equal(*ends)
            for part in parts if varied else ():
                if ends.shape[1:] == part.shape[1:] and all(_is_row(end.to(part), part) for end in ends):
                    yield f"records in {name} of the {what}"


def _is_row(row: Tensor, part: Tensor) -> bool:
    return any(bool((some == row).flatten(1).all(1).any()) for some in _pieces(part))


def _pieces(part: Tensor) -> tuple[Tensor, ...]:
    return torch.split(part, max(1, _AT_ONCE // max(1, part[0].numel())))


def _ends(value: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Yield first and last row of tensors and arrays that code names: in closures, globals, defaults, attributes."""
    inner: Mapping[Any, Any] = {}
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim > 1 and len(value) > 1 and str(value.dtype).removeprefix("torch.").startswith("float"):
            yield name, torch.as_tensor(value[[0, -1]]).detach()
    elif isinstance(value, nn.Module):
        inner = dict((*value.named_parameters(), *value.named_buffers()))
    elif isinstance(value, Mapping):
        inner = value
    elif isinstance(value, tuple | list):
        inner = {f"{name} {place}": part for place, part in enumerate(value[:_FIRST])}
    elif isinstance(value, partial):
        inner = {**value.keywords, name: (value.func, *value.args)}
    elif isinstance(value, FunctionType) and str(value.__module__).partition(".")[0] not in _LIBRARIES:
        variables = inspect.getclosurevars(value)
        inner = {**variables.globals, **variables.nonlocals, "a default": value.__defaults__}
    elif callable(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        inner = vars(value.__self__ if isinstance(value, MethodType) else value)
    for place, part in inner.items() if depth else ():
        yield from _ends(part, str(place), depth - 1)
