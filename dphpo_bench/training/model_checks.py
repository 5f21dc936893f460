"""Checks that a model can be trained, does not watch private records or keep them, and works on made-up ones.

That no record affects the results of another needs no check: see `alone`.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, converted, each, leaves, length, take
from dphpo_bench.training.alone import Alone, first_line
from dphpo_bench.training.evaluation import evaluating
from dphpo_bench.training.functional import copied
from dphpo_bench.training.losses import PerRecord, of_one, tensors_of
from dphpo_bench.training.structure import content, named_tensors

# Records differ in size, and some are of positive numbers, which logarithms and roots take.
_SCALES = (0.1, 3.0, 1.0, 0.3, 10.0, 0.0)
_TOLERANCE = 1e-3

ASKS_FOR_EXAMPLE = "If it needs certain values, give inputs of a public record: example=."


def refuse_unfit(model: nn.Module) -> None:
    """Reject a model without weights, with weights of no shape yet, or with an embedding that a batch changes."""
    if next(model.parameters(), None) is None:
        raise InvalidValueError(
            f"Expected a model with weights to train, got {type(model).__name__} with none. Add a layer with weights; "
            "pass a quantised model as it was before."
        )
    if any(map(is_lazy, model.parameters())):
        raise InvalidValueError("Expected a model whose layers know their shapes. Call it once on an example before.")
    for name, layer in model.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            raise InvalidValueError(
                f"Expected layers that no batch changes; {name or 'the model'!r} ({type(layer).__name__}) shortens the "
                "rows that a batch looks up, which no noise covers. Build it without max_norm."
            )


@contextmanager
def tried(inputs: Tensors, *, asks_for_example: bool = False) -> Iterator[None]:
    """Raise what a model raises as an `InvalidValueError` of one line. No private records may be in use.

    Args:
        inputs: of the shapes that the model is tried on.
        asks_for_example: whether other values than made-up ones may help.
    """
    try:
        yield
    except DphpoBenchError:
        raise
    except Exception as error:  # whatever a model raises
        shapes = ", ".join(str((1, *tensor.shape[1:])) for tensor in leaves(inputs))
        way = f" {ASKS_FOR_EXAMPLE}" if asks_for_example else ""
        raise InvalidValueError(
            f"The model fails on made-up records of shape {shapes}: {described(error)}{way}"
        ) from None


def described(error: Exception) -> str:
    """Return the type of an exception, its first line, and what a model has to take."""
    kind = type(error).__name__
    return f"{kind}: {first_line(error)}. A model takes any number of records, in the first dimension."


def refuse_watchers(model: nn.Module | None = None) -> None:
    """Reject hooks and modes of torch, which would see the records.

    These are hooks of all modules or of all optimisers, and hooks of the model but for torch's. Modes that see every
    operation, or every tensor that waits for a backward pass, are rejected while they are active. The mode of the
    default device is allowed.
    """
    modes = [*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack()]  # type: ignore[no-untyped-call]
    active = [type(mode).__name__ for mode in modes if type(mode) is not DeviceContext]
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        active.append("saved_tensors_hooks")
    if torch._C._autograd._profiler_enabled():
        active.append("a profiler")
    if active:
        raise InvalidValueError(
            f"Expected no mode of torch that would see the records; {active[0]} is active. Leave it."
        )
    registry = vars(nn.modules.module)
    everywhere = [registry[name] for name in registry if name.startswith("_global_") and name.endswith("_hooks")]
    if any([*everywhere, _global_optimizer_pre_hooks, _global_optimizer_post_hooks]):
        raise InvalidValueError(
            "Expected torch without hooks of all modules or all optimisers, which would see the records. Remove them."
        )
    if model is None:
        return
    hooks = [
        (name or "the model", hook)
        for name, module in model.named_modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        for hook in getattr(module, kind).values()
    ]
    hooks += [
        (name, hook)
        for name, parameter in model.named_parameters()
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
        for hook in (getattr(parameter, kind, None) or {}).values()
    ]
    for name, hook in hooks:
        package = (getattr(getattr(hook, "func", hook), "__module__", None) or "").partition(".")[0]
        if package != "torch":
            way = "Remove it."
            if package == "opacus":
                way = "Remove those of Opacus: model.to_standard_module(), or hooks.cleanup() after wrap_model=False."
            raise InvalidValueError(
                f"Expected a model without hooks, which would see the records; {name} has one. {way}"
            )


def made_up(model: nn.Module, like: Records, example: Tensors | None = None) -> Records:
    """Return six made-up records on the device of a model, with targets of zeros and ones.

    Args:
        model: takes them. If it fails on floating-point numbers of several sizes, the inputs are zeros and ones, as if
            it made token ids of them.
        like: only names, shapes and types of these records are used.
        example: inputs of one public record or several, by their names; they take the place of made-up inputs.
    """
    device, dtype = (lambda first: (first.device, first.dtype))(next(model.parameters()))
    count = len(_SCALES)
    convert = partial(converted, device=device, dtype=dtype)
    targets = each(lambda tensor: convert(zeros_and_ones(tensor)), like.targets)
    if example is not None:
        rows = torch.arange(count) % length(example)
        return Records(each(lambda tensor: convert(tensor[rows.to(tensor.device)]), example), targets)
    generator = torch.Generator().manual_seed(1)

    inputs = each(lambda tensor: convert(numbers_like(tensor, generator)), like.inputs)
    try:
        outputs_alone(copied(model), inputs)
    except Exception:  # whatever a model raises
        inputs = each(lambda tensor: convert(zeros_and_ones(tensor, generator)), like.inputs)
    return Records(inputs, targets)


def numbers_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return six made-up rows of the shape and type of a tensor's, floating-point numbers of several sizes."""
    if not tensor.is_floating_point():
        return zeros_and_ones(tensor, generator)
    count = len(_SCALES)
    shape = (count, *[1] * (tensor.ndim - 1))
    values = torch.tensor(_SCALES).view(shape) * torch.randn((count, *tensor.shape[1:]), generator=generator)
    return torch.where((torch.arange(count) % 2 == 0).view(shape), values.abs(), values).to(tensor)


def zeros_and_ones(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return six made-up rows of the shape and type of a tensor's."""
    generator = generator or torch.Generator().manual_seed(3)
    return torch.randint(2, (len(_SCALES), *tensor.shape[1:]), generator=generator).to(tensor)


def refuse_keeping(model: nn.Module, inputs: Tensors) -> None:
    """Reject a model that keeps something of what it sees, or that draws random numbers from elsewhere than torch.

    Args:
        model: checked in its modes and in that of evaluation.
        inputs: made-up inputs, which a copy of the model gets twice, since it may compute tables once.
    """
    probe, elsewhere = copied(model), states_elsewhere()
    with torch.no_grad():
        # What has converged at the present weights changes after a step.
        for weight in (each for each in probe.parameters() if each.requires_grad):
            weight.mul_(torch.linspace(0.9, 1.1, weight.numel(), device=weight.device).view_as(weight))
    for _ in range(2):
        run = Alone(lambda x: tensors_of(call(probe, x)))  # in a loop, too, all records are seen by the same model
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            run(inputs)
            before = _state(probe)
            run(inputs)
        for (name, now), (_, value) in zip(_state(probe), before, strict=False):
            if now != value or now is _A_RECORD:
                raise InvalidValueError(
                    f"Expected a model that keeps nothing of what it sees; {name!r} changes when it is used. Leave it "
                    "out, or set it once, before training."
                )
        probe.eval()
    if states_elsewhere() != elsewhere:
        raise InvalidValueError(
            "Expected a model that draws its random numbers from torch's global generator, as dropout does; it draws "
            "from those of Python or NumPy, which no seed of a run sets."
        )


def differs_in_batches(model: nn.Module, inputs: Tensors) -> str:
    """Return how to mend a model whose outputs for made-up records change with the others of a batch; "" if none does.

    Private training gives it one record at a time, so that it is another network than in batches.
    """
    probe = copied(model)
    try:
        with evaluating(probe):
            together, again = (leaves(tensors_of(call(probe, each(Tensor.clone, inputs)))) for _ in range(2))
            single = leaves(outputs_alone(probe, inputs))
    except Exception:  # whatever a model raises for a batch
        return ""
    if any(map(_differ, together, again)):
        return ""  # it draws random numbers
    if not any(map(_differ, together, single)):
        is_recurrent = any(isinstance(layer, nn.RNNBase) for layer in model.modules())
        return _way_in_ones(probe, inputs, together) if is_recurrent else ""
    for name, layer in model.named_modules():
        if getattr(layer, "batch_first", True) is False:
            return f"Build {name or 'the model'!r} ({type(layer).__name__}) with batch_first=True."
    return "Take no statistics over dimension 0."


def _way_in_ones(model: nn.Module, inputs: Tensors, together: Sequence[Tensor]) -> str:
    """Return how to mend a recurrent model whose outputs are others in batches of a single, perhaps short, record."""
    with suppress(Exception), evaluating(model):  # a model may take no such batch
        rows = [each(partial(take, rows=torch.tensor([row])), inputs) for row in range(length(inputs))]
        ones = [leaves(tensors_of(call(model, row))) for row in rows]
        for whole, parts in zip(together, zip(*ones, strict=True), strict=True):
            single = torch.cat(parts)
            if single.shape == whole.shape and _differ(whole, single):
                return "Pad to a length that depends on no record, such as total_length= of pad_packed_sequence."
    return ""


def try_values(values: PerRecord, what: str, outputs: Tensors, targets: Tensors) -> Tensor:
    """Return losses or scores of made-up records; reject those that fail, or are not a number for each record."""
    try:
        with torch.no_grad():
            result: Tensor = Alone(of_one(values, what))(outputs, targets)
    except InvalidValueError:
        raise
    except Exception as error:  # whatever a loss raises
        shapes = [", ".join(map(_form, leaves(part))) for part in (outputs, targets)]
        raise InvalidValueError(
            f"No {what} can be computed from the model's outputs: {first_line(error)}. "
            f"It gets outputs {shapes[0]} and targets {shapes[1]}, of one record at a time."
        ) from None
    return result


def states_elsewhere() -> list[object]:
    """Return the states of the global generators of Python and numpy."""
    return [random.getstate(), [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()]]


def outputs_alone(model: nn.Module, inputs: Tensors) -> Tensors:
    """Return the outputs of a model in evaluation that are tensors, for each record alone."""
    with evaluating(model):
        outputs: Tensors = Alone(lambda model, x: tensors_of(call(model, x)), model)(inputs)
    return outputs


def _form(tensor: Tensor) -> str:
    """Return a tensor's type and the shape of its rows, such as "float32 (n, 2)"."""
    shape = ", ".join(map(str, tensor.shape[1:]))
    return f"{str(tensor.dtype).removeprefix('torch.')} (n, {shape})".replace("(n, )", "(n,)")


def _differ(together: Tensor, single: Tensor) -> bool:
    if together.shape != single.shape:
        return True
    together, single = (part.double().nan_to_num(0.0, 0.0, 0.0) for part in (together, single))
    offset = together.mean(0)  # else a large bias would hide the differences
    size = max((together - offset).abs().max(), (single - offset).abs().max())
    return bool((together - single).abs().max() > _TOLERANCE * size + 1e-6 * offset.abs().max())


_OF_TORCH = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs"}
_A_RECORD = object()
"""Mark of a tensor that holds a record, as vmap shows it; see `_state`."""


def _state(model: nn.Module) -> list[tuple[str, object]]:
    """Return the contents of weights, buffers and other tensors; of other attributes identities and lengths."""
    state: list[tuple[str, object]] = [(name, content(tensor)) for name, tensor in named_tensors(model)]
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in _OF_TORCH:
                state.append((f"{name}.{key}".lstrip("."), _seen(value)))
    return state


def _seen(value: object) -> object:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    if any(map(_functorch.is_functorch_wrapped_tensor, tensors)):
        return _A_RECORD
    length = len(value) if isinstance(value, list | dict | set) else -1
    value = value.get_state() if isinstance(value, torch.Generator) else value
    return content(value) if isinstance(value, Tensor) else (id(value), length)
