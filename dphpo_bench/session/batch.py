"""One Poisson batch: its releases are noisy, its own account pays for them, and clipping rules keep their bounds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dphpo_bench.base.checks import bound as checked_bound
from dphpo_bench.base.checks import number, positive, short_text, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import plain, single
from dphpo_bench.contract.task import MAX_STEPS
from dphpo_bench.privacy import events
from dphpo_bench.privacy.events import MAX_COUNT, gaussian, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.access import Access, generator_of_variants, is_of_recipes
from dphpo_bench.session.copies import copier
from dphpo_bench.session.interfaces import Unique
from dphpo_bench.training.clipping import SMALLEST_FACTOR, Abadi, Clipping
from dphpo_bench.training.linear import clipped_sums
from dphpo_bench.training.local_steps import Local
from dphpo_bench.training.values import Query

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.session.minimum import Minimisation
    from dphpo_bench.training.engine import GradientEngine
    from dphpo_bench.training.values import Values


class HeldRule(Clipping):
    """A clipping rule held to the sensitivity that it states."""

    def __init__(self, rule: Clipping) -> None:
        interpolated = getattr(rule, "interpolated", None) if isinstance(rule, Clipping) else None
        if interpolated is not True and not (interpolated is False and type(rule).__module__ == Clipping.__module__):
            raise InvalidValueError(
                f"Expected a built-in clipping rule, or one that derives from Clipping and sets interpolated = True, "
                f"got {type(rule).__name__}: a session asks it about norms in advance, never about those of records."
            )
        self.sensitivity = checked_bound("sensitivity", getattr(rule, "sensitivity", None))
        # A new rule: a plug-in may have attached functions to the other.
        self._factors = _interpolated(rule, self.sensitivity) if interpolated else replace(rule).factors  # type: ignore[type-var]

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return the rule's factors, reduced to keep the sensitivity; 0 where a factor or a norm is not a number."""
        largest = torch.where(norms < math.inf, self.sensitivity / norms, 0.0)
        factors = torch.minimum(self._factors(norms).nan_to_num(nan=0.0), largest)
        return torch.where(factors >= SMALLEST_FACTOR, factors, 0.0)


class CountingRule(HeldRule):
    """Clipping to a threshold that counts the gradients it does not shorten; engines ask once about every record.

    Whoever holds it knows numbers of records. So a session makes its own, and takes none from a method.
    """

    def __init__(self, max_grad_norm: float) -> None:
        super().__init__(Abadi(max_grad_norm))
        self.seen = 0
        self.unclipped = 0

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return min(1, C / norm), and 0 where a norm is not a number."""
        self.seen += len(norms)
        self.unclipped += int((norms <= self.sensitivity).sum())
        return super().factors(norms)


class SlackRule(HeldRule):
    """Clipping to a threshold that sums what it leaves over; engines ask once about every record.

    As `CountingRule`, it knows about records, so a session makes its own.
    """

    def __init__(self, max_grad_norm: float, slots: int) -> None:
        super().__init__(Abadi(max_grad_norm))
        self.slots = torch.arange(slots, dtype=torch.float64)
        self.filled = torch.zeros(slots, dtype=torch.float64)

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return min(1, C / norm), and 0 where a norm is not a number, which leaves nothing over."""
        left = (1 - norms.double().cpu() / self.sensitivity).nan_to_num(nan=0.0).clamp(0, 1)
        self.filled += (len(self.slots) * left[:, None] - self.slots).clamp(0, 1).sum(0)
        return super().factors(norms)


def _interpolated(rule: Clipping, sensitivity: float) -> Any:
    """Return a plug-in's factors as a function that interpolates in a table, so that the rule sees no norm of a batch.

    The rule is asked in advance about norms that are 1.4 % apart. So it learns nothing about the records, and the
    factor of one record does not depend on the others.
    """
    at = torch.logspace(-12, 12, 4097)
    answer = plain(torch.as_tensor(rule.factors(at.clone()), dtype=at.dtype)).detach().cpu().expand_as(at)
    table = torch.minimum(answer.nan_to_num(nan=0.0), sensitivity / at).clamp(min=0.0)
    last = len(table) - 1

    def factors(norms: "Tensor") -> "Tensor":
        places = ((norms.log10() + 12) * (last / 24)).nan_to_num(nan=0.0).clamp(0, last)
        below = places.long().clamp(max=last - 1)
        values = table.to(norms)
        return torch.lerp(values[below], values[below + 1], places - below)

    return factors


class Batch(Unique):
    """One Poisson batch. Nobody can read its records; what it releases about them is noisy and charged.

    Means divide by the expected batch size N · rate: the drawn size is private.

    Args:
        access: the records that it was drawn from.
        indices: numbers of the records or units in it; None: all of the task.
        rate: probability of each record or unit.
        account: pays for all queries that the batch may answer.
    """

    def __init__(self, access: Access, indices: "Tensor | None", rate: float, account: Ledger | Access) -> None:
        self._access = access
        self._indices = indices
        self._is_full = rate == 1
        self._account = account
        self._expected_size = access.expected_records * rate

    def gradient(
        self,
        model: "nn.Module",
        clipping: "Clipping",
        noise_multiplier: float,
        *,
        local_steps: int = 1,
        local_rate: float = 1.0,
    ) -> "list[Tensor]":
        """Return the mean clipped gradient with Gaussian noise.

        With several local steps, a unit's gradient is the mean of those along its own steps of gradient descent from
        the model's weights (docs/accounting.md, local steps).

        Args:
            model: at the weights where the gradient is wanted.
            clipping: bounds one record's contribution to `clipping.sensitivity`. A rule of your own never sees the
                norms of the batch: it is asked about a grid of norms in advance.
            noise_multiplier: noise standard deviation / sensitivity of the sum.
            local_steps: of each unit; more than one only for units of several records, without augmentation.
            local_rate: of local steps.

        Returns:
            One tensor for each trainable parameter of the model, in their order, of its shape and dtype.

        Raises:
            InvalidValueError: if the sensitivity is not positive and finite, or the task has no local steps.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        held, noise_multiplier = HeldRule(clipping), number("noise_multiplier", noise_multiplier, low=0)
        local = whole("local_steps", local_steps, low=1, high=MAX_STEPS), positive("local_rate", local_rate)
        return self._gradient(model, held, noise_multiplier, local if local[0] > 1 else None)

    def _gradient(
        self, model: "nn.Module", held: HeldRule, noise_multiplier: float, local: Local = None
    ) -> "list[Tensor]":
        with self._access.guard.alone():
            engine = self._access.raw.engine(model, local)
            self._account.charge(gaussian(noise_multiplier))
            total = self._clipped_sum(engine, held, local)
            return self._noisy_mean(engine.model, total, held, noise_multiplier)

    def gradient_and_quantile(
        self, model: "nn.Module", max_grad_norm: float, noise_multiplier: float, count_noise: float
    ) -> "tuple[list[Tensor], float]":
        """Return a noisy clipped gradient, and the noisy share of gradients that are no longer than the threshold.

        The batch releases the clipped sum and Σ (bᵢ − 1/2), where bᵢ = 1 if record i's gradient is no longer than the
        threshold, else 0 (Andrew et al. 2021, Algorithm 1). The centred sum has sensitivity 1/2, so it is a Gaussian
        of multiplier 2 · count_noise.

        Args:
            model: as in `gradient`.
            max_grad_norm: clipping threshold C.
            noise_multiplier: noise standard deviation / C, of the gradient sum.
            count_noise: noise standard deviation of the count.

        Returns:
            The gradient as in `gradient`, and the share, which may lie outside [0, 1].

        Raises:
            OverBudgetError: if the plan does not cover the releases; nothing is released then.
        """
        rule = CountingRule(checked_bound("max_grad_norm", max_grad_norm))
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        count_noise = number("count_noise", count_noise, low=0)
        with self._access.guard.alone():
            engine = self._access.raw.engine(model)
            self._account.charge(events.compose(gaussian(noise_multiplier), gaussian(2 * count_noise)))
            total = self._clipped_sum(engine, rule)
            centred = torch.tensor([rule.unclipped - rule.seen / 2], dtype=torch.float64)
            (noisy,) = self._access.with_noise([centred], 2 * count_noise, 0.5, "count")
            share = 0.5 + noisy.item() / self._expected_size  # of the expected batch size, never of the drawn one
            return self._noisy_mean(engine.model, total, rule, noise_multiplier), share

    def gradient_and_slacks(
        self, model: "nn.Module", max_grad_norm: float, noise_multiplier: float, slots: int
    ) -> "tuple[list[Tensor], list[float]]":
        """Return a noisy clipped gradient, and how much clipping leaves over, at the price of the gradient alone.

        To the clipped gradient of a record, of length n, come K numbers (Zou et al. 2026, equations 6 to 8): number j
        is C/√K · min(max(K (1 − n/C) − j, 0), 1). Their length is at most √(C (C − n)), so the whole vector is no
        longer than C, as the gradient alone: one Gaussian covers both (docs/accounting.md, slacks).

        Args:
            model: as in `gradient`.
            max_grad_norm: clipping threshold C.
            noise_multiplier: noise standard deviation / C, of the sum of vectors.
            slots: K.

        Returns:
            The gradient as in `gradient`, and for each slot the mean share of it that records fill. Number j is about
            the share of gradients that are no longer than C (1 − j/K); it may lie outside [0, 1].

        Raises:
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        slots = whole("slots", slots, low=1, high=1000)
        rule = SlackRule(checked_bound("max_grad_norm", max_grad_norm), slots)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        unit = rule.sensitivity / math.sqrt(slots)
        with self._access.guard.alone():
            engine = self._access.raw.engine(model)
            self._account.charge(gaussian(noise_multiplier))
            total = self._clipped_sum(engine, rule)
            vector = [*total, (unit * rule.filled).to(total[0].device)]
            *noisy, slacks = self._noisy_sum(vector, noise_multiplier, rule.sensitivity)
            shares = (slacks.double() / (unit * self._expected_size)).tolist()
            return self._mean_of(noisy, engine.model, rule), shares

    def _clipped_sum(self, engine: "GradientEngine", held: HeldRule, local: Local = None) -> "list[Tensor]":
        raw = self._access.raw
        variants = generator_of_variants(self._access) if raw.augmentation else None
        self._access.meter.advance((local[0] if local else 1) * self._expected_size)
        return self._access.compute(lambda: raw.clipped_sum(engine, held, self._indices, variants, local))

    def _noisy_mean(
        self, model: "nn.Module", total: "Sequence[Tensor]", held: HeldRule, noise_multiplier: float
    ) -> "list[Tensor]":
        return self._mean_of(self._noisy_sum(total, noise_multiplier, held.sensitivity), model, held)

    def _mean_of(self, noisy: "Sequence[Tensor]", model: "nn.Module", held: HeldRule) -> "list[Tensor]":
        dtypes = [parameter.dtype for parameter in model.parameters() if parameter.requires_grad]
        # Divided by the expected size: the drawn one is private.
        mean = [(part / self._expected_size).to(dtype) for part, dtype in zip(noisy, dtypes, strict=True)]
        if self._access.observer:
            self._access.observer.gradient(model, mean, held.sensitivity / self._expected_size)
        return mean

    def _noisy_sum(self, total: "Sequence[Tensor]", noise_multiplier: float, sensitivity: float) -> "list[Tensor]":
        return self._access.with_noise(total, noise_multiplier, sensitivity, "gradient")

    def release(
        self,
        model: "nn.Module",
        values: "Values",
        bound: float,
        noise_multiplier: float,
        *,
        count: int = 1,
        together: bool = False,
        passes: int = 1,
        purpose: str = "values",
    ) -> list[float]:
        """Return noisy means of bounded values of each record (docs/accounting.md, sums of bounded values).

        Each record's values are computed alone, each held to [-bound, bound]; NaN counts as the bound, since a record
        that diverged counts as the worst one. So one record changes a sum by the bound at most, and each of the `count`
        sums is one Gaussian of this sensitivity. A unit's values are the means of its records'.

        With `together`, each record's values are then scaled, as a vector, to an L2 norm of `bound` at most. All sums
        together are one Gaussian of this sensitivity.

        Args:
            model: at the weights, and in the mode, in which the values are wanted.
            values: (model, inputs, targets) → values, shape (1, count), of one record. The model is a `RecordModel`:
                it has the task's losses and scores. A function of yours is copied for each use, so what it stores is
                lost.
            bound: in [1e-30, 1e30]; the sensitivity of each sum.
            noise_multiplier: noise standard deviation / bound, of each sum.
            count: number of values of a record.
            together: whether `bound` is of the vector of all values of a record; see above.
            passes: forward passes that they take, for the display of progress.
            purpose: names the random stream, which no other purpose moves; 1 to 64 printable characters.

        Returns:
            `count` noisy sums, divided by the expected batch size.

        Raises:
            InvalidValueError: if a number is out of range, or the values cannot be computed on made-up records.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        count = whole("count", count, low=1, high=MAX_COUNT)
        query = Query(values, checked_bound("bound", bound), count, together is True)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        access, purpose = self._access, short_text("purpose", purpose)
        copied = query
        if not is_of_recipes(values):  # a copy of the function for each record: none reaches the next
            copy = copier(values)
            copied = replace(query, values=lambda model, inputs, targets: copy()(model, inputs, targets))
        with access.guard.alone():
            ours = access.raw.own_model().asked(model, query)
            self._account.charge(repeat(gaussian(noise_multiplier), 1 if query.together else query.count))
            sums = access.total(ours, copied, self._indices, passes * self._expected_size)
            (noisy,) = access.with_noise([sums], noise_multiplier, query.bound, purpose)
            return (noisy / self._expected_size).tolist()

    def perturbed_minimum(
        self, model: "nn.Module", regularisation: float, noise_multiplier: float, output_noise: float
    ) -> "list[Tensor]":
        """Return the weights of a linear classifier that minimise the batch's loss plus a random linear term.

        F(W) = Σ loss + λ/2 ‖W‖² + ⟨B, W⟩ over inputs that are scaled to norm 1, each with its constant 1 for the bias.
        A solver stops where the gradient's norm is at most τ, a public number of the order of 1e-6, and noise on the
        weights covers their distance from the minimum, at most τ/λ (docs/accounting.md, objective perturbation).

        Args:
            model: a Linear, or a Flatten and a Linear, of the task; its weights do not matter.
            regularisation: λ > 0.
            noise_multiplier: standard deviation of B's coordinates / L, with L = 1 for one output and √2 for several.
            output_noise: standard deviation of the noise on the weights / (2τ/λ).

        Returns:
            Weights, and biases if the model has any, for inputs of norm 1; predictions depend on no scale of an input.

        Raises:
            InvalidValueError: if the model, the loss, the unit or the kind of noise is none that the theorem covers.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
            ModelFailedError: if the solver did not reach the tolerance; nothing is released then.
        """
        with self._access.guard.alone():
            return self._minimisation(model).perturbed(regularisation, noise_multiplier, output_noise)

    def noisy_minimum(self, model: "nn.Module", regularisation: float, noise_multiplier: float) -> "list[Tensor]":
        """Return the weights of a linear classifier that minimise the batch's loss, plus Gaussian noise.

        A record moves the minimum by at most L/λ, and the solver is off by τ/λ (docs/accounting.md, output
        perturbation). Its noise has standard deviation noise_multiplier · (L + 2τ)/λ. See `perturbed_minimum`.

        Raises:
            InvalidValueError: if the model, the loss or the unit is none that the bound covers.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
            ModelFailedError: if the solver did not reach the tolerance; nothing is released then.
        """
        with self._access.guard.alone():
            return self._minimisation(model).noisy(regularisation, noise_multiplier)

    def _minimisation(self, model: "nn.Module") -> "Minimisation":
        from dphpo_bench.session.minimum import Minimisation

        return Minimisation(self._access, self._indices, self._expected_size, self._account, model)


def gradients_together(
    batches: Sequence[Batch],
    models: "Sequence[nn.Module]",
    clippings: "Sequence[Clipping]",
    noise_multipliers: Sequence[float],
) -> "list[list[Tensor]]":
    """`Batch.gradient` of several batches, one model each, in one matrix product where that is possible.

    That is so for full batches of the same records and linear models of one shape. Each batch is charged to
    its own ledger and has its own noise.

    Raises:
        OverBudgetError: if the plan does not cover the release of a batch.
    """
    noise = [number("noise_multiplier", sigma, low=0) for sigma in noise_multipliers]
    if not len(batches) == len(models) == len(clippings) == len(noise) > 0:
        raise InvalidValueError("Expected one model, one clipping rule and one noise multiplier for each batch.")
    access, indices = batches[0]._access, batches[0]._indices
    same = all(b._is_full and b._access.raw is access.raw and b._indices is indices for b in batches)
    if same and len(batches) > 1:
        rules = [HeldRule(clipping) for clipping in clippings]
        with access.guard.alone():
            engines = access.raw.stacked(models)
            if engines is not None:
                for batch, sigma in zip(batches, noise, strict=True):
                    batch._account.charge(gaussian(sigma))
                access.meter.advance(sum(batch._expected_size for batch in batches))
                train = access.raw.train
                sums = access.compute(
                    lambda: clipped_sums(engines, single(train.inputs), single(train.targets), rules, indices)
                )
                return [
                    batch._noisy_mean(engine.model, total, rule, sigma)
                    for batch, engine, total, rule, sigma in zip(batches, engines, sums, rules, noise, strict=True)
                ]
    arguments = zip(batches, models, clippings, noise, strict=True)
    return [batch.gradient(model, clipping, sigma) for batch, model, clipping, sigma in arguments]
