"""Names of optimisers, known without torch, so that a plan refuses what a run would."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.text import unknown_name_message

if TYPE_CHECKING:
    from torch.optim import Optimizer

OF_TASK = "task"
"""Name of the task's optimiser, where a method has a default of its own."""

USUAL = frozenset({"adadelta", "adagrad", "adam", "adamax", "adamw", "muon", "nadam", "radam", "rmsprop", "sgd"})
"""Names that every supported torch has; other names are looked up in torch."""

REFUSED = {
    "adafactor": "its step is not proportional to the learning rate",
    "asgd": "its step is not proportional to the learning rate",
    "rprop": "its step is not proportional to the learning rate",
    "lbfgs": "it evaluates the loss several times a step",
    "sparseadam": "it takes sparse gradients only",
}


def published() -> "dict[str, Callable[..., Optimizer]]":
    """Return torch's own optimisers by their names in small letters."""
    import torch

    return {
        attribute.lower(): value
        for attribute, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
        and f"{value.__module__}.".startswith("torch.optim.")
    }


def check_optimizer(name: str) -> None:
    """Check that a text names an optimiser that can serve as a map from gradient to update."""
    key = name.lower()
    if key in USUAL:
        return
    if key not in published():
        raise UnknownNameError(unknown_name_message("optimizer", name, set(published()) - set(REFUSED)))
    if key in REFUSED:
        raise InvalidValueError(f"Optimiser {name!r} cannot be used here: {REFUSED[key]}. Use 'adamw' or 'sgd'.")


def check_optimizer_or_task(name: str) -> None:
    """Check that a text names an optimiser, or is "task"."""
    if name != OF_TASK:
        check_optimizer(name)


OptimizerName = Annotated[str, check_optimizer]
"""A `torch.optim` name, in any case."""

OptimizerOrTask = Annotated[str, check_optimizer_or_task]
"""A `torch.optim` name, or "task" for the task's."""
