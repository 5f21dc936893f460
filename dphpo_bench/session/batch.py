"""One Poisson batch: what is released about it is noisy, and charged to its own account."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dphpo_bench.base.checks import bound as checked_bound
from dphpo_bench.base.checks import number
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import plain, single
from dphpo_bench.contract.session import Batch
from dphpo_bench.privacy import events
from dphpo_bench.privacy.events import gaussian, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.access import Access
from dphpo_bench.session.held_clipping import CountingRule, HeldRule
from dphpo_bench.session.unique import Unique
from dphpo_bench.training.noise import add_gaussian_noise

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.training.clipping import Clipping
    from dphpo_bench.training.engine import GradientEngine
    from dphpo_bench.training.linear import StackedLinear


class ChargedBatch(Unique, Batch):
    """A batch with an account of its own.

    Args:
        access: the records that it was drawn from.
        indices: numbers of the records or units in it; None: all of the task.
        rate: probability of each record or unit.
        account: what it may be asked.
    """

    def __init__(self, access: Access, indices: "Tensor | None", rate: float, account: Ledger) -> None:
        self._access = access
        self._indices = indices
        self._is_full = rate == 1
        self._account = account
        self._expected_size = access.expected_records * rate

    def gradient(self, model: "nn.Module", clipping: "Clipping", noise_multiplier: float) -> "list[Tensor]":
        held = HeldRule(clipping)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        with self._access.guard.alone():
            engine = self._access.raw.own_model().engine(model)
            self._account.charge(gaussian(noise_multiplier))
            return self._noisy_mean(engine.model, self._clipped_sum(engine, held), held, noise_multiplier)

    def gradient_and_quantile(
        self, model: "nn.Module", max_grad_norm: float, noise_multiplier: float, count_noise: float
    ) -> "tuple[list[Tensor], float]":
        rule = CountingRule(checked_bound("max_grad_norm", max_grad_norm))
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        count_noise = number("count_noise", count_noise, low=0)
        with self._access.guard.alone():
            engine = self._access.raw.own_model().engine(model)
            self._account.charge(events.compose(gaussian(noise_multiplier), gaussian(2 * count_noise)))
            total = self._clipped_sum(engine, rule)
            centred = torch.tensor([rule.unclipped - rule.seen / 2], dtype=torch.float64)
            generator = self._access.generator("noise", "count")
            (noisy,) = add_gaussian_noise([centred], 2 * count_noise, 0.5, generator)
            share = 0.5 + noisy.item() / self._expected_size  # of the expected batch size, never of the drawn one
            return self._noisy_mean(engine.model, total, rule, noise_multiplier), share

    def _clipped_sum(self, engine: "GradientEngine", held: HeldRule) -> "list[Tensor]":
        train = self._access.raw.train
        rows, units = self._access.raw.members(self._indices)
        self._access.meter.advance(self._expected_size)
        if units is not None:
            return self._access.compute(lambda: engine.clipped_unit_sum(train.inputs, train.targets, held, units))
        return self._access.compute(lambda: engine.clipped_sum(train.inputs, train.targets, held, indices=rows))

    def _noisy_mean(
        self, own: "nn.Module", total: "Sequence[Tensor]", held: HeldRule, noise_multiplier: float
    ) -> "list[Tensor]":
        access = self._access
        generator = access.generator("noise", "gradient", access.raw.device)
        noisy = add_gaussian_noise(total, noise_multiplier, held.sensitivity, generator)
        dtypes = [parameter.dtype for parameter in own.parameters() if parameter.requires_grad]
        mean = [(part / self._expected_size).to(dtype) for part, dtype in zip(noisy, dtypes, strict=True)]
        if access.observer:
            share = held.sensitivity / self._expected_size
            access.observer.gradient(own, mean, share, noise_multiplier * share)
        return mean

    def losses(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
    ) -> list[float]:
        steps, bound = tuple(map(float, steps)), checked_bound("loss bound", bound)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        with self._access.guard.alone():
            losses = self._losses_along(model, direction, steps, noise_multiplier, len(steps))
            # A diverged record counts as the worst one: NaN and infinities become the bound, a function of
            # that record alone.
            clipped = torch.nan_to_num(losses, nan=bound, posinf=bound).clamp_(0.0, bound)
            return self._noisy_means(clipped, bound, noise_multiplier)

    def loss_changes(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
    ) -> list[float]:
        steps, bound = tuple(map(float, steps)), checked_bound("loss bound", bound)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        with self._access.guard.alone():
            losses = self._losses_along(model, direction, (0.0, *steps), noise_multiplier, len(steps))
            changes = losses[1:] - losses[0]
            clipped = torch.nan_to_num(changes, nan=bound, posinf=bound, neginf=-bound).clamp_(-bound, bound)
            return self._noisy_means(clipped, bound, noise_multiplier)

    def _losses_along(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        noise_multiplier: float,
        releases: int,
    ) -> "Tensor":
        """Charge the releases, then compute raw losses, float64 of shape (len(steps), drawn size)."""
        given = [plain(tensor) for tensor in direction]
        engine = self._access.raw.own_model().engine(model)
        engine.check_direction(given)
        # Copies, which nobody else can change meanwhile.
        pairs = zip(given, engine.parameters, strict=True)
        along = [one.detach().to(weight.device, weight.dtype, copy=True) for one, weight in pairs]
        self._account.charge(repeat(gaussian(noise_multiplier), releases))
        train = self._access.raw.train
        rows, _ = self._access.raw.members(self._indices)
        self._access.meter.advance(len(steps) * self._expected_size)
        return self._access.compute(
            lambda: engine.losses_along(train.inputs, train.targets, along, steps, indices=rows)
        ).double()

    def _noisy_means(self, clipped: "Tensor", bound: float, noise_multiplier: float) -> list[float]:
        _, units = self._access.raw.members(self._indices)
        if units is not None:  # a unit counts as the mean of its records
            clipped = clipped * units.shares.to(clipped.device)
        generator = self._access.generator("noise", "losses", self._access.raw.device)
        (sums,) = add_gaussian_noise([clipped.sum(dim=1)], noise_multiplier, bound, generator)
        return (sums / self._expected_size).tolist()


def gradients_together(
    batches: Sequence[Batch],
    models: "Sequence[nn.Module]",
    clippings: "Sequence[Clipping]",
    noise_multipliers: Sequence[float],
) -> "list[list[Tensor]]":
    """`Batch.gradient` of several batches, one model each, in one matrix product where that is possible.

    That is so for full batches of the same records and linear models of one shape. Each batch is charged to
    its own ledger and has its own noise.

    Args:
        batches: one for each model.
        models: see `Batch.gradient`.
        clippings: see `Batch.gradient`.
        noise_multipliers: see `Batch.gradient`.

    Raises:
        InvalidValueError: if one is not a batch of a session, or the lists differ in length.
        OverBudgetError: if the plan of one does not cover its release.
    """
    given, models, clippings = list(batches), list(models), list(clippings)
    ours = [batch for batch in given if type(batch) is ChargedBatch]
    noise = [number("noise_multiplier", one, low=0) for one in noise_multipliers]
    if len(ours) < len(given):
        raise InvalidValueError("Expected batches of a session.")
    if not len(ours) == len(models) == len(clippings) == len(noise) > 0:
        raise InvalidValueError("Expected one model, one clipping rule and one noise multiplier for each batch.")
    access, indices = ours[0]._access, ours[0]._indices
    same = all(b._is_full and b._access.raw is access.raw and b._indices is indices for b in ours)
    if same and len(ours) > 1:
        held = [HeldRule(clipping) for clipping in clippings]
        with access.guard.alone():
            stack = access.raw.stacked(models)
            if stack is not None:
                return _stacked_gradients(ours, stack, held, noise)
    arguments = zip(ours, models, clippings, noise, strict=True)
    return [batch.gradient(model, clipping, sigma) for batch, model, clipping, sigma in arguments]


def _stacked_gradients(
    batches: Sequence[ChargedBatch], stack: "StackedLinear", rules: Sequence[HeldRule], noise: Sequence[float]
) -> "list[list[Tensor]]":
    access, indices = batches[0]._access, batches[0]._indices
    for batch, sigma in zip(batches, noise, strict=True):
        batch._account.charge(gaussian(sigma))
    train = access.raw.train
    access.meter.advance(sum(batch._expected_size for batch in batches))
    sums = access.compute(
        lambda: stack.clipped_sums(single(train.inputs), single(train.targets), rules, indices=indices)
    )
    return [
        batch._noisy_mean(own, total, rule, sigma)
        for batch, own, total, rule, sigma in zip(batches, stack.models, sums, rules, noise, strict=True)
    ]
