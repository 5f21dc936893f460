"""The proven risk of a recorded run, and a page of text on its privacy, for a paper or a data protection officer.

What the page says follows Ponomareva et al. 2023 (How to DP-fy ML, reporting) and NIST SP 800-226.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.base.text import one_line, rounded_up
from dphpo_bench.privacy.accountants.report import ACCOUNTANTS
from dphpo_bench.privacy.event_trees import describe, has_selection, walk
from dphpo_bench.privacy.events import PartDpEvent
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import CERTAIN, Risk, risk, risk_of_point, worst
from dphpo_bench.records.record import Privacy, ProvenRisk, RunRecord

_ROUNDING = 1e-9
"""Rounding of two evaluations of one event, far below the resolution of any accountant."""


def recorded(risk: Risk) -> ProvenRisk:
    return ProvenRisk(**asdict(risk))


def stated(privacy: Privacy, delta: float) -> Risk | None:
    """Return what a record says of its risk beyond its ledger; None if nothing.

    The plan counts as well, since a run that stops early is as private as its plan. Where a record states no risk, and
    its ledger costs less than its plan, nothing is known of the plan but its ε at δ.
    """
    if privacy.risk:
        return Risk(**privacy.risk.model_dump())
    if privacy.recomputed and privacy.planned.epsilon > privacy.recomputed.epsilon + _ROUNDING:
        return risk_of_point(privacy.planned.epsilon, delta)
    return None


def risk_of(privacy: Privacy, delta: float) -> Risk:
    """Return the worse of what a record states and what its ledger costs.

    Raises:
        UnsupportedEventError: if no accountant bounds the ledger.
    """
    if not privacy.end_to_end_private or privacy.recomputed is None:
        return CERTAIN
    of_ledger, of_record = risk(Ledger.from_json(privacy.ledger).event, delta), stated(privacy, delta)
    return worst([of_ledger, of_record]) if of_record else of_ledger


def record_risk(record: RunRecord) -> Risk | None:
    """Return the risk of a recorded run; None if nothing bounds it, or the run failed before it was known."""
    try:
        return risk_of(record.privacy, record.identity.delta) if record.privacy else None
    except DphpoBenchError:
        return None


WIDTH = 96
MAX_RELEASES = 8
MAX_TEXT = 400
ALONE = (
    "This statement is about one run. Every other run on the same records is a release of its own, whose cost adds up; "
    "this record does not know of them."
)

Section = tuple[str, list[str]]
"""A heading and its paragraphs."""


def releases(privacy: Privacy) -> list[str]:
    """Describe what a ledger holds, such as "112 × Poisson(q=0.356; Gaussian σ=2.07)", the most frequent first."""
    entries = sorted(Ledger.from_json(privacy.ledger).entries, key=lambda entry: -entry[1])
    return [describe(event) if times == 1 else f"{times:,} × {describe(event)}" for event, times in entries]


def sections(record: RunRecord, risk: Risk | None, account: str | None = None) -> list[Section]:
    """Return what is to be said of a run."""
    privacy = record.privacy
    if privacy is None or not (privacy.end_to_end_private and privacy.recomputed) or privacy.epsilon == math.inf:
        return [
            ("Guarantee", [*_failure(record), _no_guarantee(privacy)]),
            ("Consequence", ["Treat all that this run put out, its model included, like the records themselves."]),
            ("Other runs on the same records", [account or ALONE]),
        ]
    unit = unit_text(record.identity.unit)
    return [
        ("Guarantee", [*_failure(record), *_guarantee(record, privacy)]),
        ("What an attacker can learn at most", attack(risk, unit)),
        (
            "What is protected",
            [
                f"Whether {unit} was among the training records, and with it everything that is said there: what was "
                "released would have been nearly as likely without.",
                "This holds against any other knowledge, and for whatever is computed from the release later.",
            ],
        ),
        ("What is not protected", [*_unprotected(record)]),
        ("Accounting", [*_accounting(record, privacy)]),
        ("Sampling and noise", [*_noise(record, privacy)]),
        ("Tuning", [*_tuning(privacy)]),
        ("Other runs on the same records", [account or ALONE]),
        ("To verify", [*_verification(record)]),
    ]


def title(record: RunRecord) -> str:
    who = record.identity
    return one_line(
        f"Privacy statement: {who.method} (version {who.method_version}) on {who.task} ({who.model}), "
        f"{record.created:%d %B %Y}, record {who.key}",
        MAX_TEXT,
    )


def lines(record: RunRecord, risk: Risk | None, account: str | None = None) -> Iterator[str]:
    yield from page(title(record), sections(record, risk, account))


def page(title: str, sections: list[Section]) -> Iterator[str]:
    yield from wrap(title, WIDTH)
    for heading, paragraphs in sections:
        yield ""
        yield heading
        for paragraph in paragraphs:
            yield from wrap(one_line(paragraph, 4 * MAX_TEXT), WIDTH, initial_indent="  - ", subsequent_indent="    ")


def unit_text(unit: str) -> str:
    return "one record" if unit == "record" else f"one {one_line(unit, 80)} with all its records"


def _failure(record: RunRecord) -> list[str]:
    if record.status == "ok":
        return []
    ended = f"The run ended with status {record.status}: {one_line(record.error or '', MAX_TEXT).rstrip('.')}."
    return [f"{ended} It has spent what is said here all the same: trying again is a second run."]


def _no_guarantee(privacy: Privacy | None) -> str:
    if privacy is None:
        return "None that is known: the run ended before its releases were written into a record."
    if privacy.recomputed is None:
        return "None: no accountant bounds what was released, so ε counts as infinite."
    if not privacy.end_to_end_private:
        return (
            "None: the run is a reference that is not private from end to end. What it chose depends on records that "
            "nobody paid for, and its true ε is infinite."
        )
    return "None: what the run released has an infinite ε."


def _guarantee(record: RunRecord, privacy: Privacy) -> Iterator[str]:
    delta = record.identity.delta
    covered = "this training" if record.accounting and not privacy.tuning_share else "tuning and training together"
    yield (
        f"(ε, δ)-differential privacy with ε = {rounded_up(privacy.epsilon, 5)} (natural logarithm) and "
        f"δ = {rounded_up(delta, 3)}, for {covered}."
    )
    unit = unit_text(record.identity.unit)
    count = record.identity.facts.get("n_records")
    public = f" Their number, N = {count:,}, counts as public." if isinstance(count, int) else ""
    yield f"Unit of privacy: {unit}. Neighbouring data sets differ by {unit}, added or removed.{public}"
    yield (
        "Setting: central. Whoever ran this saw the records; the guarantee is against everybody who sees what the run "
        "released: the model and the values in its record that are named as released."
    )


def attack(risk: Risk | None, unit: str) -> list[str]:
    if risk is None:
        return ["Not computed: no accountant bounds what was released."]
    if risk.mu == math.inf:
        return ["Unbounded: an attack may be certain."]
    hits, rare, advantage = (
        f"{rounded_up(100 * share, 3)}%" for share in (risk.tpr_at_1pct, risk.tpr_at_01pct, risk.advantage)
    )
    return [
        "The attacker knows all other records, the method and every public fact, has any computing power, and wants to "
        f"know whether {unit} took part.",
        f"With 1% false alarms this attacker finds at most {hits} of those who took part; with 0.1%, at most {rare}.",
        f"Hits exceed false alarms by at most {advantage} (membership advantage).",
        f"Gaussian differential privacy: μ = {rounded_up(risk.mu, 4)} for all attacks whose errors of both kinds are "
        f"at least δ, with a regret of {rounded_up(risk.mu_fit, 2)} (0 is a perfect fit).",
        "These are proven upper bounds for the worst record and the best attack. What leaks may be far less.",
    ]


def _unprotected(record: RunRecord) -> Iterator[str]:
    yield "What the records have in common: conclusions about a population hold for those who did not take part, too."
    if unit_text(record.identity.unit) == "one record":
        yield "People with several records, and groups: for k records the guarantee is weaker, about kε."
    else:
        yield "Groups of several units: for k of them the guarantee is weaker, about kε."
    facts = "whatever was declared" if record.accounting else "every argument of the task"
    yield (
        f"Public facts: the number of units, shapes, classes, {facts}, and data of which a public model or a transform "
        "was made beforehand."
    )
    if record.metrics:
        yield "The test records: the metrics of this record were computed on them without noise."
    yield (
        "Logs, running times and peak memory."
        if record.accounting
        else "Running times and peak memory in this record, and logs."
    )
    if record.identity.seed is not None:
        yield (
            "Anything, from whoever knows the seed of the run, which its record names: the noise can be subtracted. A "
            "seed is for public data; otherwise it has to stay secret, and the record with it."
        )


def _accounting(record: RunRecord, privacy: Privacy) -> Iterator[str]:
    recomputed = privacy.recomputed or privacy.planned
    name = one_line(recomputed.accountant, 40)
    what = f" ({ACCOUNTANTS[name].text})" if name in ACCOUNTANTS else ""
    if record.accounting:
        yield (
            f"The training ran in code of the caller, who declared what it releases. ε was computed from that, by the "
            f"accountant {name}{what}. Nobody checked that sampling, clipping and noise are as declared."
        )
    else:
        yield f"The harness recomputed ε from the ledger of all releases, by the accountant {name}{what}."
    bounds = ", ".join(
        f"{one_line(name, 40)} {rounded_up(value, 5)}" if value < math.inf else f"{one_line(name, 40)} ∞"
        for name, value in sorted(recomputed.by_accountant.items())
    )
    yield f"Bounds by all accountants that support the releases: {bounds}."
    yield (
        f"The plan, made before any record was read, costs ε = {rounded_up(privacy.planned.epsilon, 5)}. The larger of "
        f"plan and ledger is quoted; the budget was ε = {record.identity.epsilon:g}."
    )
    count = record.identity.facts.get("n_records")
    if isinstance(count, int) and count > 0:
        place = "below" if record.identity.delta < 1 / count else "NOT below"
        yield f"δ is {place} 1/N = {1 / count:.3g}."


def _noise(record: RunRecord, privacy: Privacy) -> Iterator[str]:
    texts = releases(privacy)
    yield f"Released: {'; '.join(texts[:MAX_RELEASES])}{'; ...' if len(texts) > MAX_RELEASES else ''}."
    event = Ledger.from_json(privacy.ledger).event
    drawn = "the caller declared it" if record.accounting else "the batches were drawn so"
    yield (
        "Poisson(q; ...) is a batch that each unit enters independently with probability q; the accounting relies on "
        f"this, and {drawn}. σ is the noise's standard deviation over the sensitivity, to which each contribution was "
        "clipped."
    )
    if any(isinstance(part, PartDpEvent) for part in walk(event)):
        yield "Some releases read one part of the records only; a record's part follows from that record alone."
    noise = one_line(record.environment.get("noise", "unknown"), 80)
    if record.accounting:
        yield f"Noise: {noise}."
    elif noise.startswith("opendp"):
        yield f"Noise: {noise}, exact on a grid, from cryptographic generators."
    else:
        yield (
            f"Noise: {noise}, floating-point numbers from a pseudo-random generator; their lowest bits may betray what "
            "exact noise would hide."
        )


def _tuning(privacy: Privacy) -> Iterator[str]:
    if privacy.tuning_share:
        yield f"ε covers the tuning of hyperparameters, which took {privacy.tuning_share:.1%} of it."
    else:
        yield "The run spent nothing on tuning hyperparameters."
    if has_selection(Ledger.from_json(privacy.ledger).event):
        yield (
            "Of several runs the best was released. The accounting of this selection needs their number, drawn at "
            "random, and all other outcomes to stay secret."
        )
    yield "Choices made before the run are covered only if they did not depend on these records."


def _verification(record: RunRecord) -> Iterator[str]:
    environment = record.environment
    versions = ", ".join(
        f"{name} {one_line(environment[name], 40)}"
        for name in ("dphpo-bench", "dp-accounting", "torch")
        if name in environment
    )
    yield f"Computed with {versions or 'unknown versions'}; all of it is open source."
    yield "This page is read from the run's record. A record shows what was released, not that the run took place."
    if record.accounting:
        yield "In Python, dphpo_bench.epsilon and dphpo_bench.risk compute both numbers from the ledger in the record."
    elif record.identity.seed is None:
        yield (
            "In Python, dphpo_bench.epsilon and dphpo_bench.risk compute both numbers from the ledger in the record. "
            "The run cannot be repeated: it had no seed."
        )
    else:
        yield (
            "dphpo-bench leaderboard validate RECORD computes ε and the risk again from the ledger; dphpo-bench show "
            "RECORD has the command that repeats the run."
        )
    if audit := record.audit:
        bound = f"ε ≥ {audit.lower_bound:.3g} with confidence {audit.confidence:g}" if audit.lower_bound else "nothing"
        yield f"An attack ({one_line(audit.attack, 40)}, {audit.canaries:,} canaries) has shown {bound}."
    else:
        yield "Nobody has attacked this run."
