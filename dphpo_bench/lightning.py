"""A callback of Lightning's Trainer that stops at a privacy budget.

It ends a training after as many steps as `bench.steps_within` allows.

    >>> import dphpo_bench as bench
    >>> bench.steps_within(bench.PrivacyBudget(3, 1e-5), sample_rate=0.01, noise_multiplier=1.0)
    2666
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
