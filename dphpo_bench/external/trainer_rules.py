"""Settings that trainers of several libraries have under different names, and their privacy."""

import warnings
from collections.abc import Iterable

ACCUMULATION = (
    "Expected one Poisson batch for each step, got {}: a record may be in several of the batches that are added up, "
    "and adds more than one clipped gradient. Raise the batch size, and split batches in memory with Opacus' "
    "BatchMemoryManager."
)
HALF_PRECISION = (
    "Expected gradients of their true size, got {}: losses are scaled up before Opacus clips, so the clipping norm "
    "would be thousands of times smaller. Use {}."
)
CHOICE = (
    "{} choose by raw scores, and the evaluation records may be private: that is tuning which nobody pays for. Leave "
    "them out; or tune with bench.select, whose ε covers the choice; or say public_evaluation=True if the records are "
    "public."
)
SCORES = (
    "The scores of evaluations are computed without noise. If their records are private, ε does not cover them: set "
    "{}, or say public_evaluation=True."
)
CLIPPING = (
    "{} clips a gradient that Opacus does not use, and does nothing. The clipping norm is Opacus' max_grad_norm; set "
    "this one to {}."
)


def warn_of(doubts: Iterable[tuple[bool, str]]) -> None:
    for is_so, why in doubts:
        if is_so:
            warnings.warn(why, stacklevel=3)
