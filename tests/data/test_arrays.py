"""Numbers in every form that people have them in: taken with their values, or refused in a line."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.tensors import leaves
from dphpo_bench.data.arrays import as_inputs, as_records, as_tensor
from tests.own_task import array_task

N = 12
X = np.arange(N * 3, dtype=np.float64).reshape(N, 3) / 4 - 2  # exact in float16
Y = np.arange(N) % 2
SOURCE = bench.DataSource.resolve("unused", "unused")


def read_only() -> Any:
    array = X.copy()
    array.flags.writeable = False
    return array


FORMS: dict[str, Any] = {
    "reversed": X[::-1].copy()[::-1],
    "every second row": np.repeat(X, 2, axis=0)[::2],
    "transposed": np.asfortranarray(X),
    "broadcast": np.broadcast_to(X, X.shape),
    "big-endian": X.astype(">f8"),
    "longdouble": X.astype(np.longdouble),
    "float16": X.astype(np.float16),
    "read-only": read_only(),
    "objects": X.astype(object),
    "objects of several types": np.array([[Decimal(str(a)), Fraction(b), float(c)] for a, b, c in X], dtype=object),
    "list": X.tolist(),
    "list of arrays": list(X),
    "tensor with strides": torch.tensor(X).t().contiguous().t(),
    "tensor with a gradient": torch.tensor(X, requires_grad=True),
    "parameter": nn.Parameter(torch.tensor(X)),
    "negated view": torch.complex(torch.tensor(X), torch.tensor(-X)).conj().imag,
    "frame": pd.DataFrame(X),
    "frame, nullable": pd.DataFrame(X).astype("Float64"),
    "frame, Arrow": pd.DataFrame(X).convert_dtypes(dtype_backend="pyarrow"),
    "frame of objects": pd.DataFrame(X).astype(object),
    "frame of several types": pd.DataFrame(X).astype({0: "Float64", 1: "float32", 2: "double[pyarrow]"}),
    "frame with a category of numbers": pd.DataFrame(X).astype({1: "category"}),
    "sparse columns": pd.DataFrame(X).astype(pd.SparseDtype("float64", 0.0)),
    "Arrow table": pa.table({str(i): X[:, i] for i in range(3)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_real_inputs(form: str) -> None:
    records = as_records((FORMS[form], Y), "train", "classification", "labels")
    assert isinstance(records.inputs, Tensor)
    assert records.inputs.dtype == (torch.float16 if form == "float16" else torch.float32)
    assert torch.equal(records.inputs.double(), torch.tensor(X))


def test_memory_is_shared_only_if_nobody_can_write_to_it(tmp_path: Any) -> None:
    """A read-only view says nothing of the array behind it, which pandas' frames give out, too."""
    np.save(tmp_path / "x.npy", X.astype("f4"))
    mapped, behind = np.load(tmp_path / "x.npy", mmap_mode="r"), X.astype("f4")
    view = behind[:]
    view.flags.writeable = False
    frame = pd.DataFrame(X.astype("f4"))
    for array, shared in ((mapped, True), (mapped[2:], True), (view, False), (frame.to_numpy(), False)):
        inputs = as_records((array, Y[: len(array)]), "train", "classification", "labels").inputs
        assert isinstance(inputs, Tensor)
        assert (inputs.data_ptr() == array.ctypes.data) is shared


WHOLE = np.arange(N)
INTEGERS: dict[str, Any] = {
    **{str(dtype): WHOLE.astype(dtype) for dtype in ("i1", "u1", ">i2", "u2", "<u4", ">i4", "u8", ">u8", "i8")},
    "torch.uint64": torch.tensor(WHOLE).to(torch.uint64),
    "list": WHOLE.tolist(),
    "objects": WHOLE.astype(object),
    "series": pd.Series(WHOLE),
    "Int64": pd.Series(WHOLE, dtype="Int64"),
    "Arrow": pd.Series(WHOLE, dtype="int32[pyarrow]"),
    "category": pd.Series(WHOLE).astype("category"),
    "Arrow chunks": pa.chunked_array([WHOLE[:5], WHOLE[5:]]),
    "range": range(N),
}


@pytest.mark.parametrize("form", INTEGERS)
def test_forms_of_integers(form: str) -> None:
    assert torch.equal(as_tensor(INTEGERS[form], "numbers").long(), torch.arange(N))
    records = as_records((X, INTEGERS[form]), "train", "classification", "labels")
    assert torch.equal(leaves(records.targets)[0], torch.arange(N))


@pytest.mark.parametrize(
    "flags",
    [
        Y == 1,
        (Y == 1).tolist(),
        (Y == 1).astype(object),
        pd.Series(Y == 1, dtype="bool[pyarrow]"),
    ],
)
def test_forms_of_booleans(flags: Any) -> None:
    assert as_tensor(flags, "flags").dtype == torch.bool
    assert torch.equal(as_tensor(flags, "flags"), torch.tensor(Y == 1))


def test_integers_stay_exact_up_to_the_largest() -> None:
    large = 2**63 - 1
    forms = (
        [large, 1],
        np.array([large, 1], dtype="u8"),
        np.array([large, 1], object),
        pd.Series([large, 1], dtype="UInt64"),
    )
    for form in forms:
        assert as_tensor(form, "ids").tolist() == [large, 1]


LARGE = np.array([[1, 2], [3, 2**63 + 5]], dtype=np.uint64)
SOME = torch.tensor(X)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ma.masked_array(X, mask=X < 0), r"a masked array; pass array\.filled\(value\)"),
        ([*np.ma.masked_array(X, mask=X < 0)], "a masked array"),
        (lambda: torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])), "masked tensor"),
        (LARGE, "below 2.63"),
        (LARGE.astype(object), "below 2.63"),
        (torch.tensor([1, -5]).view(torch.uint64), "below 2.63"),
        (pd.DataFrame(LARGE), "below 2.63"),
        ([2**70, 1], "below 2.63"),
        (SOME.to_sparse(), "got a sparse tensor; convert it"),
        (scipy.sparse.csr_matrix(X), "got a csr_matrix"),
        (SOME.to(torch.complex64), "got a complex tensor"),
        (X + 0j, "got complex128"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "got a quantized tensor"),
        ([[1, 2], [3]], "one shape for all records; pad or cut"),
        ([[1, "2"]], "got <U21"),
        (np.array([1, "2"], dtype=object), "got str"),
        ([[1, None]], "got NoneType. Impute or drop"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "to be numbers.*datetime64"),
        (np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), "to be numbers"),
        (pd.Series([True, None], dtype="boolean"), "got NAType. Impute"),
        (pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), "inputs 'b' to be numbers"),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])}), "inputs 'a' to be numbers"),
        (pd.DataFrame({"a": pd.Categorical(["x"])}), "inputs 'a' to be numbers"),
        ("text", "to be numbers"),
        ((row for row in X), "to be numbers.*got a generator"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch's, of types that it may change
def test_what_would_change_silently_is_refused_in_a_line(data: Any, message: str) -> None:
    data = data() if callable(data) else data
    with pytest.raises(InvalidValueError, match=message) as refusal:
        as_tensor(data, "train inputs")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_what_is_not_finite_is_named_by_its_place(value: float) -> None:
    wrong = X.copy()
    wrong[7, 2] = value
    frame = pd.DataFrame(wrong, columns=["a", "b", "age"])
    for data, place in (
        ((wrong, Y), "row 7, column 2"),
        ((torch.tensor(wrong).half(), Y), "row 7, column 2"),
        ((frame, Y), "row 7, column 'age'"),
        (frame.assign(labels=Y), "row 7, column 'age'"),
        ({"a": X, "age": wrong[:, 2], "labels": Y}, "row 7;"),
        ((wrong.reshape(N, 1, 3, 1), Y), "row 7, column 0, 2, 0"),
    ):
        with pytest.raises(InvalidValueError, match=f"got {value} in {place}"):
            as_records(data, "train", "classification", "labels")


@pytest.mark.parametrize("shape", [(), (1,), (0, 3)])
def test_no_rows_or_no_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValueError, match=r"Expected train inputs of shape \(n, ...\)|at least one record"):
        as_records((np.zeros(shape), np.zeros(shape[:1], int)), "train", "classification", "labels")


def test_a_number_that_float32_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="got inf in row 0, column 1"):
        as_records((np.array([[1.0, 1e300]]), np.array([0])), "train", "classification", "labels")


IDS = [2**24 + 1, 2, 3, 4]
"""Of which float32 rounds the first."""

ROUNDED: dict[str, Any] = {
    "array": np.column_stack((IDS, [0.5, 1, 2, 3])),
    "frame": pd.DataFrame({"id": IDS, "x": [0.5, 1, 2, 3]}),
    "tensor": torch.tensor([[number, 0.5] for number in IDS], dtype=torch.float64),
    "beyond float64": pd.DataFrame({"id": [2**53 + 1, 2, 3, 4], "x": 0.5}),
}


@pytest.mark.parametrize("form", ROUNDED)
def test_whole_numbers_beside_floats_are_not_rounded(form: str) -> None:
    with pytest.raises(
        InvalidValueError, match=r"that float32 holds, got \d+ in row 0, column .*pass ids by themselves"
    ):
        as_inputs(ROUNDED[form], "data")


def test_large_numbers_that_float32_holds_and_measurements_are_taken() -> None:
    assert as_inputs({"ids": np.array(IDS), "x": np.array([[2.0**30, 1e9 + 0.5]] * 4)}, "data")["ids"].tolist() == IDS


@pytest.mark.parametrize("floats", [torch.float32, torch.float64])
def test_units_and_categories_that_floats_may_have_merged_are_refused(floats: torch.dtype) -> None:
    limit = 2**24 if floats == torch.float32 else 2**53
    ids = torch.tensor([1, 1, 2, limit], dtype=floats)
    columns = {"id": bench.Category((1, 2, limit))}
    with pytest.raises(DataError, match="is a number that its float type rounds"):
        bench.Columns(columns).encode({"id": ids})
    with pytest.raises(InvalidValueError, match="floats that may stand for several ids"):
        array_task("t", (X[:4], Y[:4]), nn.Linear(3, 2), unit=ids)
    exact = torch.tensor([1, 2, 2**24 + 1], dtype=torch.float64)
    assert bench.Columns({"id": bench.Category((1, 2, 2**24, 2**24 + 1))}).encode({"id": exact})[2].tolist() == [
        0,
        0,
        0,
        1,
    ]


@pytest.mark.parametrize("declared", [True, False])
def test_columns_that_come_twice_are_named(declared: bool) -> None:
    frame = pd.DataFrame(X, columns=list("abc")).assign(labels=Y)
    frame = pd.concat([frame, frame[["labels"]]], axis=1)
    columns = {name: bench.Number(0, 1) for name in "abc"} if declared else None
    with pytest.raises(DataError, match=r"labels.*rename"):
        array_task("t", frame, nn.Linear(3, 2), frame, columns=columns)


@pytest.mark.parametrize("unit", [None, "person"])
def test_a_table_of_arrow(unit: str | None) -> None:
    table = pa.table({**{name: X[:, i] for i, name in enumerate("abc")}, "labels": Y, "person": np.arange(N) // 2})
    table = table if unit else table.drop_columns(["person"])
    task = array_task("mine", table, nn.Linear(3, 2), table, unit=unit, batch_size=2)
    train = task.load_train(SOURCE)
    assert torch.equal(leaves(train.inputs)[0].double(), torch.tensor(X))
    assert (train.units is None) == (unit is None)


def holders() -> dict[str, Any]:
    """Data in several forms, each with memory that its caller could write to."""
    x, y, ids = X.astype(np.float32), Y.copy(), np.arange(N) // 2
    tensors = torch.tensor(x), torch.tensor(y)
    frame = pd.DataFrame(x, columns=list("abc"), copy=False).assign(labels=y)
    return {
        "arrays": ((x, y), [x, y, ids]),
        "tensors": (tensors, [*tensors, ids]),
        "dictionary": ({"inputs": x, "labels": y}, [x, y, ids]),
        "frame": (frame, [x, y, frame, ids]),
        "a frame and a series": ((frame[list("abc")], frame["labels"]), [x, y, frame, ids]),
        "Dataset": (TensorDataset(*tensors), [*tensors, ids]),
        "half precision": ((tensors[0].half(), tensors[1]), [*tensors, ids]),
    }


@pytest.mark.parametrize("form", holders())
def test_what_the_caller_does_later_changes_nothing(form: str) -> None:
    data, held = holders()[form]
    weights = nn.Linear(3, 2)
    task = array_task("mine", data, weights, data, unit=held[-1], pretrained=True, batch_size=2)
    before = [
        part.clone() for split in (task.load_train(SOURCE), task.load_test(SOURCE)) for part in split.named().values()
    ]
    for memory in held:
        if isinstance(memory, pd.DataFrame):
            memory.iloc[:] = 1
        else:
            memory[:] = 1
    sources = data if isinstance(data, tuple) else ()
    for part in sources:
        if isinstance(part, Tensor):
            part.fill_(1)
    after = [part for split in (task.load_train(SOURCE), task.load_test(SOURCE)) for part in split.named().values()]
    assert all(map(torch.equal, before, after))
