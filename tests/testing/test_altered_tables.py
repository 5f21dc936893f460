"""Tables are altered whatever reads them, and only where they are as long as the records."""

from pathlib import Path
from unittest import SkipTest

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.datasets
import torch

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Task
from dphpo_bench.data import rows
from dphpo_bench.data.source import DataSource
from dphpo_bench.tasks.digits import Digits
from dphpo_bench.testing import Blobs, TaskContract
from dphpo_bench.testing.task_contract import FEW, _new_records, altered_tables

VALUES = np.arange(20.0).reshape(10, 2)
EVEN_REPLACED = [1, 1, 1, 3, 1, 5, 1, 7, 1, 9]
ODD_REPLACED = [0, 0, 2, 0, 4, 0, 6, 0, 8, 0]


@pytest.fixture
def source(tmp_path: Path) -> DataSource:
    return DataSource.resolve(tmp_path / "data", tmp_path / "cache")


@pytest.mark.parametrize("reader", ["load", "loadtxt", "read_csv", "read_table", "make_blobs"])
def test_every_reader_gives_the_other_rows(reader: str, tmp_path: Path, source: DataSource) -> None:
    np.save(tmp_path / "values.npy", VALUES)
    np.savetxt(tmp_path / "values.txt", VALUES)
    frame = pd.DataFrame(VALUES, columns=["a", "b"], index=range(100, 110))
    frame.to_csv(tmp_path / "values.csv", index=False)
    pq.write_table(pa.table({"a": VALUES[:, 0], "b": VALUES[:, 1]}), tmp_path / "values.parquet")
    read = {
        "load": lambda: np.load(tmp_path / "values.npy"),
        "loadtxt": lambda: np.loadtxt(tmp_path / "values.txt"),
        "read_csv": lambda: pd.read_csv(tmp_path / "values.csv").to_numpy(),
        "read_table": lambda: pq.read_table(tmp_path / "values.parquet").to_pandas().to_numpy(),
        "make_blobs": lambda: sklearn.datasets.make_blobs(10, 2, random_state=0)[0],
    }[reader]
    whole = read()
    for parity, order in ((None, range(10)), (0, EVEN_REPLACED), (1, ODD_REPLACED)):
        with altered_tables(parity, 10, source):
            assert np.array_equal(read(), whole[list(order)])
    assert np.array_equal(read(), whole)


def test_labels_and_values_of_a_bunch_stay_together(source: DataSource) -> None:
    with altered_tables(0, 178, source):
        bunch = sklearn.datasets.load_wine()
    whole = sklearn.datasets.load_wine()
    order = [1 if row % 2 == 0 else row for row in range(178)]
    assert np.array_equal(bunch.data, whole.data[order])
    assert np.array_equal(bunch.target, whole.target[order])
    assert bunch.feature_names == whole.feature_names


def test_of_published_rows_a_few_are_taken_and_nothing_is_cached(
    source: DataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "load_rows", lambda where, *_: [(where.cache_dir.name, row) for row in range(1000)])
    with altered_tables(1, 1000, source) as elsewhere:
        few = rows.load_rows(elsewhere, None, None)
        assert elsewhere.cache_dir != source.cache_dir
        assert elsewhere.data_dir == source.root
    assert few == [("cache", row if row % 2 == 0 else 0) for row in range(FEW)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_makes_no_new_record(dtype: torch.dtype) -> None:
    """Sums in another order differ in the last bits, and a scaler by far more."""
    values = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.arange(50)
    known = Records(values, labels)
    rounded = values * (1 + torch.finfo(dtype).eps)
    assert _new_records(known, Records(rounded, labels)) == 0
    assert _new_records(known, Records(rounded.flip(0), labels.flip(0))) == 0
    assert _new_records(known, Records(values, labels + 1)) == 50
    assert _new_records(known, Records(values * 1.2, labels)) == 50


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Digits(), "the task takes no other table: DataError: The installed scikit-learn ships other digits"),
        (Blobs(), "its table is read by nothing that could give it another one"),
    ],
)
def test_a_task_that_cannot_be_checked_does_not_pass(task: Task, reason: str) -> None:
    with pytest.raises(SkipTest, match=reason):
        TaskContract().test_other_rows_of_a_table_change_no_record(task)
