"""The price of tuning: its numbers, and one screen of words about them."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.text import count, one_line, rounded_up
from dphpo_bench.harness.account_report import Total, bound_text
from dphpo_bench.privacy.event_kinds import walk
from dphpo_bench.privacy.event_texts import describe, to_json

_SHOWN = 3
_LABEL, _WIDTH = 13, 110


@dataclass(frozen=True)
class SelectionPrice:
    """Price of a private selection among as many runs on average, each like the costliest of a history.

    Attributes:
        mean: expected number of runs.
        epsilon: its ε at the noise of the costliest run.
        accountant: whose ε that is.
        score_noise: noise multiplier of each score of private records that keeps to this ε; None for public records.
        target: ε that was published.
        noise_factor: by how much the noise has to grow for `target`; None if it is not known.
        run_epsilon: ε of a single run with this noise; None if the factor is not known.
        target_score_noise: noise multiplier of each score that keeps to `target`; None as above.
    """

    mean: float
    epsilon: float
    accountant: str
    score_noise: float | None
    target: float
    noise_factor: float | None
    run_epsilon: float | None
    target_score_noise: float | None


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
        notes: lines about how the history was read.
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
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return one screen of text."""
        return "\n".join(_lines(self))

    def display(self) -> Display:
        """Return the screen of text as labels with their sentences, and the call of `select`."""
        title, *events = _runs(self)
        rows = [("Runs", text.strip()) for text in events]
        rows += [(label, " ".join(sentences)) for label, sentences in _rows(self)]
        if call := " ".join(map(str.strip, _code(self))).strip():
            rows.append(("Next time", call.removeprefix("Next time: ")))
        return title, rows

    def to_json(self) -> dict[str, Any]:
        """Return the price as JSON values."""
        counts = [{"count": count, "event": to_json(event)} for event, count in self.counts.items()]
        simple = ("runs", "delta", "chosen_by", "winner", "least", "published", "accountant", "scores", "by_results")
        return {
            **{name: getattr(self, name) for name in simple},
            "counts": counts,
            "total": asdict(self.total),
            "held_out": None if self.held_out is None else asdict(self.held_out),
            "costliest": to_json(self.costliest),
            "selection": None if self.selection is None else asdict(self.selection),
            "no_selection": self.no_selection,
            "notes": list(self.notes),
        }


def _runs(price: Price) -> list[str]:
    """Return a line on the number of runs, and the most frequent kinds of them."""
    chosen = "" if price.runs == 1 else f"; the best by {price.chosen_by} was published"
    texts = [f"{count(price.runs, 'run')} on the same private records{chosen}."]
    most = sorted(price.counts.items(), key=lambda item: -item[1])[:_SHOWN]
    texts += [f"  {times:,} × ({one_line(describe(event), 150)})" for event, times in most]
    if rest := len(price.counts) - len(most):
        texts.append(f"  and {count(rest, 'other kind')} of runs")
    return texts


def _lines(price: Price) -> list[str]:
    texts = [*_runs(price), ""]
    for label, sentences in _rows(price):
        wrapped = [line for text in sentences for line in textwrap.wrap(text, _WIDTH - _LABEL)]
        texts += [f"{label if index == 0 else '':{_LABEL}}{line}" for index, line in enumerate(wrapped)]
    return texts + _code(price)


def _rows(price: Price) -> Iterator[tuple[str, list[str]]]:
    """Return labels, each with its sentences."""
    yield "Published", [_published(price)]
    if price.runs > 1:
        others = "the other run, whose score" if price.runs == 2 else f"the {price.runs - 1:,} other runs, whose scores"
        yield "Leaves out", [f"{others} chose the winner, too. What was published depends on all of them."]
    yield "Spent", _spent(price)
    if price.runs > 1:
        yield "Scores", _scores(price)
        yield "Instead", _instead(price)
    yield "Accountants", [_accountants(price)]
    assumed = (
        "All runs read the same records, in Poisson batches where a rate is below 1. Neighbours differ by one record"
    )
    yield "Assumed", [f"{assumed}, added or removed."]
    if price.notes:
        yield "Read as", list(price.notes)


def _published(price: Price) -> str:
    at = f"at δ = {price.delta:.3g}"
    if price.published != price.winner:
        alone = f"by the accountants here, the winner alone has ε = {bound_text(price.winner)} {at}"
        return f"ε = {price.published:g}, as stated; {alone}."
    if price.least < price.winner:
        return (
            f"ε = {bound_text(price.least)} to {bound_text(price.winner)} {at}: the winner alone. The history does not "
            "say which run won."
        )
    return f"ε = {bound_text(price.winner)} {at}: the winner alone."


def _spent(price: Price) -> list[str]:
    total = price.total
    fixed = f"ε = {bound_text(total.together or 0.0)}"
    if price.runs == 1:
        return [f"{fixed}: nothing was chosen among runs."]
    later = "ε is not known" if total.adaptively is None else f"ε = {bound_text(total.adaptively)}"
    decided = "Results decided how long some runs trained, so the second number is the one about this history."
    return [
        f"{fixed} if the number of runs, and noise, rate and steps of each, were fixed in advance.",
        f"{later} if any of these was chosen after looking at earlier results, and this total had been planned.",
        *([decided] if price.by_results else []),
    ]


def _scores(price: Price) -> list[str]:
    if price.held_out is None:
        return ["of public records only: they cost nothing more."]
    if price.scores == "raw":
        return [
            "The held-out records that scored the runs have no guarantee: their scores had no noise. If these records "
            "also trained, as in cross-validation, no record has any. State scores or score_noise if it was otherwise."
        ]
    return [
        f"A held-out record, in {count(price.held_out.releases, 'noisy score')}: {price.held_out.text()}. "
        "A record that trained some runs and scored others pays for both."
    ]


def _instead(price: Price) -> list[str]:
    selection, together = price.selection, price.total.together or 0.0
    if selection is None:
        return [f"The ε of a private selection is not known: {price.no_selection.rstrip('.')}."]
    spent = bound_text(together)
    compared = (
        f"That is less than the {spent} of all runs."
        if selection.epsilon < together
        else f"That is not less than the {spent} of all runs: a list fixed in advance is as cheap here, and shows all."
    )
    at_noise = f"at the noise of the costliest run{_noise(selection.score_noise)}"
    texts = [
        "A private selection draws the settings of each run blindly. It runs a secret random number, "
        f"{selection.mean:g} on average, and publishes the best and nothing else.",
        f"ε = {bound_text(selection.epsilon)} {at_noise}. {compared}",
    ]
    if selection.noise_factor is None or selection.run_epsilon is None:
        return [*texts, f"The noise that it would have needed for ε = {bound_text(selection.target)} is not known."]
    sigma = _sigma(price.costliest)
    exactly = "" if sigma is None else f" (σ = {rounded_up(sigma * selection.noise_factor, 4)} instead of {sigma:.4g})"
    more = f"with {rounded_up(selection.noise_factor, 3)} times that noise{exactly}"
    return [
        *texts,
        f"ε = {bound_text(selection.target)}, as published, {more}{_noise(selection.target_score_noise)}. A run alone "
        f"then has ε = {bound_text(selection.run_epsilon)}.",
    ]


def _noise(score_noise: float | None) -> str:
    return "" if score_noise is None else f", and scores of noise multiplier {rounded_up(score_noise, 3)}"


def _accountants(price: Price) -> str:
    if price.runs == 1:
        return f"{price.accountant}."
    selection = "" if price.selection is None else f", {price.selection.accountant} (private selection)"
    return f"{price.accountant} (all runs), rdp (chosen after looking){selection}."


def _sigma(event: DpEvent) -> float | None:
    """Return the noise multiplier of an event's Gaussians, if they have a single one."""
    noises = {inner.noise_multiplier for inner in walk(event) if type(inner) is dp_event.GaussianDpEvent}
    return noises.pop() if len(noises) == 1 else None


def _code(price: Price) -> list[str]:
    """Return a call of `select` that keeps to the budget that was published, with as many trials on average."""
    if price.selection is None or price.selection.noise_factor is None:
        return []
    match price.costliest:
        case dp_event.SelfComposedDpEvent(
            event=dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=dp_event.GaussianDpEvent()),
            count=steps,
        ):
            event = f"lambda sigma: bench.recipes.dp_sgd_event({rate!r}, {steps}, sigma)"
        case _:
            event = "..."
    budget = f"bench.PrivacyBudget({price.published:.6g}, {price.delta:g})"
    scored = "" if price.scores == "public" else ", held_out=0.1, n_scored=..."
    return [
        "",
        f"Next time: bench.select(train, space, budget={budget}{scored},",
        f'    method=bench.make_method("papernot_steinke", {{"mean": {price.runs}}}),',
        f"    event={event})",
    ]
