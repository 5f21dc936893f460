"""One Poisson batch: what is released about it is noisy, and charged to its own account."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.data.records import single
from dphpo_bench.privacy import events
from dphpo_bench.privacy.checks import number, positive
from dphpo_bench.privacy.events import gaussian, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.training.noise import add_gaussian_noise
from dphpo_bench.training.own_model import plain

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.session.session import Session
    from dphpo_bench.training.clipping import Clipping
    from dphpo_bench.training.gradients import GradientEngine

from dphpo_bench.session.held_clipping import _Counting, _Held


class _Unique:
    """What must not be copied: a copy would release again, with the same noise, and charge somebody else."""

    def __copy__(self) -> NoReturn:
        raise InvalidValueError(
            f"Expected one {type(self).__name__} and no copy of it: its noise would repeat, and its releases would "
            "be charged to nobody. Use Session.fork for other random streams."
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


class Batch(_Unique):
    """One Poisson batch. Its records cannot be read; what is released about them is noisy and charged.

    Means divide by the expected batch size N · rate: the drawn size is private.
    """

    def __init__(self, session: "Session", indices: "Tensor | None", rate: float, account: Ledger) -> None:
        self._session = session
        self._indices = indices  # None: every record of the task
        self._is_full = rate == 1
        self._account = account
        self._expected_size = session.expected_records * rate

    def gradient(self, model: "nn.Module", clipping: "Clipping", noise_multiplier: float) -> "list[Tensor]":
        """The mean clipped gradient with Gaussian noise.

        Args:
            model: at the weights where the gradient is wanted.
            clipping: bounds one record's contribution to `clipping.sensitivity`. A rule that is not of dphpo_bench
                is asked about norms in general, before the batch is looked at, so that it sees no records.
            noise_multiplier: noise standard deviation / sensitivity of the sum.

        Returns:
            One tensor for each trainable parameter of the model, in their order, of its shape and dtype.

        Raises:
            InvalidValueError: if the sensitivity is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        held = _Held(clipping)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        engine = self._session._own(0).engine(model)
        self._account.charge(gaussian(noise_multiplier))
        return self._noisy_mean(engine.model, self._clipped_sum(engine, held), held, noise_multiplier)

    def gradient_and_quantile(
        self, model: "nn.Module", max_grad_norm: float, noise_multiplier: float, count_noise: float
    ) -> "tuple[list[Tensor], float]":
        """A noisy clipped gradient, and the noisy share of gradients that clipping left as they were.

        Released are the clipped sum and Σ (bᵢ − 1/2), where bᵢ says whether record i's gradient is no longer
        than the threshold (Andrew et al. 2021, Algorithm 1). The centred sum has sensitivity 1/2, so it is a
        Gaussian of multiplier 2 · count_noise. It is divided by the expected batch size, never by the drawn one.

        Args:
            model: as in `gradient`.
            max_grad_norm: clipping threshold C.
            noise_multiplier: noise standard deviation / C, of the gradient sum.
            count_noise: noise standard deviation of the count.

        Returns:
            The gradient as in `gradient`, and the share; the latter may lie outside [0, 1].

        Raises:
            OverBudgetError: if the plan does not cover the releases; nothing is released then.
        """
        session = self._session
        rule = _Counting(positive("max_grad_norm", max_grad_norm))
        held = _Held(rule)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        count_noise = number("count_noise", count_noise, low=0)
        engine = session._own(0).engine(model)
        self._account.charge(events.compose(gaussian(noise_multiplier), gaussian(2 * count_noise)))
        total = self._clipped_sum(engine, held)
        centred = torch.tensor([rule.unclipped - rule.seen / 2], dtype=torch.float64)
        (noisy,) = add_gaussian_noise([centred], 2 * count_noise, 0.5, session._generator("noise", "count", "cpu"))
        share = 0.5 + noisy.item() / self._expected_size
        return self._noisy_mean(engine.model, total, held, noise_multiplier), share

    def _clipped_sum(self, engine: "GradientEngine", held: "_Held") -> "list[Tensor]":
        train = self._session._train
        return self._session._compute(
            lambda: engine.clipped_sum(train.inputs, train.targets, held, indices=self._indices).gradients
        )

    def _noisy_mean(
        self, own: "nn.Module", total: "Sequence[Tensor]", held: "_Held", noise_multiplier: float
    ) -> "list[Tensor]":
        session = self._session
        generator = session._generator("noise", "gradient", device=session.device)
        noisy = add_gaussian_noise(total, noise_multiplier, held.sensitivity, generator)
        dtypes = [parameter.dtype for parameter in own.parameters() if parameter.requires_grad]
        mean = [(part / self._expected_size).to(dtype) for part, dtype in zip(noisy, dtypes, strict=True)]
        if session._observer:
            share = held.sensitivity / self._expected_size
            session._observer.gradient(own, mean, share, noise_multiplier * share)
        return mean

    def losses(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
    ) -> list[float]:
        """Mean losses along a line, each clipped per record to [0, bound], with Gaussian noise.

        Args:
            model: at weights w.
            direction: G, one tensor for each trainable parameter.
            steps: h₁, ..., h_k; loss j is taken at w − h_j · G.
            bound: clipping bound R > 0 of one record's loss; the sensitivity of each sum.
            noise_multiplier: noise standard deviation / bound, of each of the k sums.

        Returns:
            k noisy means; the noise of each has standard deviation noise_multiplier · bound / (N · rate).

        Raises:
            InvalidValueError: if the bound is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        steps, bound = tuple(map(float, steps)), positive("loss bound", bound)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
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
        """Mean changes of the loss along a line, each clipped per record to [-bound, bound], with noise.

        A record's loss changes far less along a step than the loss itself is large, so a small bound, and
        with it little noise, is enough. The sensitivity of each sum is the bound: the change is a function of
        one record.

        Args:
            model: at weights w.
            direction: G, one tensor for each trainable parameter.
            steps: h₁, ..., h_k; change j is the loss at w − h_j · G minus the loss at w.
            bound: clipping bound C > 0 of one record's change.
            noise_multiplier: noise standard deviation / bound, of each of the k sums.

        Returns:
            k noisy means; the noise of each has standard deviation noise_multiplier · bound / (N · rate).

        Raises:
            InvalidValueError: if the bound is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        steps, bound = tuple(map(float, steps)), positive("loss bound", bound)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
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
        session = self._session
        along = [plain(tensor) for tensor in direction]
        engine = session._own(0).engine(model)
        engine.check_direction(along)
        self._account.charge(repeat(gaussian(noise_multiplier), releases))
        train = session._train
        return session._compute(
            lambda: engine.losses_along(train.inputs, train.targets, along, steps, indices=self._indices)
        ).double()

    def _noisy_means(self, clipped: "Tensor", bound: float, noise_multiplier: float) -> list[float]:
        session = self._session
        generator = session._generator("noise", "losses", device=session.device)
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
        OverBudgetError: if the plan of one does not cover its release.
    """
    batches, models, clippings = list(batches), list(models), list(clippings)
    noise = [number("noise_multiplier", one, low=0) for one in noise_multipliers]
    if any(type(batch) is not Batch for batch in batches):
        raise InvalidValueError("Expected batches of a session.")
    if not len(batches) == len(models) == len(clippings) == len(noise) > 0:
        raise InvalidValueError("Expected one model, one clipping rule and one noise multiplier for each batch.")
    first = batches[0]
    same = all(
        b._is_full and b._session._train is first._session._train and b._indices is first._indices for b in batches
    )
    stack = first._session._stacked(models) if same and len(batches) > 1 else None
    if stack is None:
        arguments = zip(batches, models, clippings, noise, strict=True)
        return [batch.gradient(model, clipping, sigma) for batch, model, clipping, sigma in arguments]
    held = [_Held(clipping) for clipping in clippings]
    for batch, sigma in zip(batches, noise, strict=True):
        batch._account.charge(gaussian(sigma))
    train = first._session._train
    sums = first._session._compute(
        lambda: stack.clipped_sums(single(train.inputs), single(train.targets), held, indices=first._indices)
    )
    return [
        batch._noisy_mean(own, total, rule, sigma)
        for batch, own, total, rule, sigma in zip(batches, stack.models, sums, held, noise, strict=True)
    ]
