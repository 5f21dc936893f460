"""The steps of DP-SGD that a budget allows, and their event."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, groupby

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import positive
from dphpo_bench.base.errors import BudgetTooSmallError, InvalidValueError
from dphpo_bench.base.text import count
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.events import MAX_COUNT, compose, no_op
from dphpo_bench.recipes.dp_sgd import dp_sgd_event

MAX_LEVELS = 64
"""Different noise multipliers of a training, each of which costs its accountants time."""

MOST_STEPS = 10**8
"""The steps of a training whose trainer states no end."""

_MAX_SCHEDULE = 10**7
_ROUNDING = 1 - 1e-9  # a scheduler of the noise may round otherwise than a function of the step
_USUAL_SLOPE = 0.6  # of log ε over log steps

Counts = Counter[tuple[float, float]]
"""Numbers of steps by sample rate and noise multiplier."""


def event_of(steps: Counts) -> DpEvent:
    """Return the composition of all steps, the same for the same numbers."""
    parts = [dp_sgd_event(rate, times, noise) for (rate, noise), times in sorted(steps.items()) if times]
    return (parts[0] if len(parts) == 1 else compose(*parts)) if parts else no_op()


class NoiseSchedule:
    """The least noise multiplier of each step, fixed before the first: a number, or a function of the step.

    Args:
        noise_multiplier: σ > 0, or a function of the step, counted from 0, which looks at no records.
        steps: how many the function is asked for.

    Raises:
        InvalidValueError: if a noise multiplier is not positive, or there are too many different ones.
    """

    def __init__(self, noise_multiplier: float | Callable[[int], float], steps: int) -> None:
        if not callable(noise_multiplier):
            runs = [(positive("noise_multiplier", noise_multiplier), MAX_COUNT)]
        elif steps > _MAX_SCHEDULE:
            raise InvalidValueError(
                f"Expected at most {_MAX_SCHEDULE:,} steps with a schedule of the noise, got {steps:,}: state the "
                "number of steps to the trainer (max_steps)."
            )
        else:
            noises = (
                positive(f"noise_multiplier({step})", noise_multiplier(step)) * _ROUNDING for step in range(steps)
            )
            runs = [(noise, len(list(same))) for noise, same in groupby(noises)]
        if len(levels := {noise for noise, _ in runs}) > MAX_LEVELS:
            raise InvalidValueError(
                f"Expected at most {MAX_LEVELS} different noise multipliers, got {len(levels):,}. Declare a staircase "
                "below the schedule: a step with more noise than declared is covered."
            )
        self._noises = [noise for noise, _ in runs]
        self._ends = list(accumulate(times for _, times in runs))

    def at(self, step: int) -> float:
        """Return the noise multiplier of a step, counted from 0; behind the last step, that of the last."""
        return self._noises[min(bisect_right(self._ends, step), len(self._noises) - 1)]

    def first(self, steps: int, sample_rate: float) -> Counts:
        """Return the first `steps` steps by their numbers."""
        counts: Counts = Counter()
        begin = 0
        for noise, end in zip(self._noises, self._ends, strict=True):
            counts[sample_rate, noise] += max(0, min(end, steps) - begin)
            begin = end
        return +counts


def most_steps(event_after: Callable[[int], DpEvent], budget: PrivacyBudget, most: int) -> int:
    """Return the largest number of steps, from 1 to `most`, whose event is within the budget.

    The inequality is checked at the very number returned, by the function that computes ε of the record later.

    Args:
        event_after: the event after that many steps, whose ε grows with them.
        budget: the (ε, δ) to stay within.
        most: the number of steps that are wanted.

    Raises:
        BudgetTooSmallError: if the budget does not cover a single step.
        UnsupportedEventError: if no accountant bounds the event.
    """

    def excess(steps: int, accountant: str | None = None) -> float:
        """Return log(ε / target); at most 0 exactly where ε is within the target."""
        spent = epsilon(event_after(steps), budget.delta, accountant=accountant).epsilon
        size = abs(math.log(min(max(spent, 1e-9), 1e12) / budget.epsilon))
        return -size if spent <= budget.epsilon else max(size, 1e-15)

    if excess(most) <= 0:
        return most
    low, high = 0, most  # the first fits, as nothing is released; the second does not
    # The Rényi accountant takes milliseconds, and errs upwards: it says where to begin.
    below, above = 0, most
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if excess(middle, "rdp") <= 0 else (below, middle)
    known: dict[int, float] = {}
    steps = max(below, 1)
    for attempt in range(64):
        over = known[steps] = excess(steps)
        low, high = (steps, high) if over <= 0 else (low, steps)
        if high - low <= 1:
            break
        slope = _USUAL_SLOPE
        if low in known and high in known:
            slope = max((known[high] - known[low]) / math.log(high / low), 0.1)
        guess = steps * math.exp(-over / slope) if attempt < 12 else (low + high) / 2
        steps = min(max(int(guess), low + 1), high - 1)
    if not low:
        spent = epsilon(event_after(1), budget.delta).epsilon
        raise BudgetTooSmallError(
            f"No step fits epsilon={budget.epsilon:g} at delta={budget.delta:g}: with {count(1, 'step')} it is "
            f"{spent:.4g}. Raise epsilon or the noise, or take smaller batches. The accountant's history counts."
        )
    return low
