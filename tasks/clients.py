"""Clients: federated studies in one process. The unit is the client, with a few records of a kind of its own."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import dphpo_bench as bench

from .digits import Digits
from .readmissions import COLUMNS, DRAWS, Readmissions, stay
from .synthetic import check_drawn

N_WRITERS, N_HOSPITALS, N_TEST_HOSPITALS = 250, 1_000, 500
BAND = 0.05
"""Width of the bands of a picture's projection."""
HOSPITALS_HASH = "396076007142d5c656cbceead98ea2febbf79f5cbb3874fd1e2f61a48a41e7eb"


class DigitsByWriter(Digits):
    """The pictures of `digits`, by 250 made-up writers who are unlike each other: two digits each, of similar strokes.

    A fixed rule names the writer of a picture: the pair of digits that its label belongs to, and the band, modulo 50,
    into which a projection of its pixels falls. So the writer depends on that picture alone. Test pictures have none.
    """

    name = "digits_by_writer"
    summary = "The digits by 250 made-up writers, about 6 pictures each, protected as clients; packaged."
    content = f"{Digits.content} {N_WRITERS} {BAND}"

    @property
    def facts(self) -> bench.TaskFacts:
        return self._stated(N_WRITERS, 64, batch_size=125, epochs=40, n_classes=10, unit="client")

    def _load(self, train: bool) -> bench.Records:
        import torch

        pictures, random, bands = super()._load(train), Random(0), N_WRITERS // 5
        if not train:
            return pictures
        assert isinstance(pictures.inputs, torch.Tensor)
        assert isinstance(pictures.targets, torch.Tensor)
        direction = torch.tensor([random.random() - 0.5 for _ in range(64)], dtype=torch.float64)
        band = (pictures.inputs.double() @ direction / BAND).floor().long() % bands
        return replace(pictures, units=pictures.targets // 2 * bands + band)


class ReadmissionsByHospital(Readmissions):
    """Made-up stays at 1,000 small hospitals, 1 to 15 each; hospitals differ in the log odds of a readmission.

    The rule is that of `readmissions`, with an intercept for each hospital, normal with mean -.4 and deviation 1. Test
    records are those of 500 other hospitals.
    """

    name = "readmissions_by_hospital"
    summary = "Made-up stays at 1,000 hospitals, about 8 each, protected as clients; binary, no download."
    content = json.dumps([HOSPITALS_HASH, COLUMNS.to_json()])

    @property
    def facts(self) -> bench.TaskFacts:
        return self._stated(N_HOSPITALS, COLUMNS.size, batch_size=250, epochs=10, kind="binary", unit="client")

    def _load(self, train: bool) -> bench.Records:
        import torch

        rows = [row for row in hospital_stays() if (row["hospital"] < N_HOSPITALS) == train]
        hospitals = torch.tensor([row.pop("hospital") for row in rows])
        labels = torch.tensor([float(row.pop("readmitted")) for row in rows])
        return bench.Records(COLUMNS.encode(rows), labels, units=hospitals if train else None)


def hospital_stays() -> list[dict[str, Any]]:
    """Return all records as dictionaries, checked by `check_drawn`: those of `stay`, and "hospital", from 0 on."""
    random, rows = Random(20240502), list[dict[str, Any]]()
    for hospital in range(N_HOSPITALS + N_TEST_HOSPITALS):
        size, intercept = 1 + int(15 * random.random()), random.gauss(-0.4, 1)
        for _ in range(size):
            row = stay(len(rows), [random.random() for _ in range(DRAWS)], intercept)
            rows.append({**row, "hospital": hospital})
    check_drawn("hospitals", json.dumps(rows, default=str).encode(), HOSPITALS_HASH)
    return rows
