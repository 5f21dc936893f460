"""What a model must not do with private records: watch them, keep them, or let one affect the results of another.

Clipping bounds what a record does to its own gradient, loss or prediction. If a model mixes records, by a layer that
no engine knows by name, one record counts in all the others' results.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, converted, each, leaves, take
from dphpo_bench.training.evaluation import evaluating
from dphpo_bench.training.lengths import refuse_wrong_lengths
from dphpo_bench.training.linear import linear_layer
from dphpo_bench.training.losses import PerRecord, check_one_each, tensors_of
from dphpo_bench.training.randomness import global_randomness

# Records differ in size, so that statistics of a batch differ from those of a record.
_SCALES = (0.1, 3.0, 1.0, 0.3, 10.0, 0.0)
_TOLERANCE = 1e-3


def refuse_watchers(model: nn.Module | None = None) -> None:
    """Refuse hooks and modes of torch, which would see the records.

    Refused are hooks of all modules and of all optimisers, and those of the model, if there is one, but for torch's
    own; and active modes that see every operation, or every tensor that is kept for a backward pass, but for that of
    the default device.
    """
    modes = [*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack()]  # type: ignore[no-untyped-call]
    watching = [
        type(mode).__name__ for mode in modes if type(mode) is not DeviceContext or "__torch_function__" in vars(mode)
    ]
    others = {
        "saved_tensors_hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
        "a profiler": torch._C._autograd._profiler_enabled(),
        "torch.jit.trace": torch._C._get_tracing_state() is not None,
        "a transform of torch.func": torch._C._functorch.peek_interpreter_stack() is not None,
    }
    watching += [name for name, active in others.items() if active]
    if watching:
        raise InvalidValueError(
            f"Expected no mode of torch that would see the records; {watching[0]} is active. Leave it."
        )
    registry = vars(nn.modules.module)
    everywhere = [registry[name] for name in registry if name.startswith("_global_") and name.endswith("_hooks")]
    if any([*everywhere, _global_optimizer_pre_hooks, _global_optimizer_post_hooks]):
        # Whoever they say they are from: torch registers none itself.
        raise InvalidValueError(
            "Expected torch without hooks of all modules or all optimisers, which would see the records. Remove them."
        )
    where: list[tuple[str, Mapping[int, Any] | None]] = []
    for name, module in model.named_modules() if model is not None else ():
        own = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
        where += [(name or "the model", hooks) for hooks in own]
    for name, parameter in model.named_parameters() if model is not None else ():
        where += [(name, parameter._backward_hooks), (name, getattr(parameter, "_post_accumulate_grad_hooks", None))]
    for name, hooks in where:
        for hook in (hooks or {}).values():
            if (getattr(getattr(hook, "func", hook), "__module__", None) or "").partition(".")[0] != "torch":
                raise InvalidValueError(f"Expected a model without hooks, which would see the records; {name} has one.")


def refuse_mixing(model: nn.Module, inputs: Tensors) -> None:
    """Refuse a model whose outputs for one record depend on others of the batch, or that keeps what it sees.

    Refused, too, is one that says how long records are and whose outputs depend on what comes after. It is tried on
    made-up inputs, in its own mode and in that of evaluation, with a copy whose weights are perturbed, since initial
    weights of zero would hide much. Where it draws random numbers, it is tried at one seed with one record exchanged:
    the outputs of all others must stay. Of `inputs` only the names, the shape of a record, the type and the device are
    used, not the values.
    """
    if linear_layer(model) is not None:
        return
    probe = perturbed(model)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        numbers = made_up(probe, inputs)
        positive = each(lambda tensor: tensor.abs() if tensor.is_floating_point() else tensor, numbers)
        for _ in range(2):
            if not any(_compare(probe, some) for some in (numbers, positive)):
                raise InvalidValueError(
                    "Expected outputs that are finite for some made-up records: whether the model treats each record "
                    "alone could not be seen."
                )
            refuse_wrong_lengths(probe, numbers)
            probe.eval()


def perturbed(model: nn.Module) -> nn.Module:
    """A copy of a model with other weights."""
    generator = torch.Generator().manual_seed(0)
    probe = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in probe.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.add_(noise * (0.1 * (1 + float(parameter.abs().mean()))))
    return probe


def refuse_mixing_values(values: PerRecord, what: str, model: nn.Module, records: Records) -> None:
    """Refuse losses or scores that are not one number for each record, or that depend on the others of a batch.

    They are tried on made-up outputs and targets: all records together, each alone, half of them, in the opposite
    order, and with one replaced by another. Of the model's outputs and of `records` only names, shapes, types and the
    device are used, not the values. `what` is "loss" or "score".
    """
    generator = torch.Generator().manual_seed(2)
    count, like = len(_SCALES), next(model.parameters())

    def random(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor)

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with evaluating(model):
                outputs = each(random, tensors_of(call(model, made_up(model, records.inputs))))
            targets = each(lambda tensor: converted(zeros_and_ones(tensor), like.device, like.dtype), records.targets)

            def of(rows: list[int]) -> Tensor:
                some = torch.tensor(rows)
                found = values(*(each(lambda tensor: take(tensor, some), part) for part in (outputs, targets)))
                check_one_each(found, len(rows), what)
                return found.double().nan_to_num()

            everyone = list(range(count))
            together = of(everyone)
            found = (
                torch.cat([of([row]) for row in everyone]),
                of(everyone[::-1]).flip(0),
                torch.cat([of(everyone[: count // 2]), of(everyone[count // 2 :])]),
                torch.cat([of([*everyone[:-1], 0])[:-1], together[-1:]]),
            )
        except InvalidValueError:
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InvalidValueError(f"No {what} can be computed from the model's outputs: {reason}") from None
    if any(bool((one - together).abs().max() > _TOLERANCE * together.abs().max()) for one in found):
        raise InvalidValueError(
            f"Expected each record's {what} to depend on that record alone; it changes with the others of a batch."
        )


def made_up(model: nn.Module, inputs: Tensors) -> Tensors:
    """Six inputs of several sizes; integers are 0 and 1, which every vocabulary has.

    Floating-point inputs are 0 and 1 too for a model that takes no others, such as one that converts them to token ids
    itself. Of `inputs` only the names, the shape of a record, the type and the device are used.
    """
    generator = torch.Generator().manual_seed(1)
    like = next(model.parameters())

    def numbers(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return zeros_and_ones(tensor, generator).to(like.device)
        scales = torch.tensor(_SCALES).view(-1, *[1] * (tensor.ndim - 1))
        return (scales * torch.randn((len(_SCALES), *tensor.shape[1:]), generator=generator)).to(like)

    found = each(numbers, inputs)
    try:
        with evaluating(model):
            call(model, each(Tensor.clone, found))
    except (IndexError, RuntimeError, ValueError):
        return each(lambda tensor: converted(zeros_and_ones(tensor, generator), like.device, like.dtype), inputs)
    return found


def zeros_and_ones(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Six made-up rows of the shape and type of a tensor's."""
    generator = generator or torch.Generator().manual_seed(3)
    return torch.randint(2, (len(_SCALES), *tensor.shape[1:]), generator=generator).to(tensor)


def _compare(model: nn.Module, inputs: Tensors) -> bool:
    """Refuse a model whose outputs for these inputs show that it mixes or keeps them; whether some are finite."""

    def outputs(rows: list[int]) -> list[Tensor]:
        some = torch.tensor(rows)
        found = leaves(tensors_of(call(model, each(lambda tensor: take(tensor, some), inputs))))
        if any(tensor.ndim == 0 or len(tensor) != len(rows) for tensor in found):
            shapes = [tuple(tensor.shape) for tensor in found]
            raise InvalidValueError(f"Expected outputs with one row for each of {len(rows)} records, got {shapes}.")
        return found

    everyone = list(range(len(_SCALES)))
    together = outputs(everyone)
    before = _state(model)
    again = [tensor.flip(0) for tensor in outputs(everyone[::-1])]
    if _state(model) != before:
        raise InvalidValueError(
            "Expected a model that keeps nothing of what it sees; a buffer or an attribute changes when it is used."
        )
    seen = any(bool(tensor.isfinite().any()) for tensor in together)
    if any(map(_differ, together, outputs(everyone), together)):
        _compare_at_one_seed(model, outputs, len(everyone))
        return seen
    alone = [torch.cat(rows) for rows in zip(*(outputs([row]) for row in everyone), strict=True)]
    if any(map(_differ, together, again, alone)):
        raise InvalidValueError(
            "Expected a model that treats each record alone; its outputs for a record depend on the others of a batch."
        )
    return seen


def _compare_at_one_seed(model: nn.Module, outputs: Callable[[list[int]], list[Tensor]], count: int) -> None:
    """Refuse a model that draws random numbers, if they hide that it mixes records: all others stay as they are."""

    def drawn(rows: list[int]) -> list[Tensor]:
        with global_randomness(0, next(model.parameters()).device):
            return outputs(rows)

    everyone = list(range(count))
    together = drawn(everyone)
    if any(map(_differ, together, drawn(everyone), together)):
        raise InvalidValueError(
            "Expected a model that draws its random numbers from torch's global generator, as dropout does: whether it "
            "treats each record alone could not be seen."
        )
    for row in everyone:
        others = [other for other in everyone if other != row]
        exchanged = drawn([(row + 1) % count if other == row else other for other in everyone])
        if any(_differ(a[others], b[others], a[others]) for a, b in zip(together, exchanged, strict=True)):
            raise InvalidValueError(
                "Expected a model that treats each record alone; its outputs for a record depend on the others of a "
                "batch, or on how many random numbers were drawn for them: dropout needs tensors of one shape."
            )


def _differ(together: Tensor, again: Tensor, alone: Tensor) -> bool:
    if any(not torch.equal(_unlike_numbers(together), _unlike_numbers(one)) for one in (again, alone)):
        return True
    together, again, alone = (one.double().nan_to_num(0.0, 0.0, 0.0) for one in (together, again, alone))
    offset = together.mean(0)  # else a large bias would hide the differences
    size = max((together - offset).abs().max(), (alone - offset).abs().max())
    largest = max((together - alone).abs().max(), (again - alone).abs().max())
    return bool(largest > _TOLERANCE * size + 1e-6 * offset.abs().max())


def _unlike_numbers(tensor: Tensor) -> Tensor:
    """Which values are NaN or infinite, and of what sign."""
    return tensor.isnan().int() + 2 * tensor.isposinf().int() + 3 * tensor.isneginf().int()


def _state(model: nn.Module) -> list[tuple[str, object]]:
    """The values of buffers, and which objects the attributes are."""
    state: list[tuple[str, object]] = [(name, buffer.flatten().tolist()) for name, buffer in model.named_buffers()]
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_") and key != "training":
                length = len(value) if isinstance(value, list | dict | set) else -1
                state.append((f"{name}.{key}", (id(value), length)))
    return state
