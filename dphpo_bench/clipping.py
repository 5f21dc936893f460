"""Clipping rules of per-record gradients.

A rule turns norms of gradients into factors, so that no record adds more than `sensitivity` to a sum.

    >>> import torch
    >>> from dphpo_bench.clipping import Abadi, parse_clipping
    >>> norms = torch.tensor([0.5, 2.0])
    >>> (norms * Abadi(1.0).factors(norms)).tolist()
    [0.5, 1.0]
    >>> parse_clipping("abadi:0.25").sensitivity
    0.25
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
