"""How many seeds, or tasks, it takes to tell two contestants apart, by a paired t-test."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from statistics import median

from dphpo_bench.leaderboard.evidence import Power
from dphpo_bench.leaderboard.statistics import Mean

POWER = 0.8
"""The chance to tell a true difference apart that is asked for."""

MOST_SEEDS = 200
SEEDS = (10, 20, 50)
TIMES = (2, 4)
POINT = 0.01


def power_of(leads: Sequence[Mean], undecided: Sequence[Mean], seeds: int, level: float) -> Power | None:
    """What the spreads of these leads, some of them undecided, allow; None if no lead has a spread.

    Args:
        leads: of all pairs, each with its standard error.
        undecided: those that are not told apart.
        seeds: that there are.
        level: the p-value that the next claim needs.
    """
    spreads = [_spread(lead, seeds) for lead in leads if lead.error]
    if not spreads or seeds < 2:
        return None
    middle = median(spreads)
    open_pairs = [lead for lead in undecided if lead.error]
    return Power(
        seeds=seeds,
        smallest=middle * detectable(seeds, level),
        seeds_for_point=_seeds_for(POINT, middle, level),
        tasks_for_point=math.ceil((middle * detectable(seeds, level) / POINT) ** 2),
        by_seeds=tuple((n, _settled(open_pairs, seeds, n, 1, level)) for n in SEEDS if n > seeds),
        by_tasks=tuple((times, _settled(open_pairs, seeds, seeds, times, level)) for times in TIMES),
    )


@cache
def detectable(seeds: int, level: float) -> float:
    """The mean difference that a two-sided t-test shows in 80 % of cases, in standard deviations of one seed's."""
    import numpy as np
    from scipy.special import chdtri, ndtr, stdtrit

    freedom = seeds - 1
    needed = -float(stdtrit(freedom, level / 2))
    # Quantiles of the measured standard deviation. The chance to see the wrong sign is negligible at this power.
    deviations = np.sqrt(chdtri(freedom, (np.arange(400) + 0.5) / 400) / freedom)
    low, high = 0.0, 10 * needed + 10
    while high - low > 1e-9 * high:
        shift = (low + high) / 2
        low, high = (low, shift) if np.mean(ndtr(shift - needed * deviations)) >= POWER else (shift, high)
    return high / math.sqrt(seeds)


def _seeds_for(lead: float, spread: float, level: float) -> int | None:
    """How many seeds show a lead; None if it takes more than `MOST_SEEDS`."""
    tried = range(2, MOST_SEEDS + 1)
    place = bisect_left(tried, -lead, key=lambda seeds: -spread * detectable(seeds, level))
    return tried[place] if place < len(tried) else None


def _spread(lead: Mean, seeds: int) -> float:
    """The standard deviation of one seed's difference."""
    assert lead.error is not None
    return lead.error * math.sqrt(seeds)


def _settled(open_pairs: Sequence[Mean], seeds: int, then: int, times: int, level: float) -> int:
    """How many pairs so many seeds would settle, on so many times the tasks; the errors of tasks are independent."""
    enough = detectable(then, level) / math.sqrt(times)
    return sum(lead.value >= _spread(lead, seeds) * enough for lead in open_pairs)
