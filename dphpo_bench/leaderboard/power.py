"""How much more data it takes to tell two contestants apart, by a t-test of their differences."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from statistics import median

from dphpo_bench.leaderboard.evidence import Power
from dphpo_bench.leaderboard.statistics import Mean

POWER = 0.8
"""The chance to tell a true difference apart that is asked for."""

TIMES = (2, 4, 10)
MOST_TIMES = 100
POINT = 0.01


def power_of(leads: Sequence[Mean], undecided: Sequence[Mean], seeds: int, level: float) -> Power | None:
    """What the standard errors of these leads allow, and what more data would.

    So many times the data are so many times the seeds on every task, or so many times the tasks with seeds of their
    own, as noisy and with the same leads. Errors get smaller by the square root, and there are at least so many times
    the degrees of freedom.

    Args:
        leads: of all pairs.
        undecided: those that are not told apart.
        seeds: of a task, the fewest of any.
        level: the p-value that the next claim needs.

    Returns:
        None if no lead has an error.
    """
    known = [lead for lead in leads if lead.error]
    if not known or seeds < 2:
        return None
    typical = Mean(0.0, median(lead.error for lead in known if lead.error), median(lead.freedom for lead in known))
    tenths = range(10, 10 * MOST_TIMES + 1)
    place = bisect_left(tenths, -POINT, key=lambda count: -_needed(typical, count / 10, level))
    return Power(
        seeds=seeds,
        smallest=_needed(typical, 1, level),
        times_for_point=tenths[place] / 10 if place < len(tenths) else None,
        by_times=tuple(
            (times, sum(lead.value >= _needed(lead, times, level) for lead in undecided if lead.error))
            for times in TIMES
        ),
    )


def _needed(lead: Mean, times: float, level: float) -> float:
    """The true mean that is told apart with so many times the data."""
    assert lead.error is not None
    return lead.error / math.sqrt(times) * detectable(max(1, math.floor(lead.freedom * times)), level)


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
