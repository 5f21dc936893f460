"""Ratings of restaurants behind E2E's sentences: public texts that are like those of SST-2, to tune on."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import dphpo_bench as bench
from dphpo_bench.data.rows import load_rows
from dphpo_bench.data.source import Split
from dphpo_bench.zoo.dataset_task import FINE_TUNED, TextTask
from dphpo_bench.zoo.published import Roberta

from .e2e import DATASET

if TYPE_CHECKING:
    from dphpo_bench.data.rows import Row

RATINGS = {"low": 0, "1 out of 5": 0, "high": 1, "5 out of 5": 1}
UNRATED = -1
"""Label of sentences about restaurants without a rating, or with one in the middle; no record of the task has it."""


class E2eRatings(TextTask):
    """18,556 sentences about restaurants that are said to be rated low, or high.

    The public sibling of `sst2`: single sentences, opinions of two kinds, the same encoder. It is in no registry.
    """

    name = "e2e_ratings"
    summary = "E2E's sentences about restaurants with a low or a high rating: which of the two, N=18,556."
    models = ("linear", *FINE_TUNED)
    datasets = (DATASET,)
    n_classes = 2
    roberta = Roberta(longest=64)  # as those of sst2; a few sentences are cut

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, n_records=18_556)

    def _rows(self, source: bench.DataSource, split: Split) -> "list[Row]":
        return [(str(sentence), label_of(str(meaning))) for meaning, sentence in load_rows(source, DATASET, split)]

    def _load(self, source: bench.DataSource, split: Split) -> bench.Records:
        records = super()._load(source, split)
        return records.rows(records.named()["targets"] != UNRATED)


def label_of(meaning: str) -> int:
    """Return whether a meaning representation holds a low rating, 0, a high one, 1, or neither."""
    rating = re.search(r"customer rating\[(.*?)\]", meaning)
    return RATINGS.get(rating[1], UNRATED) if rating else UNRATED
