"""Trees of privacy events: what a mechanism released.

The vocabulary is `dp_accounting`'s, with six events of our own. Each says what one record can have influenced,
under add-or-remove-one adjacency. Build trees with the functions of this module: they check every number and turn
every noise multiplier into a float. `dp_accounting` 0.6.0 silently keeps only the first of several composed
*integer* ones in a Poisson sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import number, short_text, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import run_counts
from dphpo_bench.privacy.run_counts import RunCount

MAX_COUNT = 10**9
MAX_BRANCHES = 64


@dataclass(frozen=True)
class BestOfDpEvent(DpEvent):  # type: ignore[misc]  # dp_accounting has no types
    """The best of a secret random number of independent runs, by a score in each run's output; see `best_of`."""

    event: DpEvent
    runs: RunCount
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True)
class FirstAboveDpEvent(DpEvent):  # type: ignore[misc]
    """First run whose score reaches a fixed threshold (Liu and Talwar 2019, Algorithm 1); see `threshold_search`."""

    event: DpEvent
    stop_probability: float


@dataclass(frozen=True)
class PartDpEvent(DpEvent):  # type: ignore[misc]
    """An event that reads the records of one part only; see `on_part`."""

    partition: str
    part: str
    event: DpEvent


@dataclass(frozen=True)
class PureDpEvent(DpEvent):  # type: ignore[misc]
    """A release of which we know only that it is (`epsilon`, 0)-DP."""

    epsilon: float


@dataclass(frozen=True)
class OneOfDpEvent(DpEvent):  # type: ignore[misc]
    """One of several events. Which one is part of the output; see `one_of`."""

    events: tuple[DpEvent, ...]
    weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ObjectivePerturbationDpEvent(DpEvent):  # type: ignore[misc]
    """The exact minimum of a linear classifier's regularised loss plus a random linear term."""

    noise_multiplier: float
    regularisation: float
    outputs: int


def gaussian(noise_multiplier: float) -> DpEvent:
    """Return the event of Gaussian noise of standard deviation `noise_multiplier` times the L2 sensitivity."""
    return dp_event.GaussianDpEvent(number("noise_multiplier", noise_multiplier, low=0))


def laplace(noise_multiplier: float) -> DpEvent:
    """Return the event of Laplace noise of scale `noise_multiplier` times the L1 sensitivity: 1/noise_multiplier-DP."""
    return dp_event.LaplaceDpEvent(number("noise_multiplier", noise_multiplier, low=0))


def compose(*events: DpEvent) -> DpEvent:
    """Compose the events, each possibly chosen from the outputs of the earlier ones."""
    return dp_event.ComposedDpEvent(events)  # a tuple, not the annotated list, so that the event hashes


def repeat(event: DpEvent, count: int) -> DpEvent:
    """Compose the event `count` times with itself."""
    return dp_event.SelfComposedDpEvent(event, whole("count", count, low=0, high=MAX_COUNT))


def poisson_sampled(sample_rate: float, event: DpEvent) -> DpEvent:
    """Return the event, run on a batch that each record enters independently with probability `sample_rate`."""
    return dp_event.PoissonSampledDpEvent(number("sample_rate", sample_rate, low=0, high=1), event)


def best_of(event: DpEvent, runs: RunCount, low: float = 1.0, high: float = 1.0) -> DpEvent:
    """Return the event of private selection: the best of a secret random number of runs, and nothing else, is released.

    Args:
        event: a single run, together with its score.
        runs: the distribution of the number of runs.
        low: the least density of each run's hyperparameters relative to a data-independent prior, in (0, 1].
        high: the greatest one, at least 1. Both are 1 for independent draws. An adaptive search that mixes its
            proposals with the prior bounds both (Wang et al. 2023, DP-HyPO).
    """
    if type(runs) not in run_counts.KINDS.values():
        # A plug-in's own distribution could draw otherwise than it says, or claim to equal another.
        raise InvalidValueError(
            f"Expected a distribution of dphpo_bench, which draws what it says, got a {type(runs).__name__}."
        )
    runs = replace(runs)  # type: ignore[type-var]  # a fresh one, on which nobody has set functions of their own
    return BestOfDpEvent(event, runs, number("low", low, low=1e-9, high=1), number("high", high, low=1, high=1e9))


def threshold_search(event: DpEvent, stop_probability: float) -> DpEvent:
    """Return the event of runs until a score reaches a fixed threshold; that run is released. A coin may stop earlier.

    Args:
        event: a single run, together with its score.
        stop_probability: γ in (0, 1], the probability to stop after each run below the threshold.
    """
    return FirstAboveDpEvent(event, number("stop_probability", stop_probability, low=1e-9, high=1))


def on_part(partition: str, part: str, event: DpEvent) -> DpEvent:
    """Return the event, run on the records of one part.

    Args:
        partition: name of a rule that puts each record into exactly one part by that record alone, such as a keyed
            hash. Events of one partition name must use the same rule.
        part: name of the part.
        event: what the records of the part are exposed to.
    """
    return PartDpEvent(short_text("partition", partition), short_text("part", part), event)


def pure_dp(epsilon: float) -> DpEvent:
    """Return a release that is (`epsilon`, 0)-DP, whatever was released before."""
    return PureDpEvent(number("epsilon", epsilon, low=0))


def objective_perturbation(noise_multiplier: float, regularisation: float, outputs: int) -> DpEvent:
    """Return the event of objective perturbation (docs/accounting.md, objective perturbation).

    Released is the exact minimum of Σ loss(W x) + λ/2 ‖W‖² + ⟨B, W⟩, with B Gaussian, over all W of shape (outputs, d).
    Each input has a norm of at most 1, and the loss is the logistic one of a single output, or the cross-entropy of
    several. A minimum that is not exact needs noise of its own; see `Batch.perturbed_minimum`.

    Args:
        noise_multiplier: standard deviation of B's coordinates / L, where L bounds the norm of a record's gradient: 1
            for a single output, √2 for several.
        regularisation: λ > 0, of the sum of losses.
        outputs: number of rows of W, at least 1.
    """
    return ObjectivePerturbationDpEvent(
        number("noise_multiplier", noise_multiplier, low=0),
        checked_regularisation(regularisation),
        whole("outputs", outputs, low=1, high=10**6),
    )


def checked_regularisation(value: float) -> float:
    """Return λ as a float; reject what a solver or an accountant cannot take."""
    return number("regularisation", value, low=1e-9, high=1e15)


def one_of(events: Sequence[DpEvent], weights: Sequence[float] | None = None) -> DpEvent:
    """Return one of several events, of which one, and which, is released (docs/accounting.md, one of several events).

    Args:
        events: the branches, 1 to `MAX_BRANCHES`.
        weights: their probabilities, if the choice is a fresh draw that looks at nothing; scaled to the sum 1.
            None if the choice may depend on anything that was released.

    Raises:
        InvalidValueError: if there are too few or too many events, or the weights do not fit them.
    """
    if not isinstance(events, list | tuple) or not 1 <= len(events) <= MAX_BRANCHES:
        raise InvalidValueError(f"Expected 1 to {MAX_BRANCHES} events to choose from, got {shown(events)}.")
    if weights is None:
        return OneOfDpEvent(tuple(events))
    if not isinstance(weights, list | tuple) or len(weights) != len(events):
        raise InvalidValueError(f"Expected {len(events)} weights, one for each event, got {shown(weights)}.")
    exact = [number("weight", weight, low=0, high=1e9) for weight in weights]
    total = math.fsum(exact)
    if min(exact) <= 1e-9 * total:
        raise InvalidValueError(f"Expected weights above a billionth of their sum, got {min(exact):.4g}.")
    # Weights of sum 1 stay as they are, so that an event read back equals the one written.
    scaled = exact if abs(total - 1) < 1e-12 else [weight / total for weight in exact]
    return OneOfDpEvent(tuple(events), tuple(scaled))


def non_private() -> DpEvent:
    """Return a release without any privacy: ε is infinite."""
    return dp_event.NonPrivateDpEvent()


def no_op() -> DpEvent:
    """Return no release at all: ε is zero."""
    return dp_event.NoOpDpEvent()
