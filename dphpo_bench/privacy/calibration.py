"""The least noise that keeps a whole procedure within its budget, on the private side by recomputation."""

import math
from collections.abc import Callable

from dp_accounting.dp_event import DpEvent
from scipy.optimize import brentq

from dphpo_bench.base.errors import BudgetTooSmallError
from dphpo_bench.privacy.accountants.report import ACCOUNTANTS, epsilon, epsilon_by
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.events import gaussian

LARGEST = 1e5
"""The largest noise considered."""

UNSPENT = 1e-3
"""The share of ε that calibration may leave unspent."""

_HOPED_UNSPENT = 3e-4  # what the first attempts must reach; near the limits of PLD, ε is ragged by more
_COARSENESS = 8.0
_FIRST, _LAST = math.log(0.01), math.log(LARGEST)


def calibrate(event_of: Callable[[float], DpEvent], budget: PrivacyBudget, *, accountant: str | None = None) -> float:
    """Return the smallest noise for which `epsilon(event_of(noise), budget.delta).epsilon <= budget.epsilon` holds.

    The inequality is checked at the very number returned, by the very function that verifies the run later.

    Args:
        event_of: the event of the whole procedure as a function of its noise: more noise, less ε. The noise may be any
            number that the procedure's noise multipliers grow with; it is searched from 0.01 to 1e5.
        budget: the (ε, δ) to stay within.
        accountant: name of the accountant to calibrate by; None for the tightest one. For private selection the
            tightest one is looked for once, near the answer, and then asked alone; the least ε of all is at most its ε.

    Returns:
        A noise that leaves at most the share `UNSPENT` of ε unspent, unless ε jumps over the target; the least noise
        where that is enough.

    Raises:
        BudgetTooSmallError: if the largest noise is not enough.
        UnknownNameError: if there is no accountant of this name.
        UnsupportedEventError: if no accountant supports the event, or the named one does not.
    """
    if accountant is None:
        accountant = _tightest(event_of, budget)
    excess = _log_excess(event_of, budget, accountant)
    # log ε is nearly a line in log noise, so a few Newton steps with the slope of the coarse curve end the
    # search. `low` and `high` are the closest noises found too small and large enough; bisection takes over
    # where a step leaves them.
    log_noise, slope = _coarse_root(event_of, budget, accountant)
    low, high, unspent = -math.inf, math.inf, math.inf
    for attempt in range(40):
        over = excess(log_noise)
        if over > 0:
            low = log_noise
        else:
            high, unspent = log_noise, -over
        is_end = log_noise == (_LAST if over > 0 else _FIRST)
        if is_end or unspent <= (_HOPED_UNSPENT if attempt < 4 else UNSPENT):
            break
        log_noise = min(max(log_noise - (over + _HOPED_UNSPENT / 2) / slope, _FIRST), _LAST)
        if attempt >= 8 or not low < log_noise < high:
            log_noise = (max(low, _FIRST) + min(high, _LAST)) / 2
    if high == math.inf:
        spent = _spent(event_of(LARGEST), budget.delta, accountant)
        raise BudgetTooSmallError(
            f"Expected epsilon <= {budget.epsilon:g} at delta={budget.delta:g}, got {spent:.4g} at the "
            f"largest noise, {LARGEST:g}. Raise epsilon or delta, or take fewer steps or smaller batches."
        )
    return math.exp(high)


def calibrate_parts(
    whole: Callable[[DpEvent], DpEvent],
    training: Callable[[float], DpEvent],
    budget: PrivacyBudget,
    accountant: str | None = None,
) -> tuple[float, float]:
    """Return the least noise of a trial's training and of its score that keep a whole procedure within its budget.

    Training and scoring touch disjoint parts of the records, so each may cost the whole budget.

    Args:
        whole: the event of the whole procedure, as a function of what a trial exposes a record to.
        training: the event of a trial's training, as a function of its noise multiplier.
        budget: the (ε, δ) of the whole procedure.
        accountant: whose ε must meet the budget; None for the one that is tightest for the training.

    Raises:
        BudgetTooSmallError: if no noise within reach meets the budget.
    """
    noise = calibrate(lambda noise: whole(training(noise)), budget, accountant=accountant)
    if accountant is None:
        # Quoted is the accountant whose ε of the worse part is least, so one must bound both.
        accountant = epsilon(whole(training(noise)), budget.delta).quoted
    return noise, calibrate(lambda noise: whole(gaussian(noise)), budget, accountant=accountant)


def calibrate_roughly(
    event_of: Callable[[float], DpEvent], budget: PrivacyBudget, *, accountant: str | None = None
) -> float:
    """Calibrate in a fraction of the time, without a guarantee on either side of the target.

    It serves comparisons and first guesses, such as the noise that plain training would have needed. A run never
    relies on it: its claim is recomputed from its ledger.
    """
    return math.exp(_coarse_root(event_of, budget, accountant)[0])


def _tightest(event_of: Callable[[float], DpEvent], budget: PrivacyBudget) -> str | None:
    """Return the accountant that claims least near the noise it asks for; None if all are to be asked in each step."""
    report = epsilon(event_of(1.0), budget.delta, coarseness=_COARSENESS)
    # Where noise is far too small others may claim less, but not near the answer as a rule.
    first = [name for name in report.by_accountant if ACCOUNTANTS[name].calibration == "first"]
    name = first[0] if first else report.quoted
    for _ in range(3):  # again where another is tighter there
        if ACCOUNTANTS[name].calibration == "together":
            return None
        noise = math.exp(_coarse_root(event_of, budget, name)[0])
        previous, name = name, epsilon(event_of(noise), budget.delta).quoted
        if name == previous:
            break
    return name


def _coarse_root(
    event_of: Callable[[float], DpEvent], budget: PrivacyBudget, accountant: str | None
) -> tuple[float, float]:
    """Solve on the coarse grid: log noise, and the slope of log ε there."""
    excess = _log_excess(event_of, budget, accountant, _COARSENESS)
    # Most answers lie near noise 1, and far from them the accountants are slow: walk there, do not bisect.
    low = high = 0.0
    while low > _FIRST and excess(low) <= 0:
        high, low = low, max(low - 1, _FIRST)
    while high < _LAST and excess(high) > 0:
        low, high = high, min(high + 1, _LAST)
    if excess(low) > 0 >= excess(high):
        root = float(brentq(excess, low, high, xtol=1e-4, rtol=1e-4))
    else:
        root = _LAST if excess(high) > 0 else _FIRST
    return root, min((excess(root + 0.02) - excess(root)) / 0.02, -0.2)


def _log_excess(
    event_of: Callable[[float], DpEvent], budget: PrivacyBudget, accountant: str | None, coarseness: float = 1.0
) -> Callable[[float], float]:
    """Return log(ε / target) as a function of log noise; at most 0 exactly where ε is within the target."""
    known: dict[float, float] = {}

    def excess(log_noise: float) -> float:
        if log_noise not in known:
            event = event_of(math.exp(log_noise))
            spent = _spent(event, budget.delta, accountant, coarseness)
            # Kept finite for the solvers, and decided by the comparison itself rather than by a rounded
            # logarithm.
            size = abs(math.log(min(max(spent, 1e-9), 1e12) / budget.epsilon))
            known[log_noise] = -size if spent <= budget.epsilon else max(size, 1e-15)
        return known[log_noise]

    return excess


def _spent(event: DpEvent, delta: float, accountant: str | None, coarseness: float = 1.0) -> float:
    """Return ε; on the usual grid it is to the last bit what a plan of this event is quoted, or more."""
    if accountant is not None and coarseness == 1:
        return epsilon_by(event, delta, accountant)
    return epsilon(event, delta, accountant=accountant, coarseness=coarseness).epsilon
