"""The only door to private data: sampling, clipping, noise and accounting are one object.

Every query charges the ledger before it computes, in the call that adds the noise, so the four cannot drift
apart. What is asked of one batch is composed first and subsampled once (docs/accounting.md).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dphpo_bench.errors import InvalidValueError
from dphpo_bench.privacy.events import gaussian, non_private, repeat
from dphpo_bench.progress import Progress, SilentProgress
from dphpo_bench.randomness import Streams
from dphpo_bench.task import Split, Task, TaskFacts
from dphpo_bench.training.gradients import GradientEngine, gradient_engine
from dphpo_bench.training.noise import add_gaussian_noise
from dphpo_bench.training.sampling import poisson_sample

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.privacy.ledger import Batch as BatchCharges
    from dphpo_bench.privacy.ledger import Ledger
    from dphpo_bench.training.clipping import Clipping


class Session:
    """What a method can do with private data, and nothing else.

    Args:
        task: where models come from.
        train: the private records.
        ledger: what is released is charged here.
        streams: random streams of this run; the model's initial weights come from `model_streams`, which
            methods compared at one seed share.
        model_streams: see `streams`.
        device: where models and batches live.
        progress: where long work reports to.
    """

    def __init__(
        self,
        task: Task,
        train: Split,
        ledger: "Ledger",
        streams: Streams,
        *,
        model_streams: Streams | None = None,
        device: "torch.device | str" = "cpu",
        progress: Progress | None = None,
    ) -> None:
        self.facts: TaskFacts = task.facts
        self.device = torch.device(device)
        self.progress: Progress = progress or SilentProgress()
        self.ledger = ledger
        self._task = task
        self._train = train
        self._streams = streams
        self._model_streams = model_streams or streams
        self._generators: dict[tuple[str, str], torch.Generator] = {}
        self._current: GradientEngine | None = None
        # Expected, not drawn: the size of a Poisson batch is private.
        self.examples = 0.0

    def build_model(self) -> "nn.Module":
        """The task's model at its initial weights, the same for every method at one seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._model_streams.derive("initial weights", self.facts.task, self.facts.model))
            return self._task.build_model().to(self.device)

    def sample(self, rate: float, purpose: str = "training") -> "Batch":
        """A Poisson batch: each record is in it independently with probability `rate`.

        Args:
            rate: in (0, 1]; at 1 the batch holds every record.
            purpose: names the random stream, so that batches for one purpose do not depend on how many
                were drawn for another.
        """
        if not 0 < rate <= 1:
            raise InvalidValueError(f"Expected 0 < rate <= 1, got rate={rate}.")
        generator = self._generator("sample", purpose, device="cpu")
        indices = poisson_sample(len(self._train), rate, generator)
        return Batch(self, indices, rate, self.ledger.open_batch(rate))

    def nonprivate(self) -> Split:
        """The raw private records, for references that are not private: ε becomes ∞ and stays it."""
        self.ledger.charge(non_private())
        return self._train

    def _engine(self, model: "nn.Module") -> GradientEngine:
        """The engine of the model in use; engines remember what they measured of a model and of the data."""
        if self._current is None or self._current.model is not model:
            self._current = gradient_engine(model)
        return self._current

    def _generator(self, kind: str, purpose: str, device: "torch.device | str") -> torch.Generator:
        key = (kind, purpose)
        if key not in self._generators:
            self._generators[key] = self._streams.generator(kind, purpose, device=device)
        return self._generators[key]


class _Held:
    """A clipping rule held to the sensitivity it states, for rules come from plug-ins too."""

    def __init__(self, rule: "Clipping") -> None:
        self._rule = rule
        self.sensitivity = rule.sensitivity
        if not (math.isfinite(self.sensitivity) and self.sensitivity > 0):
            raise InvalidValueError(f"Expected a finite sensitivity > 0, got {self.sensitivity}.")

    def factors(self, norms: "Tensor") -> "Tensor":
        """The rule's factors, but none that lets a gradient exceed the sensitivity; 0 where it is no number."""
        largest = torch.where(norms.isfinite(), self.sensitivity / norms, 0.0)
        return torch.minimum(self._rule.factors(norms).nan_to_num(nan=0.0), largest).clamp_(min=0.0)


class Batch:
    """One Poisson batch. Its records cannot be read; what is released about them is noisy and charged.

    Means divide by the expected batch size N · rate: the drawn size is private.
    """

    def __init__(self, session: Session, indices: "Tensor", rate: float, charges: "BatchCharges") -> None:
        self._session = session
        self._indices = indices
        self._charges = charges
        self._expected_size = session.facts.n_records * rate

    def gradient(self, model: "nn.Module", clipping: "Clipping", noise_multiplier: float) -> "list[Tensor]":
        """The mean clipped gradient with Gaussian noise.

        Args:
            model: at the weights where the gradient is wanted.
            clipping: bounds one record's contribution to `clipping.sensitivity`.
            noise_multiplier: noise standard deviation / sensitivity of the sum.

        Returns:
            One tensor for each trainable parameter of the model, in their order.

        Raises:
            InvalidValueError: if the sensitivity is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        session = self._session
        held = _Held(clipping)
        self._charges.charge(gaussian(noise_multiplier))
        engine = session._engine(model)
        train = session._train
        total = engine.clipped_sum(train.inputs, train.targets, held, indices=self._indices)
        session.examples += self._expected_size
        noisy = add_gaussian_noise(
            total.gradients,
            noise_multiplier * held.sensitivity,
            session._generator("noise", "gradient", device=session.device),
        )
        return [gradient / self._expected_size for gradient in noisy]

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
        losses = self._losses_along(model, direction, steps, bound, noise_multiplier, len(steps))
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
        losses = self._losses_along(model, direction, (0.0, *steps), bound, noise_multiplier, len(steps))
        changes = losses[1:] - losses[0]
        clipped = torch.nan_to_num(changes, nan=bound, posinf=bound, neginf=-bound).clamp_(-bound, bound)
        return self._noisy_means(clipped, bound, noise_multiplier)

    def _losses_along(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
        releases: int,
    ) -> "Tensor":
        """Charge the releases, then compute raw losses, float64 of shape (len(steps), drawn size)."""
        if not (math.isfinite(bound) and bound > 0):
            raise InvalidValueError(f"Expected a finite loss bound > 0, got bound={bound}.")
        session = self._session
        self._charges.charge(repeat(gaussian(noise_multiplier), releases))
        session.examples += self._expected_size * len(steps)
        train = session._train
        engine = session._engine(model)
        return engine.losses_along(train.inputs, train.targets, list(direction), steps, indices=self._indices).double()

    def _noisy_means(self, clipped: "Tensor", bound: float, noise_multiplier: float) -> list[float]:
        session = self._session
        generator = session._generator("noise", "losses", device=session.device)
        (sums,) = add_gaussian_noise([clipped.sum(dim=1)], noise_multiplier * bound, generator)
        return (sums / self._expected_size).tolist()
