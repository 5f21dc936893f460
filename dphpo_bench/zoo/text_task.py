"""Tasks on a dataset of labelled texts or pairs of texts: a subclass names the dataset, everything else is here."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input
from dphpo_bench.data.datasets import Split, Table
from dphpo_bench.data.source import Weights, weights_folder
from dphpo_bench.zoo.dataset_task import DatasetTask, Schedule, Setup
from dphpo_bench.zoo.features import CachedFeatures, Extract
from dphpo_bench.zoo.published import LEARNING_RATES, ROBERTAS, Roberta
from dphpo_bench.zoo.texts import TextFeatures, WordPieces

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.rows import Row
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.zoo.networks import Which


FINE_TUNED: "dict[str, Which]" = {**ROBERTAS, "block": "all", "bitfit": "bitfit", "lora": "lora", "gru": "all"}
"""The models that are more than a linear layer, and what they train: "gru" all but the embeddings that it reads."""


class TextTask(DatasetTask):
    """Classification of the texts, or of the pairs of texts, of one dataset.

    Models: "linear", a linear layer that starts from zero on features of a pretrained encoder. Where a subclass lists
    them among its `models`: "roberta", "roberta_bitfit" and "roberta_lora", a RoBERTa of which all weights, the biases,
    or matrices added to queries and values are trained; and for single texts "block", "bitfit" and "lora", which do the
    same to the encoder's next block, on what the layers below put out; the mean of the tokens goes through it, to a
    linear layer.
    "gru" is a recurrent network on the frozen embeddings with which a pretrained encoder begins.

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
        gru_tokens: what the recurrent network reads.
        gru_size: of the network's state.
        gru_schedule: of the recurrent network. Its rate is tuned, without privacy, on a split of SST-2's training
            records: docs/tasks.md says how.
    """

    models: ClassVar[tuple[str, ...]] = ("linear",)
    fine_tuned: "ClassVar[Mapping[str, Which]]" = FINE_TUNED
    datasets: ClassVar[tuple[Table, ...]]
    n_classes: int
    features: ClassVar[TextFeatures] = TextFeatures()
    linear_schedule: ClassVar[Schedule] = Schedule(batch_size=8192, epochs=30)
    tuned_features: ClassVar[TextFeatures] = TextFeatures(longest=48)
    tuned_schedule: ClassVar[Schedule] = Schedule(batch_size=2048, epochs=2)
    roberta: ClassVar[Roberta] = Roberta()
    roberta_schedule: ClassVar[Schedule] = Schedule(batch_size=1000, epochs=3)
    gru_tokens: ClassVar[WordPieces] = WordPieces()
    gru_size: ClassVar[int] = 64
    gru_schedule: ClassVar[Schedule] = Schedule(batch_size=2048, epochs=2, learning_rate=3e-2)

    @property
    def pretrained_models(self) -> tuple[Weights, ...]:
        """The encoder."""
        return (self._encoder.weights,)

    def prepare(self, source: "DataSource") -> None:
        """Get the weights that the model starts from; extract features, or token ids, where the cache lacks them.

        From then on `build_model` looks for weights in this source.
        """
        super().prepare(source)
        if self._tuning:
            weights_folder(source, self._encoder.weights)
        self._features(source).prepare(lambda split: self._rows(source, split), lambda: self._extract_from(source))
        self._prepared_from = source.silent

    def build_model(self) -> "torch.nn.Module":
        """Build the linear layer, of zeros; the pretrained block with one on top; a RoBERTa with a head; or the GRU.

        Raises:
            DataError: if pretrained weights are not where the task was prepared from; without that, where the
                environment says.
        """
        if not self._tuning:
            from dphpo_bench.recipes.networks import zero_linear

            return zero_linear(math.prod(self._setup.input.shape), self.n_classes)
        if self._is_roberta:
            return self.roberta.classifier(self.n_classes, self._tuning, self._prepared_from)
        if self._is_gru:
            return self._gru(self.gru_tokens.embeddings(self._prepared_from))
        return self._with_head(self.tuned_features.block_above(self._prepared_from), self._tuning)

    def _structure(self, which: "Which") -> "torch.nn.Module":
        import torch

        if self._is_roberta:
            return self.roberta.structure(self.n_classes, which)
        with torch.device("meta"):
            if self._is_gru:
                return self._gru(torch.empty(self.gru_tokens.vocabulary, self.gru_tokens.size))
            return self._with_head(self.tuned_features.block_structure(), which)

    def _gru(self, table: "torch.Tensor") -> "torch.nn.Module":
        from dphpo_bench.zoo.networks import GruClassifier

        return GruClassifier(table, self.gru_size, self.n_classes)

    def _with_head(self, block: "torch.nn.Module", which: "Which") -> "torch.nn.Module":
        from dphpo_bench.zoo.networks import PoolingBlock

        return PoolingBlock(block, self.tuned_features.size, self.n_classes, which)

    @property
    def _is_roberta(self) -> bool:
        return self.model_name in ROBERTAS

    @property
    def _is_gru(self) -> bool:
        return self.model_name == "gru"

    @property
    def _tokens(self) -> Roberta | WordPieces | None:
        """The tokeniser of a model that takes token ids."""
        return self.roberta if self._is_roberta else self.gru_tokens if self._is_gru else None

    @property
    def _encoder(self) -> Roberta | TextFeatures | WordPieces:
        return self._tokens or (self.tuned_features if self._tuning else self.features)

    @property
    def _texts(self) -> int:
        """The number of texts of a record."""
        return len(self.dataset.columns) - 1

    @property
    def _setup(self) -> Setup:
        if tokens := self._tokens:
            schedule = self.gru_schedule
            if self._is_roberta:
                schedule = replace(self.roberta_schedule, learning_rate=LEARNING_RATES[self.model_name])
            return Setup(Input((tokens.longest,), "int", tokens.vocabulary), tokens.key, schedule)
        if self._tuning:
            block = self.tuned_features
            return Setup(Input((block.longest, block.size)), {**block.key, "of": "each token"}, self.tuned_schedule)
        size = self.features.size * (1 if self._texts == 1 else 4)
        return Setup(Input((size,)), self.features.key, self.linear_schedule)

    def _features(self, source: "DataSource") -> CachedFeatures:
        size = math.prod(self._setup.input.shape)
        if self._tokens:
            return CachedFeatures(source, self.dataset, self._setup.key, size, "int32", "Tokenising")
        return CachedFeatures(source, self.dataset, self._setup.key, size)

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
            texts = [tuple(map(str, row[:-1])) for row in some]
            if self._tokens:
                yield from self._tokens.token_ids(texts, source)
                return
            if self._tuning:
                yield from self.tuned_features.tokens([text for text, *_ in texts], source)
                return
            for block in self.features.extract([text for row in texts for text in row], source):
                first, *second = block.view(-1, self._texts, self.features.size).unbind(1)
                pairs = ((first - other).abs() for other in second), (first * other for other in second)
                yield torch.cat([first, *second, *pairs[0], *pairs[1]], 1)

        return extract

    def _load(self, source: "DataSource", split: Split) -> Records:
        import torch

        rows = self._rows(source, split)
        inputs = self._features(source).load(split, rows, self._extract_from(source))
        return Records(inputs.view(-1, *self._setup.input.shape), torch.tensor([row[-1] for row in rows]))
