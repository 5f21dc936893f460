"""Metrics of a model on test records.

The harness computes them once, after the run; tables show the first.

    >>> import torch
    >>> from dphpo_bench.metrics import ACCURACY, Metric
    >>> ACCURACY.name, ACCURACY.higher_is_better
    ('accuracy', True)
    >>> Metric("largest_error", False, lambda outputs, targets: (outputs - targets).abs().max()).name
    'largest_error'
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
