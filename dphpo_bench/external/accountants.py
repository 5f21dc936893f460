"""Pass what a training releases beside its gradients to an accountant of another library."""

import math
from typing import Any

from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.privacy.event_rules import opened
from dphpo_bench.privacy.events import gaussian, poisson_sampled


class CallersAccountant:
    """The caller's accountant, of Opacus or of dp_accounting; or none.

    Both know batches with a single Gaussian sum. k sums of sensitivity 1 each, with independent noise of deviation
    σ, are one release of the vector of all k. Its sensitivity is √k, so it is a Gaussian of multiplier σ/√k, and both
    ways of sampling first and releasing then are the same mechanism (docs/own_loop.md).

    Args:
        accountant: with `step(noise_multiplier=, sample_rate=)`, or with `compose(event)`; None: there is none.

    Raises:
        InvalidValueError: if it is neither, or can only take equal releases.
    """

    def __init__(self, accountant: Any) -> None:
        self.accountant = accountant
        if getattr(accountant, "mechanism", lambda: "")() == "gdp":
            raise InvalidValueError(
                "Expected an accountant that takes several noise multipliers and sample rates, got Opacus' "
                "GaussianAccountant (gdp), which takes one. Use PrivacyEngine(accountant='rdp') or 'prv'."
            )
        is_known = hasattr(accountant, "get_epsilon") and (self._takes_events or hasattr(accountant, "step"))
        if accountant is not None and (isinstance(accountant, type) or not is_known):
            raise InvalidValueError(
                "Expected an accountant of Opacus (step) or dp_accounting (compose), got "
                f"{type(accountant).__name__}. Pass engine.accountant."
            )

    def note(self, kind: DpEvent) -> None:
        """Take in one batch: Poisson(q; k × Gaussian σ)."""
        if self.accountant is None:
            return
        noise_multiplier, rate = as_one_gaussian(kind)
        if self._takes_events:
            self.accountant.compose(poisson_sampled(rate, gaussian(noise_multiplier)))
        else:
            self.accountant.step(noise_multiplier=noise_multiplier, sample_rate=rate)

    @property
    def _takes_events(self) -> bool:
        return callable(getattr(self.accountant, "compose", None))


def as_one_gaussian(kind: DpEvent) -> tuple[float, float]:
    """Return noise multiplier and sample rate of the single Gaussian that Poisson(q; k × Gaussian σ) is."""
    rate, contents = opened(kind)
    count, sum_ = (contents.count, contents.event) if isinstance(contents, SelfComposedDpEvent) else (1, contents)
    return sum_.noise_multiplier / math.sqrt(count), rate
