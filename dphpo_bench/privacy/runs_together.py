"""Privacy of several runs on the same records: of a list fixed in advance, and of runs chosen after looking.

An event here is that of a whole run, as its plan states it. docs/accounting.md, "Runs together", has the theorems.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import inside, number, positive
from dphpo_bench.base.errors import BudgetTooSmallError, InvalidValueError, UnsupportedEventError
from dphpo_bench.privacy import event_trees, events
from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.refusals import RefusedError
from dphpo_bench.privacy.accountants.report import EpsilonReport, epsilon
from dphpo_bench.privacy.calibration import UNSPENT
from dphpo_bench.privacy.event_trees import walk
from dphpo_bench.privacy.events import BestOfDpEvent, FirstAboveDpEvent, OneOfDpEvent

# Different releases that all accountants take about a second for, on fine and on coarse grids.
_FINE, _COARSE = 16, 64
_COARSENESS = 4.0
_COMPLEX = 4
"""A selection, or one of several events, takes as long as this many other releases."""

Runs = Iterable[DpEvent] | Mapping[DpEvent, int]
"""Events of runs, or how many runs each event has."""


def together(runs: Runs, delta: float) -> EpsilonReport:
    """Return ε at δ of runs that were all fixed before the first one: plain composition.

    Up to 16 different releases are composed as inside a run, by all accountants. Up to 64 are on coarser grids. More
    are by Rényi DP at a few orders, unless a release has no Rényi curve; `quoted` and `refused` of the answer say so.

    Raises:
        InvalidValueError: if δ is out of range.
        UnsupportedEventError: if no accountant supports all runs.
    """
    counts = _counted(runs)
    whole, delta = _joint(counts), inside("delta", delta)
    coarseness = _coarseness(whole)
    if coarseness == math.inf:
        try:
            bound = _at_few_orders(counts, delta)
        except UnsupportedEventError:
            coarseness = _COARSENESS
        else:
            refused = {"pld": f"was not asked, as it is slow for more than {_COARSE} different releases"}
            return EpsilonReport(bound, "rdp", {"rdp": bound}, refused, delta)
    return epsilon(whole, delta, coarseness=coarseness)


def adaptively(runs: Runs, delta: float) -> float:
    """Return ε at δ if each run was chosen after looking at earlier ones, and this total had been the limit.

    It is what a Rényi filter at the best single order for this total claims. Without a filter that was opened before
    the first run it is no guarantee: it holds "if you stop here and had planned for this total beforehand". It is at
    least `together(runs, delta).epsilon`.

    Raises:
        InvalidValueError: if δ is out of range.
        UnsupportedEventError: if a run has no Rényi curve.
    """
    counts = _counted(runs)
    whole, delta = _joint(counts), inside("delta", delta)
    coarseness = _coarseness(whole)
    if coarseness == math.inf:
        return _at_few_orders(counts, delta)
    return epsilon(whole, delta, accountant="rdp", coarseness=coarseness).epsilon


def roughly(run: DpEvent, delta: float) -> float:
    """Return a bound on ε of one run, in a millisecond where the run has a Rényi curve; `together` is tighter.

    Raises:
        InvalidValueError: if δ is out of range.
        UnsupportedEventError: if no accountant supports the run.
    """
    try:
        return _at_few_orders(_counted([run]), inside("delta", delta))
    except UnsupportedEventError:
        return together([run], delta).epsilon


def composed(runs: Sequence[DpEvent]) -> DpEvent:
    """Return the runs, all fixed before the first one, as one event; each divides the records by coins of its own."""
    return _joint(_counted(runs))


def is_quick(runs: Sequence[DpEvent]) -> bool:
    """Return whether the runs are so few and alike that all accountants together take about a second for them."""
    return _coarseness(composed(runs)) == 1.0


@dataclass(frozen=True)
class RenyiFilter:
    """A cap on all runs, whoever chooses them and after whatever outputs: theorem 4 of docs/accounting.md.

    The runs whose Rényi divergences at `order` add up to at most `bound` are together (`epsilon`, `delta`)-DP, if each
    run was refused before it started where it would have exceeded the bound. (Feldman and Zrnic 2021, Individual
    Privacy Accounting via a Rényi Filter; Lécuyer 2021, Practical Privacy Filters and Odometers with Rényi DP.)

    Attributes:
        order: the Rényi order α, fixed when the account is opened.
        bound: the largest sum of divergences.
        epsilon: ε of the cap.
        delta: δ of the cap.

    Raises:
        InvalidValueError: if a value is out of range, or the bound does not imply (ε, δ) at this order.
    """

    order: float
    bound: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        number("order", self.order, low=min(renyi.ORDERS))
        positive("bound", self.bound)
        positive("epsilon", self.epsilon)
        if not renyi.epsilon_at(self.order, self.bound, inside("delta", self.delta)) <= self.epsilon:
            raise InvalidValueError(
                f"Expected a bound that implies epsilon={self.epsilon:g} at delta={self.delta:g} and "
                f"order={self.order:g}, got bound={self.bound:g}. Open the cap by its epsilon and delta."
            )

    @classmethod
    def of(cls, epsilon: float, delta: float, like: DpEvent | None = None) -> "RenyiFilter":
        """Open a cap at the order that lets the most runs through.

        The order may depend on anything but the records: on the plan of the first run, before that run starts. It
        matters: at ε = 1, δ = 1e-5 the best order for Gaussians, 18, allows no DP-SGD run at all of q = .004, 100
        steps, σ = 1.146, and order 13 allows 25.

        Args:
            like: the event of a run like those to come; None for Gaussian releases.

        Raises:
            InvalidValueError: if ε or δ is out of range.
            BudgetTooSmallError: if no order has a bound for so small an ε.
            UnsupportedEventError: if `like` has no Rényi curve.
        """
        epsilon, delta = positive("epsilon", epsilon), inside("delta", delta)
        orders = tuple(map(float, renyi.ORDERS))
        bounds = [renyi.largest_divergence(order, epsilon, delta) for order in orders]
        costs = _divergences(event_trees.frozen(events.gaussian(1) if like is None else like), orders)
        fits = [bound / max(cost, sys.float_info.min) for bound, cost in zip(bounds, costs, strict=True)]
        best = max(range(len(orders)), key=lambda index: (bounds[index] > 0, fits[index]))
        if bounds[best] <= 0:
            raise BudgetTooSmallError(
                f"Expected a cap of epsilon > {epsilon - max(bounds):.2g} at delta={delta:g}, got epsilon={epsilon:g}. "
                "Raise epsilon or delta."
            )
        return cls(orders[best], bounds[best], epsilon, delta)

    def spent(self, runs: Iterable[DpEvent]) -> float:
        """Return the sum of the runs' Rényi divergences at the order; infinite after a run without privacy.

        Each divergence is the larger of both directions, and the largest of what records in different parts are exposed
        to: each run divides the records by coins of its own.

        Raises:
            UnsupportedEventError: if a run has no Rényi curve.
        """
        return _total(_counted(runs), (self.order,))[0]

    def left(self, runs: Iterable[DpEvent]) -> float:
        """Return what is left of the bound, at least 0. Raises what `spent` does."""
        return max(self.bound - self.spent(runs), 0.0)

    def epsilon_left(self, runs: Iterable[DpEvent], delta: float | None = None) -> float:
        """Return ε of the one Gaussian release that fills what is left, less the part that calibration needs.

        A Gaussian of multiplier √(α / (2 left)) has the Rényi divergence that is left at the order α; this is its ε at
        `delta`, that of the cap by default. A single release calibrated to this ε fits. Other runs of this ε, such as
        DP-SGD at small rates with little noise, may have a larger divergence at the order: compare `spent` of
        them with the bound.
        """
        left = self.left(runs)
        if left == 0:
            return 0.0
        release = events.gaussian(math.sqrt(self.order / (2 * left)))
        return (1 - UNSPENT) * epsilon(release, self.delta if delta is None else delta).epsilon


def _counted(runs: Runs) -> Counter[DpEvent]:
    if not isinstance(runs, Mapping):
        return Counter(map(event_trees.frozen, runs))
    counts: Counter[DpEvent] = Counter()
    for run, count in runs.items():
        counts[event_trees.frozen(run)] += count
    return counts


def _joint(counts: Mapping[DpEvent, int]) -> DpEvent:
    """Return the runs as one event, in which no two runs share a partition.

    Each run divides the records by coins of its own, also where the names of the parts are the same. So a record in
    one part of one run may be in any part of another, and only the worst of them is a bound.
    """
    divided = Counter({run: count for run, count in counts.items() if event_trees.partitions(run)})
    if divided.total() <= 1:
        return event_trees.from_multiset(counts)
    worst: Counter[DpEvent] = Counter()
    for run, count in counts.items():
        worst[events.one_of(event_trees.exposures(run)) if run in divided else run] += count
    return event_trees.from_multiset(worst)


def _coarseness(event: DpEvent) -> float:
    """Return how coarse grids have to be for an answer in about a second; infinite where none is coarse enough."""
    releases = [release for tree in event_trees.exposures(event) for release in event_trees.multiset(tree)]
    cost = sum(_COMPLEX if _is_complex(release) else 1 for release in releases)
    return 1.0 if cost <= _FINE else _COARSENESS if cost <= _COARSE else math.inf


def _is_complex(release: DpEvent) -> bool:
    return any(isinstance(inner, BestOfDpEvent | FirstAboveDpEvent | OneOfDpEvent) for inner in walk(release))


@lru_cache(maxsize=100_000)
def _divergences(run: DpEvent, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return Rényi divergences of one run at these orders, each for the records that are exposed to the most of it."""
    try:
        curves = [renyi.divergences(tree, orders) for tree in event_trees.exposures(run)]
    except RefusedError as error:
        raise UnsupportedEventError(
            f"Runs chosen after looking need a Rényi curve, and the accountant rdp {error}. Fix such runs in advance."
        ) from None
    return tuple(map(max, zip(*curves, strict=True)))


def _total(counts: Mapping[DpEvent, int], orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return sums of the runs' divergences, one for each order."""
    curves = [[count * cost for cost in _divergences(run, orders)] for run, count in counts.items()]
    return tuple(map(math.fsum, zip(*curves, strict=True))) if curves else (0.0,) * len(orders)


def _at_few_orders(counts: Mapping[DpEvent, int], delta: float) -> float:
    """Return ε by Rényi DP in a millisecond a run. Each order gives a bound by itself."""

    def best(orders: tuple[float, ...]) -> tuple[float, float]:
        costs = _total(counts, orders)
        return min((renyi.epsilon_at(order, cost, delta), order) for order, cost in zip(orders, costs, strict=True))

    bound, order = best(renyi.FEW_ORDERS)
    # Orders beyond take a millisecond, and only a large or a small ε needs them.
    if order == renyi.FEW_ORDERS[0]:
        return min(bound, best((1.5,))[0])
    return min(bound, best((64.0, 128.0))[0]) if order == renyi.FEW_ORDERS[-1] else bound
