"""Tables are altered whatever reads them, and only where they are as long as the records."""

from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.datasets
import torch

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, Task, TaskFacts
from dphpo_bench.data import rows
from dphpo_bench.data.source import DataSource
from dphpo_bench.tasks.digits import Digits
from dphpo_bench.testing import Blobs, ContractError, TaskContract
from dphpo_bench.testing.task_contract import FEW, _new_records, altered_tables

VALUES = np.arange(20.0).reshape(10, 2)
EVEN_REPLACED = [1, 1, 1, 3, 1, 5, 1, 7, 1, 9]
ODD_REPLACED = [0, 0, 2, 0, 4, 0, 6, 0, 8, 0]


@pytest.fixture
def source(tmp_path: Path) -> DataSource:
    return DataSource.resolve(tmp_path / "data", tmp_path / "cache")


def saved(folder: Path) -> dict[str, Any]:
    """A function that reads `VALUES`, for each reader."""
    frame = pd.DataFrame(VALUES, columns=["a", "b"], index=range(100, 110))
    np.save(folder / "values.npy", VALUES)
    np.savez(folder / "values.npz", values=VALUES, scale=np.ones(2))
    np.savetxt(folder / "values.txt", VALUES)
    frame.to_csv(folder / "values.csv", index=False)
    pq.write_table(pa.table({"a": VALUES[:, 0], "b": VALUES[:, 1]}), folder / "values.parquet")

    def from_npz() -> Any:
        with np.load(folder / "values.npz") as file:
            assert file["scale"].tolist() == [1, 1]
            return file["values"]

    return {
        "load": lambda: np.load(folder / "values.npy"),
        "load of several": from_npz,
        "loadtxt": lambda: np.loadtxt(folder / "values.txt"),
        "read_csv": lambda: pd.read_csv(folder / "values.csv").to_numpy(),
        "read_parquet": lambda: pd.read_parquet(folder / "values.parquet").to_numpy(),
        "read_table": lambda: pq.read_table(folder / "values.parquet").to_pandas().to_numpy(),
        "make_blobs": lambda: sklearn.datasets.make_blobs(10, 2, random_state=0)[0],
    }


@pytest.mark.parametrize(
    "reader", ["load", "load of several", "loadtxt", "read_csv", "read_parquet", "read_table", "make_blobs"]
)
def test_every_reader_gives_the_other_rows(reader: str, tmp_path: Path, source: DataSource) -> None:
    read = saved(tmp_path)[reader]
    whole = read()
    for parity, order in ((None, range(10)), (0, EVEN_REPLACED), (1, ODD_REPLACED)):
        with altered_tables(parity, 10, source) as (_, readers):
            assert np.array_equal(read(), whole[list(order)])
        assert set(readers) == {reader.removesuffix(" of several")}
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
    with altered_tables(1, 1000, source) as (elsewhere, _):
        found = rows.load_rows(elsewhere, None, None)
        assert elsewhere.cache_dir != source.cache_dir
        assert elsewhere.data_dir == source.root
    assert found == [("cache", row if row % 2 == 0 else 0) for row in range(FEW)]


class FromLines(Task):
    """Rows of a file under the folder of data, as docs/plugins.md has it."""

    name, summary, models, scaled = "lines", "A file.", ("linear",), False
    facts = TaskFacts("lines", "linear", 40, Input((2,)), 10, 2, "SGD", 0.1, n_classes=2)

    def load_train(self, source: DataSource) -> Records:
        lines = (source.root / "mine" / "train.jsonl").read_text().splitlines()
        values = torch.tensor([[float(word) for word in line.strip("[]").split(",")] for line in lines])
        inputs = values[:, :2] / (values[:, :2].std(dim=0) if self.scaled else 2.0)
        return Records(inputs, values[:, 2].long())

    def load_test(self, source: DataSource) -> Records:
        return self.load_train(source).rows(slice(0))

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 2)

    def fingerprint(self, source: DataSource) -> str:
        return "lines"


class ScaledLines(FromLines):
    scaled = True


@pytest.mark.parametrize("task", [FromLines, ScaledLines])
def test_files_of_lines_lose_rows_too(task: type[FromLines], source: DataSource) -> None:
    values = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [f"{one},{two},{row % 2}" for row, (one, two) in enumerate(values)]
    folder = source.root / "mine"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("".join(f"[{row}]\n" for row in rows))

    class Contract(TaskContract):
        def source(self) -> DataSource:
            return source

    if not task.scaled:
        Contract().test_other_rows_of_a_table_change_no_record(task())
        return
    with pytest.raises(ContractError, match=r"every second row of the files replaced.* makes 40 of 40 records"):
        Contract().test_other_rows_of_a_table_change_no_record(task())


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
def test_what_cannot_be_told_is_no_pass(task: Task, reason: str) -> None:
    with pytest.raises(SkipTest, match=reason):
        TaskContract().test_other_rows_of_a_table_change_no_record(task)
