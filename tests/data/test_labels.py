"""Labels in every form that people have them in: taken where their meaning is declared, else the line that helps."""

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
from dphpo_bench.data.labels import declared_classes, encoded_labels
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
    (WORDS.astype(object), ["no", "yes"]),
    (WORDS.tolist(), np.array(["no", "yes"])),
    (tuple(WORDS.tolist()), (b"no", b"yes")),
    (pandas.Series(WORDS, index=range(7, 13)), ("no", "yes")),
    (pandas.Series(WORDS, dtype="category"), ("no", "yes")),
    (pandas.Categorical(WORDS, categories=["yes", "no"], ordered=True), ("no", "yes")),
    (pandas.Series(WORDS, dtype="string"), pandas.Index(["no", "yes"])),
    (pyarrow.array(WORDS.tolist()), ("no", "yes")),
    (SIGNS, (-1, 1)),
    (SIGNS.astype(float), (-1, 1)),
    (torch.tensor(SIGNS), (-1, 1)),
    (SIGNS.astype(object), (-1.0, 1.0)),
    (np.array(PLACES, dtype=bool), (False, True)),
    (np.array(PLACES, dtype=bool).tolist(), (0, 1)),
    (pandas.Series(PLACES, dtype="boolean"), (False, True)),
    (torch.tensor(PLACES), (False, True)),
    (np.array(PLACES) + 1, range(1, 3)),
    (np.array(PLACES) * 40 + 10.5, (10.5, 50.5)),
    (ONE_HOT, ("no", "yes")),
    (ONE_HOT.astype(bool), ("no", "yes")),
    (torch.tensor(ONE_HOT).float(), ("no", "yes")),
    (pandas.DataFrame(ONE_HOT, columns=["no", "yes"])[["yes", "no"]], ("no", "yes")),
    (WORDS[:, None], ("no", "yes")),
    (WORDS[:, None].tolist(), ("no", "yes")),
    (WORDS[::-1][::-1], ("no", "yes")),
    (np.array(PLACES[::-1])[::-1], None),
    (np.array(PLACES, dtype=">i8"), None),
    (np.array(PLACES, dtype=np.longdouble), (0, 1)),
    (ONE_HOT.tolist(), ("no", "yes")),
    (pandas.DataFrame({"answer": WORDS}), ("no", "yes")),
    (np.ma.masked_array(SIGNS, mask=False), (-1, 1)),
    (np.array(PLACES, dtype=np.uint8), None),
    (pandas.Series(PLACES, dtype="Int64"), None),
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
    assert task(PLACES).classes is None
    with pytest.raises(InvalidValueError, match="Expected a model with n_classes=2 outputs, got 3"):
        task(np.array(PLACES, dtype=bool), model=nn.Linear(4, 3))


def test_several_labels_of_a_record_have_names() -> None:
    matrix = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]])
    classes = ("a", "b", "c")
    names = [[name for name, here in zip(classes, row, strict=True) if here] for row in matrix]
    for labels in (
        matrix,
        matrix.astype(bool),
        pandas.DataFrame(matrix, columns=list("abc"))[list("cab")],
        names,
        pandas.Series(names),
        [set(row) for row in names],
    ):
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
        torch.arange(6, dtype=torch.bfloat16),
        list(range(6)),
    ):
        encoded = targets(task(labels, kind="regression", error_bound=5))
        assert encoded.dtype == torch.float32
        assert encoded.flatten().tolist() == list(range(6))


NOT: list[tuple[Any, dict[str, Any], str]] = [
    (WORDS, {}, r"texts such as 'no' in row 0; .*: classes=\(\"no\", \"yes\"\)"),
    (WORDS.astype("S"), {}, r"texts such as 'no' in row 0"),
    (pandas.Series(WORDS, dtype="category"), {}, r"texts such as 'no' in row 0"),
    (SIGNS, {}, r"from 0 to 1, got -1 to 1; declare what they mean, classes=\(-1, 1\)"),
    (np.array(PLACES) + 1, {}, r"got 1 to 2; declare what they mean, classes=\(1, 2\)"),
    (np.array([1, 2, 3] * 2), {"model": nn.Linear(4, 3)}, r"declare them, as classes=range\(1, 4\), or widen"),
    (np.array([0, 1, 2] * 2), {}, "got 0 to 2; renumber them, or widen the model"),
    (np.array(PLACES, dtype=float), {}, r"got float64; use labels\.astype\(int\)"),
    (np.linspace(0, 1, 6), {}, "use kind='regression' if they are continuous"),
    (np.array([0, 1, np.nan] * 2), {}, "a missing label in row 2; drop these records"),
    (pandas.Series([0, 1, None] * 2, dtype="Int64"), {}, "in row 2; drop these records"),
    (np.array(PLACES, dtype=bool).astype(object), {}, r"objects such as False in row 0; .*classes=\(False, True\)"),
    (ONE_HOT, {}, r"one 1 in each row; use labels\.argmax\(1\), or name the columns"),
    (pandas.DataFrame(ONE_HOT), {}, r"use labels\.to_numpy\(\)\.argmax\(1\)"),
    (1 - 0 * ONE_HOT, {}, r"a matrix \(6, 2\) of others; kind='multilabel' takes several"),
    (np.array(PLACES)[:, None], {}, r"of shape \(6, 1\)|\(6, 1\); use labels\[:, 0\]"),
    (pandas.DataFrame(PLACES), {}, r"use labels\.to_numpy\(\)\[:, 0\]"),
    (np.array(PLACES)[None], {}, r"of shape \(n,\), got \(1, 6\); use labels\[0\]"),
    (np.array(PLACES).astype(str), {}, r"texts such as '0' in row 0; use labels\.astype\(int\)"),
    (np.array(PLACES)[:, None, None], {}, r"labels of shape \(n,\), got \(6, 4\) and \(6, 1, 1\)"),
    (np.array(PLACES) + 0j, {}, "got complex128; convert them"),
    (np.array(["2024-01-01"] * 6, dtype="M8[D]"), {}, r"got datetime64\[D\]; convert them"),
    (np.full(6, 2**63, dtype=np.uint64), {}, "got one above 2"),
    (np.full(6, -100), {}, "from 0 to 1, got -100 to -100"),
    (np.ma.masked_array(PLACES, mask=[0, 0, 0, 1, 0, 0]), {}, "got a masked one in row 3"),
    (sparse.csr_matrix(ONE_HOT), {}, r"dense, got a sparse matrix; use its toarray\(\)"),
    (torch.tensor(ONE_HOT).to_sparse(), {}, r"dense, got a sparse matrix; use its to_dense\(\)"),
    ({"a": PLACES, "b": PLACES}, {}, "got several; kind='own' takes them"),
    ({0, 1}, {}, "got a set of another form"),
    (None, {}, "got a NoneType of another form"),
    ("noyesno", {}, r"got \(6, 4\) and \(\)"),
    ([[0], [1, 0], 1, 0, 1, 0], {}, "got a list of another form"),
    ([{}] * 6, {}, "objects of type dict; convert them to 0"),
    (PLACES[:-1], {}, r"got \(6, 4\) and \(5,\)"),
    (WORDS, {"classes": ("no", "maybe")}, r"one of classes=\('no', 'maybe'\), got 'yes' in row 1; declare it"),
    (
        np.char.upper(WORDS),
        {"classes": ("no", "yes")},
        r"got 'NO' in row 0; .* labels\.str\.strip\(\), \.str\.lower\(\)",
    ),
    (np.array(PLACES).astype(str), {"classes": (0, 1)}, r"texts are no numbers: classes=\('0', '1'\), or labels"),
    (PLACES, {"classes": ("0", "1")}, r"numbers are no texts: labels\.astype\(str\)"),
    (np.array(PLACES, dtype=bool), {"classes": (-1, 1)}, r"one of classes=\(-1, 1\), got False in row 0"),
    (
        ["no", None, *WORDS[2:]],
        {"classes": ("no", "yes")},
        "got None in row 1; drop the records whose",
    ),
    (
        pandas.Series(["no", pandas.NA, *WORDS[2:]]),
        {"classes": ("no", "yes")},
        "in row 1; drop the records",
    ),
    ([["no"], ["yes", "no"]] * 3, {"classes": ("no", "yes")}, "got a list of another form"),
    (ONE_HOT, {"classes": "abc", "model": nn.Linear(4, 3)}, r"such as classes=\(\"no\", \"yes\"\), got 'abc'"),
    (
        ONE_HOT,
        {"classes": ("a", "b", "c"), "model": nn.Linear(4, 3)},
        "a column of labels of train for each of",
    ),
    (pandas.DataFrame(ONE_HOT), {"classes": ("no", "yes")}, r"columns of labels of train named as .*, got \(0, 1\)"),
    (WORDS, {"classes": {"no", "yes"}}, "in the order of the outputs"),
    (WORDS, {"classes": ("no", "no")}, r"each once, got \('no', 'no'\)"),
    (WORDS, {"classes": ("no",)}, r"at least 2, got \('no',\)"),
    (WORDS, {"classes": ("no", None)}, "texts, booleans or finite numbers, got None"),
    (WORDS, {"classes": ("no", float("nan"))}, "texts, booleans or finite numbers, got nan"),
    (WORDS, {"classes": 2}, "got 2"),
    (WORDS, {"classes": ("no", "yes", "?")}, "Expected a model with n_classes=3 outputs, got 2; change one of them"),
    (WORDS, {"classes": ("no", "yes"), "n_classes": 3}, r"Expected n_classes=2, the number of classes=.*, got 3"),
    (SIGNS, {"kind": "binary"}, r"such as -1 in row 0; .* the label 0 first: classes=\(-1, 1\)"),
    (WORDS, {"kind": "binary"}, "texts such as 'no' in row 0"),
    (np.array(PLACES)[:, None], {"kind": "binary"}, r"use labels\[:, 0\]"),
    (WORDS, {"kind": "binary", "classes": ("no", "yes", "?")}, "two of them, got"),
    (PLACES, {"kind": "binary", "model": nn.Linear(4, 2)}, r"one output for kind='binary', got shape \(1, 2\)"),
    (WORDS, {"kind": "regression"}, r"got the text 'no'; if that stands for missing values, .*drop these records"),
    (["68", "68,4"] * 3, {"kind": "regression"}, r"got the text '68,4'; .* decimal=','"),
    (["68", "7"] * 3, {"kind": "regression"}, r"got the text '68'; .*pandas\.to_numeric\(labels\)"),
    (np.full(6, 2**24 + 1), {"kind": "regression"}, r"float32 holds, got 16777217 in row 0, .*labels / 1000"),
    (np.full(6, 2.0**53), {"kind": "regression"}, "got 9007199254740992 in row 0"),
    (np.full(6, 2.0**24, "f"), {"classes": (2**24, 2**24 + 1)}, "got float32 that may stand for several"),
    (np.array(PLACES, dtype=bool), {"kind": "regression"}, "got booleans; use kind='binary'"),
    ([0.5, None, 1, 2, 3, 4], {"kind": "regression"}, "row 1; drop these records"),
    (np.array([1, np.inf] * 3), {"kind": "regression"}, "got NaN or infinity in row 1"),
    (np.full(6, 1e39), {"kind": "regression"}, "in row 0 as float32; drop these records, or scale them"),
    (np.array(["2024-01-01"] * 6, dtype="M8[D]"), {"kind": "regression"}, "got datetime64"),
    (PLACES, {"kind": "regression", "classes": (0, 1)}, "Expected no classes of a task of kind 'regression'"),
    (ONE_HOT * 2, {"kind": "multilabel"}, r"labels of 0 and 1 in train, got others; .* use \(labels > 0.5\)"),
    ([["a"], []] * 3, {"kind": "multilabel"}, r"got collections of names; .*: classes=\(\.\.\.\)"),
    ([["a"], ["d"]] * 3, {"kind": "multilabel", "classes": ("a", "b", "c")}, "got 'd' in row 1; declare it"),
    (ONE_HOT, {"kind": "multilabel", "classes": ("a", "b", "c")}, "a column of labels of train for each of"),
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
