"""One sound task, and tasks that differ from it in one mistake each. Nothing slow is imported here."""

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dphpo_bench as bench
from dphpo_bench.testing import Blobs


class Sound(Blobs):
    """No mistake."""

    name = "wrong"
    summary = "Blobs with one mistake."
    models = ("linear",)


class FromATable(Sound):
    """No mistake: wines, of which every fifth is a test record; their measurements as logarithms."""

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, n_records=143, inputs=bench.recipes.Input((13,)))

    def load_train(self, source: bench.DataSource) -> bench.Records:
        return self.records(test=False)

    def load_test(self, source: bench.DataSource) -> bench.Records:
        return self.records(test=True)

    def build_model(self) -> Any:
        from torch import nn

        return nn.Linear(13, 3)

    def records(self, *, test: bool) -> bench.Records:
        import torch

        values, labels = map(torch.from_numpy, table())
        chosen = (torch.arange(len(labels)) % 5 == 4) == test
        return bench.Records(self.prepared(values)[chosen].float(), labels[chosen].long())

    def prepared(self, values: Any) -> Any:
        return values.log()


def table() -> Any:
    from sklearn.datasets import load_wine

    return load_wine(return_X_y=True)


class NameWithCapitals(Sound):
    name = "Wrong Name"


class FactsFromData(Sound):
    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, n_records=len(self.load_train(bench.DataSource.resolve())))


class LosesARecord(Sound):
    def load_train(self, source: bench.DataSource) -> bench.Records:
        split = super().load_train(source)
        return bench.Records(split.inputs[1:], split.targets[1:])


class RecordWithoutNumbers(Sound):
    def load_train(self, source: bench.DataSource) -> bench.Records:
        split = super().load_train(source)
        split.inputs[300] = float("nan")
        return split


class LabelOutOfRange(Sound):
    def load_train(self, source: bench.DataSource) -> bench.Records:
        split = super().load_train(source)
        split.targets[300] = 3
        return split


class TestsOnTrainingData(Sound):
    __test__ = False

    def load_test(self, source: bench.DataSource) -> bench.Records:
        split = self.load_train(source)
        return bench.Records(split.inputs[:300], split.targets[:300])


class Shuffles(Sound):
    def load_train(self, source: bench.DataSource) -> bench.Records:
        import torch

        split = super().load_train(source)
        order = torch.randperm(len(split))
        return bench.Records(split.inputs[order], split.targets[order])


class FingerprintOfTheProcess(Sound):
    def fingerprint(self, source: bench.DataSource) -> str:
        return str(hash("blobs"))


class OneOutputTooMany(Sound):
    def build_model(self) -> Any:
        from torch import nn

        return nn.Linear(5, 4)


class WeightsAtRandom(Sound):
    def build_model(self) -> Any:
        import torch
        from torch import nn

        model = nn.Linear(5, 3)
        generator = torch.Generator()
        generator.seed()
        nn.init.normal_(model.weight, generator=generator)
        return model


class BatchNorm(Sound):
    def build_model(self) -> Any:
        from torch import nn

        return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))


def shifted(inputs: Any, generator: Any) -> Any:
    """Move all by a number of Python's generator, which no seed of a run sets."""
    del generator
    return inputs + random.random()


class DrawsElsewhere(Sound):
    augment = bench.recipes.Augmentation(shifted, copies=2)


class Centres(Sound):
    def build_model(self) -> Any:
        from torch import nn

        class Centred(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last = nn.Linear(5, 3)

            def forward(self, inputs: Any) -> Any:
                return self.last(inputs - inputs.mean(dim=0))

        return Centred()


class NegativeLearningRate(Sound):
    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, learning_rate=-0.1)


class OneLossForAll(Sound):
    def losses(self, outputs: Any, targets: Any) -> Any:
        return bench.losses.cross_entropy(outputs, targets).mean()


class ScalesByTheRecords(FromATable):
    def prepared(self, values: Any) -> Any:
        return (values - values.mean(dim=0)) / values.std(dim=0)


class FillsInTheMean(FromATable):
    """Only the records that lack a measurement, here one above 4, depend on the others."""

    def prepared(self, values: Any) -> Any:
        filled = values.clone()
        filled[values[:, 9] > 4, 9] = values[:, 9].mean()
        return filled


class ReadsTheTableForItsModel(FromATable):
    def build_model(self) -> Any:
        import torch

        model = super().build_model()
        model.register_buffer("middle", torch.from_numpy(table()[0]).mean(dim=0))
        return model


class Remembers(Sound):
    """It keeps what it has loaded: no mistake by itself."""

    def load_train(self, source: bench.DataSource) -> bench.Records:
        self.seen = super().load_train(source)
        return self.seen


class WeighsClasses(Remembers):
    def losses(self, outputs: Any, targets: Any) -> Any:
        import torch

        if not hasattr(self, "seen"):
            return bench.losses.cross_entropy(outputs, targets)
        counts = torch.bincount(self.seen.targets, minlength=3)
        return bench.losses.cross_entropy(outputs, targets) * counts.sum() / (3 * counts[targets])


class BufferOfTheMean(Remembers):
    def build_model(self) -> Any:
        model = super().build_model()
        model.register_buffer("middle", self.seen.inputs.mean(dim=0) if hasattr(self, "seen") else None)
        return model


class ForwardOfTheMean(Remembers):
    """Neither a buffer nor an attribute holds it."""

    def build_model(self) -> Any:
        from torch import nn

        middle = self.seen.inputs.mean(dim=0) if hasattr(self, "seen") else 0.0

        class Shifted(nn.Linear):
            def forward(self, inputs: Any) -> Any:
                return super().forward(inputs - middle)

        return Shifted(5, 3)


class LoadsForItsModel(Sound):
    def build_model(self) -> Any:
        model = super().build_model()
        with suppress(bench.errors.DphpoBenchError):
            self.load_train(bench.DataSource.resolve())
        return model
