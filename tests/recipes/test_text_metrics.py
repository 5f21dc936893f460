"""NIST, ROUGE-L, CIDEr and METEOR, against their formulas."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shutil import which

import pytest

from dphpo_bench.base.errors import DataError
from dphpo_bench.zoo.language_models import NAMES, has_text_metrics, text_metric_names, text_metrics

pytestmark = pytest.mark.skipif(not has_text_metrics(), reason="needs the extra texts")

TEXTS = ["the mill serves cheap food near the river", "Blue Spice is a pub", "a pub"]
REFERENCES = [
    ["The Mill serves cheap food by the river", "the mill is cheap"],
    ["blue spice is a family pub in the city", "Blue Spice is a restaurant"],
    ["a pub by the river"],
]


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dphpo_bench.zoo.language_models.which", lambda _: None)


def measured(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    return dict(zip(text_metric_names(), text_metrics(texts, references), strict=True))


@pytest.mark.usefixtures("no_java")
def test_rouge_is_the_f_measure_of_the_longest_common_subsequence() -> None:
    """β = 1.2, precision and recall each of the reference that is best for it."""
    values = measured(["the cat sat"], [["A cat", "The cat sat down"]])
    precision, recall = 1.0, 0.75
    assert values["rouge_l"] == pytest.approx((1 + 1.44) * precision * recall / (recall + 1.44 * precision))


@pytest.mark.usefixtures("no_java")
def test_nist_of_a_right_text_is_the_information_of_its_words() -> None:
    """Of words that occur once, log2 of their number; a longer phrase of them tells nothing new."""
    text = "one two three four five six seven eight"
    assert measured([text], [[text.upper()]])["nist"] == pytest.approx(3)
    assert measured(["one two"], [[text]])["nist"] == 0
    assert measured([""], [[text]])["nist"] == 0


@pytest.mark.usefixtures("no_java")
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


@pytest.mark.slow
@pytest.mark.skipif(which("java") is None, reason="needs Java")
def test_meteor_is_its_formula() -> None:
    """α, β, γ and δ for English of the program's documentation; "a", "by" and "the" are function words of its list."""
    alpha, beta, gamma, delta = 0.85, 0.2, 0.6, 0.75
    recall = (delta * 1 + (1 - delta) * 2) / (delta * 2 + (1 - delta) * 3)
    mean = recall / (alpha + (1 - alpha) * recall)
    expected = mean * (1 - gamma * (1 / 3) ** beta)
    assert measured(["A pub by"], [["a pub by the river", "nothing"]])["meteor"] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.skipif(which("java") is None, reason="needs Java")
def test_meteor_takes_any_text() -> None:
    assert measured(["", "a ||| b"], [["the cat"], ["one\ntwo"]])["meteor"] < 0.1


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 600"])
def test_a_java_that_does_not_run_is_named(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "java").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("dphpo_bench.zoo.language_models.PATIENCE", 0.5)
    with pytest.raises(DataError, match="needs a Java that runs"):
        measured(["a pub"], [["a pub"]])


@pytest.mark.usefixtures("no_java")
def test_without_java_there_is_no_meteor() -> None:
    assert text_metric_names() == NAMES
    assert measured(["a pub"], [["a pub"]]).keys() == {*NAMES}
