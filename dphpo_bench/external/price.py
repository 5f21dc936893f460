"""The price of tuning: what the published ε of a winner leaves out.

A history of runs on private records comes as a list, a file, an Opacus accountant or an Optuna study. `price` turns it
into events, and sets the ε of all of them beside that of the winner.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from annotated_types import Interval
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from pydantic import BaseModel, ValidationError

from dphpo_bench.base.checks import inside, number, positive, ranged, typed, whole
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import BudgetTooSmallError, DphpoBenchError, InvalidValueError, UnsupportedEventError
from dphpo_bench.base.files import bytes_in, misfit, toml_values, unique_names
from dphpo_bench.base.text import count as counted
from dphpo_bench.base.text import one_line, rounded_up, shown
from dphpo_bench.harness.account_report import Total, bound_text
from dphpo_bench.privacy import event_trees, events
from dphpo_bench.privacy.accountants.report import epsilon as epsilon_of
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.calibration import calibrate
from dphpo_bench.privacy.event_trees import describe, rebuilt, to_json
from dphpo_bench.privacy.run_counts import MAX_MEAN, TruncatedNegativeBinomial
from dphpo_bench.privacy.runs_together import adaptively, roughly, together

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


MAX_BYTES = 2**24
MAX_RUNS = 10**6
POISSON = "Opacus: its accountants assume Poisson batches; with poisson_sampling=False, no number here holds."


def dp_sgd(sample_rate: Any, noise_multiplier: Any, steps: Any) -> DpEvent:
    """Return the event of DP-SGD, checked as a person's input: 0 < `sample_rate` <= 1, and at least one step."""
    rate = ranged("sample_rate", sample_rate, float, Interval(gt=0, le=1))
    noise = number("noise_multiplier", noise_multiplier, low=0)
    steps = int(steps) if isinstance(steps, float) and steps.is_integer() else steps  # as JSON and Optuna write them
    steps = whole("steps", steps, low=1, high=events.MAX_COUNT)
    return events.repeat(events.poisson_sampled(rate, events.gaussian(noise)), steps)


MECHANISMS: Mapping[str, tuple[Callable[..., DpEvent], tuple[str, ...]]] = MappingProxyType(
    {
        "dp-sgd": (dp_sgd, ("sample_rate", "noise_multiplier", "steps")),
        "gaussian": (events.gaussian, ("noise_multiplier",)),
        "laplace": (events.laplace, ("noise_multiplier",)),
        "pure": (events.pure_dp, ("epsilon",)),
    }
)
"""Names of mechanisms in a history: the event of a run, and the names of its numbers."""


class _File(BaseModel, frozen=True, extra="forbid", strict=True):
    """A history's file; `price` checks the ranges of what it says beside the runs."""

    runs: list[Any]
    delta: float | None = None
    chosen_by: str | None = None
    epsilon: float | None = None
    scores: Literal["raw", "public"] | None = None
    score_noise: float | None = None


@dataclass(frozen=True)
class History:
    """Runs on the same private records, and what their history says about them."""

    runs: Mapping[DpEvent, int]  # how many runs had each event; equal events are counted together
    winner: DpEvent | None = None  # the event of the run that was published; None if it is not known
    by_results: bool = False  # True if results decided how long some run trained, as a pruner does
    n_scores: int | None = None  # number of scores that somebody saw; None: one for each run
    note: str = ""  # for people, about the reading
    said: Mapping[str, Any] = field(default_factory=dict)  # arguments of `price` that the history states

    @property
    def n_runs(self) -> int:
        """Number of all runs."""
        return sum(self.runs.values())


def read_history(history: object, run: Callable[["FrozenTrial"], Any] | None) -> History:
    """Return the runs of a history, as `price` takes both arguments."""
    try:
        optuna = sys.modules.get("optuna")  # who has a study has imported it
        if optuna is not None and isinstance(history, optuna.Study):
            return _of_study(history, run or dp_sgd_of)
        if run is not None:
            raise InvalidValueError("run is about an Optuna study, and this history is none.")
        read = _of_file(Path(history)) if isinstance(history, str | Path) else _of_list(history, "history")
    except RecursionError:
        raise InvalidValueError("Expected a history of few levels, got one that is too deep to read.") from None
    whole("number of runs", read.n_runs, low=1, high=MAX_RUNS)
    return read


def _of_file(path: Path) -> History:
    data = bytes_in(path, MAX_BYTES, "history")
    values: Any
    if path.suffix.lower() == ".toml":
        values = toml_values(path, data)
    else:
        try:
            values = json.loads(data, object_pairs_hook=unique_names)
        except ValueError as error:
            raise InvalidValueError(
                f"{path} is no history: expected TOML (in NAME.toml) or JSON. {shown(error, 200)}. Of a storage of "
                "Optuna, price the study: bench.price(optuna.load_study(...))."
            ) from None
    if not isinstance(values, dict) or "type" in values:
        return _of_list(values, f"{path}, ")
    try:
        known = _File.model_validate(values)
    except ValidationError as error:
        raise misfit(path, error) from None
    read = _of_list(known.runs, f"{path}, runs")
    return replace(read, said=known.model_dump(exclude={"runs"}, exclude_none=True))


def _of_list(values: Any, where: str) -> History:
    """Return the runs of a list, or the single run that the values are; errors say which run is wrong."""
    is_list = isinstance(values, list | tuple)
    is_single = not is_list or (bool(values) and isinstance(values[0], str)) or _is_steps(values)
    listed = [values] if is_single else values
    runs: Counter[DpEvent] = Counter()
    for index, value in enumerate(listed):
        try:
            event, times = _run(value)
        except DphpoBenchError as error:
            place = where.rstrip(", ") if is_single else f"{where}[{index}]"
            raise type(error)(f"{place}: {error}") from None
        runs[event] += times
    return History(runs, note=POISSON if any(_is_steps(_history_of(value)) for value in listed) else "")


def _run(value: Any) -> tuple[DpEvent, int]:
    """Return the frozen event of an entry, and how many runs it stands for."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        names = MECHANISMS.get(value[0].replace("_", "-"), ((), ()))[1]
        value = dict(zip(("mechanism", *names, "more"), value, strict=False))  # which is no name of a number
    if isinstance(value, Mapping) and "type" not in value:
        values = dict(value)
        times = whole("count", values.pop("count", 1), low=1, high=MAX_RUNS)
        if values.keys() == {"event"}:
            return _run(values["event"])[0], times
        known = MECHANISMS.get(str(values.pop("mechanism", "")).replace("_", "-"))
        if known is None or values.keys() != set(known[1]):
            forms = "; ".join(f"{name}: {', '.join(names)}" for name, (_, names) in MECHANISMS.items())
            raise InvalidValueError(
                f"Expected a mechanism and its numbers ({forms}), or an event, got {shown(dict(value), form=repr)}."
            )
        return event_trees.frozen(known[0](**values)), times
    if isinstance(value, Mapping):
        value = event_trees.from_json(dict(value))
    if isinstance(value, DpEvent):
        return event_trees.frozen(value), 1
    steps = _history_of(value)
    if _is_steps(steps):
        return event_trees.frozen(events.compose(*(dp_sgd(rate, noise, times) for noise, rate, times in steps))), 1
    raise InvalidValueError(
        "Expected a run: a tuple such as ('dp-sgd', sample_rate, noise_multiplier, steps), a dictionary of these names,"
        " an event, or an Opacus accountant after training or its history, [(noise_multiplier, sample_rate, steps), "
        f"...]; got {shown(value, form=repr)}."
    )


def _history_of(value: object) -> Any:
    """Return the history of an Opacus accountant, or of an engine's; anything else as it is."""
    return getattr(getattr(value, "accountant", value), "history", value)


def _is_steps(value: Any) -> bool:
    """Return True for a list of triples, as in an Opacus history; what they hold is checked later."""
    return isinstance(value, list | tuple) and bool(value) and all(
        isinstance(item, list | tuple) and len(item) == 3 and not isinstance(item[0], str | list | tuple)
        for item in value
    )  # fmt: skip


def _of_study(study: "Study", run: Callable[["FrozenTrial"], Any]) -> History:
    """Return the trials of a study that began, each as a run: those that were pruned or failed read records, too."""
    from optuna.trial import TrialState

    began = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    if not began:
        raise InvalidValueError(f"The study {shown(study.study_name, form=repr)} has no trial that began.")
    runs: dict[int, DpEvent] = {}
    for trial in began:
        try:
            runs[trial.number], _ = _run(run(trial))
        except (InvalidValueError, LookupError, TypeError) as error:
            raise InvalidValueError(
                f"Trial {trial.number} ({trial.state.name}) began, so it counts, and its run is not known: "
                f"{type(error).__name__}: {shown(error, 300)}. Pass run=, trial → run."
            ) from None
    try:
        winner = runs[study.best_trial.number]
    except (ValueError, RuntimeError):  # no trial ended, or there are several objectives
        winner = None
    states = Counter(trial.state.name for trial in began)
    counts = ", ".join(f"{n} {name}" for name, n in states.items())
    note = f"Study {shown(study.study_name)}, trials that began: {counts}"
    scores = sum(len(trial.intermediate_values) + (trial.state == TrialState.COMPLETE) for trial in began)
    return History(Counter(runs.values()), winner, "PRUNED" in states, max(scores, len(began)), note)


def dp_sgd_of(trial: "FrozenTrial") -> tuple[Any, ...]:
    """Return the run of a trial whose parameters or user attributes name its sample rate, noise and steps.

    Of a trial that failed or still runs, parameters alone count: it may have trained on after it wrote attributes.
    """
    values = {**trial.params, **(trial.user_attrs if trial.state.name in ("COMPLETE", "PRUNED") else {})}
    return "dp-sgd", values["sample_rate"], values["noise_multiplier"], values["steps"]


SHAPE = 3.0
"""η of the number of runs of a private selection, as `papernot_steinke` has it."""

_FINE, _MOST = 16, 1000  # releases in one run: for all accountants, and for a selection at all
_COARSENESS = 4.0
_SHOWN = 3


@dataclass(frozen=True)
class SelectionPrice:
    """Price of a private selection among as many runs on average, each like the costliest of a history."""

    epsilon: float  # its ε at the noise of the costliest run
    accountant: str  # whose ε that is
    # Noise multiplier of each score of private records that keeps to this ε; None for public records.
    score_noise: float | None
    noise_factor: float | None  # by how much the noise has to grow for the published ε; None if it is not known


@dataclass(frozen=True, repr=False)
class Price(Displayed):
    """Privacy that tuning spent, of which a paper that publishes the winner states a part.

    Attributes:
        runs: number of runs, all taken to be on the same private records.
        counts: how many runs had each event.
        delta: δ of every ε here.
        chosen_by: what chose the winner.
        winner: ε of the winner alone; the largest of those that may have won.
        least: the least of those that may have won.
        published: ε that was published: as stated, else `winner`.
        total: ε of all runs, for a record that trained.
        accountant: whose ε `total.together` is.
        scores: "raw", "noisy" or "public": what the scores are that chose the winner.
        held_out: ε of all scores, for a record that computed them; None for public records.
        by_results: True if results decided how long some run trained: `total.adaptively` counts.
        costliest: event of the costliest run.
        selection: price of a private selection instead; None if it is not known.
        no_selection: why it is not known; else empty.
        note: about how the history was read.
    """

    runs: int
    counts: Mapping[DpEvent, int]
    delta: float
    chosen_by: str
    winner: float
    least: float
    published: float
    total: Total
    accountant: str
    scores: Literal["raw", "noisy", "public"]
    held_out: Total | None
    by_results: bool
    costliest: DpEvent
    selection: SelectionPrice | None
    no_selection: str
    note: str

    def display(self) -> Display:
        """Return the numbers as rows, and the call of `select` that would have kept to what was published."""
        title = f"{counted(self.runs, 'run')} on the same private records"
        most = sorted(self.counts.items(), key=lambda item: -item[1])[:_SHOWN]
        rows = [(f"{times:,} ×", one_line(describe(event), 150)) for event, times in most]
        if rest := len(self.counts) - len(most):
            rows.append(("and", f"{counted(rest, 'other kind')} of runs"))
        rows.append(("published", self._published()))
        fixed = bound_text(self.total.together or 0.0)
        if self.runs == 1:
            rows.append(("spent", f"ε = {fixed}: nothing was chosen among runs."))
        else:
            title = f"{title}; the best by {self.chosen_by} was published"
            later = "not known" if self.total.adaptively is None else bound_text(self.total.adaptively)
            decided = " Results decided how long some runs trained: this ε counts." if self.by_results else ""
            rows += [
                ("left out", f"{counted(self.runs - 1, 'other run')}, whose scores chose the winner, too"),
                ("spent", f"ε = {fixed} if number, noise, rate and steps of the runs were fixed in advance"),
                ("", f"ε = {later} if earlier results chose any of these, and this total had been planned.{decided}"),
                ("scores", self._scores()),
                *self._instead(),
            ]
        selection = f", {self.selection.accountant} (private selection)" if self.selection else ""
        rows += [
            ("accountants", f"{self.accountant} (all runs), rdp (chosen by results){selection}"),
            ("assumed", "All runs read the same records, in Poisson batches where a rate is below 1. Neighbours differ "
             "by one record, added or removed."),
        ]  # fmt: skip
        return title, rows + ([("read as", self.note)] if self.note else [])

    def to_json(self) -> dict[str, Any]:
        """Return the price as JSON values."""
        written = {
            "counts": [{"count": times, "event": to_json(event)} for event, times in self.counts.items()],
            "total": asdict(self.total),
            "held_out": None if self.held_out is None else asdict(self.held_out),
            "costliest": to_json(self.costliest),
            "selection": None if self.selection is None else asdict(self.selection),
        }
        return {**vars(self), **written}

    def _published(self) -> str:
        winner = bound_text(self.winner)
        if self.published != self.winner:
            return f"ε = {self.published:g}, as stated; by the accountants here, the winner alone has ε = {winner}"
        if self.least < self.winner:
            return f"ε = {bound_text(self.least)} to {winner}: the winner alone; which run won is not known"
        return f"ε = {winner} at δ = {self.delta:.3g}: the winner alone"

    def _scores(self) -> str:
        if self.held_out is None:
            return "of public records only: they cost nothing more"
        if self.scores == "raw":
            return (
                "The held-out records that scored the runs have no guarantee: their scores had no noise. If these "
                "records also trained, as in cross-validation, no record has any. State scores or score_noise if it "
                "was otherwise."
            )
        return (
            f"A held-out record, in {counted(self.held_out.releases, 'noisy score')}: {self.held_out.text()}. A record "
            "that trained some runs and scored others pays for both."
        )

    def _instead(self) -> list[tuple[str, str]]:
        selection, spent = self.selection, self.total.together or 0.0
        if selection is None:
            return [("instead", f"The ε of a private selection is not known: {self.no_selection.rstrip('.')}.")]
        than = "less" if selection.epsilon < spent else "not less"
        scores = "" if selection.score_noise is None else f" and scores of noise {rounded_up(selection.score_noise, 3)}"
        rows = [
            ("instead", "A private selection draws hyperparameters blindly, runs a secret number of times, "
             f"{self.runs:,} on average, and publishes the best alone."),
            ("", f"ε = {bound_text(selection.epsilon)} at the noise of the costliest run{scores}: {than} than "
             f"{bound_text(spent)}"),
        ]  # fmt: skip
        if selection.noise_factor is None:
            return [*rows, ("", f"The noise that it needs for ε = {bound_text(self.published)} is not known.")]
        match self.costliest:
            case dp_event.SelfComposedDpEvent(
                event=dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=dp_event.GaussianDpEvent()),
                count=steps,
            ):
                event = f"lambda sigma: bench.recipes.dp_sgd_event({rate!r}, {steps}, sigma)"
            case _:
                event = "..."
        held_out = "" if self.scores == "public" else "held_out=0.1, n_scored=..., "
        call = (
            f"bench.select(train, space, budget=bench.PrivacyBudget({self.published:.6g}, {self.delta:g}), {held_out}"
            f'method=bench.make_method("papernot_steinke", {{"mean": {self.runs}}}), event={event})'
        )
        factor = rounded_up(selection.noise_factor, 3)
        rows.append(("", f"ε = {bound_text(self.published)}, as published, with {factor} times that noise"))
        return [*rows, ("next time", call)]


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
    run: Callable[["FrozenTrial"], Any] | None = None,
) -> Price:
    """Return what tuning spent, what the published ε leaves out, and what a private selection would have cost.

        >>> price([("dp-sgd", 0.01, 1.1, 3000)] * 40, delta=1e-5).total.text()  # doctest: +SKIP

    The numbers are about the events that the history states: nobody checks that the training did what it says. All runs
    are taken to be on the same records, with Poisson batches where the rate is below 1.

    Args:
        history: a list of runs; a path of TOML or JSON; an Optuna study; an Opacus engine or accountant, or its
            `history`, which is one run; or an event, which is one, too. A run in a list is a tuple:
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
        run: of a trial of an Optuna study, as an entry of a list; default: "dp-sgd" with what the trial's parameters
            or user attributes name `sample_rate`, `noise_multiplier` and `steps`. Every trial that began counts.

    Raises:
        InvalidValueError: if the history cannot be read, or a number is out of range or missing.
        UnsupportedEventError: if no accountant bounds the runs.
    """
    times = whole("count", count, low=1, high=MAX_RUNS)
    known = read_history(history, run)
    said = known.said
    delta = said.get("delta") if delta is None else delta
    if delta is None:
        raise InvalidValueError("Expected δ, which this history does not state: pass delta (--delta 1e-5).")
    delta = inside("delta", delta)
    if scores is None and score_noise is None:
        scores, score_noise = said.get("scores"), said.get("score_noise")
    if scores is not None and score_noise is not None:
        raise InvalidValueError(f"Expected scores={scores!r} or a score_noise, got both.")
    score = events.non_private() if score_noise is None else events.gaussian(positive("score_noise", score_noise))
    stated = said.get("epsilon") if epsilon is None else epsilon
    stated = None if stated is None else positive("epsilon", stated)

    runs = {event: number * times for event, number in known.runs.items()}
    n_runs = sum(runs.values())
    winner, least, costliest = _alone(known, delta)
    published = winner if stated is None else stated
    is_public = scores == "public"
    try:
        selection, reason = _selection(costliest, n_runs, delta, published, not is_public), ""
    except UnsupportedEventError as error:
        selection, reason = None, str(error)
    return Price(
        runs=n_runs,
        counts=runs,
        delta=delta,
        chosen_by=one_line(chosen_by or said.get("chosen_by") or "validation score", 80),
        winner=winner,
        least=least,
        published=published,
        total=_total(runs, delta),
        accountant=together(runs, delta).quoted,
        scores=scores or ("raw" if score_noise is None else "noisy"),
        held_out=None if is_public else _total({score: times * (known.n_scores or known.n_runs)}, delta),
        by_results=known.by_results,
        costliest=costliest,
        selection=selection,
        no_selection=reason,
        note=known.note,
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
    """Return the price of a selection among runs like this one; reject runs for which no bound is known."""
    releases = len(event_trees.multiset(run))
    if not 1 < n_runs <= MAX_MEAN or releases > _MOST:
        raise UnsupportedEventError(f"it is for 2 to {MAX_MEAN:,.0f} runs of at most {_MOST:,} different releases")
    runs = TruncatedNegativeBinomial(n_runs, SHAPE)

    def noised(factor: float) -> DpEvent:
        return events.best_of(_scaled(run, factor), runs)

    if releases > _FINE:
        report = epsilon_of(noised(1.0), delta, accountant="rdp", coarseness=_COARSENESS)
    else:
        report = epsilon_of(noised(1.0), delta)
    score_noise = factor = None
    if private_scores and 0 < report.epsilon < math.inf:
        budget = PrivacyBudget(report.epsilon, delta)
        score_noise = calibrate(
            lambda noise: events.best_of(events.gaussian(noise), runs), budget, accountant=report.quoted
        )
    if releases <= _FINE and 0 < target < math.inf:
        with suppress(BudgetTooSmallError):
            factor = calibrate(noised, PrivacyBudget(target, delta))
    return SelectionPrice(report.epsilon, report.quoted, score_noise, factor)


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
