"""Rows of tables and texts: canonical order, content hashes, the publisher's own files, and every way to be wrong."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.rows import Row, content_hash, load_rows
from dphpo_bench.data.source import DataSource, Split, Table
from tests.data.conftest import FakeHub

ROWS: list[Row] = [("a tale", 1), ("naïve, “quoted”", 0), ("a tale", 1), ("", 0)]
FORM = "39, State-gov, <=50K\n50, ?, >50K\n\n"


def dataset_of(rows: list[Row], **changes: object) -> Table:
    split = Split("train", "data/train-0.parquet", len(rows), content_hash(rows))
    table = Table("few", "someone/few", (split, replace(split, name="test")), "", "", (("text", str), ("label", int)))
    return replace(table, **changes)  # type: ignore[arg-type]


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts, labels = zip(*rows, strict=True)
    pq.write_table(pa.table({"index": range(len(rows)), "label": labels, "text": texts}), path)


@pytest.fixture
def source(tmp_path: Path) -> DataSource:
    write(tmp_path / "mirror/few/train.parquet", ROWS)
    return DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


def refused(source: DataSource, dataset: Table) -> str:
    with pytest.raises(DataError) as error:
        load_rows(source, dataset, dataset.train)
    message = str(error.value)
    assert "\n" not in message
    assert "train.parquet" in message
    assert "get it again from https://huggingface.co/datasets/someone/few." in message
    return message


def test_the_order_of_a_file_does_not_matter(source: DataSource, tmp_path: Path) -> None:
    dataset = dataset_of(ROWS)
    first = load_rows(source, dataset, dataset.train)
    assert sorted(first) == sorted(ROWS)
    write(tmp_path / "mirror/few/train.parquet", ROWS[::-1])
    assert load_rows(source, dataset, dataset.train) == first


def test_the_hash_is_what_its_definition_says() -> None:
    digests = sorted(hashlib.sha256(json.dumps(list(row), ensure_ascii=False).encode()).digest() for row in ROWS)
    assert content_hash(ROWS) == hashlib.sha256(b"".join(digests)).hexdigest()
    assert content_hash(ROWS[1:]) != content_hash(ROWS)  # duplicates count


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([*ROWS[:3], ("other", 0)], "not those of the published dataset"),
        ([*ROWS[:3], (None, 0)], "column 'text' holds None, expected str"),
        (ROWS[:3], "expected 4 rows, got 3"),
    ],
)
def test_other_rows_are_refused(source: DataSource, tmp_path: Path, rows: list[Row], reason: str) -> None:
    write(tmp_path / "mirror/few/train.parquet", rows)
    assert reason in refused(source, dataset_of(ROWS))


class TestPublisher:
    """Files that are not on the hub."""

    columns = (("age", int), ("employer", str), ("income", str))
    rows = (39, "State-gov", "<=50K"), (50, "?", ">50K")

    def dataset(self, url: str) -> Table:
        split = Split("train", "few.data", 2, content_hash(self.rows), url + "/few.data")
        return Table("few", "", (split, replace(split, name="test")), "", "https://example.org", self.columns)

    @pytest.mark.parametrize("form", [FORM, "|1x3 Cross validator\n" + FORM.replace("K\n", "K.\n")])
    def test_the_original_form_gives_the_same_rows(self, hub: FakeHub, downloads: DataSource, form: str) -> None:
        hub.files["/few.data"] = form.encode()
        dataset = self.dataset(hub.url)
        assert sorted(load_rows(downloads, dataset, dataset.train)) == sorted(self.rows)
        before = len(hub.requests)
        load_rows(downloads, dataset, dataset.test)
        assert len(hub.requests) == before

    def test_a_download_that_breaks_leaves_nothing(self, hub: FakeHub, downloads: DataSource) -> None:
        hub.files["/few.data"], hub.break_first = FORM.encode(), True
        dataset = self.dataset(hub.url)
        with pytest.raises(DataError, match="Cannot download dataset few"):
            load_rows(downloads, dataset, dataset.train)
        assert downloads.find(dataset, dataset.train) == ()
        assert len(load_rows(downloads, dataset, dataset.train)) == 2
