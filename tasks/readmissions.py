"""Readmissions: whether a patient comes back within 30 days; made-up records as a table with gaps and dates.

No package that this one requires ships a table with missing values, dates and rare classes. This one is drawn by a
rule that stands below. Nobody's health is learned from it, and no result on it says anything about hospitals.
"""

import json
import math
from collections.abc import Sequence
from datetime import date, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import dphpo_bench as bench

from .synthetic import OnVectors, PackagedTask, check_drawn

if TYPE_CHECKING:
    import torch

CONTENT_HASH = "9e3b041132823e34a34f6db254d73b9bdfbb5384ec9c257f0682aac2457f5e7f"
N_TRAIN, N_TEST = 8_000, 4_000
# As the rule of the records, or a clinician's knowledge, states them; nothing here is learned from the records.
COLUMNS = bench.Columns(
    {
        "patient": None,
        "age": bench.Number(typical=65, spread=15, missing="typical", indicator=True),
        "admitted": bench.Date("2022-07-01", spread=300, cycles=("week", "year")),
        "last visit": bench.Date("2022-04-01", spread=300, missing="typical", indicator=True),
        "urgent": bench.Category((False, True)),
        "ward": bench.Category(("internal", "surgery", "cardiology", "neurology", "oncology"), other=True),
        "nights": bench.Number(typical=2, spread=0.7, logarithmic=True),
        "former stays": bench.Number(typical=1, spread=1.5),
        "haemoglobin": bench.Number(typical=13.5, spread=1.5, missing="typical", indicator=True),
        "crp": bench.Number(typical=2.5, spread=1, logarithmic=True, missing=5, indicator=True),
        "insurance": bench.Category(("statutory", "private", "none"), other=True),
    }
)
WARDS = {"internal": 0.4, "surgery": 0.25, "cardiology": 0.15, "neurology": 0.1, "oncology": 0.07, "burns": 0.03}
INSURANCES = {"statutory": 0.8, "private": 0.1, "none": 0.03, None: 0.07}
DRAWS = 17
"""Uniform numbers for each record."""


class Readmissions(PackagedTask, OnVectors):
    """12,000 made-up stays at a hospital, one in fourteen followed by another within 30 days.

    Two models: "linear", a linear layer from zero, and "mlp", with 32 hidden tanh units.
    """

    name = "readmissions"
    summary = "Made-up hospital stays: missing values, dates, one in fourteen positive; binary, N=8,000, no download."
    columns = COLUMNS
    content = json.dumps([CONTENT_HASH, N_TRAIN, COLUMNS.to_json()])
    classes = (False, True)

    @property
    def facts(self) -> bench.TaskFacts:
        return self._stated(N_TRAIN, COLUMNS.size, batch_size=2000, epochs=40, kind="binary")

    @property
    def metrics(self) -> tuple[bench.metrics.Metric, ...]:
        """The area under the ROC curve first: to say that nobody comes back is right 93 times of 100."""
        return bench.metrics.ROC_AUC, bench.metrics.BALANCED_ACCURACY, bench.metrics.CROSS_ENTROPY

    def scores(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """Return the probability of the true answer: by accuracy many models are as good as saying "no"."""
        return 1 - (outputs.squeeze(-1).sigmoid() - targets).abs()

    @property
    def sibling(self) -> bench.Task:
        """A made-up rule of another kind. Each column adds about 1 to the squared length of a record."""
        return self._made_up((10 / COLUMNS.size) ** 0.5, positives=0.07)

    def _load(self, train: bool) -> bench.Records:
        import torch

        rows = stays()[:N_TRAIN] if train else stays()[N_TRAIN:]
        labels = torch.tensor([float(row.pop("readmitted")) for row in rows])
        return bench.Records(COLUMNS.encode(rows), labels)


def stays() -> list[dict[str, Any]]:
    """Return all records as dictionaries, checked by `check_drawn`."""
    random = Random(20240501)
    rows = [stay(patient, [random.random() for _ in range(DRAWS)]) for patient in range(N_TRAIN + N_TEST)]
    check_drawn("readmissions", json.dumps(rows, default=str).encode(), CONTENT_HASH)
    return rows


def stay(patient: int, u: Sequence[float], intercept: float = 0.0) -> dict[str, Any]:
    """Make a record of independent uniform numbers; the intercept is added to the log odds of a readmission.

    It has the values of `COLUMNS`, and "readmitted", True or False.

    Labs are taken of 19 in 20 urgent patients and of every second other: that one is missing says something. The
    value counts whether it is known or not. Weekends count, and visits in the 60 days before.
    """
    admitted = date(2021, 1, 1) + timedelta(int(1095 * u[0]))
    before = 1 + int(700 * u[1] * u[2])
    is_known, urgent = u[3] < 0.7, u[4] < 0.4
    age, ward = 20 + int(75 * max(u[5], u[6])), _choice(WARDS, u[7])
    nights, former = int(3 / (u[8] + 0.05)), int(0.6 / (u[9] + 0.1)) * is_known
    haemoglobin, crp = round(9 + 9 * (u[10] + u[11]) / 2, 1), round(6 / (u[12] + 0.02), 1)
    logit = (
        *(-5.9, 0.04 * (age - 65), 1.5 * urgent, 0.4 * former, 0.08 * min(nights, 20), -0.2 * (haemoglobin - 13.5)),
        *(2.0 * (is_known and before <= 60), 0.5 * (admitted.weekday() >= 5), 0.006 * crp),
        {"oncology": 0.8, "burns": 1.2}.get(str(ward), 0.0),
        intercept,
    )
    return {
        "patient": patient,
        "age": age if u[13] < 0.97 else None,
        "admitted": admitted,
        "last visit": admitted - timedelta(before) if is_known else None,
        "urgent": urgent,
        "ward": ward,
        "nights": nights,
        "former stays": former,
        "haemoglobin": haemoglobin if u[13] > 0.1 else None,
        "crp": crp if u[14] < (0.95 if urgent else 0.5) else None,
        "insurance": _choice(INSURANCES, u[16]),
        "readmitted": u[15] < 1 / (1 + math.exp(-sum(logit))),
    }


def _choice(shares: dict[Any, float], u: float) -> Any:
    for value, share in shares.items():
        u -= share
        if u < 0:
            return value
    return next(reversed(shares))
