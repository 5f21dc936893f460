"""Parts of a training that Opacus makes private, as a trainer of another library holds them."""

import inspect
import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from annotated_types import Interval
from torch import nn

from dphpo_bench.base.checks import positive, ranged
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.external.processes import place_in_group
from dphpo_bench.external.step_plan import Counts, NoiseSchedule

_ROUNDING = 1 + 1e-9
_WRAPPERS = 8
GRADIENTS = frozenset({"grad_sample", "summed_grad"})
"""Attributes of weights by which Opacus keeps gradients of records; None: there is none."""

CAPTURED = frozenset({"activations", "max_batch_len", "_current_grad_sample", "_norm_sample", "norm_sample"})
"""Attributes that the hooks of Opacus leave on layers and weights."""


NO_NOISE = (
    "This trainer is not private: its optimizer ({}) clips no gradients and adds no noise. Make it with Opacus' "
    "PrivacyEngine.make_private; or declare sample_rate and noise_multiplier of an optimizer of your own that does."
)


@dataclass(frozen=True)
class StepSource:
    """The part of a trainer that takes private steps, and what is known of them before the first.

    Attributes:
        optimizer: of Opacus; None if the steps are declared by the caller alone.
        reader: of the accountant's history; None as above.
        rate: q of the Poisson batches, at most.
        noise: the least σ, or a function of the step.
    """

    optimizer: Any
    reader: "HistoryReader | None"
    rate: float
    noise: float | Callable[[int], float]

    @classmethod
    def find(
        cls,
        optimizer: Any,
        loader: Any,
        engine: Any,
        rate: float | None,
        noise: float | Callable[[int], float] | None,
    ) -> "StepSource":
        """Return the source of a trainer's steps.

        Args:
            optimizer: of the trainer, in whatever wrappers.
            loader: of the training records; None if it is unknown.
            engine: Opacus' accountant, if the caller names it.
            rate: q, if the caller declares it.
            noise: σ, if the caller declares it.

        Raises:
            InvalidValueError: if nobody adds noise or counts it, or batches are no Poisson samples of that rate.
        """
        private, attached, recorded = private_optimizer(optimizer), None, None
        if any("FastGradientClipping" in kind.__name__ for kind in type(private).__mro__):
            raise InvalidValueError(
                "Opacus' ghost clipping clips only in the backward of its own loss, which trainers do not call: then "
                "gradients are not clipped at all. Use grad_sample_mode='hooks'."
            )
        if private is not None:
            refuse_other_releases(private, "world_size")
            attached, recorded = hooked(private)
        elif engine is not None or rate is None or noise is None:
            raise InvalidValueError(NO_NOISE.format(type(getattr(optimizer, "optimizer", optimizer)).__name__))
        if engine is not None and attached is not None and attached is not engine:
            raise InvalidValueError(
                "Another accountant than the callback's sees the steps of this optimizer. Leave accountant out, or "
                "hand in the engine that made the optimizer."
            )
        engine = attached if engine is None else engine
        rate = recorded if rate is None else rate
        if rate is None or (private is not None and engine is None):
            raise InvalidValueError(
                "Expected accountant and sample_rate with a DPOptimizer whose step hook is not that of Opacus' engine. "
                "Hand them to the callback."
            )
        sampler = None if loader is None else poisson_sampler(loader)
        drawn = getattr(sampler, "sample_rate", None)
        for what, actual in (("accountant records", recorded), ("loader draws with", drawn)):
            if actual is not None and actual > rate * _ROUNDING:
                raise InvalidValueError(
                    f"Expected Poisson batches of at most sample_rate={rate:g}, and the {what} {actual:g}. Train from "
                    "the loader that make_private returns, and declare its sample_rate."
                )
            rate = max(rate, actual or rate)
        if private is not None:
            draw_secretly(private, sampler)
        reader = None if private is None else HistoryReader(engine)
        least = private.noise_multiplier if noise is None else noise
        return cls(private, reader, float(ranged("sample_rate", rate, float, Interval(gt=0, le=1))), least)

    def covers(self, rate: float, noise: float, least: float) -> bool:
        """Return whether a step of this rate and noise is bounded by the declared rate and the least noise."""
        return rate <= self.rate and noise >= least

    def history(self, schedule: NoiseSchedule, done: int) -> tuple[Counts, Counts]:
        """Return the history's steps from before this training, and those of this one that a checkpoint restored.

        Raises:
            InvalidValueError: if its first steps are not as its schedule says.
        """
        if self.reader is None:
            return Counter(), Counter()
        steps = self.reader.steps()
        restored = self.reader.latest(min(done, steps.total()))
        least = max((noise for _, noise in schedule.first(restored.total(), self.rate)), default=0.0)
        if not all(self.covers(*step, least) for step in restored):
            raise InvalidValueError(
                "The accountant's state has steps of less noise or larger batches than this training's. Leave it out, "
                "and go on under the name and in the folder of results with which the training began."
            )
        return steps - restored, restored

    @property
    def skips_next(self) -> bool:
        """True if the optimizer's next call only adds up gradients of a batch that is split in memory."""
        return self.optimizer is not None and vars(self.optimizer).get("_step_skip_queue", [])[:1] == [True]

    @property
    def adds_up_batches(self) -> bool:
        """True if the gradients of several backward passes wait for the next step."""
        waiting = () if self.optimizer is None else (weight.grad_sample for weight in self.optimizer.params)
        return any(isinstance(grads, list) and len(grads) > 1 for grads in waiting)


def private_optimizer(optimizer: Any) -> Any:
    """Return Opacus' optimizer inside the wrappers of a trainer, or None if there is none."""
    for _ in range(_WRAPPERS):
        if hasattr(optimizer, "noise_multiplier") and hasattr(optimizer, "step_hook"):
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def refuse_other_releases(private: Any, shared_by: str) -> None:
    """Reject an optimizer of Opacus that releases more than its noise multiplier says.

    Args:
        private: of Opacus.
        shared_by: the attribute that those of several processes have.
    """
    if hasattr(private, "unclipped_num_std") or hasattr(private, "_adjusted_noise_multiplier"):
        raise InvalidValueError(
            "Opacus' adaptive clipping releases more than its accountant records: it counts a noisy number of clipped "
            "gradients as half as sensitive as it is. Use clipping='flat'."
        )
    if (size := place_in_group()[1]) > 1 and not hasattr(private, shared_by):
        raise InvalidValueError(
            f"Expected Opacus' distributed optimizer in {size} processes, got a {type(private).__name__}, with which "
            "each process trains a model of its own. Wrap the model in DifferentiallyPrivateDistributedDataParallel "
            "before make_private."
        )


def accountant_of(engine: Any) -> Any:
    """Return the accountant of Opacus' engine, or the accountant itself.

    Raises:
        InvalidValueError: if it is neither.
    """
    accountant = getattr(engine, "accountant", engine)
    if not isinstance(getattr(accountant, "history", None), list):
        raise InvalidValueError(
            f"Expected an accountant or a PrivacyEngine of Opacus, got a {shown(type(engine).__name__)}."
        )
    return accountant


def hooked(optimizer: Any) -> tuple[Any | None, float | None]:
    """Return the accountant and the sample rate that Opacus' engine attached to its optimizer; None if unknown."""
    if optimizer.step_hook is None:
        raise InvalidValueError(
            "No accountant sees the steps of this DPOptimizer: make it with PrivacyEngine.make_private, or call "
            "optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate))."
        )
    try:
        names = inspect.getclosurevars(optimizer.step_hook).nonlocals
    except (TypeError, ValueError):
        return None, None
    accountant, rate = names.get("self"), names.get("sample_rate")
    return (accountant if hasattr(accountant, "history") else None), (rate if isinstance(rate, float) else None)


def poisson_sampler(loader: Any) -> Any:
    """Return the sampler of a loader's Poisson batches, in whatever wrappers; it has a `sample_rate`.

    Raises:
        InvalidValueError: if none of the loader's samplers has one: its batches may have a fixed size.
    """
    from torch.utils.data import BatchSampler

    sampler: Any = getattr(loader, "batch_sampler", None)
    for _ in range(_WRAPPERS):
        if hasattr(sampler, "sample_rate"):
            return sampler
        inner = None if type(sampler) is BatchSampler else getattr(sampler, "sampler", None)  # as Opacus splits batches
        sampler = getattr(sampler, "batch_sampler", inner)
    raise InvalidValueError(
        f"Expected Poisson batches, on which ε relies, got batches of a fixed size from a {type(loader).__name__}. "
        "Train from the loader that PrivacyEngine.make_private returns, or from DPDataLoader.from_data_loader(loader). "
        "A batch sampler of your own that draws each record by itself says so by an attribute sample_rate."
    )


def unlike_rows(weights: Sequence[Any]) -> str:
    """Return why Opacus cannot clip the records of a batch, before it takes them in; empty if it can."""
    samples = [sample for weight in weights if (sample := getattr(weight, "grad_sample", None)) is not None]
    rows = {tuple(map(len, sample if isinstance(sample, list) else [sample])) for sample in samples}
    if len(rows) < 2:
        return ""
    got = " and ".join(sorted(str(sum(row)) for row in rows))
    return (
        f"Expected a gradient of each record in every weight, got {got} rows: a part of the model ran once for a whole "
        "batch, as BERT's position embeddings do, and Opacus sees one record there. Pass its inputs for each record, "
        "such as position_ids of shape (n, length), or freeze the part."
    )


def forget_records(model: Any) -> None:
    """Remove the inputs and gradients of records that Opacus leaves on a module; saving it would publish them."""
    if not isinstance(model, nn.Module):
        return
    for part in (*model.modules(), *model.parameters()):
        for name in CAPTURED & vars(part).keys():
            delattr(part, name)
        for name in GRADIENTS & vars(part).keys():
            setattr(part, name, None)


def draw_secretly(optimizer: Any, sampler: Any) -> None:
    """Give Opacus' noise and batches generators of their own, if they have none, with seeds of the operating system.

    Otherwise both come from torch's generator, which trainers seed: by 42 in `transformers.TrainingArguments`, and
    again after a checkpoint. Whoever knows the seed can subtract the noise.
    """
    import torch

    devices = {weight.device for weight in optimizer.params}
    if optimizer.generator is None and len(devices) == 1:
        optimizer.generator = torch.Generator(devices.pop()).manual_seed(secrets.randbits(63))
    elif optimizer.generator is None:
        warnings.warn(
            "The weights are on several devices, so Opacus draws noise from torch's generators. Whoever knows their "
            "seeds can subtract it. Give the trainer a seed that is secret.",
            stacklevel=5,
        )
    if getattr(sampler, "generator", 0) is None:
        sampler.generator = torch.Generator().manual_seed(secrets.randbits(63))


class HistoryReader:
    """The steps that an Opacus accountant records from now on, each read once.

    Args:
        accountant: whose history is a list of (noise multiplier, sample rate, steps), the last of which may grow.
    """

    def __init__(self, accountant: Any) -> None:
        self.accountant = accountant
        self._length = len(accountant.history)
        self._last = accountant.history[-1][2] if accountant.history else 0

    def steps(self) -> Counts:
        """Return all steps of the history."""
        return _counted(self.accountant.history)

    def latest(self, steps: int) -> Counts:
        """Return the last `steps` steps of the history."""
        counts: Counts = Counter()
        for noise, rate, times in reversed(self.accountant.history):
            counts[_key(noise, rate)] += min(times, steps - counts.total())
        return +counts

    def new(self) -> Counts:
        """Return the steps since the last call, in time of their number.

        Raises:
            InvalidValueError: if the history has lost steps, or what was recorded is out of range.
        """
        history = self.accountant.history
        begin = max(self._length - 1, 0)
        if len(history) < self._length or (self._length and history[begin][2] < self._last):
            raise InvalidValueError(
                "The accountant's history lost steps that were recorded in it, so what was spent is not known from it. "
                "Leave the history as it is while the training lasts."
            )
        steps = _counted(history[begin:])
        if self._length:
            noise, rate, _ = history[begin]
            steps[_key(noise, rate)] -= self._last
        self._length, self._last = len(history), history[-1][2] if history else 0
        return +steps


def _counted(history: Sequence[tuple[float, float, int]]) -> Counts:
    counts: Counts = Counter()
    for noise, rate, times in history:
        counts[_key(noise, rate)] += times
    return counts


def _key(noise: float, rate: float) -> tuple[float, float]:
    return float(ranged("sample_rate", rate, float, Interval(gt=0, le=1))), positive("noise_multiplier", noise)
