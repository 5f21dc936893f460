"""E2E NLG: say in a sentence what a restaurant is like; a small GPT-2 from nothing, or the published one."""

import hashlib
import json
import re
from typing import TYPE_CHECKING, ClassVar

import dphpo_bench as bench
from dphpo_bench.data.source import Split, Table
from dphpo_bench.data.words import Vocabulary, plain
from dphpo_bench.zoo.dataset_task import DatasetTask, Schedule, Setup
from dphpo_bench.zoo.published import Gpt2

from .e2e_words import WORDS

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.source import Weights
    from dphpo_bench.zoo.language_models import TestTexts
    from dphpo_bench.zoo.networks import Which

DATASET = Table(
    name="e2e",
    repo_id="tuetschek/e2e_nlg",
    revision="refs/convert/parquet",
    columns=(("meaning_representation", str), ("human_reference", str)),
    splits=Split.pair(
        "default/{}/0000.parquet",
        train=(42_061, "389bc040198139e02e1968d696e02ba9e2a4c93d900ebcc9c608b89af0b0b874"),
        test=(4_693, "1d9e7a18dd7d53b942d95606151ecf6301ae342fb08a3b01d98d2b9ce87a8155"),
    ),
    licence="CC BY-SA 4.0",
    homepage="https://github.com/tuetschek/e2e-dataset",
)

VERBATIM = {"name": "<name>", "near": "<near>"}
"""Attributes of any text, and the token that stands for it in the record: no model has to learn to copy letters."""
ONTOLOGY: dict[str, tuple[str, ...]] = {
    "eatType": ("coffee shop", "pub", "restaurant"),
    "food": ("Chinese", "English", "Fast food", "French", "Indian", "Italian", "Japanese"),
    "priceRange": ("cheap", "moderate", "high", "less than £20", "£20-25", "more than £30"),
    "customer rating": ("low", "average", "high", "1 out of 5", "3 out of 5", "5 out of 5"),
    "area": ("city centre", "riverside"),
    "familyFriendly": ("no", "yes"),
}
"""What the other attributes may say, as the dataset's authors fixed it before anybody wrote (Novikova et al. 2017)."""

END, START, NONE, OTHER = "<end>", "<start>", "<none>", "<other>"
ANSWERS = tuple(f"{name}={value}" for name, values in ONTOLOGY.items() for value in values)
VOCABULARY = Vocabulary((END, START, NONE, OTHER, *VERBATIM.values(), *ANSWERS), WORDS)
PROMPT = len(VERBATIM) + len(ONTOLOGY) + 1
"""Tokens of a prompt: one for each attribute, and the start of the sentence."""
SENTENCE = 40
"""Most tokens of a sentence, its end included. Longer ones are cut, and then have no end."""

SMALL = Gpt2(PROMPT + SENTENCE - 1, layers=1, heads=4, size=192, vocabulary=len(VOCABULARY.tokens))
"""Configuration of "small_gpt2", which has no published weights."""
GPT2S: "dict[str, Which]" = {"gpt2": "all", "gpt2_lora": "lora"}
"""The models that are the published GPT-2, and what of it they train."""


class E2e(DatasetTask):
    """42,061 pairs of a meaning representation and a sentence about a restaurant (Novikova et al. 2017).

    The meaning representation becomes eight tokens, one for each attribute in a fixed order; the sentence becomes words
    of a vocabulary that was written down beforehand, and letters where a word is not in it. Bytes would make a record
    nearly seven times as long (216 against 32 on average); a public vocabulary of 30,000 word pieces would make most of
    the model an embedding.

    The published GPT-2 has its own tokens, and the meaning representation as a text in the form of the literature, such
    as `name : Zizzi | eatType : pub ||`. Its perplexity is that of its own tokens: compare models by BLEU.

    BLEU is that of the whole sentences with all their references, letter case apart. The small one gets its names back.
    Where the extra "texts" is installed, the model writes once more, for NIST, ROUGE-L, CIDEr and, with Java, METEOR: a
    further test.

    Attributes:
        gpt2: what the published GPT-2 is like, and how long its texts are: the limit is that of Li et al. 2022. Of the
            records to train on 8 are longer, of those to test with 15.
    """

    name = "e2e"
    summary = "E2E NLG: write a sentence about a restaurant; a GPT-2 of 700,000 weights from nothing, N=42,061."
    models = ("small_gpt2", "gpt2", "gpt2_lora")
    fine_tuned = GPT2S
    datasets = (DATASET,)
    kind = "tokens"
    gpt2: ClassVar[Gpt2] = Gpt2()

    @property
    def n_classes(self) -> int:  # type: ignore[override]
        """The size of the vocabulary."""
        return (self.gpt2 if self._tuning else SMALL).vocabulary

    @property
    def _setup(self) -> Setup:
        # AdamW's own default, tuned on nothing. For GPT-2 batch, epochs and rate of Li et al., "Large language models
        # can be strong differentially private learners", ICLR 2022; for LoRA the rate of Yu et al. 2022.
        if self._tuning:
            schedule = Schedule(batch_size=1024, epochs=10, learning_rate=2e-3 if self._tuning == "all" else 4e-4)
            return Setup(bench.recipes.Input((self.gpt2.length,), "int", self.n_classes), self.gpt2.key, schedule)
        tokens = bench.recipes.Input((SMALL.length,), "int", self.n_classes)
        return Setup(tokens, [VOCABULARY.tokens, PROMPT, SENTENCE], Schedule(batch_size=512, epochs=1))

    @property
    def metrics(self) -> tuple[bench.metrics.Metric | bench.metrics.ModelMetric, ...]:
        """Perplexity of the test sentences' tokens, BLEU of what the model writes, and the small one's right tokens."""
        from dphpo_bench.zoo.language_models import corpus_bleu, token_perplexity

        def measured(model: "torch.nn.Module", test: bench.Records) -> float:
            return corpus_bleu(*self._texts(model, test))

        bleu = bench.metrics.ModelMetric("bleu", True, measured)
        if not self._tuning:
            return bench.metrics.PERPLEXITY, bench.metrics.ACCURACY, bleu
        # All outputs of such a vocabulary together would take 94 GB.
        return bench.metrics.ModelMetric("perplexity", False, token_perplexity), bleu

    @property
    def further_tests(self) -> tuple[bench.metrics.FurtherTest, ...]:
        """NIST, ROUGE-L, CIDEr and METEOR of what the model writes, where their packages, and Java, are installed."""
        from dphpo_bench.zoo.language_models import METEOR, has_text_metrics, text_metric_names, text_metrics

        if not has_text_metrics():
            return ()

        def measured(model: "torch.nn.Module", test: bench.Records) -> list[float]:
            return text_metrics(*self._texts(model, test))

        about = "test texts as for BLEU, by NLTK and pycocoevalcap on sacrebleu's words without letter case"
        names = text_metric_names()
        about += "; METEOR 1.5" if METEOR in names else ""
        metrics = (bench.metrics.ModelMetrics(names, measured),)
        return (bench.metrics.FurtherTest("texts", about, self.load_test, metrics),)

    @property
    def pretrained_models(self) -> "tuple[Weights, ...]":
        """GPT-2, where it is not trained from nothing."""
        return (self.gpt2.weights,) if self._tuning else ()

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """Return the private training records, without the texts that they were made from."""
        records = super().load_train(source)
        return bench.Records(records.inputs, records.targets)

    def build_model(self) -> "torch.nn.Module":
        """Build the published GPT-2, or a GPT-2 of a single layer, at the initial weights of transformers.

        A run of the latter is to take a minute or two on a core. After 82 steps of 512 records one layer of 192 is
        better than two, and than narrower ones (docs/tasks.md).

        Raises:
            DataError: if published weights are not where the task was prepared from; without that, where the
                environment says.
        """
        from dphpo_bench.zoo.language_models import CausalModel

        if self._tuning:
            return self.gpt2.network(self._tuning, self._prepared_from)
        return CausalModel(SMALL.config())

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash what identifies the inputs and targets, and the published weights."""
        hashes = [split.content_hash for split in self.datasets[0].splits]
        encoding = [self._setup.key] if self._tuning else self._setup.key
        return hashlib.sha256(json.dumps([hashes, *encoding]).encode()).hexdigest()

    def _load(self, source: bench.DataSource, split: Split) -> bench.Records:
        import torch

        from dphpo_bench.data.rows import load_rows
        from dphpo_bench.zoo.language_models import TestTexts, require_bleu

        require_bleu()  # before a model is trained for minutes and cannot be judged
        meanings, references = (
            tuple(map(str, column)) for column in zip(*load_rows(source, self.datasets[0], split), strict=True)
        )
        if self._tuning:
            texts = [f" {reference}" for reference in references]
            return TestTexts(*self.gpt2.records([*map(prompt, meanings)], texts, source), meanings, references)
        inputs, targets = zip(*map(encode, meanings, references), strict=True)
        return TestTexts(torch.tensor(inputs), torch.tensor(targets), meanings, references)

    def _texts(self, model: "torch.nn.Module", test: bench.Records) -> tuple[list[str], list[list[str]]]:
        """Return what the model writes for each meaning representation, and all sentences about it.

        Raises:
            ValueError: if the records came without their texts.
        """
        import torch

        from dphpo_bench.zoo.language_models import TestTexts

        if not isinstance(test, TestTexts):
            raise ValueError("the test records came without their texts")
        references: dict[str, list[str]] = {}
        for meaning, reference in zip(test.prompts, test.references, strict=True):
            references.setdefault(meaning, []).append(reference)
        some = test.rows(torch.tensor([test.prompts.index(meaning) for meaning in references]))
        texts = self.gpt2.written(model, some, self._prepared_from) if self._tuning else writes(model, some)
        return texts, list(references.values())


def prompt(meaning: str) -> str:
    """Return a meaning representation as the text that GPT-2 goes on from."""
    return " | ".join(f"{name} : {value}" for name, value in attributes(meaning).items()) + " ||"


def encode(meaning: str, sentence: str = "") -> tuple[list[int], list[int]]:
    """Return inputs and targets of one record, of one length; what is before and after the sentence does not count."""
    from dphpo_bench.training.losses import IGNORED

    said = attributes(meaning)
    prompt = [token if name in said else NONE for name, token in VERBATIM.items()]
    for name, values in ONTOLOGY.items():
        value = said.get(name)
        prompt.append(NONE if value is None else f"{name}={value}" if value in values else OTHER)
    words = [*VOCABULARY.encode(without_names(sentence, said)), VOCABULARY.ids[END]][:SENTENCE]
    padding = SENTENCE - len(words)
    inputs = [*(VOCABULARY.ids[token] for token in (*prompt, START)), *words[:-1], *padding * [VOCABULARY.ids[END]]]
    return inputs, [*(PROMPT - 1) * [IGNORED], *words, *padding * [IGNORED]]


def attributes(meaning: str) -> dict[str, str]:
    """Read a meaning representation such as `name[Zizzi], eatType[pub]` into a dictionary."""
    return dict(re.findall(r"\s*([^\[\],]+)\[([^\]]*)\]", meaning))


def without_names(sentence: str, said: dict[str, str]) -> str:
    """Return the sentence in plain letters, with tokens for the names that the meaning representation has."""
    text = plain(sentence)
    for name in sorted(VERBATIM.keys() & said.keys(), key=lambda name: -len(said[name])):  # one may hold the other
        if said[name]:
            text = re.sub(rf"\b{re.escape(plain(said[name]))}\b", f" {VERBATIM[name]} ", text)
    return text


def writes(model: "torch.nn.Module", some: "TestTexts") -> list[str]:
    """Return what the small model writes for each record, with the names in their places."""
    from dphpo_bench.zoo.language_models import greedy

    texts, prompts = [], some.named()["inputs"][:, :PROMPT]
    for meaning, written in zip(some.prompts, greedy(model, prompts, SENTENCE, VOCABULARY.ids[END]), strict=True):
        text, said = VOCABULARY.decode(written), attributes(meaning)
        for name, token in VERBATIM.items():
            text = text.replace(token, said.get(name, ""))
        texts.append(text)
    return texts
