"""Tasks and methods to derive your own from, and the parts they are made of.

>>> from dphpo_bench.events import epsilon
>>> from dphpo_bench.recipes import dp_sgd_event
>>> round(epsilon(dp_sgd_event(sample_rate=0.01, steps=1000, noise_multiplier=1.0), delta=1e-5).epsilon, 2)
1.83
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
