"""HyFreeDP in a training loop of the caller, and the parts of the method `hyfreedp`.

The rate follows from how far the run's noise moves the weights, which no record has a part in.

    >>> import torch
    >>> from dphpo_bench.hyfreedp import dummy_weights, noise_walk
    >>> from dphpo_bench.recipes import UpdateRule
    >>> update = UpdateRule("SGD", dummy_weights(torch.nn.Linear(3, 2)), {"momentum": 0.0})
    >>> distance, _ = noise_walk(update, noise=1.0, steps=100)
    >>> round(distance / 100**0.5, 1)  # independent steps
    1.0
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
