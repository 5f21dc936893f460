"""Privacy events of released quantities, the ε and the risk of an event, and the least noise for a budget.

An event says what a mechanism releases; no event holds an ε, which the accountants compute from it.

    >>> import dphpo_bench as bench
    >>> from dphpo_bench.events import calibrate, epsilon, gaussian, poisson_sampled, repeat
    >>> steps = repeat(poisson_sampled(0.01, gaussian(1.0)), 1000)
    >>> round(epsilon(steps, delta=1e-5).epsilon, 2)
    1.83
    >>> noise = calibrate(gaussian, bench.PrivacyBudget(1, 1e-5))
    >>> epsilon(gaussian(noise), delta=1e-5).epsilon <= 1
    True
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
