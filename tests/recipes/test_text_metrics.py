"""NIST, ROUGE-L and CIDEr, against their formulas."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest

from dphpo_bench.recipes.text_metrics import NAMES, has_text_metrics, text_metrics

pytestmark = pytest.mark.skipif(not has_text_metrics(), reason="needs the extra texts")

TEXTS = ["the mill serves cheap food near the river", "Blue Spice is a pub", "a pub"]
REFERENCES = [
    ["The Mill serves cheap food by the river", "the mill is cheap"],
    ["blue spice is a family pub in the city", "Blue Spice is a restaurant"],
    ["a pub by the river"],
]


def measured(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    return dict(zip(NAMES, text_metrics(texts, references), strict=True))


def test_rouge_is_the_f_measure_of_the_longest_common_subsequence() -> None:
    """β = 1.2, precision and recall each of the reference that is best for it."""
    values = measured(["the cat sat"], [["A cat", "The cat sat down"]])
    precision, recall = 1.0, 0.75
    assert values["rouge_l"] == pytest.approx((1 + 1.44) * precision * recall / (recall + 1.44 * precision))


def test_nist_of_a_right_text_is_the_information_of_its_words() -> None:
    """Of words that occur once, log2 of their number; a longer phrase of them tells nothing new."""
    text = "one two three four five six seven eight"
    assert measured([text], [[text.upper()]])["nist"] == pytest.approx(3)
    assert measured(["one two"], [[text]])["nist"] == 0
    assert measured([""], [[text]])["nist"] == 0


def test_cider_is_its_formula() -> None:
    def vectors(text: str) -> list[dict[tuple[str, ...], float]]:
        words = text.lower().split()
        grams = [Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1)) for n in range(1, 5)]
        return [{gram: count * idf(gram) for gram, count in some.items()} for some in grams]

    def idf(gram: tuple[str, ...]) -> float:
        holds = [any(f" {' '.join(gram)} " in f" {text.lower()} " for text in some) for some in REFERENCES]
        return math.log(len(REFERENCES)) - math.log(max(1, sum(holds)))

    def norm(vector: dict[tuple[str, ...], float]) -> float:
        return math.sqrt(sum(value**2 for value in vector.values()))

    def similarity(text: str, reference: str) -> float:
        # Lengths in pairs of words, as the published program counts them.
        apart = len(text.split()) - len(reference.split())
        total = 0.0
        for ours, theirs in zip(vectors(text), vectors(reference), strict=True):
            if norm(ours) and norm(theirs):
                common = sum(min(value, theirs.get(gram, 0)) * theirs.get(gram, 0) for gram, value in ours.items())
                total += common / norm(ours) / norm(theirs) * math.exp(-(apart**2) / 72)
        return total / 4

    expected = [
        10 * sum(similarity(text, reference) for reference in some) / len(some)
        for text, some in zip(TEXTS, REFERENCES, strict=True)
    ]
    assert measured(TEXTS, REFERENCES)["cider"] == pytest.approx(sum(expected) / 3)
    assert 0 < sum(expected) / 3 < 10
