"""Poisson sampling: every record enters a batch independently, which is what the accountants assume."""

import torch
from torch import Tensor

from dphpo_bench.errors import InvalidValueError


def poisson_sample(n_records: int, rate: float, generator: torch.Generator) -> Tensor:
    """Indices of a Poisson sample, in ascending order.

    Args:
        n_records: number of records N.
        rate: probability q of each record, from 0 to 1; 1 gives every record and draws nothing.
        generator: source of randomness.

    Returns:
        Shape (k,), int64, on the generator's device; k is binomial and may be 0.

    Raises:
        InvalidValueError: if a value is out of range.
    """
    if n_records < 0:
        raise InvalidValueError(f"Expected n_records={n_records} >= 0.")
    if not 0 <= rate <= 1:
        raise InvalidValueError(f"Expected rate={rate} from 0 to 1.")
    if rate == 1:
        return torch.arange(n_records, device=generator.device)
    # Uniform float32 numbers are multiples of 2^-24: the true rate would be up to 6e-8 above the one that is
    # accounted for, which is 0.6 % of a rate of 1e-5. In float64 the excess is below 2^-53.
    uniform = torch.rand(n_records, dtype=torch.float64, generator=generator, device=generator.device)
    return (uniform < rate).nonzero().squeeze(1)
