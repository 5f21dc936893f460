"""Losses and scores of each record.

A loss is minimised, a score is what searches pay to compare; both are functions of one record.

    >>> import torch
    >>> from dphpo_bench.losses import correct_predictions, squared_error
    >>> squared_error(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0])).tolist()
    [0.0, 4.0]
    >>> correct_predictions(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])).tolist()
    [1.0, 0.0]
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
