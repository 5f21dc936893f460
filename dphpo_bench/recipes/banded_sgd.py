"""DP-SGD whose noise is correlated between steps, as a value: its event, its cost, and the training."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dphpo_bench.contract.method import Cost
from dphpo_bench.recipes.dp_sgd import DpSgd, trainable, training_steps
from dphpo_bench.session.session import Session
from dphpo_bench.training.clipping import parse_clipping

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn


@dataclass(frozen=True)
class BandedSgd(DpSgd):
    """T steps of DP-SGD by a banded matrix mechanism (docs/accounting.md, correlated noise).

    Coins divide the records into as many groups as there are bands. Step t samples group t mod b at `sample_rate`, b
    times the rate of DP-SGD with batches of the same size. The other attributes are those of `DpSgd`.

    Attributes:
        coefficients: of the bands, from a positive number falling; (1,) is DP-SGD.
    """

    coefficients: tuple[float, ...] = (1.0,)

    @property
    def event(self) -> "DpEvent":
        """Up to ⌈T / b⌉ × Poisson(q; Gaussian σ), on each group of records."""
        from dphpo_bench.privacy.holdout import cyclic

        return cyclic(self.step, len(self.coefficients), self.steps)

    def cost(self, n_records: float) -> Cost:
        """Return the expected cost of the run on this many records."""
        cost = super().cost(n_records)
        return replace(cost, examples=cost.examples / len(self.coefficients))

    def gradients(self, session: Session, model: "nn.Module", label: str = "Training") -> "Iterator[list[Tensor]]":
        """Yield one noisy mean gradient for each step; see `DpSgd.gradients`."""
        return (gradient for _, gradient in self._steps(session, model, label, None))

    def train(self, session: Session, label: str = "Training") -> "nn.Module":
        """Train the task's model on the session's records; see `DpSgd.train`."""
        from dphpo_bench.training.optimizers import UpdateRule

        model = session.build_model()
        update = UpdateRule(self.optimizer, trainable(model), self.optimizer_options)
        for step, gradient in self._steps(session, model, label, [update]):
            update.apply(update.direction(gradient), self.rate_at(step))
        return model

    def _steps(
        self, session: Session, model: "nn.Module", label: str, state: list[object] | None
    ) -> "Iterator[tuple[int, list[Tensor]]]":
        from dphpo_bench.session.banded import BandedGradients

        clipping = parse_clipping(self.clipping)
        gradients = BandedGradients(session, self.step, self.coefficients, self.steps, clipping)
        state = None if state is None else [*state, gradients.noise]
        for step in training_steps(session, self.steps, [model], [self.averaging], label, state):
            yield step, gradients.next(model)
