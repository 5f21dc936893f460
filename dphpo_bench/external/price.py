"""The price of tuning: what the published ε of a winner leaves out."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import inside, positive, typed
from dphpo_bench.base.errors import BudgetTooSmallError, InvalidValueError, UnsupportedEventError
from dphpo_bench.base.text import one_line
from dphpo_bench.external.histories import History, read_history
from dphpo_bench.external.price_report import Price, SelectionPrice
from dphpo_bench.external.studies import Stated, TrialOptions
from dphpo_bench.harness.account_report import Total
from dphpo_bench.privacy import event_rules, events
from dphpo_bench.privacy.accountants.report import epsilon as epsilon_of
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.calibration import calibrate
from dphpo_bench.privacy.event_kinds import rebuilt
from dphpo_bench.privacy.run_counts import MAX_MEAN, TruncatedNegativeBinomial
from dphpo_bench.privacy.runs_together import adaptively, roughly, together

SHAPE = 3.0
"""η of the number of runs of a private selection, as `papernot_steinke` has it."""

_FINE, _MOST = 16, 1000  # releases in one run: for all accountants, and for a selection at all
_COARSENESS = 4.0


@typed
def price(
    history: Any,
    *,
    delta: float | None = None,
    chosen_by: str | None = None,
    epsilon: float | None = None,
    scores: Literal["raw", "public"] | None = None,
    score_noise: float | None = None,
    count: int = 1,
    study: str | None = None,
    sample_rate: Stated = None,
    noise_multiplier: Stated = None,
    steps: Stated = None,
    batch_size: Stated = None,
    records: Stated = None,
    epochs: Stated = None,
) -> Price:
    """Return what tuning spent, what the published ε leaves out, and what a private selection would have cost.

        >>> price([("dp-sgd", 0.01, 1.1, 3000)] * 40, delta=1e-5).total.text()  # doctest: +SKIP

    The numbers are about the events that the history states: nobody checks that the training did what it says. All runs
    are taken to be on the same records, with Poisson batches where the rate is below 1.

    Args:
        history: a list of runs; a path of TOML, JSON, an Optuna study in SQLite, or the text of an event; a storage's
            URL; an Optuna study; an Opacus engine or accountant, or its `history`, which is one run; an event, or an
            execution plan of jax_privacy, which has one. A run in a list is a tuple:
            `("dp-sgd", sample_rate, noise_multiplier, steps)`, `("gaussian", noise_multiplier)`,
            `("laplace", noise_multiplier)` or `("pure", epsilon)`; or a dictionary of these names, `mechanism` and
            `count`; or an event, or one of the objects above but a study.
        delta: δ in (0, 1) of every ε; needed unless the file has it.
        chosen_by: what chose the winner, for the text; default: "validation score".
        epsilon: ε that was published; default: that of the winner alone.
        scores: "raw" (default) if private records computed the scores, "public" if only public ones did.
        score_noise: noise multiplier of each score, if Gaussian noise was added before anybody saw it. Each run has
            one score; of a study, values reported during training are scores, too.
        count: how often the whole history was run.
        study: name of the study, where a storage has several.
        sample_rate: of each trial of a study: a number, or the name of a parameter or user attribute. Default: what
            has this name, else `batch_size` / `records`.
        noise_multiplier: likewise.
        steps: likewise; else `epochs`, each of ⌈1/q⌉ steps at the rate q.
        batch_size: likewise.
        records: likewise; the number of training records.
        epochs: likewise.

    Raises:
        InvalidValueError: if the history cannot be read, or a number is out of range or missing.
        UnsupportedEventError: if no accountant bounds the runs.
    """
    options = TrialOptions(study, sample_rate, noise_multiplier, steps, batch_size, records, epochs)
    known = read_history(history, count, options)
    delta = known.delta if delta is None else delta
    if delta is None:
        raise InvalidValueError("Expected δ, which this history does not state: pass delta (--delta 1e-5).")
    delta = inside("delta", delta)
    if scores is None and score_noise is None:
        scores, score_noise = known.scores, known.score_noise
    noise, seen = score_noise, scores or ("raw" if score_noise is None else "noisy")
    if noise is not None and seen != "noisy":
        raise InvalidValueError(f"Expected scores={seen!r} or a score_noise, got both. Scores without noise have none.")
    noise = None if noise is None else positive("score_noise", noise)
    stated = known.epsilon if epsilon is None else epsilon
    stated = None if stated is None else positive("epsilon", stated)

    total = together(known.runs, delta)
    winner, least, costliest = _alone(known, delta)
    published = winner if stated is None else stated
    held_out = None
    if seen != "public":
        score = events.non_private() if noise is None else events.gaussian(noise)
        held_out = _total({score: known.n_scores or known.n_runs}, delta)
    try:
        selection = _selection(costliest, known.n_runs, delta, published, seen != "public")
        reason = ""
    except UnsupportedEventError as error:
        selection, reason = None, str(error)
    return Price(
        runs=known.n_runs,
        counts=known.runs,
        delta=delta,
        chosen_by=one_line(chosen_by or known.chosen_by or "validation score", 80),
        winner=winner,
        least=least,
        published=published,
        total=_total(known.runs, delta),
        accountant=total.quoted,
        scores=seen,
        held_out=held_out,
        by_results=known.by_results,
        costliest=costliest,
        selection=selection,
        no_selection=reason,
        notes=known.notes,
    )


def _total(runs: Mapping[DpEvent, int], delta: float) -> Total:
    """Return ε of runs fixed in advance, and of runs chosen after looking."""
    n, fixed = sum(runs.values()), together(runs, delta).epsilon
    try:
        later = max(fixed, adaptively(runs, delta)) if n > 1 else fixed
    except UnsupportedEventError:
        later = None
    return Total("record", n, delta, fixed, later)


def _alone(history: History, delta: float) -> tuple[float, float, DpEvent]:
    """Return the largest and the least ε of the runs that may have won, and the costliest run.

    Of more than `_FINE` different runs, a quick bound finds those that may be the costliest and the cheapest.
    """
    runs = list(history.runs)
    if len(runs) > _FINE:
        runs.sort(key=lambda run: roughly(run, delta))
        runs = [*runs[: _FINE // 2], *runs[-_FINE // 2 :]]
    alone = {run: together([run], delta).epsilon for run in runs}
    costliest = max(alone, key=lambda run: alone[run])
    if history.winner is not None:
        exact = together([history.winner], delta).epsilon
        return exact, exact, costliest
    return alone[costliest], min(alone.values()), costliest


def _selection(run: DpEvent, n_runs: int, delta: float, target: float, private_scores: bool) -> SelectionPrice:
    """Return the price of a selection among runs like this one.

    Raises:
        UnsupportedEventError: if no bound is known, or a selection is none.
    """
    if n_runs == 1:
        raise UnsupportedEventError("a single run is no selection")
    if n_runs > MAX_MEAN:
        raise UnsupportedEventError(f"its mean is at most {MAX_MEAN:,.0f} runs")
    releases = len(event_rules.multiset(run))
    if releases > _MOST:
        raise UnsupportedEventError(f"the costliest run has {releases:,} different releases, more than {_MOST:,}")
    runs = TruncatedNegativeBinomial(n_runs, SHAPE)

    def noised(factor: float) -> DpEvent:
        return events.best_of(_scaled(run, factor), runs)

    def scored(noise: float) -> DpEvent:
        return events.best_of(events.gaussian(noise), runs)

    fine = releases <= _FINE
    report = epsilon_of(noised(1.0), delta) if fine else epsilon_of(
        noised(1.0), delta, accountant="rdp", coarseness=_COARSENESS
    )  # fmt: skip
    score_noise = factor = alone = target_noise = None
    if private_scores and 0 < report.epsilon < math.inf:
        score_noise = calibrate(scored, PrivacyBudget(report.epsilon, delta), accountant=report.quoted)
    if fine and 0 < target < math.inf:
        try:
            factor = calibrate(noised, PrivacyBudget(target, delta))
        except BudgetTooSmallError:
            pass
        else:
            quoted = epsilon_of(noised(factor), delta).quoted
            alone = together([_scaled(run, factor)], delta).epsilon
            target_noise = (
                calibrate(scored, PrivacyBudget(target, delta), accountant=quoted) if private_scores else None
            )
    return SelectionPrice(
        float(n_runs), report.epsilon, report.quoted, score_noise, target, factor, alone, target_noise
    )


def _scaled(event: DpEvent, factor: float) -> DpEvent:
    """Return the event with so many times the noise everywhere; a pure release has so much less of ε."""
    match event:
        case dp_event.GaussianDpEvent(noise_multiplier=noise) | dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return type(event)(noise * factor)
        case events.PureDpEvent(epsilon=epsilon):
            return events.pure_dp(epsilon / factor)
        case events.ObjectivePerturbationDpEvent(noise_multiplier=noise):
            return events.objective_perturbation(noise * factor, event.regularisation, event.outputs)
    return rebuilt(event, lambda inner: _scaled(inner, factor))
