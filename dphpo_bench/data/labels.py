"""Labels as the numbers of declared classes: what the classes are never comes from private labels.

>>> encoded_labels(["yes", "no"], "train", "classification", ("no", "yes"))
tensor([1, 0])
"""

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.data.numeric import is_masked, may_be_rounded, of_objects, place_of, rounded

Class = str | bool | int | float
"""A label's meaning, as its owner writes it."""

KINDS = ("classification", "binary", "multilabel")
"""Kinds of tasks whose labels have classes."""

_IN_ROWS = (*KINDS, "regression")


def takes(kind: str) -> bool:
    """Return True if `encoded_labels` takes labels of this kind of task."""
    return kind in _IN_ROWS


def declared_classes(classes: Any, kind: str) -> tuple[Class, ...]:
    """Return declared classes as texts, booleans and numbers of Python, in their order.

    Args:
        classes: a sequence; the first is the network's first output, or the label 0 of a binary task. Of "multilabel",
            the names of the labels.
        kind: of task; see `TaskFacts.kind`.

    Raises:
        InvalidValueError: if the kind has no classes, or they are no sequence of different values.
    """
    if kind not in KINDS:
        raise InvalidValueError(
            f"Expected no classes of a task of kind {kind!r}, got {shown(classes, form=repr)}; leave them out."
        )
    rule = 'Expected classes in the order of the outputs, such as classes=("no", "yes")'
    if isinstance(classes, str | bytes | Mapping | AbstractSet) or not hasattr(classes, "__iter__"):
        raise InvalidValueError(f"{rule}, got {shown(classes, form=repr)}.")
    values = tuple(map(_plain, classes.tolist() if hasattr(classes, "tolist") else classes))
    for value in values:
        if not isinstance(value, Class) or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidValueError(f"{rule}: texts, booleans or finite numbers, got {shown(value, form=repr)}.")
    if len(set(values)) != len(values):
        raise InvalidValueError(f"{rule}, each once, got {shown(values, form=repr)}.")
    least = 1 if kind == "multilabel" else 2
    if len(values) < least or (kind == "binary" and len(values) > 2):
        number = "two of them" if kind == "binary" else f"at least {least}"
        raise InvalidValueError(f"{rule}, {number}, got {shown(values, form=repr)}.")
    return values


def implied_classes(labels: Any, kind: str) -> tuple[Class, ...] | None:
    """Return (False, True) if the labels' type is boolean, which says what they mean; else None."""
    dtype = str(getattr(labels, "dtype", "")).removeprefix("torch.")
    return (False, True) if kind in ("classification", "binary") and dtype in ("bool", "boolean") else None


def encoded_labels(labels: Any, which: str, kind: str, classes: tuple[Class, ...] | None = None) -> Tensor:
    """Return labels as the losses of a kind take them, in memory of their own.

    Args:
        labels: an array, a tensor, a series, a frame or a sequence with one row for each record. With `classes`, each
            label is a class, or a row of a matrix with 1 in the column of its class. Of "multilabel", rows are 0 and 1
            for each class, or collections of names. A frame's columns of such a matrix may have any order.
        which: names the records in messages, such as "train".
        kind: "classification", "binary", "multilabel" or "regression".
        classes: from `declared_classes`; None: labels are numbers from 0, or booleans.

    Returns:
        int64 of shape (n,) for "classification", else float32: (n,) for "binary", (n, classes) for "multilabel", and
        the labels' shape for "regression". Labels of another shape come back as they are: the caller refuses them.

    Raises:
        InvalidValueError: if a label is missing, is no class, or has no clear meaning.
    """
    names = list(map(_plain, labels.columns)) if hasattr(labels, "columns") else None
    values = _array(labels, which, kind)
    if kind == "regression":
        return _numbers(values, which)
    if kind == "multilabel":
        return _several(values, which, classes, names)
    if values.ndim == 2:
        values = _single(values, which, classes, names)
    if values.ndim != 1:
        return torch.zeros(values.shape)
    if classes is not None:
        encoded = torch.tensor(_places(values, which, classes), dtype=torch.int64)
    else:
        encoded = _undeclared(values, which, kind)
    return encoded if kind == "classification" else encoded.float()


def _array(labels: Any, which: str, kind: str) -> "np.ndarray[Any, Any]":
    """Return labels as an array of NumPy, in which texts stay texts and objects stay objects."""
    try:
        if is_masked(labels):
            raise TypeError
        if isinstance(labels, Tensor):
            labels = labels.detach().cpu()
            labels = labels.float() if labels.dtype == torch.bfloat16 else labels
        values = np.asarray(_rows_of_names(labels) if kind == "multilabel" else labels)
        if isinstance(labels, list | tuple) and values.dtype.kind not in "biufcMmO":
            values = np.array(labels, dtype=object)  # NumPy would make texts of numbers beside texts
    except (TypeError, ValueError, RuntimeError, OverflowError):  # its text may quote a record
        values = np.asarray(None)
    if values.dtype == object and values.ndim == 0:
        raise InvalidValueError(
            f"Expected {which} labels as a dense array, a series or a list with one label for each record, got a "
            f"{type(labels).__name__} of another form."
        )
    return values


def _rows_of_names(labels: Any) -> Any:
    """Return rows that are collections of texts as sets in an array of objects; anything else as it is."""
    is_list = isinstance(labels, list | tuple) or getattr(labels, "dtype", "") == np.dtype(object)
    listed = list(labels) if is_list and getattr(labels, "ndim", 1) == 1 else []
    if not any(isinstance(row, AbstractSet) or _names(row) for row in listed):
        return labels
    rows = np.empty(len(listed), dtype=object)
    rows[:] = [{_plain(name) for name in row} if isinstance(row, AbstractSet) or _names(row) else row for row in listed]
    return rows


def _names(label: Any) -> bool:
    """Return True if a row is a list of texts, or an empty one."""
    return isinstance(label, list | tuple) and all(isinstance(name, str) for name in label)


def _plain(value: Any) -> Any:
    """Return a value of NumPy as Python's, and bytes as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _places(values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...]) -> list[int]:
    """Return the place of each label among the classes."""
    rule = f"Expected each label of {which} to be one of classes={shown(classes, 120, form=repr)}"
    if may_be_rounded(values):
        raise InvalidValueError(f"{rule}, got {values.dtype} that may stand for several; pass integers or texts.")
    places = {value: place for place, value in enumerate(classes)}
    takes_booleans = set(classes) == {0, 1} or any(isinstance(value, bool) for value in classes)
    numbers = []
    for row, label in enumerate(values.tolist()):
        value = _plain(label)
        is_class = isinstance(value, Class) and (takes_booleans or not isinstance(value, bool))  # to Python, True is 1
        number = places.get(value) if is_class else None
        if number is None:
            raise InvalidValueError(
                f"{rule}, got {shown(value, form=repr)} in row {row}; mend it, declare it, or drop these records. "
                "Texts are no numbers."
            )
        numbers.append(number)
    return numbers


def _single(
    values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...] | None, names: list[Any] | None
) -> "np.ndarray[Any, Any]":
    """Return the labels in a matrix, of a single column or with 1 in the column of the class, as a vector."""
    if classes is not None and values.shape[1] == 1:
        return values[:, 0]
    one_hot = _matrix(values)
    if classes is None or one_hot is None or (one_hot.sum(1) != 1).any():
        raise InvalidValueError(
            f"Expected labels of {which} of shape (n,), got a matrix {values.shape}. Of several columns with one 1 in "
            "each row, name the columns: classes=(...); kind='multilabel' takes several labels for each record."
        )
    return np.array([classes[place] for place in _ordered(one_hot, which, classes, names).argmax(1)], dtype=object)


def _matrix(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any] | None":
    """Return a matrix of 0 and 1 or booleans as integers; None for anything else."""
    try:
        if values.ndim == 2 and bool(np.isin(values, (0, 1)).all()):
            return values.astype(np.int64)
    except TypeError:  # objects that cannot be compared
        pass
    return None


def _ordered(
    matrix: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...], names: list[Any] | None
) -> "np.ndarray[Any, Any]":
    """Return the columns in the order of the classes, by their names if they have some."""
    if matrix.shape[1] != len(classes) or (names is not None and set(names) != set(classes)):
        raise InvalidValueError(
            f"Expected a column of labels of {which} for each of classes={shown(classes, 120, form=repr)}, got "
            f"{matrix.shape[1] if names is None else shown(names, 120)}; rename them, or pass labels.to_numpy()."
        )
    return matrix if names is None else matrix[:, [names.index(value) for value in classes]]


def _several(
    values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...] | None, names: list[Any] | None
) -> Tensor:
    """Return several labels for each record: float32 of shape (n, labels)."""
    if len(values) and values.ndim == 1 and all(isinstance(row, AbstractSet) for row in values):
        declared = shown(classes or "none", 120, form=repr)
        for number, row in enumerate(values):
            for value in row - set(classes or ()):
                raise InvalidValueError(
                    f"Expected each label of {which} to be one of classes={declared}, got {shown(value, form=repr)} in "
                    f"row {number}; declare it in the order of the outputs, or drop it."
                )
        return torch.tensor([[float(value in row) for value in classes or ()] for row in values])
    if values.ndim != 2:
        return torch.zeros(values.shape)
    matrix = _matrix(values)
    if matrix is None:
        raise InvalidValueError(f"Expected labels of 0 and 1 in {which}, got others, such as (labels > 0.5) makes.")
    return torch.tensor(matrix if classes is None else _ordered(matrix, which, classes, names)).float()


def _undeclared(values: "np.ndarray[Any, Any]", which: str, kind: str) -> Tensor:
    """Return labels without declared classes: whole numbers from 0, of which the caller checks the range."""
    values = _as_numbers(values)
    rule = f"Expected {'labels of 0 and 1' if kind == 'binary' else 'integer class labels'} in {which}"
    fits = np.full(len(values), values.dtype.kind in ("biuf" if kind == "binary" else "biu"))
    if kind == "binary" and fits.all():
        fits = (values == 0) | (values == 1)
    if not fits.all():
        row = int((~fits).argmax())
        raise InvalidValueError(
            f"{rule}, got {values.dtype} such as {shown(_plain(values[row]), form=repr)} in row {row}; drop missing "
            'ones, use labels.astype(int), or say what they mean, in the order of the outputs: classes=("no", "yes").'
        )
    if values.dtype.kind == "u" and len(values) and int(values.max()) >= 2**63:
        raise InvalidValueError(f"{rule}, got one above 2^63; renumber them.")
    return torch.tensor(values.astype(np.int64))


def _as_numbers(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return an array of objects that are all whole numbers or floats as such numbers; others as they are."""
    if values.dtype != object or not {type(_plain(value)) for value in values.flat} <= {int, float}:
        return values
    try:
        return of_objects(values)
    except OverflowError:
        return values


def _numbers(values: "np.ndarray[Any, Any]", which: str) -> Tensor:
    """Return the targets of a regression: float32, finite."""
    values = _as_numbers(values)
    if values.dtype.kind not in "iuf":
        raise InvalidValueError(
            f"Expected numbers as labels of {which}, since kind='regression', got {values.dtype}; make numbers of "
            "texts, such as by pandas.to_numeric, and drop records whose label is missing."
        )
    exact = torch.tensor(values.astype(np.float64))
    numbers = exact.float()
    if not numbers.isfinite().all():
        raise InvalidValueError(
            f"Expected finite labels in {which}, got NaN or infinity in {place_of(~numbers.isfinite())} as float32; "
            "drop these records, or scale them."
        )
    if values.dtype != np.float32 and (wrong := rounded(exact)).any():
        raise InvalidValueError(
            f"Expected labels in {which} that float32 holds, got {float(exact[wrong][0]):.0f} in {place_of(wrong)}, "
            "which it rounds; divide them by a public constant, such as labels / 1000."
        )
    return numbers
