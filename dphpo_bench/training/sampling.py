"""Poisson sampling: every record enters a batch independently, which is what the accountants assume."""

import torch
from torch import Tensor

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.secure_noise import AnyGenerator, SecureGenerator


def uniform(count: int, generator: AnyGenerator) -> Tensor:
    """Draw uniform numbers in [0, 1): shape (count,), float64, on the generator's device."""
    if isinstance(generator, SecureGenerator):
        return generator.uniform(count)
    return torch.rand(count, dtype=torch.float64, generator=generator, device=generator.device)


def poisson_sample(n_records: int, rate: float, generator: AnyGenerator) -> Tensor:
    """Draw indices of a Poisson sample, ascending, int64 on the generator's device; there may be none.

    Each of `n_records` records enters with probability `rate`, from 0 to 1; 1 gives every record and draws nothing.
    """
    if n_records < 0:
        raise InvalidValueError(f"Expected n_records={n_records} >= 0.")
    if not 0 <= rate <= 1:
        raise InvalidValueError(f"Expected rate={rate} from 0 to 1.")
    if rate == 1:
        return torch.arange(n_records, device=generator.device)
    if isinstance(generator, SecureGenerator):
        return generator.bernoulli(n_records, rate).nonzero().squeeze(1)
    # Uniform float32 numbers are multiples of 2^-24: the true rate would be up to 6e-8 above the one that is
    # accounted for, which is 0.6 % of a rate of 1e-5. In float64 the excess is below 2^-53.
    return (uniform(n_records, generator) < rate).nonzero().squeeze(1)
