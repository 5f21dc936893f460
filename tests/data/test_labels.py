"""Labels in every form that people have them in: taken where their meaning is declared, else the line that helps."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.data.arrays import declared_classes, encoded_labels
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.array_task import ArrayTask
from tests.own_task import array_task

SOURCE = DataSource.resolve("unused", "unused")
X = np.random.default_rng(0).normal(size=(6, 4))
PLACES = [0, 1, 1, 0, 1, 0]
WORDS = np.array(["no", "yes"])[PLACES]
SIGNS = np.array([-1, 1])[PLACES]
ONE_HOT = np.eye(2, dtype=int)[PLACES]
OUTPUTS = {"binary": 1, "regression": 1, "multilabel": 3}


def task(labels: Any, *, kind: str = "classification", **changes: Any) -> ArrayTask:
    arguments: dict[str, Any] = {"train": (X, labels), "model": nn.Linear(4, OUTPUTS.get(kind, 2)), **changes}
    return array_task("mine", kind=kind, **arguments)  # type: ignore[arg-type]


def targets(made: ArrayTask) -> Any:
    return made.load_train(SOURCE).targets


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(X[index]), str(WORDS[index])


TAKEN: list[tuple[Any, Any]] = [
    (WORDS, ("no", "yes")),
    (WORDS.astype("S"), ("no", "yes")),
    (WORDS.tolist(), np.array(["no", "yes"])),
    (tuple(WORDS.tolist()), (b"no", b"yes")),
    (pandas.Series(WORDS, index=range(7, 13)), ("no", "yes")),
    (pandas.Categorical(WORDS, categories=["yes", "no"], ordered=True), ("no", "yes")),
    (pandas.Series(WORDS, dtype="string"), pandas.Index(["no", "yes"])),
    (pyarrow.array(WORDS.tolist()), ("no", "yes")),
    (SIGNS, (-1, 1)),
    (SIGNS.astype(float), (-1, 1)),
    (SIGNS.astype(object), (-1.0, 1.0)),
    (np.array(PLACES, dtype=bool), (False, True)),
    (np.array(PLACES, dtype=bool).tolist(), (0, 1)),
    (pandas.Series(PLACES, dtype="boolean"), (False, True)),
    (np.array(PLACES) + 1, range(1, 3)),
    (np.array(PLACES) * 40 + 10.5, (10.5, 50.5)),
    (WORDS[:, None], ("no", "yes")),
    (np.array(PLACES, dtype=">i8"), None),
    (pandas.DataFrame({"answer": WORDS}), ("no", "yes")),
    (pandas.Series(PLACES, dtype="Int64"), None),
    (np.array(PLACES)[:, None], None),
    (pandas.DataFrame({"answer": PLACES}), None),
    (np.array(PLACES, dtype=object), None),
    (np.array(PLACES, dtype=bool), None),
    ([torch.tensor(place) for place in PLACES], None),
]


@pytest.mark.parametrize("kind", ["classification", "binary"])
@pytest.mark.parametrize(("labels", "classes"), TAKEN)
def test_declared_labels_are_taken_in_every_form(labels: Any, classes: Any, kind: str) -> None:
    encoded = encoded_labels(labels, "train", kind, None if classes is None else declared_classes(classes, kind))
    assert encoded.tolist() == PLACES
    assert encoded.dtype == (torch.int64 if kind == "classification" else torch.float32)


def test_a_task_declares_its_classes() -> None:
    made = task(WORDS, classes=("no", "yes"), test=(X[:2], ["yes", "no"]))
    assert (made.classes, made.facts.n_classes) == (("no", "yes"), 2)
    assert targets(made).tolist() == PLACES
    assert made.load_test(SOURCE).targets.tolist() == [1, 0]
    assert targets(task(None, train=Pairs(), classes=("no", "yes"))).tolist() == PLACES
    frame = pandas.DataFrame(X, columns=list("abcd")).assign(answer=WORDS)
    framed = task(None, train=frame, target="answer", classes=("yes", "no"))
    assert targets(framed).tolist() == [1 - place for place in PLACES]
    assert framed.input_names == list("abcd")
    assert made.fingerprint(SOURCE) != task(WORDS, classes=("yes", "no"), test=(X[:2], WORDS[:2])).fingerprint(SOURCE)


def test_booleans_are_their_own_classes() -> None:
    made = task(np.array(PLACES, dtype=bool))
    assert made.classes == (False, True)
    assert task(None, train=TensorDataset(torch.tensor(X), torch.tensor(PLACES) > 0)).classes == (False, True)
    for booleans in (pyarrow.array(PLACES).cast("bool"), pandas.Series(PLACES, dtype="bool[pyarrow]")):
        assert task(booleans).classes == (False, True)
    assert task(PLACES).classes is None
    with pytest.raises(InvalidValueError, match="Expected a model with n_classes=2 outputs, got 3"):
        task(np.array(PLACES, dtype=bool), model=nn.Linear(4, 3))


def test_several_labels_of_a_record_have_names() -> None:
    matrix = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]])
    classes = ("a", "b", "c")
    for labels in (matrix, matrix.astype(bool), pandas.DataFrame(matrix, columns=list("abc"))[list("cab")]):
        assert targets(task(labels, kind="multilabel", classes=classes)).tolist() == matrix.tolist()
    assert targets(task(matrix, kind="multilabel")).tolist() == matrix.tolist()


def test_numbers_to_predict_are_taken_in_every_form() -> None:
    for labels in (
        np.arange(6),
        np.arange(6, dtype=object),
        np.arange(5, -1, -1)[::-1],
        np.arange(6, dtype=">f4"),
        np.arange(6.0)[:, None],
        pandas.Series(range(6), dtype="Float64"),
        pyarrow.array([*map(Decimal, range(6))]),
        [Fraction(6 * number, 6) for number in range(6)],
        torch.arange(6, dtype=torch.bfloat16),
        list(range(6)),
    ):
        encoded = targets(task(labels, kind="regression", error_bound=5))
        assert encoded.dtype == torch.float32
        assert encoded.flatten().tolist() == list(range(6))


NOT: list[tuple[Any, dict[str, Any], str]] = [
    (WORDS, {}, r"got <U3 such as 'no' in row 0; .*: classes=\(\"no\", \"yes\"\)"),
    (WORDS.astype("S"), {}, "such as 'no' in row 0"),
    (SIGNS, {}, r"from 0 to 1, got -1 to 1; declare what they mean, classes=\(-1, 1\)"),
    (np.array([1, 2, 3] * 2), {"model": nn.Linear(4, 3)}, r"declare them, as classes=range\(1, 4\), or widen"),
    (np.array([0, 1, 2] * 2), {}, "got 0 to 2; renumber them, or widen the model"),
    (np.array(PLACES, dtype=float), {}, "got float64 such as 0.0 in row 0"),
    (pandas.Series([0, 1, None] * 2, dtype="Int64"), {}, "drop missing ones"),
    (np.array(PLACES, dtype=bool).astype(object), {}, "got object such as False in row 0"),
    (ONE_HOT, {"classes": ("a", "b")}, r"got a matrix \(6, 2\). Of columns with one 1 in each row, pass labels.argmax"),
    ([{"a"}, {"a", "b"}] * 3, {"kind": "multilabel"}, r"labels of shape \(n, labels\), got \(6, 4\) and \(6,\)"),
    (np.array(PLACES)[:, None, None], {}, r"labels of shape \(n,\), got \(6, 4\) and \(6, 1, 1\)"),
    (np.array(PLACES) + 0j, {}, "got complex128"),
    (np.full(6, 2**63, dtype=np.uint64), {}, "got one above 2"),
    (np.ma.masked_array(PLACES, mask=[0, 0, 0, 1, 0, 0]), {}, "got a MaskedArray of another form"),
    (sparse.csr_matrix(ONE_HOT), {}, "got a csr_matrix of another form"),
    (torch.tensor(ONE_HOT).to_sparse(), {}, "got a Tensor of another form"),
    ({"a": PLACES, "b": PLACES}, {}, "got a dict of another form"),
    (None, {}, "got a NoneType of another form"),
    ([[0], [1, 0], 1, 0, 1, 0], {}, "got a list of another form"),
    (PLACES[:-1], {}, r"got \(6, 4\) and \(5,\)"),
    (WORDS, {"classes": ("no", "maybe")}, r"one of classes=\('no', 'maybe'\), got 'yes' in row 1; mend it, declare it"),
    (np.array(PLACES).astype(str), {"classes": (0, 1)}, "got '0' in row 0.*Texts are no numbers"),
    (PLACES, {"classes": ("0", "1")}, "got 0 in row 0.*Texts are no numbers"),
    ([1, "a"] * 3, {"classes": ("1", "a")}, "got 1 in row 0"),
    (np.array(PLACES, dtype=bool), {"classes": (-1, 1)}, r"one of classes=\(-1, 1\), got False in row 0"),
    (pandas.Series(["no", pandas.NA, *WORDS[2:]]), {"classes": ("no", "yes")}, "got (nan|<NA>) in row 1"),
    (ONE_HOT, {"classes": ("a", "b", "c"), "kind": "multilabel"}, "a column of labels of train for each of"),
    (pandas.DataFrame(ONE_HOT), {"classes": "ab", "kind": "multilabel"}, r"such as classes="),
    (ONE_HOT, {"classes": "abc", "model": nn.Linear(4, 3)}, r"such as classes=\(\"no\", \"yes\"\), got 'abc'"),
    (WORDS, {"classes": {"no", "yes"}}, "in the order of the outputs"),
    (WORDS, {"classes": ("no", "no")}, r"each once, got \('no', 'no'\)"),
    (WORDS, {"classes": ("no",)}, r"at least 2, got \('no',\)"),
    (WORDS, {"classes": ("no", float("nan"))}, "texts, booleans or finite numbers, got nan"),
    (WORDS, {"classes": ("no", "yes", "?")}, "Expected a model with n_classes=3 outputs, got 2; change one of them"),
    (WORDS, {"classes": ("no", "yes"), "n_classes": 3}, r"Expected n_classes=2, the number of classes=.*, got 3"),
    (SIGNS, {"kind": "binary"}, "such as -1 in row 0"),
    (WORDS, {"kind": "binary", "classes": ("no", "yes", "?")}, "two of them, got"),
    (PLACES, {"kind": "binary", "model": nn.Linear(4, 2)}, r"one output for kind='binary', got shape \(1, 2\)"),
    (["68", "68,4"] * 3, {"kind": "regression"}, r"got object.*pandas\.to_numeric"),
    (np.full(6, 2**24 + 1), {"kind": "regression"}, r"float32 holds, got 16777217 in row 0, .*labels / 1000"),
    (np.full(6, 2.0**53), {"kind": "regression"}, "got 9007199254740992 in row 0"),
    (np.full(6, 2.0**24, "f"), {"classes": (2**24, 2**24 + 1)}, "got float32 that may stand for several"),
    (np.array(PLACES, dtype=bool), {"kind": "regression"}, "got bool"),
    ([0.5, None, 1, 2, 3, 4], {"kind": "regression"}, "got object; .*drop records whose label is missing"),
    (np.full(6, 1e39), {"kind": "regression"}, "in row 0 as float32; drop these records, or scale them"),
    (PLACES, {"kind": "regression", "classes": (0, 1)}, "Expected no classes of a task of kind 'regression'"),
    (ONE_HOT * 2, {"kind": "multilabel"}, r"labels of 0 and 1 in train, got others, such as"),
    ([["a"], ["d"]] * 3, {"kind": "multilabel", "classes": ("a",)}, "labels of 0 and 1 in train, got others"),
    (PLACES, {"kind": "multilabel"}, r"labels of shape \(n, labels\)"),
]


@pytest.mark.parametrize(("labels", "changes", "message"), NOT)
def test_other_labels_get_the_line_that_helps(labels: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        task(labels, **changes)
    assert "\n" not in str(caught.value)


def test_labels_of_the_test_are_held_to_the_same() -> None:
    with pytest.raises(InvalidValueError, match="label of test to be one of classes"):
        task(WORDS, classes=("no", "yes"), test=(X, SIGNS))
    with pytest.raises(InvalidValueError, match="Expected integer class labels in test"):
        task(PLACES, test=(X, WORDS))
