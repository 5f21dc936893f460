"""Two tasks whose units are persons of several records: `stays` of patients and `reviews` by authors, made up.

No package that this one requires ships records of persons. Both rules stand below. Records of a person are alike, and
persons with many records differ from those with few, so that what protects a person costs more than what protects a
record. Nobody's health or habit is learned from them.
"""

import hashlib
import json
import math
from abc import abstractmethod
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import dphpo_bench as bench

from .readmissions import COLUMNS, DRAWS, Readmissions, stay
from .synthetic import OnVectors, PackagedTask, check_drawn

if TYPE_CHECKING:
    from dphpo_bench.data.cache import Array

N_TRAIN, N_TEST = 4_000, 1_200
"""Persons, each with all their records."""


class Persons(PackagedTask, OnVectors):
    """Records of persons, who are protected with all that they have: 12 epochs of batches of N / 4 persons.

    Attributes:
        n_inputs: of a record.
        unit: what a person is called.
        others: further facts.
        content_hash: of the records.
    """

    n_inputs: ClassVar[int]
    unit: ClassVar[str]
    others: ClassVar[dict[str, Any]]
    content_hash: ClassVar[str]

    @property
    def facts(self) -> bench.TaskFacts:
        return self._stated(N_TRAIN, self.n_inputs, N_TRAIN // 4, epochs=12, unit=self.unit, **self.others)

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash what identifies the records."""
        columns = self.columns.to_json() if self.columns else self.n_inputs
        return hashlib.sha256(json.dumps([self.content_hash, N_TRAIN, columns]).encode()).hexdigest()

    def _load(self, train: bool) -> bench.Records:
        import torch

        content, persons, inputs, targets = self._drawn()
        check_drawn(self.name, content, self.content_hash)
        part = (persons < N_TRAIN) == train
        ids = torch.from_numpy(persons[part]) if train else None
        return bench.Records(*(torch.from_numpy(values[part]) for values in (inputs, targets)), units=ids)

    @staticmethod
    @abstractmethod
    def _drawn() -> "tuple[bytes, Array, Array, Array]":
        """Return what to hash, and each record's person, inputs and target."""


class Stays(Persons, Readmissions):
    """Stays at a hospital by the rule of `readmissions`, one to twelve for a patient.

    A patient has one age, insurance and usual haemoglobin, and a frailty that no column tells: it brings readmissions
    and further stays.
    """

    name = "stays"
    summary = "Made-up hospital stays, one to twelve a patient, who is the unit; binary, N=4,000 patients, no download."
    n_inputs, unit = COLUMNS.size, "patient"
    others: ClassVar[dict[str, Any]] = {"kind": "binary"}
    content_hash = "9576bb3572ac309c6f0cee9b8ff30189c111a7975c0fab09b9045bd6d9fd54f8"

    @staticmethod
    @cache
    def _drawn() -> "tuple[bytes, Array, Array, Array]":
        """Draw a patient's constants, then each stay; a frailty moves the logit through the number that decides."""
        import numpy as np

        random = Random(20261130)
        rows = []
        for patient in range(N_TRAIN + N_TEST):
            always = [random.random() for _ in range(DRAWS)]
            frailty = 1.5 * math.log(always[0] / (1 - always[0])) / 1.8
            for _ in range(min(12, 1 + int(-math.log(always[1]) * 2.2 * math.exp(frailty / 3)))):
                u = [random.random() for _ in range(DRAWS)]
                u[5:7], u[10], u[16] = always[5:7], always[10], always[16]
                u[15] = 1 / (1 + (1 / u[15] - 1) * math.exp(frailty))
                rows.append(stay(patient, u))
        content = json.dumps(rows, default=str).encode()
        labels = np.array([row.pop("readmitted") for row in rows], dtype="float32")
        persons = np.array([row["patient"] for row in rows])
        return content, persons, COLUMNS.encode(rows).numpy(), labels


WORDS, CLASSES = 120, 5


class Reviews(Persons):
    """Texts of about twenty words by authors, an author's number of texts with a heavy tail; square roots of counts.

    A word belongs to the text's class, to the author's habits, or to anybody. An author has a class of their own in
    half of their texts, and those who write much have the first two.
    """

    name = "reviews"
    summary = "Made-up texts as counts of words, by authors, who are the unit; five classes, N=4,000 authors."
    n_inputs, unit, n_outputs = WORDS, "author", CLASSES
    others: ClassVar[dict[str, Any]] = {"n_classes": CLASSES}
    content_hash = "382f5ca172a21b9fec72de5608bfb89460987c53172cd6a11da76dc36a7dff09"

    @property
    def sibling(self) -> bench.Task:
        """A made-up rule of the same size, where each unit is a record."""
        return self._made_up(1 / 6)

    @staticmethod
    @cache
    def _drawn() -> "tuple[bytes, Array, Array, Array]":
        """Draw authors, texts, and words; NumPy's legacy numbers never change."""
        import numpy as np

        random = np.random.RandomState(20261130)
        authors, words, classes = N_TRAIN + N_TEST, WORDS, CLASSES
        sizes = np.minimum((1 - random.random_sample(authors)) ** -0.8, 60).astype("int64")
        favourites = np.where(sizes > 5, random.randint(2, size=authors), random.randint(classes, size=authors))
        habits = random.randint(words, size=(authors, 8))
        persons = np.repeat(np.arange(authors), sizes)
        texts = len(persons)
        of_class = np.stack([random.permutation(words) for _ in range(classes)])
        targets = np.where(random.random_sample(texts) < 0.5, favourites[persons], random.randint(classes, size=texts))
        counts = np.zeros((texts, words), dtype="float32")
        lengths = random.randint(10, 31, size=texts)
        for place in range(30):
            source, rank = random.random_sample(texts), (words ** random.random_sample(texts)).astype("int64") - 1
            said = np.where(source < 0.35, of_class[targets, rank], rank)
            said = np.where(source > 0.7, habits[persons, random.randint(8, size=texts)], said)
            counts[np.arange(texts), said] += place < lengths
        content = b"".join(part.tobytes() for part in (persons, counts.astype("uint8"), targets))
        return content, persons, np.sqrt(counts) / 2, targets
