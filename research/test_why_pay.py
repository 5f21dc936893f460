"""The bounds of research/why_pay.py: the exact one by a second formula, and how often the measured one is too large."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

from research.why_pay import DELTA, FILE, TRIALS, exact, least


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
def test_the_exact_leakage_by_distribution_functions(mu: float) -> None:
    """Likelihood ratios of the largest number grow with it, so the best event is a half-line, of either direction."""
    ends = np.linspace(-8, 10, 200_001)
    below, shifted = (norm.cdf(ends - mean) ** TRIALS for mean in (0.0, mu))
    epsilon = exact(mu)
    up, down = (1 - shifted) - np.exp(epsilon) * (1 - below), below - np.exp(epsilon) * shifted
    assert max(up.max(), down.max()) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize(("q", "epsilon"), [(0.02, 3.0), (0.1, 1.0), (0.3, 0.5), (0.4, 0.0)])
def test_a_bound_is_too_large_at_most_one_time_in_twenty(q: float, epsilon: float) -> None:
    """All pairs of counts, with their exact probabilities: nothing is drawn."""
    n = 40
    p = q * np.exp(epsilon) + DELTA
    counts, wrong = np.arange(n + 1), np.zeros((n + 1, n + 1), dtype=bool)
    for i, j in np.ndindex(wrong.shape):
        wrong[i, j] = max(least(i, j, n), least(j, i, n)) > epsilon
    assert binom.pmf(counts, n, p) @ wrong @ binom.pmf(counts, n, q) <= 0.05


def test_the_page_has_the_numbers_of_the_file() -> None:
    page = (Path(__file__).parents[1] / "docs" / "auditing.md").read_text("utf-8")
    shown = {(data, attack): value for data, attack, _, value, _ in csv.reader(FILE.open())}
    for claim in ("0.1", "1", "3"):
        attacks = ("best of 50 seeds, exactly", "best of 50 seeds", "one seed")
        cells = (claim, *(shown[f"constructed, ε = {claim}", attack] for attack in attacks))
        assert f"| {' | '.join(cells)} |" in page
