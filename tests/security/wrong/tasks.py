"""One sound task, and tasks that differ from it in one mistake each. Nothing slow is imported here."""

from dataclasses import replace
from typing import Any

import dphpo_bench as bench
from dphpo_bench.testing import Blobs


class Sound(Blobs):
    """No mistake."""

    name = "wrong"
    summary = "Blobs with one mistake."
    models = ("linear",)


class NameWithCapitals(Sound):
    name = "Wrong Name"


class VersionIsText(Sound):
    version = "2"  # type: ignore[assignment]


class FactsFromData(Sound):
    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, n_records=len(self.load_train(bench.DataSource.resolve())))


class FactsOfAnother(Sound):
    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, model="mlp")


class FactsNeedTorch(Sound):
    @property
    def facts(self) -> bench.TaskFacts:
        import torch

        return replace(super().facts, inputs=bench.Input(tuple(torch.zeros(5).shape)))


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


class StructureOfTheProcess(Sound):
    def build_model(self) -> Any:
        from torch import nn

        class Told(nn.Linear):
            def extra_repr(self) -> str:
                return str(hash("blobs"))

        return Told(5, 3)


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


class LossesMix(Sound):
    def losses(self, outputs: Any, targets: Any) -> Any:
        return bench.cross_entropy(outputs - outputs.mean(0), targets)


class ScoresMix(Sound):
    def scores(self, outputs: Any, targets: Any) -> Any:
        return bench.correct(outputs, targets).mean().expand(len(targets))


class OneLossForAll(Sound):
    def losses(self, outputs: Any, targets: Any) -> Any:
        return bench.cross_entropy(outputs, targets).mean()
