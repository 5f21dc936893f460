"""Digits: scikit-learn's 8x8 handwritten digits. No download, seconds per run: for trying things out."""

import dphpo_bench as bench

from .synthetic import OnVectors, PackagedTask

IMAGE_SHAPE = (1, 8, 8)
CONTENT_HASH = "803c750a95a08ee5266adaddaf25a2f5cda68619e07a62b4739201e650c10ab4"
N_TRAIN = 1438
# A record is a training record if the first byte of its digest is below this: about four in five.
TRAIN_BELOW = 205


class Digits(PackagedTask, OnVectors):
    """1,797 pictures, split by a rule on each record alone, so that the split tells nothing about the others.

    Two models: "linear", a linear layer from zero on the 64 pixels, and "mlp", with 32 hidden tanh units.
    """

    name = "digits"
    summary = "scikit-learn's 8x8 handwritten digits, 10 classes; packaged, seconds per run."
    content = f"{CONTENT_HASH} {TRAIN_BELOW} x / 8 - 1"
    n_outputs = 10
    positives = 0.1

    @property
    def facts(self) -> bench.TaskFacts:
        return self._stated(N_TRAIN, 64, batch_size=512, epochs=40, n_classes=10)

    @property
    def sibling(self) -> bench.Task:
        """Gaussian classes, whose inputs are as large as pixels that are uniform in [-1, 1]."""
        return self._made_up(3**-0.5, positives=self.positives)

    def _load(self, train: bool) -> bench.Records:
        import numpy as np
        import torch
        from sklearn.datasets import load_digits

        from dphpo_bench.data.images import canonical_order, content_hash, record_digests, record_type

        bunch = load_digits()
        unordered = np.empty(len(bunch.target), record_type(IMAGE_SHAPE))
        unordered["pixels"] = bunch.images[:, None]
        unordered["label"] = bunch.target
        if content_hash(unordered) != CONTENT_HASH:
            raise bench.errors.DataError(
                "The installed scikit-learn ships other digits than expected; install scikit-learn 1.x."
            )
        records = canonical_order(unordered)
        in_train = np.array([digest[0] < TRAIN_BELOW for digest in record_digests(records)])
        chosen = records[in_train == train]
        inputs = torch.from_numpy(chosen["pixels"].reshape(-1, 64)).float().div_(8).sub_(1)
        return bench.Records(inputs, torch.from_numpy(chosen["label"]).long())
