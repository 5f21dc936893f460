"""Metrics of written texts against several references, by the packages that the literature uses.

NIST (Doddington 2002) is that of NLTK; ROUGE-L (Lin 2004) and CIDEr (Vedantam et al. 2015, with its limits on repeated
words and on lengths) are those of pycocoevalcap, as in the scripts of the E2E challenge. These scripts split texts into
words by a program in Java; here sacrebleu's 13a does, as for BLEU, without letter case. So figures differ a little from
published ones. METEOR (Denkowski and Lavie 2014) is version 1.5, a program in Java that pycocoevalcap holds: it is
measured where there is a Java to run it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from shutil import which
from subprocess import DEVNULL, PIPE, Popen
from threading import Timer

from dphpo_bench.base.errors import DataError
from dphpo_bench.zoo.language_models import require_bleu

NAMES = ("nist", "rouge_l", "cider")
"""Names of the metrics that need no Java, in the order of `text_metrics`."""

METEOR = "meteor"

PATIENCE = 900.0
"""Seconds that METEOR may take."""

LONGEST = 5
"""Words of the longest phrases that NIST counts."""


def has_text_metrics() -> bool:
    """Return whether the packages of the extra "texts" are installed; import none of them."""
    return all(find_spec(name) is not None for name in ("nltk", "pycocoevalcap"))


def text_metric_names() -> tuple[str, ...]:
    """Return the names of what `text_metrics` measures on this machine."""
    return (*NAMES, METEOR) if which("java") else NAMES


def text_metrics(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return NIST, ROUGE-L in [0, 1], CIDEr in [0, 10] and, with Java, METEOR in [0, 1] of texts with references.

    NIST is 0 if no text has `LONGEST` words.

    Raises:
        DataError: if sacrebleu is missing, or Java cannot run METEOR.
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
    values = [float(nist), sum(rouge) / len(rouge), float(cider.compute_score()[0])]
    return [*values, _meteor(written, said)] if METEOR in text_metric_names() else values


def _meteor(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return METEOR of all texts together, with its own normalisation of words.

    The package's own class for it would wait forever for a Java that fails.
    """
    import pycocoevalcap.meteor as package

    parts = [
        [" ".join(part.replace("|||", " ").split()) for part in (*some, text)]
        for some, text in zip(references, texts, strict=True)
    ]
    command = ["java", "-Xmx2G", "-jar", "meteor-1.5.jar", "-", "-", "-stdio", "-l", "en", "-norm"]
    try:
        with ExitStack() as at_the_end:
            folder = package.__path__[0]
            program = Popen(command, cwd=folder, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, encoding="utf-8")
            limit = Timer(PATIENCE, program.kill)
            at_the_end.callback(limit.cancel)
            at_the_end.enter_context(program)  # left first, when it has ended
            limit.start()
            asked, answers = program.stdin, program.stdout
            assert asked is not None
            assert answers is not None

            def answer(*line: str) -> str:
                asked.write(" ||| ".join(line) + "\n")
                asked.flush()
                return answers.readline().strip()

            counts = [answer("SCORE", *some) for some in parts]
            scores = [answer("EVAL", *counts), *(answers.readline() for _ in counts)]  # that of all is the last
        return float(scores[-1])
    except (OSError, ValueError) as error:
        raise DataError(
            f"METEOR needs a Java that runs, and the one on the PATH failed, or took over {PATIENCE:g} s: {error}. "
            "Install a Java runtime, or take it off the PATH to go without METEOR."
        ) from error
