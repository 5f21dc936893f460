"""Columns as numbers, by public constants."""

import math
import pickle
import re
import unicodedata
import warnings
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from torch import nn

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.columns import Category, Date, Number
from dphpo_bench.data.encoding import Columns, encode
from dphpo_bench.data.source import DataSource
from tests.own_task import array_task

COLUMNS = {
    "age": Number(typical=40, spread=20),
    "name": None,
    "gain": Number(typical=1, spread=2, logarithmic=True),
    "sex": Category(("Female", "Male")),
}


def test_each_row_is_encoded_by_itself() -> None:
    rows = [(60, "a", 0, "Male"), (30, "b", math.e - 1, "Female")]
    found = encode(rows, COLUMNS)
    assert found.tolist() == [[1.0, -0.5, 0.0, 1.0], [-0.5, 0.0, 1.0, 0.0]]
    assert (encode(rows[1:], COLUMNS) == found[1:]).all()
    assert found.shape[1] == sum(column.size for column in COLUMNS.values() if column)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            (60, "a", 0, "X"),
            "Expected sex to be one of 'Female', 'Male', got 'X' in row 1; other=True has an input for all other "
            "values.",
        ),
        (
            ("60", "a", 0, "Male"),
            "Expected age to be a finite number, got '60' in row 1; make numbers of texts by "
            "pandas.to_numeric(frame['age']), or declare another kind of column.",
        ),
        (
            (math.nan, "a", 0, "Male"),
            "Expected age to be a finite number, got a missing value (nan) in row 1; declare Number(…, "
            'missing="typical", indicator=True), or drop the record.',
        ),
        (
            (60, "a", -1, "Male"),
            "Expected gain to be a finite number above -1, got -1 in row 1; mend the value, or declare the column "
            "without logarithmic.",
        ),
    ],
)
def test_what_is_not_documented_is_refused(row: tuple[object, ...], message: str) -> None:
    with pytest.raises(DataError) as error:
        encode([(60, "a", 0, "Male"), row], COLUMNS)
    assert str(error.value) == message


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


NEAR = {
    " State-gov": "white space",
    "State-gov\N{NO-BREAK SPACE}": "white space",
    "STATE-gov": "capitals",
    unicodedata.normalize("NFD", "Zürich"): "Unicode's form",
    "Ｓtate-gov": "Unicode's form",
    "State-gov\N{ZERO WIDTH SPACE}": "Unicode's form",
    " state-gov": "several ways",
    "1": "type",
}


@pytest.mark.parametrize(("value", "kind"), NEAR.items())
def test_other_values_that_look_like_declared_ones_are_named_once_a_column(value: str, kind: str) -> None:
    known = {"Z": "Zürich", "1": 1}.get(value[0], "State-gov")
    frame = pd.DataFrame({"job": [value, "secret", "", "Zürich"], "y": [0, 1, 0, 1]})
    column = Category(("State-gov", "Zürich", 1), other=True)
    with pytest.warns(UserWarning, match="Values of job count as others") as seen:
        task = array_task("t", frame, nn.Linear(4, 2), frame, columns={"job": column}, target="y", batch_size=2)
    (warning,) = map(str, (each.message for each in seen))
    assert f"look like {known!r} ({kind}). Mend them" in warning
    assert "secret" not in warning
    assert task.load_train(DataSource.resolve()).inputs[:, 3].tolist() == [1, 1, 1, 0]
    with pytest.raises(DataError, match=rf"did you mean {re.escape(repr(known))} \({kind}\)\?"):
        encode({"job": [value]}, {"job": Category(column.values)})


def test_other_values_that_look_like_none_are_no_news() -> None:
    values = ["State-gow", "Federal", "Zurich", None, " "]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs = encode({"job": values}, {"job": Category(("State-gov", "Zürich"), other=True)})
    assert inputs.tolist() == 5 * [[0, 0, 1]]
