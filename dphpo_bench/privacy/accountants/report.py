"""From an event to ε: several accountants, each asked only what it was tested on; the tightest one is quoted.

Every number is an upper bound. Neighbouring datasets differ by one record added or removed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Literal

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import inside
from dphpo_bench.base.errors import UnknownNameError, UnsupportedEventError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.accountants import pld as distributions
from dphpo_bench.privacy.accountants import profiles
from dphpo_bench.privacy.accountants import rdp as renyi
from dphpo_bench.privacy.accountants.pld import Bound, Rules
from dphpo_bench.privacy.accountants.profiles import Array
from dphpo_bench.privacy.accountants.refusals import RefusedError
from dphpo_bench.privacy.event_trees import has_selection

_RENYI_POINTS = 60

OUT_OF_MEMORY = "ran out of memory"
"""Reason of an accountant that refuses an event on this machine only."""


@dataclass(frozen=True)
class EpsilonReport:
    """ε of one event at one δ, by each accountant.

    Attributes:
        epsilon: the quoted ε, the smallest of `by_accountant`.
        quoted: name of the accountant it is from.
        by_accountant: ε by each accountant that supports the event.
        refused: the others, each with the reason.
        delta: the δ that was asked.
    """

    epsilon: float
    quoted: str
    by_accountant: Mapping[str, float]
    refused: Mapping[str, str]
    delta: float


def epsilon(event: DpEvent, delta: float, *, accountant: str | None = None, coarseness: float = 1.0) -> EpsilonReport:
    """Return the ε of an event at this δ.

    The event is simplified by theorems first (see `event_trees.simplify`), then evaluated once for each combination of
    parts of the records that it names; the largest ε counts.

    Args:
        event: any tree of privacy events.
        delta: δ in (0, 1).
        accountant: a name in `ACCOUNTANTS` to ask only that one; None for all that support the event.
        coarseness: how much wider than usual the grids of privacy losses are; above 1, fewer Rényi orders are tried
            too. More is faster, and ε stays an upper bound, only a looser one.

    Raises:
        InvalidValueError: if a number is out of range.
        UnknownNameError: if there is no accountant of this name.
        UnsupportedEventError: if no accountant supports the event, or the named one does not.
    """
    if accountant is not None:
        _check_name(accountant)
    return _report(_exposures(event, delta), delta, None if accountant is None else (accountant,), coarseness)


def epsilon_by(event: DpEvent, delta: float, accountant: str) -> float:
    """Return the same ε as `epsilon(event, delta).by_accountant[accountant]`, without asking the others.

    The number is the same to the last bit. `epsilon(..., accountant=name)` raises the same kinds of errors, but its
    number may differ a little, since there PLD is not told how wide its grid should be.
    """
    _check_name(accountant)
    report = _report(_exposures(event, delta), delta, tuple({"rdp": 0, accountant: 0}), 1.0)
    if accountant not in report.by_accountant:
        raise UnsupportedEventError(f"The accountant {accountant} {report.refused[accountant]}.")
    return report.by_accountant[accountant]


def _check_name(accountant: str) -> None:
    if not isinstance(accountant, str) or accountant not in ACCOUNTANTS:
        raise UnknownNameError(
            f"Expected an accountant in {', '.join(ACCOUNTANTS)}, got {shown(accountant, form=repr)}."
        )


def _exposures(event: DpEvent, delta: float) -> tuple[DpEvent, ...]:
    inside("delta", delta)
    return tuple(event_trees.exposures(event))


@lru_cache(maxsize=1024)  # the harness asks for a plan's ε again when it verifies the run
def _report(
    trees: tuple[DpEvent, ...], delta: float, asked: tuple[str, ...] | None, coarseness: float
) -> EpsilonReport:
    """Return the report on the worst of the trees that a record may be exposed to."""
    selects = any(has_selection(tree) for tree in trees)
    names = asked or accountants_for(selects=selects)
    by_accountant: dict[str, float] = {}
    refused: dict[str, str] = {}
    rough: dict[DpEvent, float] = {}
    for name in sorted(names, key=lambda name: name != "rdp"):  # RDP first: its ε chooses the grid of PLD
        try:
            if ACCOUNTANTS[name].only_selections and not selects and not all(map(_is_extreme, trees)):
                raise RefusedError("is for private selection only")
            epsilons = [_of_tree(name, tree, delta, coarseness, rough.get(tree)) for tree in trees]
            by_accountant[name] = max(epsilons)
            if name == "rdp":
                rough = dict(zip(trees, epsilons, strict=True))
        except RefusedError as error:
            refused[name] = str(error)
        except MemoryError:  # accountants bound what they ask for; this machine has less
            refused[name] = OUT_OF_MEMORY
    if not by_accountant:
        reasons = "; ".join(f"{name} {reason}" for name, reason in refused.items())
        raise UnsupportedEventError(
            f"No accountant bounds this event: {reasons}. Use events that one supports."
            if asked is None or len(asked) > 1
            else f"This accountant does not bound this event: {reasons}. Use another accountant, or other events."
        )
    ordered = {name: by_accountant[name] for name in ACCOUNTANTS if name in by_accountant}
    quoted = min(ordered, key=lambda name: ordered[name])
    return EpsilonReport(ordered[quoted], quoted, MappingProxyType(ordered), MappingProxyType(refused), delta)


def _is_extreme(event: DpEvent) -> bool:
    return isinstance(event, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent)


@lru_cache(maxsize=1024)  # calibration asked each part of a plan by itself before the harness asks for all
def _of_tree(name: str, event: DpEvent, delta: float, coarseness: float, rough_epsilon: float | None) -> float:
    """Return ε of one simplified tree without parts, by one accountant."""
    if _is_extreme(event):
        return 0.0 if isinstance(event, dp_event.NoOpDpEvent) else math.inf
    return ACCOUNTANTS[name].epsilon(event, delta, coarseness, rough_epsilon)


def _by_distributions(
    bound: Bound | None, event: DpEvent, delta: float, coarseness: float, rough_epsilon: float | None
) -> float:
    return distributions.epsilon(event, Rules(bound, coarseness, delta), rough_epsilon)


def _profile_points(
    bound: Bound | None, event: DpEvent, delta: float, epsilons: Mapping[str, float]
) -> tuple[Array, Array]:
    return profiles.points_of(distributions.profile(event, Rules(bound, 1.0, delta), epsilons.get("rdp")))


def _by_renyi(event: DpEvent, delta: float, coarseness: float, _: float | None) -> float:
    return renyi.epsilon(event, delta, renyi.ORDERS if coarseness <= 1 else renyi.ROUGH_ORDERS)


def _renyi_points(event: DpEvent, _: float, epsilons: Mapping[str, float]) -> tuple[Array, Array]:
    if not has_selection(event):
        raise RefusedError("adds nothing to the curve of pld")
    largest = max((epsilon for epsilon in epsilons.values() if epsilon < math.inf), default=0.0)
    at = np.r_[0.0, np.geomspace(1e-3, max(1.0, 2 * largest), _RENYI_POINTS)]
    return at, renyi.deltas(event, at)


@dataclass(frozen=True)
class Accountant:
    """One way to bound ε. Every accountant errs upwards, and raises `RefusedError` for what it does not bound.

    To add one, write its module and its row in `ACCOUNTANTS`; reports, refusals, calibration, risk, statements and
    the tests that hold for all accountants read the table.

    Attributes:
        text: a line for display.
        epsilon: computes ε of a simplified tree without parts from the tree, δ, the coarseness of grids, and the ε
            by `rdp` if known.
        curve: computes more proven points (ε, δ) of the tree's profile from the tree, δ, and the ε of all accountants
            at δ; None if there are none.
        only_selections: whether it is asked about private selection only.
        calibration: how private selection is calibrated by it: "first", before the others; "alone", if it is the
            tightest; "together" with all others, which costs nothing more.
    """

    text: str
    epsilon: Callable[[DpEvent, float, float, float | None], float]
    curve: Callable[[DpEvent, float, Mapping[str, float]], tuple[Array, Array]] | None = None
    only_selections: bool = False
    calibration: Literal["first", "alone", "together"] = "alone"


ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(
    {
        "pld": Accountant(
            "privacy loss distributions; everything but private selection",
            partial(_by_distributions, None),
            partial(_profile_points, None),
            calibration="together",  # the ε of rdp chooses its grid
        ),
        "rdp": Accountant(
            "Rényi DP; private selection by Papernot and Steinke (2022) and Wang et al. (2023)",
            _by_renyi,
            _renyi_points,
        ),
        "profile": Accountant(
            "private selection by privacy profiles, as in Koskela, Redberg and Wang (2024)",
            partial(_by_distributions, "profile"),
            partial(_profile_points, "profile"),
            only_selections=True,
        ),
        "layer_cake": Accountant(
            "private selection by privacy profiles, tight (derived)",
            partial(_by_distributions, "layer_cake"),
            partial(_profile_points, "layer_cake"),
            only_selections=True,
            calibration="first",
        ),
    }
)
"""The accountants by name, in the order in which ties are quoted."""


def accountants_for(*, selects: bool) -> list[str]:
    """Return the names of the accountants to ask about a tree with or without private selection."""
    return [name for name, accountant in ACCOUNTANTS.items() if selects or not accountant.only_selections]
