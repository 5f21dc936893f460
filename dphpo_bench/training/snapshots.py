"""Snapshots of the state of a training loop: plain values and tensors, written back into the loop's own objects.

A snapshot holds no code, so reading one runs nothing. Code, such as functions and types, is that of the process that
goes on.
"""

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError

_PLAIN = (type(None), bool, int, float, str)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, torch.dtype)


def snapshot(objects: Sequence[Any]) -> list[Any]:
    """Return the state of these objects, as `torch.load(weights_only=True)` reads it.

    An object may be a list, a dictionary, a tensor, a generator of torch, or any other object whose state is its
    attributes. Objects that refer to one another keep their references.
    """
    saved: list[Any] = _Writer().written(list(objects))
    return saved


def restore(objects: Sequence[Any], saved: list[Any]) -> None:
    """Write a snapshot back into the objects that correspond to those it was taken of.

    Tensors of the same shape keep their identity, and so do lists, dictionaries and attributes' owners.
    """
    with torch.no_grad():
        _Reader().value(saved, list(objects))


class _Writer:
    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # by id; the object is held, so that its id stays its own

    def written(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, _CODE):
            return ["code"]
        if type(value) is tuple:
            return ["tuple", [self.written(item) for item in value]]
        if id(value) in self._seen:
            return ["again", self._seen[id(value)][0]]
        number = len(self._seen)
        self._seen[id(value)] = (number, value)
        return [*self._parts(value), number]

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, Tensor):
            return ["tensor", value.detach().to("cpu", copy=True), str(value.device)]
        if isinstance(value, torch.Generator):
            return ["generator", value.get_state()]
        if isinstance(value, list):
            return ["list", [self.written(item) for item in value]]
        if isinstance(value, dict):
            if any(isinstance(key, Tensor) and id(key) not in self._seen for key in value):
                raise InvalidValueError("Expected a state whose tensors stand before what is stored under them.")
            return ["dict", [[self.written(key), self.written(item)] for key, item in value.items()]]
        kind = type(value)
        is_plain = all(getattr(kind, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__"))
        if not (is_plain and hasattr(value, "__dict__")) or any(vars(base).get("__slots__") for base in kind.__mro__):
            raise InvalidValueError(f"Expected a state of plain values, tensors and objects, got {kind.__name__}.")
        # An optimiser's `state` is stored under its parameters, so it comes after them.
        names = sorted(vars(value), key=lambda name: (name == "state", name))
        return ["object", _name_of(value), [[name, self.written(vars(value)[name])] for name in names]]


class _Reader:
    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._taken: dict[int, Any] = {}  # targets that have got a content already, by id

    def value(self, saved: Any, target: Any) -> Any:
        """Return the saved value: the target with another content, or a new object where the target does not fit."""
        if type(saved) is not list:
            return saved
        kind = saved[0]
        if kind == "code":
            return target
        if kind == "again":
            return self._objects[saved[1]]
        if kind == "tuple":
            old = target if type(target) is tuple and len(target) == len(saved[1]) else (None,) * len(saved[1])
            return tuple(self.value(item, before) for item, before in zip(saved[1], old, strict=True))
        return getattr(self, f"_{kind}")(saved[-1], target, *saved[1:-1])

    def _tensor(self, number: int, target: Any, content: Tensor, device: str) -> Tensor:
        is_tensor = self._is_free(target) and isinstance(target, Tensor)
        if is_tensor and (target.shape, target.dtype) == (content.shape, content.dtype):
            target.copy_(content)
            self._objects[number] = target
        else:
            self._objects[number] = content.to(device)
        return self._objects[number]  # type: ignore[no-any-return]

    def _generator(self, number: int, target: Any, state: Tensor) -> torch.Generator:
        self._objects[number] = self._typed(target, "Generator", isinstance(target, torch.Generator))
        target.set_state(state)
        return target  # type: ignore[no-any-return]

    def _list(self, number: int, target: Any, items: list[Any]) -> list[Any]:
        result = target if self._is_free(target) and isinstance(target, list) else []
        before = [*result, *[None] * len(items)]
        self._objects[number] = result
        result[:] = [self.value(item, old) for item, old in zip(items, before, strict=False)]
        return result

    def _dict(self, number: int, target: Any, items: list[Any]) -> dict[Any, Any]:
        result = target if self._is_free(target) and isinstance(target, dict) else {}
        before = dict(result)
        self._objects[number] = result
        result.clear()
        for saved_key, item in items:
            key = self.value(saved_key, None)
            result[key] = self.value(item, before.get(key))
        return result

    def _object(self, number: int, target: Any, name: str, attributes: list[Any]) -> Any:
        self._objects[number] = self._typed(target, name, _name_of(target) == name)
        before = dict(vars(target))
        vars(target).clear()
        vars(target).update({name: before.get(name) for name, _ in attributes})
        for attribute, item in attributes:
            vars(target)[attribute] = self.value(item, before.get(attribute))
        return target

    def _is_free(self, target: Any) -> bool:
        """Take a target, unless another value was written into it: two values may have been one in the new process."""
        is_free = id(target) not in self._taken
        self._taken[id(target)] = target
        return is_free

    @staticmethod
    def _typed(target: Any, name: str, fits: bool) -> Any:
        if not fits:
            raise InvalidValueError(f"The checkpoint holds the state of a {name}, got {_name_of(target)}.")
        return target


def _name_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
