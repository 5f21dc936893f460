"""The mode of a model: training or evaluation, which each of its modules has for itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in the mode of evaluation, without gradients; then each module in the mode it was in.

    Layers that were frozen by `eval()` stay so, which `model.train()` would undo.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
