"""What `run`, `plan` and `audit` print."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import count, rounded_down
from dphpo_bench.cli.risk_text import NOT_WHAT_LEAKS, record_risk, risk_json, risk_rows
from dphpo_bench.records.measure import measure_named

if TYPE_CHECKING:
    from rich.table import Table

    from dphpo_bench.audit.attacks import Audit
    from dphpo_bench.audit.sizes import Size
    from dphpo_bench.harness.plan import CheckedPlan
    from dphpo_bench.harness.run import RunResult
    from dphpo_bench.privacy.risk import Risk


def plan_json(checked: "CheckedPlan") -> dict[str, Any]:
    """A plan as a JSON value."""
    from dataclasses import asdict

    from dphpo_bench.privacy.event_texts import to_json

    made = checked.plan
    return {
        "method": checked.method.name,
        "method_parameters": checked.method.parameters,
        "task": checked.facts.task,
        "model": checked.facts.model,
        "unit": checked.facts.unit,
        "budget": asdict(made.budget),
        "epsilon": checked.epsilon.epsilon,
        "accountant": checked.epsilon.quoted,
        "epsilon_by_accountant": dict(checked.epsilon.by_accountant),
        "tuning_share": checked.tuning_share,
        "risk": risk_json(checked.risk),
        "parameters": made.to_json()["parameters"],
        "releases": [asdict(release) for release in made.releases],
        "cost": asdict(made.cost),
        "event": to_json(made.event),
    }


def plan_tables(checked: "CheckedPlan") -> "tuple[Table, ...]":
    """A table of a plan, and one of what it releases."""
    from rich.table import Table

    from dphpo_bench.privacy.event_texts import describe

    made, facts = checked.plan, checked.facts
    summary = _two_columns(f"Plan: {checked.method.name} on {facts.task} ({facts.model})")
    _add_unit(summary, facts.unit, facts.n_records)
    summary.add_row("budget", f"ε = {made.budget.epsilon:g}, δ = {made.budget.delta:.3g}")
    epsilon = _bounds_text(checked.epsilon.by_accountant, checked.epsilon.quoted)
    summary.add_row("ε of the whole procedure", epsilon)
    summary.add_row("share spent on tuning", f"{checked.tuning_share:.2%}")
    _add_risk(summary, checked.risk, facts.unit)
    for name, value in _flat(made.to_json()["parameters"] or {}):
        summary.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    runs = count(made.cost.runs, "run")
    summary.add_row("cost", f"{runs}, {made.cost.steps:,} steps, {made.cost.examples:,.0f} example passes")
    summary.add_row("event", describe(made.event))
    releases = Table("what is released", "times", "noise multiplier", "sample rate", title="Releases")
    for release in made.releases:
        numbers = f"{release.count:,}", f"{release.noise_multiplier:.5g}", f"{release.sample_rate:.5g}"
        releases.add_row(release.name, *numbers)
    return summary, releases


def _add_unit(table: "Table", unit: Any, number: Any) -> None:
    """Add a row that names what is protected, unless it is the record."""
    if unit != RECORD:
        table.add_row("protected unit", f"{unit}, N = {number:,}, each with all its records")


def _flat(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Parameters by dotted names, such as "trial.training.steps"."""
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def run_table(result: "RunResult", saved: Path | None = None) -> "Table":
    """A table of what a run measured and spent, and where its record and its model are."""
    record = result.record
    identity, privacy = record.identity, record.privacy
    seed = "no seed" if identity.seed is None else f"seed {identity.seed}"
    table = _two_columns(f"{identity.method} on {identity.task} ({identity.model}), {seed}: {record.status}")
    for name, value in record.metrics.items():
        measure = measure_named(name, identity.facts)
        table.add_row(f"test {measure.title}", measure.text(value))
    if record.released.get("winner", record) is None:
        table.add_row("trials", "none finished, so that nothing was trained: these are the initial weights")
    _add_unit(table, identity.unit, identity.facts.get("n_records"))
    table.add_row("ε target", f"{identity.epsilon:g} at δ = {identity.delta:.3g}")
    if privacy:
        planned, recomputed = privacy.planned, privacy.recomputed
        table.add_row("ε planned", _bounds_text(planned.by_accountant, planned.accountant))
        if recomputed:
            table.add_row("ε recomputed from the ledger", _bounds_text(recomputed.by_accountant, recomputed.accountant))
        table.add_row("ε to quote", f"{privacy.epsilon:.6g}")
        table.add_row("share spent on tuning", f"{privacy.tuning_share:.2%}")
        _add_risk(table, record_risk(record), identity.unit)
    if record.cost:
        table.add_row("steps", f"{record.cost.steps:,}")
    table.add_row("seconds", ", ".join(f"{phase} {value:.1f}" for phase, value in record.seconds.items()))
    if record.peak_memory_bytes is not None:
        table.add_row("peak memory", f"{record.peak_memory_bytes / 2**30:.2f} GiB")
    table.add_row("record", str(result.path))
    if saved:
        table.add_row("model", str(saved))
    return table


def _add_risk(table: "Table", found: "Risk | None", unit: str) -> None:
    """Add the rows of a risk, and say below the table what kind of number they hold."""
    for label, texts in risk_rows(found, unit):
        for text in texts:
            table.add_row(label if text is texts[0] else "", text)
    table.caption, table.caption_justify = NOT_WHAT_LEAKS if found else None, "left"


def audit_table(found: "Audit", title: str, path: Path) -> "Table":
    """A table of what each attack has shown, and the most that it could have shown."""
    from rich.table import Table

    table = Table("attack", "guesses", "right", "ε at least", "at most shown", title=title, title_justify="left")
    for name, bound in found.by_attack.items():
        guessed = f"{bound.guesses.guessed:,} of {bound.guesses.canaries:,}"
        table.add_row(
            name, guessed, f"{bound.guesses.correct:,}", rounded_down(bound.epsilon), rounded_down(bound.ceiling)
        )
    table.caption = (
        f"Claimed: ε = {found.claimed:.6g} at δ = {found.delta:.3g}. All bounds hold at once with confidence "
        f"{found.bound.confidence:g}. {audit_verdict(found)} Record: {path}"
    )
    table.caption_justify = "left"
    return table


def audit_verdict(found: "Audit") -> str:
    """Sentences on what the audit says of the claim; that it found nothing is never praise."""
    if found.bound.epsilon > found.claimed:
        return f"Refuted: the audit shows ε ≥ {found.bound.epsilon:.4g} where {found.claimed:.4g} is claimed."
    if found.refutes:
        return f"Refuted: so many right guesses contradict the claim's privacy curve, that of ε = {found.claimed:.4g}."
    if found.claimed == math.inf:
        return "No finite ε is claimed, so there is nothing to refute."
    if not found.can_refute:
        first = "This audit cannot refute the claim, whatever leaks, and says nothing about it"
        needed = found.needed
    else:
        first = "Not refuted, which is no proof of privacy"
        needed = None if found.ceiling > found.claimed else found.needed_for_epsilon
    most = f"with all guesses right it would show ε ≥ {rounded_down(found.ceiling)}"
    if found.ceiling > found.claimed:
        return f"{first}: {most}."
    if needed is None:
        return f"{first}: {most}, less than is claimed."
    more = "could refute it" if not found.can_refute else "could show more"
    return f"{first}: {most}, less than is claimed. {_size_text(needed)} {more}."


def _size_text(size: "Size") -> str:
    each = f" in each of {size.runs:,} runs" if size.runs > 1 else ""
    return f"{size.canaries:,} canaries{each}"


def _two_columns(title: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    return table


def _bounds_text(by_accountant: Mapping[str, float], quoted: str) -> str:
    """All bounds, first the quoted one, which is marked."""
    names = sorted(by_accountant, key=lambda name: (name != quoted, name))
    return ", ".join(f"{by_accountant[name]:.6g} ({name}{', quoted' if name == quoted else ''})" for name in names)
