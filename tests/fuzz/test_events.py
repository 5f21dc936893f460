"""Ledgers, events and plans from strangers: refused in a line, or read as written; never cheaper than they are."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from dphpo_bench.privacy import event_trees, events
from dphpo_bench.privacy.accountants import report as accountants
from dphpo_bench.privacy.ledger import Ledger
from tests.fuzz.hostile import VALUES, accepted, examples, mutated

DELTA = 1e-5


def _leaf() -> st.SearchStrategy[dict[str, Any]]:
    noise = st.sampled_from((0.005, 0.5, 1.0, 1.5, 4, 1e3, 1e30, 1e120, 1.7e308))
    return st.one_of(
        st.builds(lambda noise: {"type": "gaussian", "noise_multiplier": noise}, noise),
        st.builds(lambda noise: {"type": "laplace", "noise_multiplier": noise}, noise),
        st.builds(lambda epsilon: {"type": "pure", "epsilon": epsilon}, st.sampled_from((0, 5e-324, 0.1, 2.0, 1e9))),
        st.builds(
            lambda noise, regularisation, outputs: {
                "type": "objective_perturbation",
                "noise_multiplier": noise,
                "regularisation": regularisation,
                "outputs": outputs,
            },
            noise,
            st.sampled_from((1e-9, 0.1, 5, 1e15)),
            st.sampled_from((1, 2, 10, 10**6)),
        ),
        st.sampled_from(({"type": "no_op"}, {"type": "non_private"})),
    )


RUNS = st.sampled_from(
    (
        {"type": "negative_binomial", "mean": 10.0, "shape": 1.0},
        {"type": "negative_binomial", "mean": 1.5, "shape": 0.0},
        {"type": "poisson", "mean": 5.0},
        {"type": "poisson", "mean": 0.5},
        {"type": "binomial", "mean": 4.0, "cap": 8},
        {"type": "binomial", "mean": 2.999999, "cap": 3},
        {"type": "uniform", "low": 1, "high": 5},
        {"type": "capped_geometric", "mean": 4.0, "cap": 60},
    )
)
RATES = st.sampled_from((0, 1, 0.1, 1e-3, 1e-12, 1e-300, 5e-324, 1.0 - 2**-53))


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.builds(lambda parts: {"type": "composed", "events": parts}, st.lists(inner, max_size=3)),
        st.builds(
            lambda event, count: {"type": "repeated", "count": count, "event": event},
            inner,
            st.sampled_from((0, 1, 2, 30)),
        ),
        st.builds(lambda event, rate: {"type": "poisson_sampled", "sample_rate": rate, "event": event}, inner, RATES),
        st.builds(
            lambda event, runs, low, high: {"type": "best_of", "runs": runs, "low": low, "high": high, "event": event},
            inner,
            RUNS,
            st.sampled_from((1.0, 0.5)),
            st.sampled_from((1.0, 2)),
        ),
        st.builds(
            lambda event, stop: {"type": "first_above", "stop_probability": stop, "event": event},
            inner,
            st.sampled_from((1.0, 0.1, 1e-9)),
        ),
        st.builds(
            lambda event, partition, part: {"type": "part", "partition": partition, "part": part, "event": event},
            inner,
            st.sampled_from(("fold", "split")),
            st.sampled_from(("a", "b", "é")),
        ),
        st.builds(
            lambda parts, weights: {"type": "one_of", "weights": weights, "events": parts},
            st.lists(inner, min_size=2, max_size=2),
            st.sampled_from((None, [0.5, 0.5], [1e-9, 3])),
        ),
    )


EVENTS = st.recursive(_leaf(), _grown, max_leaves=4)
LEDGERS = st.builds(
    lambda entries, refused: {"version": 1, "refused": refused, "entries": entries},
    st.lists(
        st.builds(lambda event, count: {"count": count, "event": event}, EVENTS, st.sampled_from((0, 1, 3, 1000))),
        max_size=3,
    ),
    st.sampled_from((None, "too much")),
)


EVENT_LIKE = st.one_of(EVENTS, mutated(EVENTS), VALUES)
LEDGER_LIKE = st.one_of(LEDGERS, mutated(LEDGERS), VALUES)


@examples(60)
@given(LEDGER_LIKE)
def test_ledgers(obj: Any) -> None:
    """Refused, or written down again as it was read, with the same events composed."""
    ledger = accepted(lambda: Ledger.from_json(obj))
    if ledger is None:
        return
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json(), allow_nan=False)))
    assert (again.entries, again.refused) == (ledger.entries, ledger.refused)
    assert again.event == ledger.event
    assert event_trees.describe(ledger.event)


@examples(50)
@given(EVENT_LIKE)
def test_epsilons(obj: Any) -> None:
    """ε is a number, or there is a clear reason why not; what is written differently costs the same."""
    event = accepted(lambda: event_trees.from_json(obj))
    if event is None or _work(obj) > 2000:
        return
    report = accepted(lambda: accountants.epsilon(event, DELTA, coarseness=20))
    if report is not None:
        assert report.epsilon >= 0  # which NaN is not
        assert all(value >= report.epsilon for value in report.by_accountant.values())
        assert report.epsilon >= _least(obj) * (1 - 1e-6) - 1e-9


def _work(obj: Any) -> float:
    """How long an accountant may need: releases, with what they are repeated."""
    match obj:
        case {"type": "repeated", "count": count, "event": event}:
            return min(count, 10**10) * _work(event)
        case {"type": "composed", "events": parts}:
            return sum(map(_work, parts))
        case {"type": "best_of" | "first_above", "event": event}:
            return 300 * _work(event)
        case {"event": event}:
            return 2 * _work(event)
    return 1


def _least(obj: Any) -> float:
    """A lower bound of ε: that of the Gaussians that all records are exposed to, by the closed formula."""
    counted = _gaussians(obj)
    if counted == math.inf:
        return math.inf
    return gaussian_epsilon(math.sqrt(counted), DELTA)


def _gaussians(obj: Any) -> float:
    """Σ count/σ² of what is composed at the top."""
    match obj:
        case {"type": "gaussian", "noise_multiplier": noise}:
            return min(noise, 1e100) ** -2 if noise >= 0.01 else 0.0  # in the formula numbers overflow below
        case {"type": "non_private"}:
            return math.inf
        case {"type": "composed", "events": parts}:
            return sum(map(_gaussians, parts))
        case {"type": "repeated", "count": count, "event": event}:
            return count * _gaussians(event) if count else 0.0
        case {"type": "poisson_sampled", "sample_rate": 1, "event": event}:
            return _gaussians(event)
    return 0.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of the Gaussian mechanism at sensitivity/noise = mu (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta)

    if mu < 1e-12 or excess(0.0) <= 0:
        return 0.0
    if mu > 30:
        return 400.0  # far less than it is
    return float(brentq(excess, 0, 2000))


# ---------------------------------------------------------------------------------------- found by fuzzing


@pytest.mark.parametrize("noise", [1e155, 1e200, 1.7976931348623157e308])
def test_noise_whose_square_overflows_costs_what_less_noise_costs(noise: float) -> None:
    for tree in (events.gaussian(noise), events.poisson_sampled(0.1, events.gaussian(noise)), events.laplace(noise)):
        assert accountants.epsilon(tree, DELTA, coarseness=20).epsilon == 0
    both = events.compose(events.gaussian(noise), events.gaussian(2.0))
    assert accountants.epsilon(both, DELTA).epsilon == accountants.epsilon(events.gaussian(2.0), DELTA).epsilon


@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e-200])
def test_a_sample_of_almost_nobody_has_an_epsilon(rate: float) -> None:
    tree = events.repeat(events.poisson_sampled(rate, events.gaussian(1.0)), 10)
    assert accountants.epsilon(tree, DELTA, coarseness=20).epsilon == 0
    assert accountants.epsilon(tree, 1e-12, coarseness=20).epsilon < 1e-3
