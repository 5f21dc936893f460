"""Frozen public feature extractors.

The features of a record depend on that record alone, so they cost no ε.

    >>> import torch
    >>> from dphpo_bench.features import ScatteringFeatures
    >>> pictures = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    >>> torch.cat(list(ScatteringFeatures().extract(pictures))).shape
    torch.Size([2, 3969])
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
