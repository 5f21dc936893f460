"""Models and losses that come from another library's training loop: used as they are meant, or refused in a line."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.handed_over import comes_from, unexpected, way_out
from dphpo_bench.training.losses import PerRecord

_WEIGHTS = ("weight", "pos_weight")
_STATE = "A state_dict holds weights alone: model.load_state_dict(weights), then pass model, with pretrained=True."
_DATA_FIRST = "The data come before it: ArrayTask(name, (inputs, labels), model)."


def check_model(model: Any) -> "nn.Module | Callable[[], nn.Module]":
    """Return a module or a function as it is; reject anything else, and wrappers that a loop puts around a network."""
    if not callable(model) or way_out(model):
        rule = "Expected model to be a torch.nn.Module or a function that makes one"
        raise unexpected(rule, model, _STATE if isinstance(model, Mapping) else _DATA_FIRST)
    return model  # type: ignore[no-any-return]


def refuse_ignored_steps(model: nn.Module, losses: PerRecord | None) -> None:
    """Reject a LightningModule whose loss is unknown; warn of what its training loop would do besides.

    Args:
        model: as it is built; its network is what `forward` computes.
        losses: those of the task, if declared: they stand for the loss of `training_step`.
    """
    if not any(comes_from(model, library, "LightningModule") for library in ("lightning", "pytorch_lightning")):
        return
    if losses is None:
        inner = [name for name, child in model.named_children() if next(child.parameters(), None) is not None]
        network = f"module.{inner[0]}" if len(inner) == 1 else "the torch.nn.Module in it"
        raise InvalidValueError(
            f"Expected a network, got the LightningModule {type(model).__name__}, whose training_step and optimizers "
            f"would be ignored. Pass {network}, or say its loss to ArrayTask, such as "
            'losses=nn.CrossEntropyLoss(reduction="none"): then forward is the network.'
        )
    warnings.warn(
        f"Of {type(model).__name__} only forward is used: losses=, optimizer= and learning_rate= of the task stand for "
        "its training_step and configure_optimizers.",
        stacklevel=4,
    )


def check_losses(losses: Any) -> None:
    """Reject a class, a mean over a batch, class weights that clipping undoes, and losses with weights to train.

    Args:
        losses: as a task gets them: a function, a module of torch, a `functools.partial`, or None.
    """
    if losses is None:
        return
    if way_out(losses):
        raise unexpected("Expected losses to be a function of outputs and targets", losses)
    name = losses.__name__ if isinstance(losses, type) else type(losses).__name__
    if isinstance(losses, type):
        raise InvalidValueError(
            f'Expected losses to be a function, got the class {name}. Write {name}(reduction="none").'
        )
    settings = losses.keywords if isinstance(losses, partial) else {}
    if isinstance(losses, nn.Module):
        settings = {key: getattr(losses, key, None) for key in (*_WEIGHTS, "reduction")}
        if any(parameter.requires_grad for parameter in losses.parameters()):
            raise InvalidValueError(
                f"Expected losses without weights to train, got {name} with some, which no step would change. Put them "
                "into the model, which then returns what the losses need."
            )
    weighted = [key for key in _WEIGHTS if settings.get(key) is not None]
    if weighted:
        raise InvalidValueError(
            f"Expected losses without {weighted[0]}=, got {name} with class weights: gradients are clipped after them, "
            'which undoes them. Leave it out, and declare class_weights="balanced" with class_shares=(0.93, 0.07) from '
            "public knowledge, which weigh clipped gradients."
        )
    if settings.get("reduction", "none") != "none":
        raise InvalidValueError(
            f"Expected a loss for each record, got {name} with reduction={settings['reduction']!r} over a batch. "
            f'Write {name}(reduction="none"), or leave losses= out: each kind= has losses.'
        )
