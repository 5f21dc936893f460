"""E2E NLG: say in a sentence what a restaurant is like; a small GPT-2 from nothing."""

import hashlib
import json
import re
from typing import TYPE_CHECKING

import dphpo_bench as bench
from dphpo_bench.data.datasets import Split, Table
from dphpo_bench.data.words import Vocabulary, plain

from .e2e_words import WORDS

if TYPE_CHECKING:
    import torch

DATASET = Table(
    name="e2e",
    repo_id="tuetschek/e2e_nlg",
    revision="refs/convert/parquet",
    columns=(("meaning_representation", str), ("human_reference", str)),
    splits=(
        Split(
            "train",
            "default/train/0000.parquet",
            42_061,
            "389bc040198139e02e1968d696e02ba9e2a4c93d900ebcc9c608b89af0b0b874",
        ),
        Split(
            "test",
            "default/test/0000.parquet",
            4_693,
            "1d9e7a18dd7d53b942d95606151ecf6301ae342fb08a3b01d98d2b9ce87a8155",
        ),
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
VOCABULARY = Vocabulary(
    (END, START, NONE, OTHER, *VERBATIM.values(), *(f"{name}={one}" for name, own in ONTOLOGY.items() for one in own)),
    WORDS,
)
PROMPT = len(VERBATIM) + len(ONTOLOGY) + 1
"""Tokens of a prompt: one for each attribute, and the start of the sentence."""
SENTENCE = 40
"""Most tokens of a sentence, its end included. Longer ones are cut, and then have no end."""


class E2e(bench.Task):
    """42,061 pairs of a meaning representation and a sentence about a restaurant (Novikova et al. 2017).

    The meaning representation becomes eight tokens, one for each attribute in a fixed order; the sentence becomes words
    of a vocabulary that was written down beforehand, and letters where a word is not in it. Bytes would make a record
    nearly seven times as long (216 against 32 on average); a public vocabulary of 30,000 word pieces would make most of
    the model an embedding.

    BLEU is that of the whole sentences with all their references, names put back, letter case apart.
    """

    name = "e2e"
    summary = "E2E NLG: write a sentence about a restaurant; a GPT-2 of a million weights from nothing, N=42,061."
    public = True
    models = ("small_gpt2",)
    datasets = (DATASET,)

    @property
    def facts(self) -> bench.TaskFacts:
        """Public facts; reads no data."""
        return bench.TaskFacts(
            task=self.name,
            model=self.model_name,
            n_records=self.datasets[0].train.rows,
            inputs=bench.Input((PROMPT + SENTENCE - 1,), "int", len(VOCABULARY.tokens)),
            kind="tokens",
            n_classes=len(VOCABULARY.tokens),
            batch_size=1024,
            epochs=2,  # 12 ms of one core for a record: some 1,050 s in all, extrapolated from 96 records
            optimizer="AdamW",
            learning_rate=1e-3,  # AdamW's own default: tuned on nothing
        )

    @property
    def metrics(self) -> tuple[bench.Metric | bench.ModelMetric, ...]:
        """Perplexity of the test sentences' tokens, share of right tokens, and BLEU of what the model writes."""
        return bench.PERPLEXITY, bench.ACCURACY, bench.ModelMetric("bleu", True, bleu)

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """The private training records, without the texts that they were made from."""
        records = self._load(source, self.datasets[0].train)
        return bench.Records(records.inputs, records.targets)

    def load_test(self, source: bench.DataSource) -> bench.Records:
        """The test records, with their texts."""
        return self._load(source, self.datasets[0].test)

    def build_model(self) -> "torch.nn.Module":
        """A GPT-2 of two layers, at the initial weights of transformers."""
        from dphpo_bench.recipes.language_models import CausalModel, require

        require("transformers")
        from transformers import GPT2Config

        return CausalModel(
            GPT2Config(
                vocab_size=len(VOCABULARY.tokens),
                n_positions=PROMPT + SENTENCE - 1,
                n_embd=192,
                n_layer=2,
                n_head=4,
                activation_function="gelu_pytorch_tanh",  # GPT-2's own, in one operation
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                tie_word_embeddings=False,
                bos_token_id=None,
                eos_token_id=None,
            )
        )

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash of what identifies the inputs and targets."""
        del source
        hashes = [split.content_hash for split in self.datasets[0].splits]
        return hashlib.sha256(json.dumps([hashes, VOCABULARY.tokens, PROMPT, SENTENCE]).encode()).hexdigest()

    def _load(self, source: bench.DataSource, split: Split) -> bench.Records:
        import torch

        from dphpo_bench.data.rows import load_rows
        from dphpo_bench.recipes.language_models import TestTexts, require

        require("sacrebleu")  # before a model is trained for minutes and cannot be judged
        prompts, references = (
            tuple(map(str, column)) for column in zip(*load_rows(source, self.datasets[0], split), strict=True)
        )
        inputs, targets = zip(*map(encode, prompts, references), strict=True)
        return TestTexts(torch.tensor(inputs), torch.tensor(targets), prompts, references)


def encode(meaning: str, sentence: str = "") -> tuple[list[int], list[int]]:
    """Inputs and targets of one record, of one length; what is before and after the sentence does not count."""
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
    """A meaning representation such as `name[Zizzi], eatType[pub]`, as a dictionary."""
    return dict(re.findall(r"\s*([^\[\],]+)\[([^\]]*)\]", meaning))


def without_names(sentence: str, said: dict[str, str]) -> str:
    """The sentence in plain letters, with tokens for the names that the meaning representation has."""
    found = plain(sentence)
    for name in sorted(VERBATIM.keys() & said.keys(), key=lambda name: -len(said[name])):  # one may hold the other
        if said[name]:
            found = re.sub(rf"\b{re.escape(plain(said[name]))}\b", f" {VERBATIM[name]} ", found)
    return found


def bleu(model: "torch.nn.Module", test: bench.Records) -> float:
    """BLEU of what the model writes for each meaning representation, against all of its sentences.

    Raises:
        ValueError: if the records came without their texts.
    """
    from dphpo_bench.recipes.language_models import TestTexts, corpus_bleu, greedy

    if not isinstance(test, TestTexts):
        raise ValueError("the test records came without their texts")
    references: dict[str, list[str]] = {}
    for meaning, reference in zip(test.prompts, test.references, strict=True):
        references.setdefault(meaning, []).append(reference)
    rows = [test.prompts.index(meaning) for meaning in references]
    prompts = test.named()["inputs"][rows, :PROMPT]
    texts = []
    for meaning, written in zip(references, greedy(model, prompts, SENTENCE, VOCABULARY.ids[END]), strict=True):
        text, said = VOCABULARY.decode(written), attributes(meaning)
        for name, token in VERBATIM.items():
            text = text.replace(token, said.get(name, ""))
        texts.append(text)
    return corpus_bleu(texts, list(references.values()))
