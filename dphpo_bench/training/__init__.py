"""The training engine: clipping, per-sample gradients, sampling and optimisers. It knows no budgets."""
