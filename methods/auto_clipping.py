"""DP-SGD with automatic clipping: the clipping threshold is gone, the learning rate stays at its default."""

from dataclasses import dataclass
from typing import Annotated

import dphpo_bench as bench

from .dp_sgd import FixedDpSgd


def check_automatic(clipping: str) -> None:
    """Refuse clipping rules that have a threshold."""
    bench.clipping.parse_clipping(clipping)
    if not clipping.startswith(("auto", "psac")):
        raise bench.errors.InvalidValueError(f"Expected clipping auto_s, auto_v or psac, got {clipping!r}.")


@dataclass(frozen=True)
class AutoClipping(FixedDpSgd):
    """Automatic clipping (Bu, Wang, Zha and Karypis 2023, arXiv:2206.07136, Theorem 3 and Algorithm 1).

    Every per-sample gradient g is scaled to g / (‖g‖ + stability), so one record contributes less than 1 to
    the sum whatever the threshold would have been: nothing is tuned, and all of the budget goes into
    training. Everything else, parameters included, is as in `FixedDpSgd`.

    Attributes:
        clipping: "auto_s", "auto_s:γ" with another stability constant than 0.01, or "auto_v" for g / ‖g‖;
            "psac" or "psac:r" for g / (‖g‖ + r / (‖g‖ + r)) (Xia et al. 2023, arXiv:2212.00328).
    """

    name = "auto_clipping"
    summary = "DP-SGD with automatic clipping at the default learning rate; tunes nothing."
    reference = "Bu, Wang, Zha and Karypis 2023, Automatic Clipping, Algorithm 1"
    tuning = ("clipping threshold",)

    clipping: Annotated[str, check_automatic] = "auto_s"
