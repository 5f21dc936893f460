"""Labels as the numbers of declared classes: what the classes are never comes from private labels.

>>> encoded_labels(["yes", "no"], "train", "classification", ("no", "yes"))
tensor([1, 0])
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import folded, is_number, number_way_out, shown
from dphpo_bench.data.numeric import may_be_rounded, place_of, rounded

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
        InvalidValueError: if a label is missing, is no class, or has no clear meaning; with the line that helps.
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
        encoded = _counted(values, which) if kind == "classification" else _zeros_and_ones(values, which)
    return encoded if kind == "classification" else encoded.float()


def _array(labels: Any, which: str, kind: str) -> "np.ndarray[Any, Any]":
    """Return labels as an array of NumPy, in which texts stay texts and objects stay objects."""
    if isinstance(labels, Mapping):
        raise InvalidValueError(f"Expected one tensor of labels in {which}, got several; kind='own' takes them.")
    if hasattr(labels, "toarray") or (isinstance(labels, Tensor) and labels.layout != torch.strided):
        way = "to_dense()" if isinstance(labels, Tensor) else "toarray()"
        raise InvalidValueError(f"Expected {which} labels to be dense, got a sparse matrix; use its {way}.")
    if np.ma.isMaskedArray(labels):
        if np.ma.getmaskarray(labels).any():
            raise InvalidValueError(
                f"Expected a label for each record of {which}, got a masked one in row "
                f"{int(np.argwhere(np.ma.getmaskarray(labels))[0][0])}; drop these records."
            )
        labels = np.ma.getdata(labels)
    try:
        if isinstance(labels, Tensor):
            labels = labels.detach().cpu()
            return np.asarray(labels.float() if labels.dtype == torch.bfloat16 else labels.numpy())
        if isinstance(labels, list | tuple):
            return _of_list(labels, kind)
        values = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # its text may quote a record
        values = np.asarray(None)
    if values.dtype == object and values.ndim == 0:
        raise InvalidValueError(
            f"Expected {which} labels as an array, a series or a list with one label for each record, got a "
            f"{type(labels).__name__} of another form."
        )
    return values


def _of_list(labels: Sequence[Any], kind: str) -> "np.ndarray[Any, Any]":
    """Return an array of objects if the list holds texts or collections of names, which NumPy would convert."""
    if kind == "multilabel" and any(isinstance(label, AbstractSet) or _names(label) for label in labels):
        rows = np.empty(len(labels), dtype=object)
        rows[:] = [set(label) for label in labels]
        return rows
    values = np.asarray(labels)
    return values if values.dtype.kind in "biufcMm" else np.array(labels, dtype=object)


def _names(label: Any) -> bool:
    """Return True if a row is a list of texts, or an empty one."""
    return isinstance(label, list | tuple) and all(isinstance(name, str) for name in label)


def _plain(value: Any) -> Any:
    """Return a value of NumPy as Python's, and bytes as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError, RuntimeError):  # pandas' NA is not comparable; an array is no label
        return type(value).__name__ == "NAType"


def _places(values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...]) -> list[int]:
    """Return the place of each label among the classes."""
    if may_be_rounded(values):
        rule = f"Expected exact labels of {which}, got {values.dtype} that may stand for several whole numbers"
        raise InvalidValueError(f"{rule}; pass integers or texts.")
    places = {value: place for place, value in enumerate(classes)}
    takes_booleans = set(classes) == {0, 1} or any(isinstance(value, bool) for value in classes)

    def place(value: Any) -> int | None:
        return None if isinstance(value, bool) and not takes_booleans else places.get(value)  # to Python, True is 1

    numbers = []
    for row, label in enumerate(values.tolist()):
        value = _plain(label)
        try:
            number = place(value)
        except TypeError:  # a list or the like
            number = None
        if number is None:
            raise InvalidValueError(
                f"Expected each label of {which} to be one of classes={_shown(classes)}, got {shown(value, form=repr)} "
                f"in row {row}; {_way(value, classes)}."
            )
        numbers.append(number)
    return numbers


def _way(value: Any, classes: tuple[Class, ...]) -> str:
    """Return what helps if a label is no class."""
    if _is_missing(value):
        return "drop the records whose label is missing"
    texts = [str(known) for known in classes]
    if isinstance(value, str) and folded(value) in map(folded, texts):
        if value not in texts:
            return "texts must be equal: mend them by labels.str.strip(), .str.lower() or .str.normalize('NFC')"
        return f"texts are no numbers: classes={_shown(tuple(texts))}, or labels.astype(int)"
    if isinstance(value, Class) and str(value) in texts:
        return "numbers are no texts: labels.astype(str)"
    return "declare it as a class, or drop these records"


def _shown(classes: Sequence[Any]) -> str:
    return shown(tuple(classes), 120, form=repr)


def _single(
    values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...] | None, names: list[Any] | None
) -> "np.ndarray[Any, Any]":
    """Return the labels in a matrix, of a single column or with 1 in the column of the class, as a vector."""
    by_column, width = ".to_numpy()" if names is not None else "", values.shape[1]
    if width == 1:
        if classes is None:
            raise InvalidValueError(
                f"Expected labels of {which} of shape (n,), got {values.shape}; use labels{by_column}[:, 0]."
            )
        return values[:, 0]
    if len(values) == 1 and width != len(classes or ()):
        raise InvalidValueError(f"Expected labels of {which} of shape (n,), got {values.shape}; use labels[0].")
    one_hot = _matrix(values)
    if one_hot is None or (one_hot.sum(1) != 1).any():
        raise InvalidValueError(
            f"Expected labels of {which} of shape (n,), or one 1 in each row, got a matrix {values.shape} of others; "
            "kind='multilabel' takes several labels for each record."
        )
    if classes is None:
        raise InvalidValueError(
            f"Expected labels of {which} of shape (n,), got a matrix {values.shape} with one 1 in each row; use "
            f"labels{by_column}.argmax(1), or name the columns: classes=(...)."
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
    if matrix.shape[1] != len(classes):
        raise InvalidValueError(
            f"Expected a column of labels of {which} for each of classes={_shown(classes)}, got {matrix.shape[1]}."
        )
    if names is None:
        return matrix
    if set(names) != set(classes):
        raise InvalidValueError(
            f"Expected columns of labels of {which} named as classes={_shown(classes)}, got {_shown(names)}; rename "
            "them, or pass labels.to_numpy() with columns in the order of classes."
        )
    return matrix[:, [names.index(value) for value in classes]]


def _several(
    values: "np.ndarray[Any, Any]", which: str, classes: tuple[Class, ...] | None, names: list[Any] | None
) -> Tensor:
    """Return several labels for each record: float32 of shape (n, labels)."""
    rows = list(_collections(values)) if values.dtype == object and values.ndim == 1 else []
    if rows and all(isinstance(row, AbstractSet) for row in rows):
        if classes is None:
            raise InvalidValueError(
                f"Expected labels of {which} as 0 and 1 in columns, got collections of names; say which there are, in "
                "the order of the outputs: classes=(...)."
            )
        for number, row in enumerate(rows):
            for value in row - set(classes):
                raise InvalidValueError(
                    f"Expected each label of {which} to be one of classes={_shown(classes)}, got "
                    f"{shown(value, form=repr)} in row {number}; declare it, or drop it."
                )
        return torch.tensor([[float(value in row) for value in classes] for row in rows])
    if values.ndim != 2:
        return torch.zeros(values.shape)
    matrix = _matrix(values)
    if matrix is None:
        raise InvalidValueError(
            f"Expected labels of 0 and 1 in {which}, got others; if 1 means more than 0.5, use (labels > 0.5)."
        )
    return torch.tensor(matrix if classes is None else _ordered(matrix, which, classes, names)).float()


def _collections(values: "np.ndarray[Any, Any]") -> Iterator[Any]:
    """Yield rows as sets where they are collections of texts."""
    for row in values:
        yield {_plain(name) for name in row} if isinstance(row, AbstractSet) or _names(row) else row


def _as_numbers(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return an array of objects that are all numbers of one kind as such numbers; others as they are."""
    if values.dtype != object:
        return values
    kinds = {type(_plain(value)) for value in values.flat}
    if kinds <= {int, float} and kinds:
        try:
            return values.astype(float if float in kinds else np.int64)
        except OverflowError:
            return values
    return values


def _counted(values: "np.ndarray[Any, Any]", which: str) -> Tensor:
    """Return numbers of classes from 0; the caller checks their range."""
    values = _as_numbers(values)
    if values.dtype.kind in "biu":
        if len(values) and int(values.max()) >= 2**63:
            raise InvalidValueError(f"Expected integer class labels in {which}, got one above 2^63; renumber them.")
        return torch.tensor(values.astype(np.int64))
    raise InvalidValueError(f"Expected integer class labels in {which}, got {_kind(values)}.")


def _zeros_and_ones(values: "np.ndarray[Any, Any]", which: str) -> Tensor:
    values = _as_numbers(values)
    if values.dtype.kind not in "biuf":
        raise InvalidValueError(f"Expected labels of 0 and 1 in {which}, got {_kind(values)}.")
    others = np.flatnonzero((values != 0) & (values != 1))
    if len(others):
        value = values[others[0]].item()
        if value != value:
            way = "drop these records"
        else:
            signs = bool(np.isin(values, (-1, 1)).all())
            way = f"say what they mean, the label 0 first: classes={'(-1, 1)' if signs else '(..., ...)'}"
        raise InvalidValueError(
            f"Expected labels of 0 and 1 in {which}, got others, such as {value!r} in row {others[0]}; {way}."
        )
    return torch.tensor(values.astype(np.float32))


def _kind(values: "np.ndarray[Any, Any]") -> str:
    """Return of what kind labels without declared classes are, and the line of code that helps."""
    declare = "say what they mean, in the order of the outputs"
    if values.dtype.kind == "f":
        if np.isnan(values).any():
            return f"{values.dtype} with a missing label in row {int(np.isnan(values).argmax())}; drop these records"
        whole = bool((values == np.rint(values)).all())
        return f"{values.dtype}; use " + (
            "labels.astype(int)" if whole else "kind='regression' if they are continuous numbers to predict"
        )
    if values.dtype.kind in "USO":
        for row, label in enumerate(values.tolist()):
            value = _plain(label)
            if _is_missing(value):
                return f"a missing one in row {row}; drop these records, and {declare}: classes=(...)"
            if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
                return f"texts such as {shown(value, form=repr)} in row {row}; use labels.astype(int)"
            if isinstance(value, str):
                return f'texts such as {shown(value, form=repr)} in row {row}; {declare}: classes=("no", "yes")'
        first = _plain(values.tolist()[0]) if len(values) else None
        if isinstance(first, bool):
            return f"objects such as {first} in row 0; {declare}: classes=(False, True)"
        return f"objects of type {type(first).__name__}; convert them to 0 ... n_classes - 1"
    return f"{values.dtype}; convert them to 0 ... n_classes - 1"


def _numbers(values: "np.ndarray[Any, Any]", which: str) -> Tensor:
    """Return the targets of a regression: float32, finite."""
    values = _as_numbers(values)
    rule = f"Expected numbers as labels of {which}, since kind='regression'"
    if values.dtype.kind == "b":
        raise InvalidValueError(f"{rule}, got booleans; use kind='binary', or labels.astype(float).")
    if texts := [str(text) for text in values.flat if isinstance(text, str)]:
        text = next((text for text in texts if not is_number(text)), texts[0])
        way_out = number_way_out(text, "labels", "drop these records")
        raise InvalidValueError(f"{rule}, got the text {text!r}; {way_out}.")
    if values.dtype == object and any(_is_missing(value) for value in values.flat):
        row = next(row for row, value in enumerate(values) if np.any([_is_missing(item) for item in np.ravel(value)]))
        raise InvalidValueError(
            f"Expected finite labels in {which}, got a missing one in row {row}; drop these records."
        )
    if values.dtype.kind not in "iuf":
        raise InvalidValueError(f"{rule}, got {values.dtype}; convert them to numbers.")
    exact = torch.tensor(values.astype(np.float64))
    numbers = exact.float()
    if not numbers.isfinite().all():
        row = int((~numbers.isfinite()).nonzero()[0, 0])
        raise InvalidValueError(
            f"Expected finite labels in {which}, got NaN or infinity in row {row} as float32; drop these records, or "
            "scale them."
        )
    if values.dtype != np.float32 and (wrong := rounded(exact)).any():
        raise InvalidValueError(
            f"Expected labels in {which} that float32 holds, got {float(exact[wrong][0]):.0f} in {place_of(wrong)}, "
            "which it rounds; divide them by a public constant, such as labels / 1000."
        )
    return numbers
