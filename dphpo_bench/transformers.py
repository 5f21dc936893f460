"""A callback of Hugging Face's Trainer that stops at a privacy budget.

It ends a training after as many steps as `bench.steps_within` allows.

    >>> import dphpo_bench as bench
    >>> bench.steps_within(bench.PrivacyBudget(8, 1e-5), sample_rate=0.01, noise_multiplier=0.8)
    6664
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
