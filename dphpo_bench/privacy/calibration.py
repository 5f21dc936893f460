"""The least noise that keeps a whole procedure within its budget, on the private side by recomputation."""

import math
from collections.abc import Callable

from dp_accounting.dp_event import DpEvent
from scipy.optimize import brentq

from dphpo_bench.base.errors import BudgetTooSmallError, InvalidValueError
from dphpo_bench.privacy.accountants.report import epsilon, epsilon_by
from dphpo_bench.privacy.budget import PrivacyBudget

Bracket = tuple[float, float]

BRACKET: Bracket = (0.01, 1e5)
UNSPENT = 1e-3
"""The share of ε that calibration may leave unspent."""

_HOPED_UNSPENT = 3e-4  # what the first attempts must reach; near the limits of PLD, ε is ragged by more
_COARSENESS = 8.0


def calibrate(
    event_of: Callable[[float], DpEvent],
    budget: PrivacyBudget,
    *,
    accountant: str | None = None,
    bracket: Bracket = BRACKET,
) -> float:
    """The smallest noise for which `epsilon(event_of(noise), budget.delta).epsilon <= budget.epsilon` holds.

    The inequality is checked at the very number returned, by the very function that verifies the run later.

    Args:
        event_of: the event of the whole procedure as a function of its noise; more noise, less ε. The noise
            may be any number that the procedure's noise multipliers grow with.
        budget: the (ε, δ) to stay within.
        accountant: name of the accountant to calibrate by; None for the tightest one. For private selection that
            one is looked for once, near the answer, and then asked alone; the least ε of all is at most its ε.
        bracket: the least and the largest noise considered. The least is returned where it is already enough.

    Returns:
        A noise that leaves at most the share `UNSPENT` of ε unspent, unless ε jumps over the target.

    Raises:
        InvalidValueError: if the bracket is not 0 < low < high.
        BudgetTooSmallError: if the largest noise is not enough.
        UnknownNameError: if there is no accountant of this name.
        UnsupportedEventError: if no accountant supports the event, or the named one does not.
    """
    first, last = _log_bracket(bracket)
    if accountant is None:
        accountant = _tightest(event_of, budget, bracket)
    excess = _log_excess(event_of, budget, accountant)
    # log ε is nearly a line in log noise, so a few Newton steps with the slope of the coarse curve end the
    # search. `low` and `high` are the closest noises found too small and large enough; bisection takes over
    # where a step leaves them.
    log_noise, slope = _coarse_root(event_of, budget, accountant, bracket)
    low, high, unspent = -math.inf, math.inf, math.inf
    for attempt in range(40):
        found = excess(log_noise)
        if found > 0:
            low = log_noise
        else:
            high, unspent = log_noise, -found
        is_end = log_noise == (last if found > 0 else first)
        if is_end or unspent <= (_HOPED_UNSPENT if attempt < 4 else UNSPENT):
            break
        log_noise = min(max(log_noise - (found + _HOPED_UNSPENT / 2) / slope, first), last)
        if attempt >= 8 or not low < log_noise < high:
            log_noise = (max(low, first) + min(high, last)) / 2
    if high == math.inf:
        spent = _spent(event_of(bracket[1]), budget.delta, accountant)
        raise BudgetTooSmallError(
            f"Expected epsilon <= {budget.epsilon:g} at delta={budget.delta:g}, got {spent:.4g} at the "
            f"largest noise, {bracket[1]:g}. Raise epsilon or delta, or take fewer steps or smaller batches."
        )
    return math.exp(high)


def calibrate_roughly(
    event_of: Callable[[float], DpEvent],
    budget: PrivacyBudget,
    *,
    accountant: str | None = None,
    bracket: Bracket = BRACKET,
) -> float:
    """Like `calibrate`, in a fraction of the time, and without a guarantee on either side of the target.

    For comparisons and first guesses, such as the noise that plain training would have needed. A run never
    relies on it: what it claims is recomputed from its ledger.
    """
    return math.exp(_coarse_root(event_of, budget, accountant, bracket)[0])


def _tightest(event_of: Callable[[float], DpEvent], budget: PrivacyBudget, bracket: Bracket) -> str | None:
    """The accountant of private selection that claims least near the noise it asks for; None if PLD does.

    RDP next to PLD costs nothing, as its ε chooses the grid of PLD, so then all are asked in each step.
    """
    first, last = _log_bracket(bracket)
    start = math.exp(min(max(0.0, first), last))
    report = epsilon(event_of(start), budget.delta, coarseness=_COARSENESS)
    # Where noise is far too small others may claim less than the layer cake, but not near the answer as a rule.
    name = "layer_cake" if "layer_cake" in report.by_accountant else report.quoted
    for _ in range(3):  # a second time where another is tighter there
        if name == "pld":
            return None
        noise = math.exp(_coarse_root(event_of, budget, name, bracket)[0])
        known, name = name, epsilon(event_of(noise), budget.delta).quoted
        if name == known:
            break
    return name


def _coarse_root(
    event_of: Callable[[float], DpEvent], budget: PrivacyBudget, accountant: str | None, bracket: Bracket
) -> tuple[float, float]:
    """Solve on the coarse grid: log noise, and the slope of log ε there."""
    first, last = _log_bracket(bracket)
    excess = _log_excess(event_of, budget, accountant, _COARSENESS)
    # Most answers lie near noise 1, and far from them the accountants are slow: walk there, do not bisect.
    low = high = min(max(0.0, first), last)
    while low > first and excess(low) <= 0:
        high, low = low, max(low - 1, first)
    while high < last and excess(high) > 0:
        low, high = high, min(high + 1, last)
    if excess(low) > 0 >= excess(high):
        root = float(brentq(excess, low, high, xtol=1e-4, rtol=1e-4))
    else:
        root = last if excess(high) > 0 else first
    return root, min((excess(root + 0.02) - excess(root)) / 0.02, -0.2)


def _log_excess(
    event_of: Callable[[float], DpEvent], budget: PrivacyBudget, accountant: str | None, coarseness: float = 1.0
) -> Callable[[float], float]:
    """log(ε / target) as a function of log noise; not positive exactly where ε is within the target."""
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
    """ε, to the last bit what a plan of this event is quoted, or more, on the usual grid."""
    if accountant is not None and coarseness == 1:
        return epsilon_by(event, delta, accountant)
    return epsilon(event, delta, accountant=accountant, coarseness=coarseness).epsilon


def _log_bracket(bracket: Bracket) -> tuple[float, float]:
    if not 0 < bracket[0] < bracket[1] < math.inf:
        raise InvalidValueError(f"Expected a bracket 0 < low < high, got {bracket}.")
    return math.log(bracket[0]), math.log(bracket[1])
