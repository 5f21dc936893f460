"""Trained models as files of weights, in the safetensors format: reading one runs nothing."""

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.files import write_aside, write_whole
from dphpo_bench.base.text import shown
from dphpo_bench.contract.registry import make_task
from dphpo_bench.contract.task import Task
from dphpo_bench.records.record import RunRecord

if TYPE_CHECKING:
    from torch import nn

SUFFIX = ".safetensors"


def check_model_path(path: Path) -> None:
    """Check, before any work is done, that a model can be written there; no file is overwritten.

    Raises:
        InvalidValueError: if it cannot.
    """
    if path.suffix != SUFFIX:
        raise InvalidValueError(f"Expected a model's file to end in {SUFFIX}, got {shown(path)}.")
    if os.path.lexists(path):
        raise InvalidValueError(f"Expected a model's file that does not exist, got {shown(path)}. Name another one.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise InvalidValueError(f"Cannot write a model to {shown(path)}: {shown(folder)} is no writable folder.")


def write_model(model: "nn.Module", record: RunRecord, path: Path) -> Path:
    """Write a model's weights and buffers, and the run that they are of, whole or not at all.

    Raises:
        InvalidValueError: if the path is unfit; see `check_model_path`.
        DataError: if the disk is full, or the like.
    """
    from safetensors.torch import save

    check_model_path(path)
    who, privacy = record.identity, record.privacy
    # Each tensor is copied: weights that two layers share are written for both, so that a plain load finds all of them.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}
    metadata = {
        "format": "pt",
        "dphpo-bench": version("dphpo-bench"),
        "record": who.key,
        "method": who.method,
        "task": who.task,
        "model": who.model,
        "epsilon": repr(privacy.epsilon) if privacy else "unknown",
        "delta": repr(who.delta),
    }
    content = save(tensors, metadata=metadata)
    try:
        return write_whole(path, content)
    except OSError as error:
        reason = f"Cannot write the model {path}: {error.strerror}."
    try:  # it has been paid for
        aside = write_aside(path, content)
    except OSError:
        raise DataError(reason) from None
    raise DataError(f"{reason} It was kept at {aside}.")


@typed
def load_model(path: Path | str, task: str | Task) -> "nn.Module":
    """Load the trained network that `RunResult.save` or `run --save-model` wrote.

    The network takes inputs as the task's records have them: `task.load_test(source).inputs` gives the test records'.

    Without this package, the weights go into a network of the same structure by
    `network.load_state_dict(safetensors.torch.load_file(path))`.

    Args:
        path: of the file.
        task: the task whose model it is, or its registered name.

    Returns:
        The network, in evaluation mode, on the CPU.

    Raises:
        DataError: if there is no such file, it is damaged, or it is not of this task and its model.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
    except (OSError, SafetensorError) as error:
        raise DataError(f"Cannot read the model {path}: {shown(error, 200)}.") from None
    if isinstance(task, str):
        if metadata.get("task") != task:
            raise DataError(f"Expected in {path} a model of task {task}, got one of {shown(metadata.get('task'))}.")
        task = make_task(task, metadata.get("model"))
    whose, here = (metadata.get("task"), metadata.get("model")), (task.facts.task, task.facts.model)
    if whose != here:
        raise DataError(
            f"Expected in {path} model {here[1]} of task {here[0]}, got {shown(whose[1])} of {shown(whose[0])}."
        )
    with torch.random.fork_rng(devices=[]):
        model = task.build_model()
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise DataError(f"The model in {path} has another structure than {here[1]}: {shown(error, 300)}.") from None
    return model.eval()
