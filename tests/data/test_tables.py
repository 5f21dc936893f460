"""Tables in all forms that people have, and what is wrong with them: one line with row and column."""

import math
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

from dphpo_bench import Category, Columns, Date, Number, encode
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.reasons import reason_of
from dphpo_bench.testing.small_tasks import Blobs
from tests.own_task import array_task

FRAME = pd.DataFrame({"age": [1.0, 2.0], "id": ["q", "r"], "sex": ["f", "m"]}, index=["first", "second"])
COLUMNS = Columns({"age": Number(0, 1), "id": None, "sex": Category(("f", "m"))})
ENCODED = [[1, 1, 0], [2, 0, 1]]
GAPS = Number(0, 1, missing=5, indicator=True)


@pytest.mark.parametrize(
    "data",
    [
        FRAME,
        FRAME[["sex", "age"]],  # declared None: it need not be there
        FRAME.astype({"age": "Int64", "sex": "category"}),
        FRAME.astype(object),
        pa.Table.from_pandas(FRAME, preserve_index=False),
        pa.RecordBatch.from_pandas(FRAME, preserve_index=False),
        FRAME.to_dict("list"),
        {name: FRAME[name].to_numpy() for name in reversed(FRAME.columns)},
        {"sex": pa.array(["f", "m"]), "age": torch.tensor([1, 2])},
        FRAME.to_dict("records"),
        FRAME.to_numpy(),
        FRAME.to_numpy().tolist(),
        list(FRAME.itertuples(index=False)),
        list(FRAME[["sex", "age", "id"]].itertuples(index=False)),
        list(FRAME.rename(columns={"age": "an age"}).itertuples(index=False)),  # whose name is lost
        [row for _, row in FRAME[["sex", "age", "id"]].iterrows()],
        (row for row in FRAME.to_numpy()),
    ],
    ids=lambda data: type(data).__name__,
)
def test_all_forms_of_a_table_are_encoded_alike(data: Any) -> None:
    assert encode(data, COLUMNS).tolist() == ENCODED


def test_frames_of_polars_are_encoded_by_name() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_pandas(FRAME)
    assert encode(frame.select("sex", "id", "age"), COLUMNS).tolist() == ENCODED
    assert encode({"sex": frame["sex"].cast(polars.Categorical), "age": frame["age"]}, COLUMNS).tolist() == ENCODED


@pytest.mark.parametrize(
    "values",
    [
        *(
            [1, 0],
            [True, False],
            [1.0, Fraction(0)],
            [Decimal(1), Decimal("0.0")],
            (np.int8(1), np.float16(0)),
            range(1, -1, -1),
        ),
        *(np.array([1, 0], kind) for kind in ("?", "i1", "u8", "f2", "f4", "f8", ">f8", ">i4", "longdouble", "O")),
        *(torch.tensor([1, 0], dtype=kind) for kind in (torch.bool, torch.uint8, torch.float64)),
        *(np.array([0, 1])[::-1], np.ma.array([1, 0])),
        *(pd.Series([1, 0], dtype=kind) for kind in ("Int64", "Float32", "boolean", "category", "Sparse[int]")),
        *(pd.Series([1, 0], dtype=pd.ArrowDtype(kind)) for kind in (pa.int8(), pa.decimal128(4, 2))),
    ],
    ids=lambda values: f"{type(values).__name__}-{getattr(values, 'dtype', '')}",
)
def test_numbers_of_any_type_are_numbers(values: Any) -> None:
    assert encode({"a": values}, {"a": Number(0, 1)}).tolist() == [[1], [0]]


@pytest.mark.parametrize(
    "values",
    [
        *([1, None], [1, float("nan")], [1, pd.NA], [1, pd.NaT], [1, ""], [1, Decimal("NaN")]),
        *(np.array([1, np.nan]), np.array([1, None]), np.ma.array([1, -999], mask=[False, True])),
        *(pd.array([1, None], dtype=kind) for kind in ("Int64", "boolean", "Float64")),
        *(pa.array([1, None]), pd.Series([1, None], dtype=pd.ArrowDtype(pa.int64())), pd.Categorical([1, None])),
    ],
    ids=lambda values: type(values).__name__,
)
def test_missing_values_of_any_type_are_refused_or_replaced(values: Any) -> None:
    assert encode({"a": values}, {"a": GAPS}).tolist() == [[1, 0], [5, 1]]
    assert encode({"a": values}, {"a": Number(2, 1, missing="typical")}).tolist() == [[-1], [0]]
    assert encode({"a": values}, {"a": Category((1, True), other=True)})[1].tolist() == [0, 0, 1]
    with pytest.raises(DataError, match=r"got a missing value.* in row 1; declare .*missing=\"typical\""):
        encode({"a": values}, {"a": Number(0, 1)})


MIXED = Category((1, "1", True), other=True)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        *((1, 0), (1.0, 0), (np.int8(1), 0), (Decimal(1), 0), ("1", 1), (np.str_("1"), 1), (True, 2), (np.bool_(1), 2)),
        *((2, 3), (1.5, 3), ("2", 3), (False, 3), (None, 3), ("", 3)),
    ],
)
def test_a_category_is_its_value_and_its_type(value: Any, place: int) -> None:
    for values in ([value], [value, "a", 7, False]):
        assert encode({"a": values}, {"a": MIXED})[0].tolist() == [float(place == other) for other in range(4)]


def test_tensors_are_no_categories_and_near_misses_are_named() -> None:
    with pytest.raises(DataError, match="are numbers, and it is a Tensor: convert the column"):
        encode({"a": [torch.tensor(1), torch.tensor(2)]}, {"a": Category((1, 2), other=True)})
    with pytest.warns(UserWarning, match="1 different values of a count as others, though they are declared ones but"):
        encode({"a": [normalize("NFD", "Zürich")]}, {"a": Category(("Zürich",), other=True)})


DAY = Date("2024-01-01", 2)


@pytest.mark.parametrize(
    "value",
    [
        *("2024-01-02", "20240102", "2024-01-02T00:00", "2024-01-02 00:00:00", date(2024, 1, 2), datetime(2024, 1, 2)),
        *(pd.Timestamp("2024-01-02"), np.datetime64("2024-01-02"), np.datetime64("2024-01-02T00", "ns")),
    ],
)
def test_dates_of_any_type_are_dates(value: Any) -> None:
    for values in ([value], np.array([value]), pd.Series([value]), [value, "2024-05-01"]):
        assert encode({"a": values}, {"a": DAY})[0].tolist() == [0.5]


def test_dates_of_arrow_are_dates() -> None:
    for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("ns")):
        values = pa.array([datetime(2024, 1, 2), None], kind)
        for column in (values, pd.Series(values, dtype=pd.ArrowDtype(kind))):
            assert encode({"a": column}, {"a": Date("2024-01-01", 2, missing="typical")}).tolist() == [[0.5], [0]]


def test_zones_are_converted_to_the_declared_clock() -> None:
    column = Date("2024-07-01", 1, zone="America/New_York")
    moments = [
        "2024-07-01T16:00:00Z",
        "2024-07-01T18:00+02:00",
        datetime(2024, 7, 1, 16, tzinfo=UTC),
        "2024-07-01T12:00",
    ]
    assert encode({"a": moments}, {"a": column}).tolist() == 4 * [[0.5]]
    assert encode({"a": pd.to_datetime(moments[:1] * 2)}, {"a": column}).tolist() == 2 * [[0.5]]
    assert Date(datetime(2024, 7, 1, 4, tzinfo=UTC), 1, zone="America/New_York") == column  # type: ignore[arg-type]


def test_cycles_go_round() -> None:
    column = Date("2024-01-01", 365, cycles=("day", "week", "year"), missing="2024-12-31", indicator=True)
    monday, later, winter, gap = encode(
        {"a": ["2001-01-01", "2001-01-08T06:00", "2099-12-31T23:59", None]}, {"a": column}
    )
    expected = [0, 1, 0, 1, 0, 1, 0]
    assert monday[1:].tolist() == expected
    assert later[1:3].tolist() == pytest.approx([1, 0], abs=1e-6)  # a quarter of a day
    assert later[3:5].tolist() == pytest.approx([np.sin(2 * np.pi / 28), np.cos(2 * np.pi / 28)])
    assert winter[5:].tolist() == pytest.approx([0, 1, 0], abs=0.02)
    assert gap.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]


def wrong_tables() -> list[tuple[Any, str]]:
    """Tables of COLUMNS that are wrong, and what the message says."""
    return [
        (FRAME[["age", "id"]], "which lacks sex; it has age, id. Rename its columns, or declare others"),
        (FRAME.assign(z=1), "which has z, too; .* None leaves a column out"),
        (pd.concat([FRAME, FRAME[["age"]]], axis=1), "different names, got several age; rename or drop"),
        (FRAME.assign(age=["1", "2"]), "age to be a finite number, got '1' in row 0; .*to_numeric .*read_csv"),
        (FRAME.assign(age=[1, np.inf]), "age to be a finite number, got inf in row 1; mend the value"),
        ({"age": [10**400, 1], "sex": ["f", "m"]}, "age .*too large"),
        (FRAME.assign(age=[1e300, 1]), "age to be in the range of float32 after scaling, got 1e.300 in row 0"),
        (FRAME.assign(age=[1j, 1]), "age to be a finite number, got 1j in row 0"),
        (FRAME.assign(age=pd.Timestamp("2024")), "age to be a finite number, got 2024-01-01 .*another kind"),
        (FRAME.assign(age=[[1], [2]]), r"age to be a finite number, got \[1\] in row 0"),
        (FRAME.assign(sex=["f", "x"]), "sex to be one of 'f', 'm', got 'x' in row 1; other=True"),
        (FRAME.assign(sex=["f", None]), "sex to be one of 'f', 'm', got a missing value .* in row 1; other=True"),
        (FRAME.assign(sex=[0, 1]), "sex to be one of 'f', 'm', got 0 in row 0; .*are texts, and it is a whole"),
        (FRAME.assign(sex=[["f"], "m"]), "sex .*unhashable"),
        ([pd.Series(["f", 1, 2], index=["sex", "age", "age"])], "a row has several values of one name"),
        ([row.rename({"age": "years"}) for _, row in FRAME.iterrows()], "which lacks age; it has years, id, sex"),
        ({"age": [1], "sex": ["f", "m"]}, "columns have several lengths"),
        ({"age": [1, 2], "sex": "f"}, "a column is a list or an array .* single record"),
        ({"age": np.ones((2, 2)), "sex": ["f", "m"]}, "1-dimensional"),
        ({}, "which lacks age, sex"),
        ([{"age": 1, "sex": "f"}, {"age": 1}], "sex to be one of 'f', 'm', got a missing value"),
        ([(1, 2, "f", 0)], "rows have 3 values each, of age, id, sex"),
        ([(1, 2, "f"), (1, 2)], "rows have 3 values each"),
        (["abc"], "rows have 3 values each"),
        (np.zeros((2, 4)), "got a ndarray of another form"),
        (csr_matrix(np.zeros((2, 3))), "got a csr_matrix of another form"),
        (Path("table.csv"), "a table, .*got a PosixPath of another form"),
        (None, "a table, .*got a NoneType"),
    ]


@pytest.mark.parametrize(("data", "message"), wrong_tables())
def test_a_wrong_table_is_one_line_with_the_way_out(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^Expected .*{message}") as error:
        encode(data, COLUMNS)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("01/03/2024", "a date, got '01/03/2024' in row 0; write dates as 2024-03-01"),
        ("2024-02-30", "a date, got '2024-02-30' in row 0; write dates"),
        (2024, "a date, got 2024 in row 0; declare years and counts of days as Number"),
        (True, "a date, got True in row 0"),
        (pd.NaT, r"a date, got a missing value \(NaT\) in row 0; declare Date"),
        ("2024-03-01T12:00Z", r"a date, got .* in row 0; declare Date\(…, zone="),
        (datetime(2024, 3, 1, tzinfo=UTC), r"a date.*, got .* in row 0; declare Date\(…, zone="),
    ],
)
@pytest.mark.parametrize("form", [list, np.array, pd.Series])
def test_what_is_no_date_is_refused(value: Any, message: str, form: Callable[[Any], Any]) -> None:
    with pytest.raises(DataError, match=f"^Expected when to be {message}"):
        encode({"when": form([value])}, {"when": DAY})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Number(float("nan"), 1), "typical of Number to be a finite number, .* got nan"),
        (lambda: Number(10**400, 1), "typical of Number to be a finite number, .* got an integer"),
        (lambda: Number(1, 0), "spread of Number to be a finite number above 0, .* got 0"),
        (lambda: Number(True, 1), "typical of Number to be a finite number, .* got True"),
        (lambda: Number(1, 1, logarithmic=1), "logarithmic to be True or False, got 1"),
        (lambda: Number(1, 1, missing="mean"), "missing of Number to be a finite number or .typical., .* got 'mean'"),
        (lambda: Number(1, 1, logarithmic=True, missing=-1), "missing above -1 of a logarithmic Number, got -1"),
        (lambda: Number(1, 1, indicator=True), 'missing= with indicator=True.*missing="typical"'),
        (lambda: Category("abc"), r"a tuple of categories, .* such as \('a',\), got a str 'abc'"),
        (lambda: Category(()), "at least one category in values, each once, got none"),
        (lambda: Category(("a", "a")), "each once, got 'a' twice"),
        (lambda: Category({"a", "b"}), "in an order that stays, .* got a set"),
        (lambda: Category(("a", "")), "texts, whole numbers or booleans, got str ''; other=True"),
        (lambda: Category((1, 2.5)), "texts, whole numbers or booleans, got float 2.5"),
        (lambda: Date("01/03/2024", 1), "typical to be a date, .* got '01/03/2024': write dates as 2024-03-01"),
        (lambda: Date("2024-01-01", 1, cycles=("month",)), "cycles to be a tuple of 'day', 'week', 'year'"),
        (lambda: Date("2024-01-01", 1, cycles=("day", "day")), "each once, .* got"),
        (lambda: Date("2024-01-01", 1, zone="Mars"), "zone to be the name of a time zone, .* got 'Mars'"),
        (lambda: Date("2024-01-01T00:00Z", 1), "typical to be a date, .* declare Date"),
        (lambda: Columns({"a": None}), "at least one column that is not None"),
        (lambda: Columns({1: DAY}), "names of columns to be texts, got 1"),
        (lambda: Columns({"a": (1, 2)}), r"column a to be a Number, a Category, a Date or None, got \(1, 2\)"),
        (lambda: encode(FRAME, None), "columns by name, .* got NoneType"),
    ],
)
def test_a_wrong_constant_is_one_line_when_it_is_declared(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^Expected .*{message}") as error:
        make()
    assert "\n" not in str(error.value)


NUMBER = '{"name": "a", "kind": "number", "typical": 1, "spread": 1}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", '"a"', '[{"name": "a"}]', "[" * 10**5, f"[{NUMBER}, {NUMBER}]", "\ufeff[NaN]"),
        *(f"[{NUMBER}]".replace('"spread": 1', change) for change in ('"x": 1', '"spread": 0', '"spread": 1, "x": 3')),
        *(f"[{NUMBER}]".replace("number", "text"), f"[{NUMBER}]".replace('"a"', "3")),
    ],
)
def test_a_file_that_holds_no_columns_is_one_line_with_its_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "columns.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"columns\.json") as error:
        Columns.read(path)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_or_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "bytes", 3):
        with pytest.raises(DataError, match="columns"):
            Columns.read(path)  # type: ignore[arg-type]
    for path in (tmp_path, tmp_path / "bytes" / "within", "a\0b", 3):
        with pytest.raises(DataError, match="Cannot write the columns"):
            COLUMNS.write(path)  # type: ignore[arg-type]


LABELLED = FRAME.assign(labels=[0, 1])


@pytest.mark.parametrize(
    ("train", "arguments", "error", "message"),
    [
        (FRAME, {}, InvalidValueError, "In train: Expected a column 'labels'"),
        (LABELLED, {"columns": {**COLUMNS, "labels": Number(0, 1)}}, InvalidValueError, "inputs without the labels"),
        (LABELLED, {"unit": "sex"}, InvalidValueError, "inputs without the ids, got column 'sex'"),
        (LABELLED, {"unit": "who"}, InvalidValueError, "In train: Expected a column 'who'"),
        (LABELLED.assign(age=None), {}, DataError, "In train: Expected age to be a finite number"),
        (LABELLED, {"test": LABELLED.assign(sex="x")}, DataError, "In test: Expected sex to be one of"),
        (LABELLED, {"test": FRAME}, InvalidValueError, "In test: Expected a column 'labels'"),
        (LABELLED, {"columns": [1]}, InvalidValueError, "columns to be Mapping or None"),
        (Blobs(), {}, DataError, "In train: Expected a table"),
    ],
)
def test_a_task_of_a_wrong_table_is_one_line(train: Any, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        array_task("t", **{"train": train, "model": nn.Linear(3, 2), "columns": COLUMNS, **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("form", [lambda frame: frame, lambda frame: frame.to_dict("records"), pa.Table.from_pandas])
def test_a_task_takes_its_labels_and_ids_out_of_any_table(form: Callable[[Any], Any]) -> None:
    frame = LABELLED.assign(who=[7, 8]).reset_index(drop=True)
    task = array_task("t", form(frame), nn.Linear(3, 2), columns=COLUMNS, unit="who")
    assert (task.facts.unit, task.facts.n_records) == ("who", 2)
    records = task.load_train(None)  # type: ignore[arg-type]
    assert (records.inputs.tolist(), records.targets.tolist()) == (ENCODED, [0, 1])


def test_no_record_of_a_private_run_quotes_a_value() -> None:
    for make in (
        lambda: encode(FRAME.assign(sex="secret"), COLUMNS),
        lambda: array_task("t", LABELLED.assign(sex="secret"), nn.Linear(3, 2), columns=COLUMNS),
    ):
        with pytest.raises(DataError, match="secret") as raised:
            make()
        assert "secret" not in reason_of(raised.value, hide=True)


def test_columns_are_part_of_a_tasks_identity() -> None:
    plain = array_task("t", (np.ones((2, 3)), [0, 1]), nn.Linear(3, 2))
    tasks = [
        array_task("t", LABELLED, nn.Linear(3, 2), columns={**COLUMNS, "age": Number(0, spread)}) for spread in (1, 2)
    ]
    assert plain.columns is None
    assert len({task.fingerprint(None) for task in (plain, *tasks)}) == 3  # type: ignore[arg-type]


SIX = {
    "age": Number(typical=40, spread=20),
    "name": None,
    "gain": Number(typical=1, spread=2, logarithmic=True),
    "sex": Category(("Female", "Male")),
}


def test_each_row_is_encoded_by_itself() -> None:
    rows = [(60, "a", 0, "Male"), (30, "b", math.e - 1, "Female")]
    inputs = encode(rows, SIX)
    assert inputs.tolist() == [[1.0, -0.5, 0.0, 1.0], [-0.5, 0.0, 1.0, 0.0]]
    assert (encode(rows[1:], SIX) == inputs[1:]).all()
    assert inputs.shape[1] == sum(column.size for column in SIX.values() if column)


DECLARED = Columns(
    {
        "age": Number(40, 20, missing="typical", indicator=True),
        "id": None,
        "sex": Category(("f", "m"), other=True),
        "since": Date("2024-01-01", 366, missing="2025-01-01"),
    }
)


def test_columns_of_a_frame_are_taken_by_name() -> None:
    frame = pd.DataFrame({"since": ["2024-01-01", None], "sex": ["m", "x"], "age": [60, None]}, index=["p", "q"])
    expected = [[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 1]]
    assert encode(frame, DECLARED).tolist() == expected
    assert encode(frame.to_dict("list"), DECLARED).tolist() == expected
    assert encode(frame.to_dict("records"), dict(DECLARED)).tolist() == expected
    assert encode([(60, 7, "m", date(2024, 1, 1)), (None, 8, "x", pd.NaT)], DECLARED).tolist() == expected


def test_columns_are_read_as_written(tmp_path: Path) -> None:
    path = DECLARED.write(tmp_path / "columns.json")
    assert Columns.read(path) == DECLARED == Columns.from_json(DECLARED.to_json())
    assert pickle.loads(pickle.dumps(DECLARED)) == DECLARED
    assert Columns(dict(reversed(list(DECLARED.items())))) != DECLARED


def test_an_array_task_encodes_its_tables() -> None:
    frame = pd.DataFrame(
        {"who": [1, 1, 2, 3], "labels": [0, 1, 0, 1], "sex": ["m", "f", "m", "f"], "age": [1, 2, 3, 4]}
    )
    columns = {"age": Number(0, 1), "sex": Category(("f", "m"))}
    train, test = frame, frame.drop(columns="who")[["age", "sex", "labels"]]
    task = array_task("t", train, nn.Linear(3, 2), test, columns=columns, unit="who", batch_size=2)
    assert task.columns == Columns(columns)
    assert task.facts.unit == "who"
    source = DataSource.resolve()
    assert task.load_train(source).inputs.tolist() == task.load_test(source).inputs.tolist()
    assert task.load_train(source).inputs[1].tolist() == [2, 1, 0]
    assert (
        array_task("t", (test[["sex", "age"]], test["labels"]), nn.Linear(3, 2), columns=columns).facts.n_records == 4
    )


def test_other_values_that_look_like_declared_ones_are_a_warning() -> None:
    column = Category(("State-gov", "1"), other=True)
    for value in (" State-gov", "STATE-gov\n", 1):
        values = [value, "State-gow", None, "State-gov"]
        if value == 1:
            with pytest.raises(DataError, match="the declared ones are texts, and it is a whole number"):
                encode({"job": values}, {"job": column})
            continue
        with pytest.warns(UserWarning, match="1 different values of job count as others") as seen:
            assert encode({"job": values}, {"job": column})[:, 2].tolist() == [1, 1, 1, 0]
        assert "gow" not in str(seen[0].message)
