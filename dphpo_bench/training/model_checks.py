"""Checks that a model does not watch private records, keep them, or let one affect the results of another.

Clipping bounds what a record does to its own gradient, loss or prediction. If a model mixes records, by a layer that
no engine knows by name, one record counts in all the others' results.
"""

from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, call, converted, each, leaves, take
from dphpo_bench.base.text import one_line
from dphpo_bench.training.evaluation import evaluating, rows_at_once
from dphpo_bench.training.functional import copied
from dphpo_bench.training.lengths import refuse_wrong_lengths
from dphpo_bench.training.linear import linear_layer
from dphpo_bench.training.losses import PerRecord, check_one_each, tensors_of
from dphpo_bench.training.recurrent import WithoutDropout
from dphpo_bench.training.row_draws import RowDraws, draws, states_elsewhere
from dphpo_bench.training.structure import content
from dphpo_bench.training.value_reads import where_it_reads

# Records differ in size, so that statistics of a batch differ from those of a record.
_SCALES = (0.1, 3.0, 1.0, 0.3, 10.0, 0.0)
_TOLERANCE = 1e-3
_MANY = 33
"""Records of a larger batch: what has a capacity, such as an expert of a mixture, overflows in large batches only."""
_MOST_OF_REASON = 160
_CHANCES = 16
"""Models that draw random numbers are tried so many times: some mix records now and then."""


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
        if (getattr(getattr(hook, "func", hook), "__module__", None) or "").partition(".")[0] != "torch":
            raise InvalidValueError(
                f"Expected a model without hooks, which would see the records; {name} has one. "
                f"{_without_hook(getattr(hook, 'func', hook))}"
            )


def _without_hook(hook: object) -> str:
    """Return how to remove a hook."""
    if (getattr(hook, "__module__", None) or "").startswith("opacus."):
        return "Remove those of Opacus: model.to_standard_module(), or hooks.cleanup() after wrap_model=False."
    return "Remove it."


def refuse_mixing(model: nn.Module, inputs: Tensors) -> None:
    """Reject a model that mixes the records of a batch, keeps some of them, or says wrong lengths.

    Checked is a copy with perturbed weights, since initial weights of zero would hide much, on made-up inputs, in the
    model's mode and in that of evaluation. What a record draws by chance is the same in all passes; see `RowDraws`. Of
    `inputs` only names, the shape of a record, type and device are used.
    """
    if linear_layer(model) is not None:
        return
    probe, unused = perturbed(model), perturbed(model)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        numbers = made_up(probe, inputs)
        positive = each(lambda tensor: tensor.abs() if tensor.is_floating_point() else tensor, numbers)
        for _ in range(2):
            if not any(_compare(probe, some, copied(unused)) for some in (numbers, positive)):
                raise InvalidValueError(
                    "Expected outputs that are finite for some made-up records: whether the model treats each record "
                    "alone could not be seen."
                )
            refuse_wrong_lengths(probe, numbers)
            probe.eval()
            unused.eval()


def perturbed(model: nn.Module) -> nn.Module:
    """Return a copy of a model with other weights."""
    generator = torch.Generator().manual_seed(0)
    probe = copied(model)
    with torch.no_grad():
        for parameter in probe.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.add_(noise * (0.1 * (1 + float(parameter.abs().mean()))))
    return probe


def refuse_mixing_values(values: PerRecord, what: str, model: nn.Module, records: Records) -> None:
    """Reject losses or scores that are not a number for each record, or that depend on the others of a batch.

    They are tried on made-up outputs and targets: all records together, each alone, half of them, in the opposite
    order, and with the last one replaced. Of `records` only names, shapes, types and the device are used.

    Args:
        values: the losses or scores.
        what: "loss" or "score".
        model: gives the outputs their names and shapes.
        records: as the model takes them.
    """
    generator = torch.Generator().manual_seed(2)
    count, like = len(_SCALES), next(model.parameters())

    def random(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor)

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        with evaluating(model):
            outputs = each(random, tensors_of(call(model, made_up(model, records.inputs))))
        try:
            targets = each(lambda tensor: converted(zeros_and_ones(tensor), like.device, like.dtype), records.targets)

            def of(rows: list[int]) -> Tensor:
                some = torch.tensor(rows)
                numbers = values(*(each(lambda tensor: take(tensor, some), part) for part in (outputs, targets)))
                check_one_each(numbers, len(rows), what)
                return numbers.double().nan_to_num()

            everyone = list(range(count))
            together = of(everyone)
            otherwise = (
                torch.cat([of([row]) for row in everyone]),
                of(everyone[::-1]).flip(0),
                torch.cat([of(everyone[: count // 2]), of(everyone[count // 2 :])]),
                torch.cat([of([*everyone[:-1], 0])[:-1], together[-1:]]),
            )
        except InvalidValueError:
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            shapes = [", ".join(map(_form, leaves(part))) for part in (outputs, records.targets)]
            raise InvalidValueError(
                f"No {what} can be computed from the model's outputs: {one_line(reason, _MOST_OF_REASON).rstrip('.')}. "
                f"It gets outputs {shapes[0]} and targets {shapes[1]}."
            ) from None
    if any(bool((again - together).abs().max() > _TOLERANCE * together.abs().max()) for again in otherwise):
        raise InvalidValueError(
            f"Expected each record's {what} to depend on that record alone; it changes with the others of a batch."
        )


def _form(tensor: Tensor) -> str:
    """Return a tensor's type and the shape of its rows, such as "float32 (n, 2)"."""
    shape = ", ".join(map(str, tensor.shape[1:]))
    return f"{str(tensor.dtype).removeprefix('torch.')} (n, {shape})".replace("(n, )", "(n,)")


def made_up(model: nn.Module, inputs: Tensors) -> Tensors:
    """Return six inputs of several sizes; integers are 0 and 1, which every vocabulary has.

    Floating-point inputs are 0 and 1, too, if the model takes no others, as if it makes token ids of them. Of `inputs`
    only names, the shape of a record, type and device are used.
    """
    generator = torch.Generator().manual_seed(1)
    like = next(model.parameters())

    def numbers(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return zeros_and_ones(tensor, generator).to(like.device)
        scales = torch.tensor(_SCALES).view(-1, *[1] * (tensor.ndim - 1))
        return (scales * torch.randn((len(_SCALES), *tensor.shape[1:]), generator=generator)).to(like)

    several = each(numbers, inputs)
    try:
        with evaluating(model):
            call(model, each(Tensor.clone, several))
    except (IndexError, RuntimeError, ValueError):
        return each(lambda tensor: converted(zeros_and_ones(tensor, generator), like.device, like.dtype), inputs)
    return several


def zeros_and_ones(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return six made-up rows of the shape and type of a tensor's."""
    generator = generator or torch.Generator().manual_seed(3)
    return torch.randint(2, (len(_SCALES), *tensor.shape[1:]), generator=generator).to(tensor)


def _compare(model: nn.Module, inputs: Tensors, unused: nn.Module) -> bool:
    """Reject a model that mixes or keeps these inputs; return whether some of its outputs are finite.

    A copy that has never been used gets the records one by one, so that what a model keeps of its first batch shows.
    """
    device = next(model.parameters()).device
    mode = RowDraws(device)

    def outputs(rows: list[int], model: nn.Module = model) -> list[Tensor]:
        at_once = rows_at_once(model, len(rows))
        pieces = [of_one_pass(rows[start : start + at_once], model) for start in range(0, len(rows), at_once)]
        return [torch.cat(parts) for parts in zip(*pieces, strict=True)]

    def of_one_pass(rows: list[int], model: nn.Module) -> list[Tensor]:
        mode.records, some = rows, torch.tensor(rows)
        tensors = leaves(tensors_of(call(model, each(lambda tensor: take(tensor, some), inputs))))
        if any(tensor.ndim == 0 or len(tensor) != len(rows) for tensor in tensors):
            shapes = [tuple(tensor.shape) for tensor in tensors]
            raise InvalidValueError(f"Expected outputs with one row for each of {len(rows)} records, got {shapes}.")
        return tensors

    everyone = list(range(len(_SCALES)))
    many = (everyone * _MANY)[: rows_at_once(model, _MANY)]
    elsewhere = states_elsewhere()
    is_random = draws(lambda: outputs(everyone), device)
    with WithoutDropout(), mode if is_random else nullcontext():
        together = outputs(everyone)
        before = _state(model)
        again = [tensor.flip(0) for tensor in outputs(everyone[::-1])]
        for (name, now), (_, value) in zip(_state(model), before, strict=False):
            if now != value:
                raise InvalidValueError(
                    f"Expected a model that keeps nothing of what it sees; {name!r} changes when it is used. Leave it "
                    "out, or set it once, before training."
                )
        if states_elsewhere() != elsewhere or any(map(_differ, together, outputs(everyone), together)):
            raise InvalidValueError(
                "Expected a model that draws its random numbers from torch's global generator, as dropout does: "
                "whether it treats each record alone could not be seen."
            )
        alone = [torch.cat(rows) for rows in zip(*(outputs([row], unused) for row in everyone[::-1]), strict=True)]
        alone = [tensor.flip(0) for tensor in alone]
        pairs = [*zip(together, again, alone, strict=True)]
        pairs += [(several, part[many], part[many]) for several, part in zip(outputs(many), together, strict=True)]
        for mode.chance in range(1, _CHANCES) if is_random else ():
            for several, single in zip(outputs([1, 0, 2]), outputs([1]), strict=True):
                expected = torch.cat([single, several[1:]])
                pairs.append((several, expected, expected))
    if any(_differ(*some) for some in pairs):
        raise InvalidValueError(
            "Expected a model that treats each record alone; its outputs for a record depend on the others of a batch."
            f"{_suspects(model, inputs, is_random)}"
        )
    return any(bool(tensor.isfinite().any()) for tensor in together)


def _suspects(model: nn.Module, inputs: Tensors, drawing: bool) -> str:
    """Return a sentence about a layer with records in dimension 1, a look at numbers or dropout, if there is one."""
    for name, layer in model.named_modules():
        if getattr(layer, "batch_first", True) is False:
            return f" Build {name or 'the model'!r} ({type(layer).__name__}) with batch_first=True."
    if (place := where_it_reads(partial(call, copied(model)), inputs)) is not None:
        return f" It looks at their numbers{place}. With its attribute rows_at_once = 1 it gets each record alone."
    if drawing:
        return " If it draws masks for tensors with records in dimension 1, build it with dropout=0."
    return ""


def _differ(together: Tensor, again: Tensor, alone: Tensor) -> bool:
    if any(not torch.equal(_unlike_numbers(together), _unlike_numbers(other)) for other in (again, alone)):
        return True
    together, again, alone = (part.double().nan_to_num(0.0, 0.0, 0.0) for part in (together, again, alone))
    offset = together.mean(0)  # else a large bias would hide the differences
    size = max((together - offset).abs().max(), (alone - offset).abs().max())
    largest = max((together - alone).abs().max(), (again - alone).abs().max())
    return bool(largest > _TOLERANCE * size + 1e-6 * offset.abs().max())


def _unlike_numbers(tensor: Tensor) -> Tensor:
    """Return a code for each value: finite, NaN, or infinite with its sign."""
    return tensor.isnan().int() + 2 * tensor.isposinf().int() + 3 * tensor.isneginf().int()


def _state(model: nn.Module) -> list[tuple[str, object]]:
    """Return the contents of buffers and other tensors; of other attributes identities and lengths."""
    state: list[tuple[str, object]] = [(name, content(buffer)) for name, buffer in model.named_buffers()]
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_") and key != "training":
                length = len(value) if isinstance(value, list | dict | set) else -1
                value = value.get_state() if isinstance(value, torch.Generator) else value
                seen = content(value) if isinstance(value, Tensor) else (id(value), length)
                state.append((f"{name}.{key}".lstrip("."), seen))
    return state
