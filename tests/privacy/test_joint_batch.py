"""The theorem behind accounting for a shared batch, checked by brute force.

Several Gaussian releases from one Poisson batch cost as much as one of the joint multiplier. In the worst
case, one record moves the release by the vector (1/σ₁, 1/σ₂, ...) of standardised sensitivities, if it is in
the batch at all. The divergence of that mixture in the plane is integrated here without using that the two
releases are Gaussian along one direction, and compared with the closed form for a single release.
"""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.event_trees import simplify
from dphpo_bench.privacy.events import compose, gaussian, poisson_sampled, repeat


def divergence_in_the_plane(rate: float, shift: tuple[float, float], eps: float, *, remove: bool) -> float:
    """∫∫ max(0, p - e^ε q) for p, q the mixture with and the density without the record, or the reverse."""
    x = np.linspace(-10, 10 + shift[0], 1500)[:, None]
    y = np.linspace(-10, 10 + shift[1], 1500)[None, :]
    without = norm.pdf(x) * norm.pdf(y)
    mixture = (1 - rate) * without + rate * norm.pdf(x - shift[0]) * norm.pdf(y - shift[1])
    p, q = (mixture, without) if remove else (without, mixture)
    return float(np.maximum(0, p - math.exp(eps) * q).sum() * (x[1, 0] - x[0, 0]) * (y[0, 1] - y[0, 0]))


def divergence_of_one_gaussian(rate: float, sigma: float, eps: float, *, remove: bool) -> float:
    """The same for one release: integrated by parts over the half line where p > e^ε q."""
    ratio = (math.exp(eps) - 1 + rate) / rate if remove else (math.exp(-eps) - 1 + rate) / rate
    if ratio <= 0:
        return 0.0
    edge = 0.5 / sigma + sigma * math.log(ratio)  # in standard units, where the likelihood ratio is `ratio`
    tail = norm.sf if remove else norm.cdf
    without, shifted = float(tail(edge)), float(tail(edge - 1 / sigma))
    mixture = (1 - rate) * without + rate * shifted
    return mixture - math.exp(eps) * without if remove else without - math.exp(eps) * mixture


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize(
    ("rate", "sigma_g", "sigma_l", "eps"),
    [(0.02, 0.9735, 2.422, 0.1), (0.2, 2.0, 1.0, 0.05), (0.5, 0.7, 0.9, 0.3)],
)
def test_two_dimensions_cost_as_much_as_the_joint_multiplier(
    rate: float, sigma_g: float, sigma_l: float, eps: float, remove: bool
) -> None:
    # Three losses at σl are one direction of length √3/σl.
    joint = simplify(poisson_sampled(rate, compose(gaussian(sigma_g), repeat(gaussian(sigma_l), 3))))
    plane = divergence_in_the_plane(rate, (1 / sigma_g, math.sqrt(3) / sigma_l), eps, remove=remove)
    line = divergence_of_one_gaussian(rate, joint.event.noise_multiplier, eps, remove=remove)
    # The kink at p = e^ε q costs the trapezoidal rule second order in its step, about 2e-4 of a percent here.
    assert plane == pytest.approx(line, rel=1e-4, abs=1e-9)


def test_losses_on_a_shared_batch_cost_more_than_on_fresh_ones() -> None:
    gradient, losses = gaussian(1.0), repeat(gaussian(2.5), 3)
    shared = repeat(poisson_sampled(0.02, compose(gradient, losses)), 100)
    fresh = repeat(compose(poisson_sampled(0.02, gradient), poisson_sampled(0.02, losses)), 100)
    assert epsilon(shared, 1e-5).epsilon > 1.2 * epsilon(fresh, 1e-5).epsilon
