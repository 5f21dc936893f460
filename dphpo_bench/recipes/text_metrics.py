"""Metrics of written texts against several references, by the packages that the literature uses.

NIST (Doddington 2002) is that of NLTK; ROUGE-L (Lin 2004) and CIDEr (Vedantam et al. 2015, with its limits on repeated
words and on lengths) are those of pycocoevalcap, as in the scripts of the E2E challenge. These scripts split texts into
words by a program in Java; here sacrebleu's 13a does, as for BLEU, without letter case. So figures differ a little from
published ones. METEOR is not here: it needs that program, or WordNet, which no package holds.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from dphpo_bench.recipes.language_models import require_bleu

NAMES = ("nist", "rouge_l", "cider")
"""Names of the metrics, in the order of `text_metrics`."""

LONGEST = 5
"""Words of the longest phrases that NIST counts."""


def has_text_metrics() -> bool:
    """Return whether the packages of the extra "texts" are installed; import none of them."""
    return all(find_spec(name) is not None for name in ("nltk", "pycocoevalcap"))


def text_metrics(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return NIST, ROUGE-L in [0, 1] and CIDEr in [0, 10] of texts, each with its references.

    NIST is 0 if no text has `LONGEST` words.

    Raises:
        DataError: if sacrebleu is missing.
    """
    require_bleu()
    from nltk.translate.nist_score import corpus_nist
    from pycocoevalcap.cider.cider_scorer import CiderScorer
    from pycocoevalcap.rouge.rouge import Rouge
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    split = Tokenizer13a()  # type: ignore[no-untyped-call]
    written = [split(text.lower()) for text in texts]
    said = [[split(reference.lower()) for reference in some] for some in references]
    words = [text.split() for text in written]
    long_enough = any(len(text) >= LONGEST for text in words)
    nist = (
        corpus_nist([[reference.split() for reference in some] for some in said], words, n=LONGEST)
        if long_enough
        else 0.0
    )
    cider = CiderScorer()
    for text, some in zip(written, said, strict=True):
        cider += (text, some)
    rouge = [Rouge().calc_score([text], some) for text, some in zip(written, said, strict=True)]
    return [float(nist), sum(rouge) / len(rouge), float(cider.compute_score()[0])]
