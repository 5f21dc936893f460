"""From which of three growers is a wine? scikit-learn's 178 wines."""

import hashlib
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    import torch

N_TRAIN = 149
TRAIN_BELOW = 205  # a record trains if the first byte of its digest is below this: about four in five


class Wines(bench.Task):
    """Thirteen chemical measurements as logarithms, split by a rule on each record alone."""

    name = "wines"
    summary = "178 wines, 13 measurements, 3 classes; packaged with scikit-learn."
    public = True
    models = ("linear", "mlp")

    @property
    def facts(self) -> bench.TaskFacts:
        """Public facts; reads no data."""
        return bench.TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=N_TRAIN,
            inputs=bench.recipes.Input((13,)),
            n_classes=3,
            batch_size=75,
            epochs=20,
            optimizer="AdamW",
            learning_rate=5e-2,
        )

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """The private training records."""
        del source
        return self._load(train=True)

    def load_test(self, source: bench.DataSource) -> bench.Records:
        """The test records."""
        del source
        return self._load(train=False)

    def build_model(self) -> "torch.nn.Module":
        """A linear layer, or a small network."""
        from torch import nn

        if self.model_name == "linear":
            return nn.Linear(13, 3)
        return nn.Sequential(nn.Linear(13, 8), nn.Tanh(), nn.Linear(8, 3))

    def fingerprint(self, source: bench.DataSource) -> str:
        """A hash of what identifies the records as the model gets them."""
        del source
        return hashlib.sha256(f"scikit-learn wine, log x, {TRAIN_BELOW}".encode()).hexdigest()

    def _load(self, train: bool) -> bench.Records:
        import torch
        from sklearn.datasets import load_wine

        values, labels = load_wine(return_X_y=True)
        trains = [hashlib.sha256(value.tobytes()).digest()[0] < TRAIN_BELOW for value in values]
        rows = [row for row, is_training in enumerate(trains) if is_training == train]
        return bench.Records(torch.from_numpy(values[rows]).log().float(), torch.from_numpy(labels[rows]).long())
