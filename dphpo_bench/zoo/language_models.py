"""Causal language models: built from a configuration of transformers, made to write, and judged by their texts.

BLEU is that of sacrebleu, NIST (Doddington 2002) that of NLTK. ROUGE-L (Lin 2004) and CIDEr (Vedantam et al. 2015,
with its limits on repeated words and on lengths) are those of pycocoevalcap, as in the scripts of the E2E challenge.
These scripts split texts into words by a program in Java; here sacrebleu's 13a does, as for BLEU, without letter case.
So figures differ a little from published ones. METEOR (Denkowski and Lavie 2014) is version 1.5, a program in Java that
pycocoevalcap holds: it is measured where there is a Java to run it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from shutil import which
from subprocess import SubprocessError, run
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from dphpo_bench.base.errors import DataError, require_extra
from dphpo_bench.base.tensors import Records, plain, single
from dphpo_bench.training.evaluation import evaluating, outputs_of, rows_at_once
from dphpo_bench.training.losses import IGNORED

if TYPE_CHECKING:
    from transformers import Cache, GPT2Config


_ROWS = 256


class CausalModel(nn.Module):
    """A GPT-2: token ids of shape (n, length) → logits of the token after each, shape (n, length, vocabulary).

    No token depends on one after it, so a text may be padded at its end with anything, and needs no mask.

    The network is as in transformers with three changes that leave its values alone, all for per-sample gradients: its
    `Conv1D` layers are `nn.Linear`, the positions have one row for each record, and attention is spelled out.

    Args:
        config: without dropout, and with weights of its own for the last layer: a record's gradient of shared weights
            would have a row for each word there is.
    """

    def __init__(self, config: "GPT2Config") -> None:
        super().__init__()
        require_extra("transformers", "Language models need", "transformers")
        from transformers import GPT2LMHeadModel

        config._attn_implementation = "eager"  # vmap has no rule for the fused kernel, and takes its records one by one
        self.length = config.n_positions
        self.network = GPT2LMHeadModel(config)
        _replace_conv1d(self.network)

    def lengths_of(self, ids: Tensor) -> Tensor:
        """Return zeros: a text may end where its last target does."""
        return ids.new_zeros(len(ids), dtype=torch.int64)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits for token ids."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        logits: Tensor = self.network(input_ids=ids, position_ids=positions, use_cache=False).logits
        return logits

    def after(self, ids: Tensor, cache: "Cache | None" = None) -> "tuple[Tensor, Cache]":
        """Return logits of the next token alone, shape (n, vocabulary), and a cache to continue from.

        Args:
            ids: of texts, or what they go on with, shape (n, length).
            cache: of transformers, with what was computed for their beginnings; changed in place.
        """
        from transformers import DynamicCache

        cache = DynamicCache() if cache is None else cache
        seen = cache.get_seq_length()
        positions = torch.arange(seen, seen + ids.shape[1], device=ids.device).expand(ids.shape)
        # By its place, because transformers 5 has had two names for this argument.
        logits: Tensor = self.network(ids, cache, position_ids=positions, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1], cache


class PublishedCausalModel(CausalModel):
    """A network of published size, whose logits are large; see `Gpt2`."""

    rows_at_once: ClassVar[int] = 16
    """Most records whose activations are in memory at once."""


def _replace_conv1d(model: nn.Module) -> None:
    """Put a `nn.Linear` of the same weights in the place of each `Conv1D`, whose weights are transposed."""
    from transformers.pytorch_utils import Conv1D

    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Conv1D):
                n_in, n_out = layer.weight.shape
                linear = nn.Linear(n_in, n_out, device="meta")  # draws no random numbers
                linear.weight, linear.bias = nn.Parameter(layer.weight.detach().T.contiguous()), layer.bias
                setattr(parent, name, linear)


def greedy(model: nn.Module, prompts: Tensor, most: int, end: int) -> list[list[int]]:
    """Write a text after each prompt, always with the likeliest token.

    Args:
        model: token ids of shape (n, length) → logits of the token after each. A `CausalModel` goes on from what it has
            computed; any other one reads the whole text again for each token.
        prompts: shape (n, length).
        end: the token that ends a text; it is not part of the text.
    """
    device = next(model.parameters()).device
    ours = model if isinstance(model, CausalModel) else None
    written: list[list[int]] = [[] for _ in range(len(prompts))]
    with evaluating(model):
        at_once = rows_at_once(model, _ROWS)
        for start in range(0, len(prompts), at_once):
            rows = torch.arange(start, min(start + at_once, len(prompts)))
            texts, cache = prompts[rows].to(device), None
            for _ in range(most):
                logits, cache = ours.after(texts, cache) if ours is not None else (plain(model(texts))[:, -1], None)
                following = plain(logits).argmax(-1)  # of a subclass of ours, too
                for row, token in zip(rows.tolist(), following.tolist(), strict=True):
                    written[row].append(token)
                unfinished = (following != end).nonzero()[:, 0]
                rows = rows[unfinished.cpu()]
                if not len(rows):
                    break
                if cache is None:
                    texts = torch.cat([texts, following[:, None]], 1)[unfinished]
                else:
                    texts = following[unfinished, None]
                    cache.batch_select_indices(unfinished)
    return [text[:-1] if text and text[-1] == end else text for text in written]


@dataclass(frozen=True)
class TestTexts(Records):
    """Test records, and the texts that they were made from."""

    __test__ = False  # pytest takes names that begin like this for tests

    prompts: tuple[str, ...] = ()
    references: tuple[str, ...] = ()  # of each record: what a person wrote for the prompt

    def rows(self, rows: slice | Tensor) -> "TestTexts":
        """Return some of the records: a slice, or indices of int64."""
        some = super().rows(rows)
        indices = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        texts = [tuple(column[row] for row in indices) for column in (self.prompts, self.references)]
        return TestTexts(some.inputs, some.targets, *texts)


def token_perplexity(model: nn.Module, test: Records) -> float:
    """Return exp of the cross-entropy of all tokens that count, a batch at a time; ∞ if an output is no number."""
    nats, count = 0.0, 0
    for _, outputs, targets in outputs_of(model, test):
        flat = single(targets).flatten()
        losses = nn.functional.cross_entropy(plain(outputs).flatten(0, 1), flat, ignore_index=IGNORED, reduction="none")
        nats += float(losses.double().nan_to_num(nan=math.inf, posinf=math.inf).sum())
        count += int((flat != IGNORED).sum())
    if not count:
        return math.nan
    mean = nats / count
    return math.exp(mean) if mean < 700 else math.inf if mean > 0 else math.nan


def corpus_bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return BLEU of texts, each against several references, from 0 to 100; letter case does not count.

    Source: Papineni et al. 2002, by sacrebleu (Post 2018) with its default tokens and smoothing.
    """
    require_bleu()
    from sacrebleu.metrics.bleu import BLEU

    columns = [list(column) for column in zip_longest(*references)]
    # `force`: a text that ends with a space and a full stop is not to be warned of.
    return float(BLEU(lowercase=True, force=True).corpus_score(texts, columns).score)


def require_bleu() -> None:
    """Refuse to go on without sacrebleu."""
    require_extra("transformers", "Language models need", "sacrebleu")


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

    def answers(lines: Iterable[Sequence[str]]) -> list[str]:
        asked = "".join(" ||| ".join(line) + "\n" for line in lines)
        folder = package.__path__[0]
        done = run(
            command, cwd=folder, input=asked, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=True
        )
        return done.stdout.splitlines()

    try:
        counts = answers(("SCORE", *some) for some in parts)
        return float(answers([("EVAL", *counts)])[-1])  # that of all is the last
    except (OSError, ValueError, SubprocessError, IndexError) as error:
        raise DataError(
            f"METEOR needs a Java that runs, and the one on the PATH failed, or took over {PATIENCE:g} s: {error}. "
            "Install a Java runtime, or take it off the PATH to go without METEOR."
        ) from error
