"""Columns as numbers, by public constants."""

import math

import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.encoding import Category, Number, encode

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
        ((60, "a", 0, "X"), "Expected sex to be one of Female, Male, got X."),
        (("60", "a", 0, "Male"), "Expected age to be a finite number, got 60."),
        ((math.nan, "a", 0, "Male"), "Expected age to be a finite number, got nan."),
        ((60, "a", -1, "Male"), "Expected gain to be a finite number above -1, got -1."),
    ],
)
def test_what_is_not_documented_is_refused(row: tuple[object, ...], message: str) -> None:
    with pytest.raises(DataError) as error:
        encode([row], COLUMNS)
    assert str(error.value) == message
