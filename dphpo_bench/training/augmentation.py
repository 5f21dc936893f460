"""Augmentation with multiplicity: the copies of a record count as one.

Each step draws K random variants of every record of its batch, and averages their gradients before it clips them. So a
record still adds one clipped vector, and the account stays as it was (docs/accounting.md, augmentation).

Source: De et al., "Unlocking high-accuracy differentially private image classification through scale", 2022, section 3.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records, Tensors, each, gathered, leaves
from dphpo_bench.base.text import shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dphpo_bench.training.clipping import Clipping
    from dphpo_bench.training.engine import GradientEngine
    from dphpo_bench.training.units import Units

Transform = Callable[[Any, "torch.Generator"], Any]
"""(inputs of n records, a generator) → inputs of the same shape and type; each record by itself."""

MAX_COPIES = 1024
_PIECE_NUMBERS = 2**24
_OURS = "dphpo_bench."
"""Transforms of this package draw and compute for each record by itself; all others get one record at a time."""


@dataclass(frozen=True)
class Augmentation:
    """A random transform of inputs, and how many variants of a record each step draws.

    Attributes:
        transform: takes inputs with one row, a tensor or several by name, and a `torch.Generator` on their device: it
            gets each record alone. It returns inputs of the same shape and type, which may be those that it got. It
            draws from the generator, or from torch's global one.
            Several transforms, as a tuple, follow one another.
        copies: number K of variants. A step takes about K times as long. De et al. take 16.

    Raises:
        InvalidValueError: if a transform is no function, or `copies` no whole number from 1 to 1024.
    """

    transform: Transform | tuple[Transform, ...]
    copies: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "copies", whole("copies", self.copies, low=1, high=MAX_COPIES))
        if not self.transforms or not all(map(callable, self.transforms)):
            raise InvalidValueError(
                "Expected the transform of an augmentation to be a function (inputs, generator) → inputs, or a tuple "
                f"of such functions, got {shown(self.transform, form=repr)}."
            )

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms, in their order."""
        return tuple(self.transform) if isinstance(self.transform, tuple | list) else (self.transform,)

    def to_json(self) -> dict[str, Any]:
        """Return names of the transforms and the number of copies: part of a run's identity."""
        return {"transform": [_named(transform) for transform in self.transforms], "copies": self.copies}

    def __call__(self, inputs: Tensors, generator: "torch.Generator") -> Tensors:
        """Return one variant of each record; the transforms may write to the inputs."""
        from dphpo_bench.training.alone import Alone
        from dphpo_bench.training.functional import fresh

        for transform in self.transforms:
            if type(transform).__module__.startswith(_OURS):
                inputs = _variants(transform, generator, inputs)
            else:  # a copy for each record: what it keeps of one is lost
                inputs = Alone(lambda record, of=transform: _variants(fresh(of), generator, record))(inputs)
        return inputs

    def check(self, inputs: Tensors, device: "torch.device | str" = "cpu") -> None:
        """Reject transforms that fail on made-up records, keep something of what they see, or draw from elsewhere.

        Of `inputs` only names, the shape of a record and its type are used.

        Raises:
            InvalidValueError: if they do one of these, or return inputs of another shape or type.
        """
        import torch

        from dphpo_bench.training.alone import first_line
        from dphpo_bench.training.model_checks import numbers_like, states_elsewhere
        from dphpo_bench.training.randomness import global_randomness

        generator = torch.Generator().manual_seed(1)
        made_up = each(lambda tensor: numbers_like(tensor, generator).to(device), inputs)

        def drawn(inputs: Tensors) -> "list[Tensor]":
            with torch.no_grad(), global_randomness(0, device):
                return leaves(self(each(torch.clone, inputs), torch.Generator(device).manual_seed(0)))

        elsewhere = states_elsewhere()
        try:
            expected = drawn(made_up)
            drawn(each(lambda tensor: tensor.flip(0), made_up))  # other records, of which it must keep nothing
            pairs = [*zip(expected, drawn(made_up), strict=True)]
        except InvalidValueError:
            raise
        except Exception as error:
            raise InvalidValueError(
                f"The transform of augment= fails on made-up records, {shown(_described(made_up), 200)}: "
                f"{first_line(error)}. It gets (inputs, generator) and returns inputs."
            ) from None
        same = all(torch.allclose(a.double(), b.double(), rtol=1e-6, atol=1e-9, equal_nan=True) for a, b in pairs)
        if not same or states_elsewhere() != elsewhere:
            raise InvalidValueError(
                "Expected a transform that draws all its random numbers from the generator that it gets, or from "
                "torch's, and keeps nothing of what it sees; at one state of these it gives other variants."
            )


def _variants(transform: Transform, generator: "torch.Generator", inputs: Tensors) -> Tensors:
    """Return what a transform makes of inputs; reject another form."""
    expected, variants = _described(inputs), transform(inputs, generator)
    if _described(variants) != expected:
        raise InvalidValueError(
            f"Expected the transform {_named(transform)} of augment= to return inputs as it got them, "
            f"{shown(expected, 200)}, got {shown(_described(variants), 200)}."
        )
    return variants  # type: ignore[no-any-return]


def augmentation_of(augment: "Augmentation | Transform | None") -> Augmentation | None:
    """Return an augmentation; a bare transform gets the usual number of copies."""
    return augment if augment is None or isinstance(augment, Augmentation) else Augmentation(augment)


def augmented_sum(
    engine: "GradientEngine",
    records: Records,
    clipping: "Clipping",
    units: "Units",
    augmentation: Augmentation,
    generator: "torch.Generator",
) -> "list[Tensor]":
    """Return the sum of clipped mean gradients over units, the mean being over all variants of a unit's records.

    The draws do not depend on how an engine cuts a batch. The variants of one unit are in memory together.

    Args:
        units: of the batch. Without units of several records, each record is one.
        generator: on the device of the model.
    """
    import torch

    from dphpo_bench.training.units import Units

    like, copies = engine.parameters[0], augmentation.copies
    total = [torch.zeros(part.shape, dtype=torch.float64, device=part.device) for part in engine.parameters]
    for some in _pieces(units, copies * sum(tensor[:1].numel() for tensor in leaves(records.inputs))):
        rows = some.rows.repeat_interleave(copies)
        take = partial(gathered, rows=rows, device=like.device, dtype=like.dtype)
        with torch.no_grad():
            inputs = augmentation(each(take, records.inputs), generator)
        variants = Units(torch.arange(len(rows)), some.sizes * copies)
        torch._foreach_add_(total, engine.clipped_unit_sum(inputs, each(take, records.targets), clipping, variants))
    return total


def _pieces(units: "Units", numbers: int) -> "Iterator[Units]":
    """Yield units in pieces of about `_PIECE_NUMBERS`, at so many a record, or of a single unit."""
    import torch

    ends = units.sizes.cumsum(0) * max(1, numbers)
    _, counts = torch.unique_consecutive(ends.sub(1) // _PIECE_NUMBERS, return_counts=True)
    for places in torch.split(torch.arange(len(units)), counts.tolist()) if len(units) else ():
        yield units.some(places)


def _described(inputs: Any) -> str:
    """Describe names, shapes, types and the device of tensors."""
    from collections.abc import Mapping

    import torch

    if isinstance(inputs, Mapping):
        return ", ".join(f"{name} {_described(part)}" for name, part in inputs.items())
    if not isinstance(inputs, torch.Tensor):
        return f"a {type(inputs).__name__}"
    return f"shape {tuple(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')} on {inputs.device.type}"


def _named(transform: Any) -> str:
    """Return a text that tells transforms apart: parameters of a dataclass, else where the function is defined."""
    if is_dataclass(transform):
        return shown(transform, 200, form=repr)
    whose = transform if hasattr(transform, "__qualname__") else type(transform)
    return shown(f"{whose.__module__}.{whose.__qualname__}", 200)
