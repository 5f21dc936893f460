"""Diabetes: how far the disease went in a year, from ten numbers; scikit-learn's packaged regression."""

import hashlib

import dphpo_bench as bench

from .synthetic import OnVectors, PackagedTask

CONTENT_HASH = "1c000487cf55db005a79b628e527921858f4fcaf851fca1d242d0c9accd1971a"
N_TRAIN = 345
# A record is a training record if the first byte of its digest is below this: about four in five.
TRAIN_BELOW = 205
# Typical values of adults and how far they spread, as clinicians know them; nothing here is from these records.
TYPICAL = {
    "age": (50, 15),
    "sex": (1.5, 0.5),
    "body mass index": (25, 5),
    "blood pressure": (95, 15),
    "total cholesterol": (200, 40),
    "low-density lipoproteins": (120, 30),
    "high-density lipoproteins": (50, 15),
    "total cholesterol / HDL": (4, 1.5),
    "log of triglycerides": (4.7, 0.5),
    "blood sugar": (95, 15),
}
PROGRESSION = (25, 346)
"""The documented range of the target, which becomes -1 to 1."""


class Diabetes(PackagedTask, OnVectors):
    """442 patients (Efron et al. 2004), split by a rule on each record alone; a linear model from zero.

    So few records leave little to learn in private: the task tells methods apart by what they lose.
    """

    name = "diabetes"
    summary = "scikit-learn's diabetes: regression from ten numbers, 442 records; packaged, seconds per run."
    models = ("linear",)
    content = f"{CONTENT_HASH} {TRAIN_BELOW} {TYPICAL} {PROGRESSION}"

    @property
    def facts(self) -> bench.TaskFacts:
        return self._stated(N_TRAIN, len(TYPICAL), batch_size=N_TRAIN, epochs=100, kind="regression", error_bound=1.0)

    @property
    def sibling(self) -> bench.Task:
        """A made-up linear rule; inputs are in standard deviations."""
        return self._made_up(1.0)

    def _load(self, train: bool) -> bench.Records:
        import numpy as np
        import torch
        from sklearn.datasets import load_diabetes

        bunch = load_diabetes(scaled=False)
        rows = np.column_stack([bunch.data, bunch.target])
        digests = [hashlib.sha256(",".join(f"{value:.4f}" for value in row).encode()).digest() for row in rows]
        order = sorted(range(len(rows)), key=digests.__getitem__)
        if hashlib.sha256(b"".join(sorted(digests))).hexdigest() != CONTENT_HASH:
            raise bench.errors.DataError(
                "The installed scikit-learn ships another diabetes dataset than expected; install 1.x."
            )
        chosen = rows[[row for row in order if (digests[row][0] < TRAIN_BELOW) == train]]
        typical, spread = np.array(list(TYPICAL.values())).T
        low, high = PROGRESSION
        inputs = torch.from_numpy((chosen[:, :-1] - typical) / spread).float()
        return bench.Records(inputs, torch.from_numpy(2 * (chosen[:, -1] - low) / (high - low) - 1).float())
