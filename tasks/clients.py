"""Clients: federated studies in one process. The unit is the client, with a few records of a kind of its own."""

import hashlib
from random import Random

import dphpo_bench as bench

from .digits import CONTENT_HASH as DIGITS_HASH
from .digits import TRAIN_BELOW, Digits
from .readmissions import COLUMNS, Readmissions, stay_of

N_WRITERS, N_HOSPITALS = 250, 1_000
N_TEST_HOSPITALS = 500
HOSPITALS_HASH = ""
BAND = 0.1
"""Width of a writer's bands of the projection."""


class DigitsByWriter(Digits):
    """The pictures of `digits`, by 250 writers who are unlike each other: two digits each, of similar strokes.

    The writer follows from a picture and its label by a fixed rule: the pair of digits, and the band into which a
    projection of the pixels falls. The projection is drawn once, with a published seed. Test pictures are of no writer.
    """

    name = "digits_by_writer"
    summary = "The digits by 250 made-up writers, about 6 pictures each: client-level privacy; packaged."

    @property
    def facts(self) -> bench.TaskFacts:
        """Public facts; reads no data."""
        return self._stated(N_WRITERS, 64, batch_size=125, epochs=40, n_classes=10, unit="client")

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash what identifies the inputs and the writers."""
        del source
        return hashlib.sha256(f"{DIGITS_HASH} {TRAIN_BELOW} x / 8 - 1 {N_WRITERS} {BAND}".encode()).hexdigest()

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """Return the private training records, with their writers."""
        import torch

        records = super().load_train(source)
        random, bands = Random(20180224), N_WRITERS // 5
        direction = torch.tensor([random.gauss(0, 0.125) for _ in range(64)], dtype=torch.float64)
        band = (records.inputs.double() @ direction / BAND).floor().long() % bands
        return bench.Records(records.inputs, records.targets, units=records.targets // 2 * bands + band)


class ReadmissionsByHospital(Readmissions):
    """Made-up stays at 1,000 small hospitals, 1 to 15 each, whose odds of a readmission differ by a factor of their own.

    The rule of `readmissions`, with an intercept for each hospital, normal with deviation 1. Test records are of 500
    other hospitals.
    """

    name = "readmissions_by_hospital"
    summary = "Made-up hospital stays at 1,000 hospitals, about 8 each: client-level privacy; binary, no download."

    @property
    def facts(self) -> bench.TaskFacts:
        """Public facts; reads no data."""
        return self._stated(N_HOSPITALS, COLUMNS.size, batch_size=250, epochs=20, kind="binary", unit="client")

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash what identifies the inputs, targets and hospitals."""
        del source
        return hashlib.sha256(f"{HOSPITALS_HASH} {COLUMNS.to_json()}".encode()).hexdigest()
