"""Proposals of columns, from public data only."""

import subprocess
import sys
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest
from torch import nn

import dphpo_bench as bench
from dphpo_bench import Category, Columns, Date, Number, schema
from dphpo_bench.base.errors import DataError, InvalidValueError
from tests.own_task import array_task


def public_table() -> pd.DataFrame:
    ages = [20, 30, 40, 50, 60, 70, 80, 90]
    return pd.DataFrame(
        {
            "age": ages,
            "income": [0, 0, 0, 0, 10, 100, 1000, 1e6],
            "lab": [1.5, None, 2.5, 3.5, 4.5, 5.5, 6.5, None],
            "year": [2010, 2011, 2012, 2013, 2014, 2015, 2016, 2017],
            "always": 7,
            "sex": ["f", "m", "f", "m", None, "f", "m", "f"],
            "group": pd.Categorical([3, 1, 2, 3, 1, 2, 3, None]),
            "member": [True, False] * 4,
            "since": [date(2020, 1, 1 + day) for day in range(8)],
            "text day": [f"2020-01-0{1 + day}" for day in range(7)] + [""],
            "moment": [datetime(2020, 1, 1 + day, tzinfo=UTC) for day in range(8)],
            "name": [[] for _ in ages],
            "empty": None,
            "outcome": 1,
        }
    )


def test_a_proposal_for_each_kind_of_column() -> None:
    proposal = schema(public_table(), leave_out="outcome")
    gaps = {"missing": "typical", "indicator": True}
    assert dict(proposal) == {
        "age": Number(55, 26),
        "income": Number(1.2, 3.8, logarithmic=True),
        "lab": Number(4.0, 1.9, **gaps),
        "year": Number(2013.5, 2.6),
        "always": Number(7, 1),
        "sex": Category(("f", "m"), other=True),
        "group": Category((1, 2, 3), other=True),
        "member": Category((False, True)),
        "since": Date("2020-01-04", 2.6),
        "text day": Date("2020-01-04", 2.2, **gaps),
        "moment": Date("2020-01-04", 2.6, zone="UTC"),
        "name": None,
        "empty": None,
        "outcome": None,
    }
    assert proposal.encode(public_table()).isfinite().all()


def test_a_proposal_prints_as_code_that_makes_it() -> None:
    proposal = schema(public_table())
    names = {"Category": Category, "Columns": Columns, "Date": Date, "Number": Number}
    assert eval(repr(proposal), names) == proposal


def test_names_of_persons_are_no_categories() -> None:
    frame = pd.DataFrame({"name": [f"person {place}" for place in range(51)], "n": range(51)})
    assert schema(frame)["name"] is None
    assert schema(frame[:50])["name"] == Category(tuple(sorted(frame["name"][:50])), other=True)


def private_task(train: object) -> bench.ArrayTask:
    return array_task("t", train, nn.Linear(1, 2), columns={"age": Number(50, 20)})


def test_private_records_are_refused() -> None:
    frame = pd.DataFrame({"age": range(20), "labels": [0, 1] * 10})
    task = private_task(frame)
    for private in (task, task.load_train(bench.DataSource.resolve()), frame, frame[:9]):
        with pytest.raises(InvalidValueError, match="release that no budget pays for"):
            schema(private)
    assert schema(frame.copy())["age"] is not None  # a copy may be anything
    columns = {"age": np.arange(20), "labels": np.array([0, 1] * 10)}
    private_task(columns)
    for private in (columns, {"age": columns["age"]}):
        with pytest.raises(InvalidValueError, match="release that no budget pays for"):
            schema(private)


@pytest.mark.parametrize("part", [slice(None), slice(3, 9)])
def test_records_that_were_learned_from_are_refused_as_private(part: slice) -> None:
    frame = pd.DataFrame({"age": range(20), "labels": [0, 1] * 10})
    proposal = schema(frame, leave_out="labels")
    with pytest.raises(InvalidValueError, match=r"that bench\.schema has not seen"):
        private_task(frame[part])
    with pytest.raises(InvalidValueError, match=r"that bench\.schema has not seen"):
        private_task((frame[part], frame["labels"][part]))
    assert array_task("t", frame, nn.Linear(1, 2), columns=proposal, public=True).columns is proposal


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((3, 2)), "Expected a table, .* got a ndarray"),
        (pd.DataFrame({"a": []}), "with rows and names of columns, got none"),
        ({"a": [1.0, np.inf]}, "Expected finite numbers in a, got infinity"),
        (pd.DataFrame({"a;b": ["1;2"]}), "got a;b; read its file with sep=';'"),
    ],
)
def test_data_without_names_rows_or_finite_numbers_are_refused(data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        schema(data)


def test_the_declared_kinds_load_nothing_heavy() -> None:
    code = "import sys; from dphpo_bench import Category, Columns, Date, Number; Columns({'a': Number(0, 1)}).size; "
    code += "print([name for name in ('torch', 'numpy', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
