"""The (ε, δ) theorems of Liu and Talwar (2019, Private Selection from Private Candidates), as published.

They are kept for comparison: later bounds need far less. We could not read the paper's own text. The theorem on
random stopping is quoted from code that others published for it, the one on thresholds from memory. The latter
follows from our own bound (docs/accounting.md); the former is tested against brute force.
"""

import math
from collections.abc import Callable

import numpy as np
from dp_accounting.dp_event import DpEvent

from dphpo_bench.privacy.accountants.profiles import Profile
from dphpo_bench.privacy.accountants.refusals import no_rule
from dphpo_bench.privacy.event_kinds import has_selection
from dphpo_bench.privacy.events import BestOfDpEvent, FirstAboveDpEvent
from dphpo_bench.privacy.run_counts import CappedGeometric


def epsilon(
    event: DpEvent,
    delta: float,
    base_epsilon: Callable[[DpEvent, float], float],
    base_profile: Callable[[DpEvent], Profile],
) -> float:
    """Return ε of a simplified tree that is one selection, whose runs make no selection themselves; others are refused.

    `base_epsilon` gives ε of a single run at a δ, `base_profile` its profile.
    """
    match event:
        case BestOfDpEvent(event=run, runs=CappedGeometric() as runs, low=1.0, high=1.0) if not has_selection(run):
            return random_stopping(runs, delta, lambda at: base_epsilon(run, at))
        case FirstAboveDpEvent(event=run, stop_probability=stop) if not has_selection(run):
            return threshold(stop, delta, base_profile(run))
        case _:
            raise no_rule(event)


def random_stopping(runs: CappedGeometric, delta: float, base_epsilon: Callable[[float], float]) -> float:
    """Return ε of the best of a geometric number of runs, at most T; `base_epsilon` is ε₁ of a run at a δ₁.

    If a run is (ε₁, δ₁)-DP, the best is (3 ε₁ + 3 √(2 δ₁), √(2 δ₁) T + δ₂)-DP, where δ₂ = (1−γ)^T is the probability
    to reach the hard stop. T fixes δ₂, and δ₁ takes the rest of δ. ε is infinite if δ₂ alone takes all of δ.
    """
    at_stop = math.exp(runs.cap * math.log1p(-1 / runs.mean))
    root = (delta - at_stop) / runs.cap  # √(2 δ₁)
    if root <= 0:
        return math.inf
    return 3 * base_epsilon(root**2 / 2) + 3 * root


def threshold(stop: float, delta: float, base: Profile) -> float:
    """Return ε of the first run above a threshold.

    If a run is (ε₁, δ₁)-DP, the release is (2 ε₁ + ε₀, 3 e^(2 ε₁) δ₁ / (γ ε₀))-DP for every ε₀ ≤ 1. Given ε₁, δ
    determines ε₀; the best ε₁ of a grid is taken.
    """
    first = np.unique(np.r_[0.0, np.geomspace(1e-5, base.reach, 4000), np.linspace(0, base.reach, 4000)])
    slack = 3 * np.exp(2 * first) * base.delta(first) / (stop * delta)
    return float(np.min(np.where(slack <= 1, 2 * first + slack, np.inf)))
