"""Gradients whose noise is correlated between steps, on batches of groups of records that take turns."""

import math
from collections.abc import Sequence

from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from torch import Tensor, nn

from dphpo_bench.base.checks import whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.events import MAX_COUNT, poisson_sampled
from dphpo_bench.privacy.holdout import MAX_GROUPS, cycle_name
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.access import Access
from dphpo_bench.session.batch import Batch, HeldRule
from dphpo_bench.session.interfaces import Unique
from dphpo_bench.session.session import Session
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.noise import BandedNoise


class BandedGradients(Unique):
    """The noisy gradients of T steps by a banded matrix mechanism (docs/accounting.md, correlated noise).

    A coin puts each record into one of b groups, b being the number of bands. Step t draws its batch from group t mod b
    and charges that group, so no two batches that a record can be in share a row of the matrix. Clipping rule and noise
    are fixed here, for all steps.

    Args:
        session: where the records are; is charged `cyclic(kind, b, steps)`.
        kind: `poisson_sampled(rate, gaussian(noise_multiplier))`, as the plan has it: the batch of a step, of the
            records in its group.
    """

    def __init__(
        self, session: Session, kind: DpEvent, coefficients: Sequence[float], steps: int, clipping: Clipping
    ) -> None:
        rate, contents = event_trees.opened(kind)
        if not isinstance(contents, GaussianDpEvent):
            raise InvalidValueError(
                f"Expected batches that answer one Gaussian query, poisson_sampled(rate, gaussian(noise_multiplier)), "
                f"got {shown(kind)}."
            )
        whole("number of coefficients", len(coefficients), low=1, high=MAX_GROUPS)
        self.noise = BandedNoise(coefficients, whole("steps", steps, low=1, high=MAX_COUNT))
        self._kind, self._noise_multiplier = poisson_sampled(rate, contents), contents.noise_multiplier
        self._held = HeldRule(clipping)  # once: noise of a step covers what earlier steps added
        access, bands = session._access, self.noise.bands
        self._groups = [access]
        if bands > 1:  # a coin for each record decides its group
            with access.guard.alone():
                self._groups = [
                    access.on_part(cycle_name(bands), str(k), k / bands, (k + 1) / bands) for k in range(bands)
                ]

    def next(self, model: nn.Module) -> list[Tensor]:
        """Return the noisy mean clipped gradient of the next step, as `Batch.gradient` does.

        Raises:
            OverBudgetError: if the plan does not cover the batch; nothing is released then.
        """
        step = self.noise.step
        if step == self.noise.steps:
            raise InvalidValueError(f"Expected {step} steps, as the noise was made for, got one more.")
        group = self._groups[step % self.noise.bands]
        batch = _BandedBatch(group, *group.opened_batch(self._kind, "training"), self.noise)
        return batch._gradient(model, self._held, self._noise_multiplier)


class _BandedBatch(Batch):
    """The batch of one step."""

    def __init__(
        self, access: Access, indices: Tensor | None, rate: float, account: Ledger, noise: BandedNoise
    ) -> None:
        super().__init__(access, indices, rate, account)
        self._noise = noise

    def _noisy_sum(self, total: Sequence[Tensor], noise_multiplier: float, sensitivity: float) -> list[Tensor]:
        if self._access.streams.secure and self._noise.bands > 1:
            # It covers rounding to the grid of secure noise in all rows of a column.
            coordinates = self._noise.bands * sum(part.numel() for part in total)
            rounding = math.ldexp(noise_multiplier * math.sqrt(coordinates), -48)
            if rounding > 0.5:
                raise InvalidValueError(
                    f"Expected a noise multiplier below 2^47 / √coordinates, got {noise_multiplier:g}."
                )
            sensitivity /= 1 - rounding
        released = self._access.with_noise(self._noise.mixed(total), noise_multiplier, sensitivity, "gradient")
        return self._noise.separated(released, total)
