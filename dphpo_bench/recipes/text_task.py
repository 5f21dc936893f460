"""Tasks on a dataset of labelled texts or pairs of texts: a subclass names the dataset, everything else is here."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, Task, TaskFacts
from dphpo_bench.data.datasets import Split, Table
from dphpo_bench.data.weights import Weights
from dphpo_bench.recipes.features import CachedFeatures, Extract
from dphpo_bench.recipes.roberta import LEARNING_RATES, ROBERTAS, Roberta
from dphpo_bench.recipes.schedule import Schedule
from dphpo_bench.recipes.text_features import TextFeatures

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.rows import Row
    from dphpo_bench.data.source import DataSource


class TextTask(Task):
    """Classification of the texts, or of the pairs of texts, of one dataset.

    Models: "linear", a linear layer that starts from zero on features of a pretrained encoder. Where a subclass lists
    them among its `models`: "roberta", "roberta_bitfit" and "roberta_lora", a RoBERTa of which all weights, the biases,
    or matrices added to queries and values are trained; and for single texts "bitfit" and "lora", which fine-tune the
    encoder's next block on what the layers below put out; the mean of the tokens goes through it, to a linear layer.

    A pair has four times the features: those of either text, the absolute values of their differences, and their
    products. Source: Conneau et al., "Supervised learning of universal sentence representations from natural language
    inference data", 2017.

    Subclasses set `name`, `summary`, `datasets` and `n_classes`, and may replace the rest.

    Attributes:
        datasets: one; its columns are one text or two, then the label.
        n_classes: labels are 0 ... n_classes - 1.
        features: what the linear model is trained on.
        linear_schedule: of the linear model.
        tuned_features: what lies below the block that is fine-tuned.
        tuned_schedule: of the models that fine-tune it.
        roberta: what a RoBERTa is like, and how long its texts are.
        roberta_schedule: of the three models that are one.
    """

    public = True
    models: ClassVar[tuple[str, ...]] = ("linear",)
    datasets: ClassVar[tuple[Table, ...]]
    n_classes: ClassVar[int]
    features: ClassVar[TextFeatures] = TextFeatures()
    linear_schedule: ClassVar[Schedule] = Schedule(batch_size=8192, epochs=30)
    tuned_features: ClassVar[TextFeatures] = TextFeatures(longest=48)
    tuned_schedule: ClassVar[Schedule] = Schedule(batch_size=2048, epochs=2)
    roberta: ClassVar[Roberta] = Roberta()
    roberta_schedule: ClassVar[Schedule] = Schedule(batch_size=1000, epochs=3)
    _prepared_from: "DataSource | None" = None

    @property
    def dataset(self) -> Table:
        """The one dataset of the task."""
        return self.datasets[0]

    @property
    def facts(self) -> TaskFacts:
        """Public facts; reads no data."""
        which = ROBERTAS.get(self.model_name)
        schedule = self.roberta_schedule if which else self.tuned_schedule
        schedule = self.linear_schedule if self.model_name == "linear" else schedule
        return TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=self.dataset.train.rows,
            inputs=Input(self._shape, "int", self.roberta.vocabulary) if which else Input(self._shape),
            n_classes=self.n_classes,
            batch_size=schedule.batch_size,
            epochs=schedule.epochs,
            optimizer="AdamW",
            learning_rate=LEARNING_RATES.get(self.model_name, 1e-3),  # else AdamW's own default: tuned on nothing
        )

    @property
    def pretrained_models(self) -> tuple[Weights, ...]:
        """The encoder."""
        if self.model_name in ROBERTAS:
            return (self.roberta.weights,)
        return ((self.features if self.model_name == "linear" else self.tuned_features).weights,)

    def prepare(self, source: "DataSource") -> None:
        """Get the weights that the model starts from; extract features, or token ids, where the cache lacks them.

        From then on the weights are looked for in this source.
        """
        from dphpo_bench.data.weights import weights_folder

        super().prepare(source)
        if self.model_name != "linear":
            weights_folder(source, self.pretrained_models[0])
        self._features(source).prepare(lambda split: self._rows(source, split), lambda: self._extract_from(source))
        self._prepared_from = source.silent

    def load_train(self, source: "DataSource") -> Records:
        """The private training records in canonical order."""
        return self._load(source, self.dataset.train)

    def load_test(self, source: "DataSource") -> Records:
        """The test records in canonical order."""
        return self._load(source, self.dataset.test)

    def build_model(self) -> "torch.nn.Module":
        """The linear layer, of zeros; the pretrained block with one on top; or a RoBERTa with a head.

        Raises:
            DataError: if pretrained weights are not where the task was prepared from; without that, where the
                environment says.
        """
        if self.model_name == "linear":
            from dphpo_bench.recipes.networks import zero_linear

            return zero_linear(math.prod(self._shape), self.n_classes)
        source = self._prepared_from
        if which := ROBERTAS.get(self.model_name):
            return self.roberta.classifier(self.n_classes, which, source)
        return self._with_head(self.tuned_features.block_above(source))

    def model_fingerprint(self) -> str:
        """Hash of the model's structure, for which no weights are needed."""
        if self.model_name == "linear":
            return super().model_fingerprint()
        import torch

        from dphpo_bench.training.structure import structure_hash

        if which := ROBERTAS.get(self.model_name):
            return structure_hash(self.roberta.structure(self.n_classes, which))
        with torch.device("meta"):
            return structure_hash(self._with_head(self.tuned_features.block_structure()))

    def fingerprint(self, source: "DataSource") -> str:
        """Hash of what identifies the inputs: the records, and the features' parameters."""
        identity = [[source.pin(self.dataset, split) for split in self.dataset.splits], self._key]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def _with_head(self, block: "torch.nn.Module") -> "torch.nn.Module":
        from dphpo_bench.recipes.pooling_block import fine_tuned

        return fine_tuned(
            block, self.tuned_features.size, self.n_classes, "lora" if self.model_name == "lora" else "bitfit"
        )

    @property
    def _texts(self) -> int:
        """How many texts make a record."""
        return len(self.dataset.columns) - 1

    @property
    def _shape(self) -> tuple[int, ...]:
        """Of one record's inputs."""
        if self.model_name in ROBERTAS:
            return (self.roberta.longest,)
        if self.model_name != "linear":
            return (self.tuned_features.longest, self.tuned_features.size)
        return (self.features.size * (1 if self._texts == 1 else 4),)

    @property
    def _key(self) -> dict[str, Any]:
        """What identifies the inputs."""
        if self.model_name in ROBERTAS:
            return self.roberta.key
        return self.features.key if self.model_name == "linear" else {**self.tuned_features.key, "of": "each token"}

    def _features(self, source: "DataSource") -> CachedFeatures:
        if self.model_name in ROBERTAS:
            return CachedFeatures(source, self.dataset, self._key, self.roberta.longest, "int32", "Tokenising")
        return CachedFeatures(source, self.dataset, self._key, math.prod(self._shape))

    def _rows(self, source: "DataSource", split: Split) -> "list[Row]":
        from dphpo_bench.data.rows import load_rows, unusable

        rows = load_rows(source, self.dataset, split)
        wrong = [row[-1] for row in rows if row[-1] not in range(self.n_classes)]
        if wrong:
            reason = f"expected labels from 0 to {self.n_classes - 1}, got {wrong[0]}"
            raise unusable(source.files(self.dataset, split)[0], self.dataset, reason)
        return rows

    def _extract_from(self, source: "DataSource") -> Extract:
        import torch

        def extract(some: "Sequence[Row]") -> "Iterator[torch.Tensor]":
            if self.model_name in ROBERTAS:
                yield from self.roberta.token_ids([tuple(map(str, row[:-1])) for row in some], source)
                return
            if self.model_name != "linear":
                yield from self.tuned_features.tokens([str(row[0]) for row in some], source)
                return
            for block in self.features.extract([str(text) for row in some for text in row[:-1]], source):
                one, *other = block.view(-1, self._texts, self.features.size).unbind(1)
                yield torch.cat([one, *other, *((one - two).abs() for two in other), *(one * two for two in other)], 1)

        return extract

    def _load(self, source: "DataSource", split: Split) -> Records:
        import torch

        rows = self._rows(source, split)
        inputs = self._features(source).load(split, rows, self._extract_from(source))
        return Records(inputs.view(-1, *self._shape), torch.tensor([row[-1] for row in rows]))
