"""Recurrent layers, for gradients of each record.

torch computes a sequence by one kernel, whose gradient is that of a whole batch; vmap takes most of these kernels not
at all. Here a sequence takes a kernel whose first weight is the identity: its gradient of the inputs is that of the
gates, and gradients of the weights are made from it by record. Where that cannot be, each step is a few plain
operations. Equations: the documentation of `torch.nn.RNN`, `GRU` and `LSTM`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.functional import Level, is_shared, outside

State = tuple[Tensor, ...]
"""Hidden state, shape (n, hidden size), and that of the cell, if it has one."""

Affine = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(inputs, weight, bias) → outputs, as `torch.nn.functional.linear`."""

Step = Callable[[Tensor, Tensor, State], State]
"""(gates from the inputs, gates from the hidden state, the state before) → the state."""


class Products(Protocol):
    """Noted products with weights, from which gradients are made."""

    def weight(self, copy: Tensor) -> Tensor:
        """Return the weight of which this is a record's copy; any other tensor as it is."""

    def product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return outputs, shape (..., n, d_out), of inputs, shape (..., n, d_in), as `torch.nn.functional.linear`."""

    def product_within(
        self,
        gates: Tensor,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factors: Tensor | None,
        shared: Sequence[Tensor],
    ) -> None:
        """Note a product that a kernel computes: its outputs' gradient is that of the gates, times the factors.

        Args:
            shared: what the kernel keeps for all records together.
        """


def _tanh(inputs: Tensor, past: Tensor, state: State) -> State:
    del state
    return ((inputs + past).tanh(),)


def _relu(inputs: Tensor, past: Tensor, state: State) -> State:
    del state
    return ((inputs + past).relu(),)


def _gru(inputs: Tensor, past: Tensor, state: State) -> State:
    size = state[0].shape[-1]
    (gates, new), (past_gates, past_new) = (torch.split(part, [2 * size, size], -1) for part in (inputs, past))
    reset, update = (gates + past_gates).sigmoid().chunk(2, -1)
    new = torch.addcmul(new, reset, past_new).tanh()
    return (torch.lerp(new, state[0], update),)


def _lstm(inputs: Tensor, past: Tensor, state: State) -> State:
    entry, forget, new, output = (inputs + past).chunk(4, -1)
    cell = torch.addcmul(forget.sigmoid() * state[1], entry.sigmoid(), new.tanh())
    return output.sigmoid() * cell.tanh(), cell


_SEQUENCES: Mapping[Any, Step] = MappingProxyType(
    {torch.rnn_tanh: _tanh, torch.rnn_relu: _relu, torch.gru: _gru, torch.lstm: _lstm}
)
_KERNELS: Mapping[Step, Any] = MappingProxyType({step: kernel for kernel, step in _SEQUENCES.items()})
_CELLS: Mapping[Any, Step] = MappingProxyType(
    {torch.rnn_tanh_cell: _tanh, torch.rnn_relu_cell: _relu, torch.gru_cell: _gru, torch.lstm_cell: _lstm}
)
_STEPPED = ("cpu",)
"""Devices on which steps are faster than a kernel with an identity."""


def by_steps(model: nn.Module, products: Products | None = None) -> AbstractContextManager[object]:
    """Return a context for vmap in which the model's recurrent layers run step by step; of other models an empty one.

    Args:
        model: whatever uses torch's recurrent layers, packed sequences included.
        products: notes products with weights. None: nothing does.
    """
    some = any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in model.modules())
    return _BySteps(products) if some else nullcontext()


class _BySteps(TorchFunctionMode):
    """Replaces torch's kernels for recurrent layers while the context is active.

    Where all records share the weights, or their copies of them are known, the rows of all records go through torch's
    kernel, or through steps that are noted. Elsewhere the steps are those of a record.

    Lengths of packed sequences say how much memory these take, which vmap cannot know. Here a packed sequence is as
    long as the padded one was, and the state does not change after its end.
    """

    def __init__(self, products: Products | None) -> None:
        super().__init__()
        self._products = products
        self._affine: Affine | None = None  # notes the products of a layer, while its steps run
        self._packed: dict[int, tuple[Tensor, Tensor]] = {}  # lengths, by the identity of the batch sizes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, or the steps in place of a kernel."""
        del types
        if func in _SEQUENCES:
            if not isinstance(args[3], bool):
                return self._packed_sequence(func, *args)
            results = self._of_all(func, *args[:-1], batch_first=args[-1])
            return results or self._sequence(_SEQUENCES[func], *args[:-1], batch_first=args[-1])
        if func in _CELLS:
            return self._cell(_CELLS[func], *args)
        if func is torch._pack_padded_sequence:
            return self._pack(*args)
        if func is torch._pad_packed_sequence:
            return self._pad(*args)
        return func(*args, **(kwargs or {}))

    def _of_all(
        self, kernel: Any, inputs: Tensor, state: Any, weights: Sequence[Tensor], *settings: Any, batch_first: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, ...] | None:  # fmt: skip
        """Return the outputs of the rows of all records at once; None if they cannot be had.

        Args:
            settings: biases, layers, dropout, train, bidirectional, as a kernel takes them.
        """
        weights = [self._products.weight(weight) for weight in weights] if self._products else weights
        states = (state,) if isinstance(state, Tensor) else tuple(state)
        level = Level.of([inputs, *states])
        if level is None or inputs.dim() != 3 or not all(map(is_shared, weights)):
            return None
        several = inputs.shape[0 if batch_first else 1]
        if several > 1 and self._products:
            return None
        # Time first, then the records.
        rows = level.rows(inputs)
        x = rows.flatten(0, 1).transpose(0, 1) if batch_first else rows.transpose(0, 1).flatten(1, 2)
        before = [level.rows(part).transpose(0, 1).flatten(1, 2).contiguous() for part in states]  # as cuDNN wants them
        with outside():
            if self._products is None and lengths is None:
                output, *ends = kernel(x, before[0] if isinstance(state, Tensor) else before, weights, *settings, False)
            else:
                inside = None if lengths is None else _inside(level.rows(lengths).flatten(), x).unbind(0)
                self._affine = self._products.product if self._products else None
                try:
                    output, *ends = self._sequence(_SEQUENCES[kernel], x, before, weights, *settings, inside=inside)
                finally:
                    self._affine = None
            parts = [part.unflatten(1, (level.n, several)).transpose(0, 1) for part in (output, *ends)]
            parts[0] = parts[0].transpose(1, 2) if batch_first else parts[0]
        return tuple(map(level.record, parts))

    def _cell(
        self, step: Step, inputs: Tensor, state: Any, w_in: Tensor, w_past: Tensor,
        b_in: Tensor | None = None, b_past: Tensor | None = None,
    ) -> Any:  # fmt: skip
        before = (state,) if isinstance(state, Tensor) else tuple(state)
        after = self._noted_cell(step, inputs, before, (w_in, w_past, b_in, b_past))
        if after is None:
            past = functional.linear(before[0], w_past, b_past)
            after = step(functional.linear(inputs, w_in, b_in), past, before)
        return after[0] if isinstance(state, Tensor) else after

    def _noted_cell(self, step: Step, inputs: Tensor, before: State, weights: Sequence[Any]) -> State | None:
        """Return the states after a step of all records at once, whose products are noted; None if they cannot be."""
        level = Level.of([inputs, *before])
        if self._products is None or level is None or inputs.dim() != 2 or len(inputs) != 1:
            return None
        known: list[Any] = [part if part is None else self._products.weight(part) for part in weights]
        w_in, w_past, b_in, b_past = known
        if not all(part is None or is_shared(part) for part in (w_in, w_past, b_in, b_past)):
            return None
        with outside():
            x, *states = (level.rows(part)[:, 0] for part in (inputs, *before))
            product = self._products.product
            after = step(product(x, w_in, b_in), product(states[0], w_past, b_past), tuple(states))
        return tuple(level.record(part[:, None]) for part in after)

    def _pack(self, inputs: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        x = inputs.transpose(0, 1) if batch_first else inputs
        sizes = torch.full((len(x),), x.shape[1])
        self._packed[id(sizes)] = sizes, lengths
        return x.flatten(0, 1), sizes

    def _pad(
        self, data: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x = data.view(len(sizes), -1, data.shape[-1])
        x = torch.where(_inside(self._packed[id(sizes)][1], x), x, value)
        x = functional.pad(x, (0, 0, 0, 0, 0, total - len(x)), value=value)
        return x.transpose(0, 1) if batch_first else x, self._packed[id(sizes)][1]

    def _packed_sequence(
        self, kernel: Any, data: Tensor, sizes: Tensor, state: Any, *settings: Any
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if id(sizes) not in self._packed:
            raise InvalidValueError("Expected sequences that pack_padded_sequence packs in the model, got others.")
        x, lengths = data.view(len(sizes), -1, data.shape[-1]), self._packed[id(sizes)][1]
        results = self._of_all(kernel, x, state, *settings, batch_first=False, lengths=lengths) or self._sequence(
            _SEQUENCES[kernel], x, state, *settings, inside=_inside(lengths, x).unbind(0)
        )
        return results[0].flatten(0, 1), *results[1:]

    def _sequence(
        self, step: Step, inputs: Tensor, state: Any, weights: Sequence[Tensor], biases: bool, layers: int,
        dropout: float, train: bool, bidirectional: bool, *, batch_first: bool = False,
        inside: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        x = inputs.transpose(0, 1) if batch_first else inputs
        states = (state,) if isinstance(state, Tensor) else tuple(state)
        directions = 2 if bidirectional else 1
        count = len(weights) // (layers * directions)
        ends: list[State] = []
        for layer in range(layers):
            if layer and train and dropout:
                x = functional.dropout(x, dropout)
            outputs = []
            for direction in range(directions):
                place = layer * directions + direction
                some, before = weights[place * count :][:count], tuple(part[place] for part in states)
                output, after = self._layer(step, x, before, some, biases, inside, -1 if direction else 1)
                outputs.append(output)
                ends.append(after)
            x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        return (x.transpose(0, 1) if batch_first else x, *(torch.stack(part) for part in zip(*ends, strict=True)))

    def _layer(
        self, step: Step, x: Tensor, state: State, weights: Sequence[Tensor], biases: bool,
        inside: Sequence[Tensor] | None, order: int,
    ) -> tuple[Tensor, State]:  # fmt: skip
        """Return the outputs of one layer in one direction, shape (length, n, size), and its last state."""
        w_in, w_past, *others = weights
        b_in, b_past = others[:2] if biases else (None, None)
        projection = others[2:] if biases else others
        affine: Affine = self._affine or functional.linear
        if self._affine and not projection and not inside and x.device.type not in _STEPPED:
            return self._by_kernel(step, affine(x, w_in, b_in), state, w_past, b_past, order)
        gates, inside = affine(x, w_in, b_in).unbind(0)[::order], inside and inside[::order]

        def run(state: State, product: Callable[[int, Tensor], Tensor]) -> tuple[list[Tensor], State]:
            outputs = []
            for time, inputs in enumerate(gates):
                after = step(inputs, product(time, state[0]), state)
                if projection:
                    after = (affine(after[0], projection[0], None), *after[1:])
                if inside:
                    after = tuple(torch.where(inside[time], new, old) for new, old in zip(after, state, strict=True))
                outputs.append(after[0])
                state = after
            return outputs, state

        if self._affine is None:
            outputs, state = run(state, _in_one_product(run, state, w_past, b_past))
        else:
            outputs, state = run(state, lambda _, past: affine(past, w_past, b_past))
        return torch.stack(outputs[::order]), state

    def _by_kernel(
        self, step: Step, gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, order: int
    ) -> tuple[Tensor, State]:  # fmt: skip
        """Return what `_layer` does, by torch's kernel on gates from the inputs, shape (length, n, d)."""
        assert self._products
        gates = gates if order == 1 else gates.flip(0)
        gates = gates if gates.requires_grad else gates.detach().requires_grad_()
        many, size = weight.shape
        zeros = gates.new_zeros(many)
        identity = torch.eye(many, dtype=gates.dtype, device=gates.device)
        parts = [identity, weight.detach(), zeros, zeros if bias is None else bias.detach()]
        # In one piece: else cuDNN warns and copies them.
        weights = _unflatten_dense_tensors(_flatten_dense_tensors(parts), parts)  # type: ignore[no-untyped-call]
        before = [part[None].contiguous() for part in state]
        kernel = _KERNELS[step]
        outputs, *after = kernel(
            gates, before if len(before) > 1 else before[0], weights, True, 1, 0.0, True, False, False
        )
        with torch.no_grad():
            past, factors = torch.cat([before[0], outputs[:-1]]), None
            if step is _gru:  # the reset gate scales a product with the past
                reset = (gates[..., :size] + functional.linear(past, weights[1][:size], weights[3][:size])).sigmoid()
                factors = torch.cat([torch.ones_like(reset), torch.ones_like(reset), reset], -1)
        self._products.product_within(gates, past, weight, bias, factors, weights)
        # A copy, since a model may write to it, and cuDNN keeps its outputs.
        return outputs.clone() if order == 1 else outputs.flip(0), tuple(part[0] for part in after)


def _inside(lengths: Tensor, x: Tensor) -> Tensor:
    """Return where the sequences of x, shape (length, n, d), have not ended: shape (length, n, 1)."""
    return (torch.arange(len(x), device=x.device)[:, None] < lengths.to(x.device))[..., None]


def _in_one_product(run: Any, state: State, weight: Tensor, bias: Tensor | None) -> Callable[[int, Tensor], Tensor]:
    """Return products of hidden states with a weight, whose gradient takes one product for all steps.

    By vmap a gradient for each step, added up, would take twice the time of a run that finds the states first.
    """
    with torch.no_grad():
        outputs, _ = run(state, lambda _, past: functional.linear(past, weight, bias))
    at_once = functional.linear(torch.stack([state[0], *outputs[:-1]]).detach(), weight, bias)
    zeros = (at_once - at_once.detach()).unbind(0)
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    return lambda time, past: functional.linear(past, weight, bias) + zeros[time]
