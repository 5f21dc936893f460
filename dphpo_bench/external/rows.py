"""Rows of the caller's data, by index, as the caller's losses take them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.data.arrays import items_stay

Collate = Callable[[list[Any]], Any]

_TOGETHER = 16
"""Records that are collated once, to see that they can be."""

FORMS = "a map-style Dataset, a tensor, a pair or a dictionary of tensors"


class Rows:
    """The records of a data set, read when they are asked for.

    Args:
        data: see `FORMS`; each tensor has one row for each record.
        collate: items of a Dataset → a batch; None: torch's default.

    Raises:
        InvalidValueError: if the data have another form, or a read of an item is unlike the last.
    """

    def __init__(self, data: Any, collate: Collate | None = None) -> None:
        if isinstance(data, DataLoader):
            raise InvalidValueError("Expected data that can be read by index, got a DataLoader: pass loader.dataset.")
        if isinstance(data, TensorDataset) and collate is None:
            data = data.tensors
        self._collate = collate or default_collate
        self._tensors = _tensors(data)
        self._data = data
        if self._tensors is None:
            _check_dataset(data)
            self._length = len(data)
            try:
                stay = items_stay(data, self._length)
            except (LookupError, TypeError, ValueError, RuntimeError) as error:
                raise InvalidValueError(
                    f"Expected data as {FORMS}; reading records of this {type(data).__name__} by index, from 0 to "
                    f"{self._length - 1}, raises {type(error).__name__}."
                ) from None
            try:
                self.batch(range(0, self._length, 1 + self._length // _TOGETHER))
            except (LookupError, TypeError, ValueError, RuntimeError) as error:
                raise InvalidValueError(
                    f"Expected records that collate_fn makes a batch of; with some of these it raises "
                    f"{type(error).__name__}. Pass the collate_fn of your loader."
                ) from None
            if not stay:
                raise InvalidValueError(
                    "Expected a Dataset whose items stay, but two reads of one differ: a look would compare losses of "
                    "different inputs. Pass the data without the random transform, and transform in the loop."
                )
        else:
            if collate is not None:
                raise InvalidValueError("Expected collate_fn with a Dataset only: tensors are batches already.")
            sizes = {len(tensor) if tensor.ndim else 0 for tensor in parts_of(self._tensors).values()}
            if len(sizes) != 1 or 0 in sizes:
                raise InvalidValueError(f"Expected tensors with one row for each record, got {sorted(sizes)} rows.")
            (self._length,) = sizes

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Sequence[int] | Tensor) -> Any:
        """Return some records as one batch."""
        rows = torch.as_tensor(indices)
        if self._tensors is None:
            return self._collate([self._data[index] for index in rows.tolist()])
        some = {name: part[rows.to(part.device)] for name, part in parts_of(self._tensors).items()}
        return like(form_of(self._tensors), some)


def parts_of(batch: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch by name, or by number.

    Raises:
        InvalidValueError: if it holds something else.
    """
    if isinstance(batch, Mapping):
        parts = {str(name): part for name, part in batch.items()}
    else:
        parts = {str(place): part for place, part in enumerate(batch if isinstance(batch, tuple | list) else [batch])}
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.ndim == 0:
            raise InvalidValueError(
                f"Expected batches of tensors with one row for each record, a tensor, several, or a dictionary; part "
                f"{shown(name)} is of type {type(part).__name__}. Leave it out, or pass collate_fn."
            )
    return parts


def form_of(batch: Any) -> Any:
    """Return the form of a batch without its tensors, for `like`."""
    if isinstance(batch, Mapping):
        return dict.fromkeys(batch)
    if hasattr(batch, "_make"):  # a named tuple
        return batch._make([None] * len(batch))
    return [None] * len(batch) if isinstance(batch, tuple | list) else None


def like(form: Any, parts: Mapping[str, Tensor]) -> Any:
    """Return tensors by name in the form of a batch; see `parts_of`."""
    if isinstance(form, Mapping):
        return {name: parts[str(name)] for name in form}
    if form is None:
        return parts["0"]
    some = [parts[str(place)] for place in range(len(form))]
    return form._make(some) if hasattr(form, "_make") else some


def _tensors(data: Any) -> Any:
    """Return data that are arrays or tensors as tensors; None for anything else."""
    is_several = isinstance(data, Mapping | tuple | list)
    items = dict(data if isinstance(data, Mapping) else enumerate(data if is_several else [data]))
    if not items or not all(isinstance(item, Tensor | np.ndarray) for item in items.values()):
        return None
    return like(form_of(data), {str(name): _dense(name, item) for name, item in items.items()})


def _dense(name: Any, item: Any) -> Tensor:
    if isinstance(item, np.ndarray) and item.dtype.kind not in "biuf":
        raise InvalidValueError(
            f"Expected numbers, got part {shown(name)} of dtype {item.dtype}. Encode them as numbers."
        )
    if (tensor := torch.as_tensor(item)).layout is not torch.strided:
        raise InvalidValueError(f"Expected dense tensors, got part {shown(name)} sparse. Pass its to_dense().")
    return tensor


def _check_dataset(data: Any) -> None:
    is_map = hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)
    is_of_items = isinstance(data, list) and data and isinstance(data[0], Mapping | tuple | list)
    if not is_map or (isinstance(data, Mapping | tuple | list | str) and not is_of_items) or len(data) == 0:
        raise InvalidValueError(f"Expected data as {FORMS}, with at least one record, got {type(data).__name__}.")
