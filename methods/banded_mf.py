"""DP-SGD with noise that takes itself back: the banded matrix mechanism, amplified by sampling."""

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import dphpo_bench as bench

from .recommended import Recommended

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class BandedMf(Recommended):
    """DP-SGD with the noise of a banded matrix mechanism (Choquette-Choo et al. 2023, arXiv:2306.08153).

    The recipe of `recommended`, plain SGD at rate 2, with noise C⁻¹z for white noise z. C has b bands: noise of a step
    takes back some of the noise of the b − 1 steps before, so the weights, which are sums of gradients, have less. The
    price is sampling: coins divide the records into b groups that take turns, and a group is sampled at b times the
    rate, ⌈T/b⌉ × Poisson(bq; Gaussian σ) (Theorem 4 there; docs/accounting.md, correlated noise).

    C is the Toeplitz matrix of b bands with the least mean squared noise of all sums of gradients so far (McKenna 2024,
    arXiv:2405.15913), with columns of norm 1. By default b is the power of two with the least such noise, at the σ that
    the budget asks of it. Many steps, small batches and a large ε favour more bands; at b = 1 this is `recommended`.

    The other parameters are those of `Recommended`.

    Attributes:
        bands: b, at most N/B; default: by the noise that is expected. A run keeps b − 1 gradients in memory.
    """

    name = "banded_mf"
    summary = "`recommended` with noise that is correlated between steps (BandMF); tunes nothing."
    reference = "Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, Algorithm 2 and Theorem 4"

    plan_parameters: ClassVar[type] = bench.recipes.BandedSgd

    bands: bench.parameters.Count | None = None

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.recipes.DpSgd]:
        """Plan T steps at the smallest noise that meets the budget."""
        run, batches = self.training(facts), self.scheduled(facts).n_records // self.scheduled(facts).batch_size
        most = min(batches, run.steps, 64)
        if self.bands is not None and self.bands > most:
            raise bench.errors.InvalidValueError(
                f"Expected bands={self.bands} <= {most}, the least of N/B = {batches}, {run.steps} steps and 64: "
                "groups of records take turns, and each must fill a batch. Lower bands or batch_size."
            )
        choices = [self.bands] if self.bands else [2**power for power in range(most.bit_length())]
        runs = [banded(run, bands) for bands in choices]
        best = min(runs, key=lambda run: expected_noise(run, budget)) if len(runs) > 1 else runs[0]
        return best.calibrated(budget).as_plan(facts, budget)

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: bench.Session) -> bench.Outcome:
        """Train for T steps."""
        assert isinstance(plan.parameters, bench.recipes.BandedSgd)
        outcome = super().run(plan, session)
        outcome.released["bands"] = len(plan.parameters.coefficients)
        return outcome


def banded(run: bench.recipes.DpSgd, bands: int) -> bench.recipes.BandedSgd:
    """Return the run with a number of bands, not yet calibrated."""
    values = {field.name: getattr(run, field.name) for field in fields(run)}
    values["sample_rate"] = min(1.0, bands * run.sample_rate)
    return bench.recipes.BandedSgd(**values, coefficients=optimal_coefficients(bands, run.steps))


def expected_noise(run: bench.recipes.BandedSgd, budget: bench.PrivacyBudget) -> float:
    """Return the root mean square of the noise on all sums of gradients so far, at the σ for a budget, roughly."""
    import numpy as np

    noise = bench.events.calibrate_roughly(lambda noise: run.with_noise(noise).event, budget)
    return noise * math.sqrt(squared_error(np.array(run.coefficients), run.steps)[0])


@cache
def optimal_coefficients(bands: int, steps: int) -> tuple[float, ...]:
    """Return c₀ = 1, ..., c_(b−1) of the Toeplitz matrix with the least mean squared noise of all sums, to 4 digits.

    Searched are those that fall, by their ratios, from the square root of the matrix of sums (Kalinin and Lampert 2024,
    arXiv:2405.13763): noise by others may grow exponentially.
    """
    import numpy as np
    from scipy.optimize import minimize

    if bands == 1:
        return (1.0,)

    def error(ratios: "NDArray[np.float64]") -> "tuple[float, NDArray[np.float64]]":
        coefficients = np.r_[1.0, np.cumprod(ratios)]
        value, slopes = squared_error(coefficients, steps)
        by_ratio = np.cumsum((slopes * coefficients)[:0:-1])[::-1] / ratios
        return math.log(value), by_ratio / value

    start = np.array([(2 * k - 1) / (2 * k) for k in range(1, bands)])
    best = minimize(error, start, jac=True, bounds=[(0.01, 1.0)] * len(start), method="L-BFGS-B").x
    return tuple(np.r_[1.0, np.cumprod(best)].round(4).tolist())


def squared_error(coefficients: "NDArray[np.float64]", steps: int) -> "tuple[float, NDArray[np.float64]]":
    """Return the mean square of the noise of all sums, at σ = 1 and sensitivity 1, and its slopes.

    Sum t has the noise Σ s_k z_(t−k), k ≤ t, with s = L⁻¹1 for the Toeplitz matrix L of the coefficients, whose columns
    have the norm ‖c‖. That the method's last columns are scaled to norm 1, too, makes it a little less.
    """
    import numpy as np
    from scipy.signal import lfilter

    sums = lfilter([1.0], coefficients, np.ones(steps))
    weighted = np.arange(steps, 0, -1) / steps * sums
    slopes_of_sums = -lfilter([1.0], coefficients, sums)
    norm, total = coefficients @ coefficients, weighted @ sums
    by_lag = np.array([weighted[k:] @ slopes_of_sums[: steps - k] for k in range(len(coefficients))])
    return norm * total, 2 * coefficients * total + 2 * norm * by_lag
