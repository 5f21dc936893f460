"""How many seeds, or tasks, it takes to tell two contestants apart, by a t-test of their differences."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median

from dphpo_bench.leaderboard.evidence import Power
from dphpo_bench.leaderboard.statistics import Mean

POWER = 0.8
"""The chance to tell a true difference apart that is asked for."""

MOST_SEEDS, MOST_TASKS = 200, 200
SEEDS = (10, 20, 50)
TIMES = (2, 4)
POINT = 0.01


def power_of(leads: Sequence[Mean], undecided: Sequence[Mean], seeds: int, tasks: int, level: float) -> Power | None:
    """What the standard errors of these leads allow.

    More seeds on each task, and more tasks with seeds of their own, make errors smaller by the square root and give
    more degrees of freedom in proportion. Other tasks are as noisy as these, and have the same leads.

    Args:
        leads: of all pairs.
        undecided: those that are not told apart.
        seeds: of a task, the fewest of any.
        tasks: that there are.
        level: the p-value that the next claim needs.

    Returns:
        None if no lead has an error.
    """
    known = [lead for lead in leads if lead.error]
    if not known or seeds < 2:
        return None
    typical = Mean(0.0, median(lead.error for lead in known if lead.error), median(lead.freedom for lead in known))

    def with_seeds(lead: Mean, count: int) -> float:
        return _needed(lead, count / seeds, (count - 1) / (seeds - 1), level)

    def with_tasks(lead: Mean, count: int) -> float:
        return _needed(lead, count / tasks, count / tasks, level)

    return Power(
        seeds=seeds,
        smallest=with_seeds(typical, seeds),
        seeds_for_point=_fewest(lambda count: with_seeds(typical, count), range(2, MOST_SEEDS + 1)),
        tasks_for_point=_fewest(lambda count: with_tasks(typical, count), range(tasks, MOST_TASKS + 1)),
        by_seeds=tuple(
            (count, sum(lead.value >= with_seeds(lead, count) for lead in undecided if lead.error))
            for count in SEEDS
            if count > seeds
        ),
        by_tasks=tuple(
            (times * tasks, sum(lead.value >= with_tasks(lead, times * tasks) for lead in undecided if lead.error))
            for times in TIMES
        ),
    )


def _needed(lead: Mean, data: float, freedom: float, level: float) -> float:
    """The true mean that is told apart with so many times the data and so many times the degrees of freedom."""
    assert lead.error is not None
    return lead.error / math.sqrt(data) * detectable(max(1, math.floor(lead.freedom * freedom)), level)


def _fewest(needed: Callable[[int], float], counts: range) -> int | None:
    """The first of these counts that a lead of one point is enough for; None if none is."""
    place = bisect_left(counts, -POINT, key=lambda count: -needed(count))
    return counts[place] if place < len(counts) else None


@cache
def detectable(freedom: int, level: float) -> float:
    """The mean that a two-sided t-test shows in 80 % of cases, in standard errors."""
    import numpy as np
    from scipy.special import chdtri, ndtr, stdtrit

    needed = -float(stdtrit(freedom, level / 2))
    # Quantiles of the measured standard error. The chance to see the wrong sign is negligible at this power.
    errors = np.sqrt(chdtri(freedom, (np.arange(400) + 0.5) / 400) / freedom)
    low, high = 0.0, 10 * needed + 10
    while high - low > 1e-9 * high:
        shift = (low + high) / 2
        low, high = (low, shift) if np.mean(ndtr(shift - needed * errors)) >= POWER else (shift, high)
    return high
