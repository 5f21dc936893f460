"""Tables and JSON of `run`, `plan` and `audit`."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import count, rounded_down
from dphpo_bench.cli.output import Columns, facts, table
from dphpo_bench.cli.risk_text import NOT_WHAT_LEAKS, record_risk, risk_rows
from dphpo_bench.records.measure import shown_measure

if TYPE_CHECKING:
    from rich.table import Table

    from dphpo_bench.audit.attacks import Audit
    from dphpo_bench.harness.plan import CheckedPlan
    from dphpo_bench.harness.run import RunResult
    from dphpo_bench.privacy.risk import Risk


def plan_json(checked: "CheckedPlan") -> dict[str, Any]:
    from dphpo_bench.privacy.event_texts import to_json

    plan = checked.plan
    return {
        "method": checked.method.name,
        "method_parameters": checked.method.parameters,
        "task": checked.facts.task,
        "model": checked.facts.model,
        "unit": checked.facts.unit,
        "budget": asdict(plan.budget),
        "epsilon": checked.epsilon.epsilon,
        "accountant": checked.epsilon.quoted,
        "epsilon_by_accountant": dict(checked.epsilon.by_accountant),
        "tuning_share": checked.tuning_share,
        "risk": asdict(checked.risk) if checked.risk else None,
        "parameters": plan.to_json()["parameters"],
        "releases": [asdict(release) for release in plan.releases],
        "cost": asdict(plan.cost),
        "event": to_json(plan.event),
    }


def plan_tables(checked: "CheckedPlan") -> "tuple[Table, ...]":
    from dphpo_bench.privacy.event_texts import describe

    plan, task = checked.plan, checked.facts
    rows = [
        *_unit_rows(task.unit, task.n_records),
        ("budget", f"ε = {plan.budget.epsilon:g}, δ = {plan.budget.delta:.3g}"),
        ("ε of the whole procedure", _bounds_text(checked.epsilon.by_accountant, checked.epsilon.quoted)),
        ("share spent on tuning", f"{checked.tuning_share:.2%}"),
        *_risk_rows(checked.risk, task.unit),
    ]
    rows += _flat(plan.to_json()["parameters"] or {})
    runs = count(plan.cost.runs, "run")
    rows += [
        ("cost", f"{runs}, {plan.cost.steps:,} steps, {plan.cost.examples:,.0f} example passes"),
        ("event", describe(plan.event)),
    ]
    title = f"Plan: {checked.method.name} on {task.task} ({task.model})"
    columns: Columns = [
        ("what is released", lambda release: release.name),
        ("times", lambda release: f"{release.count:,}"),
        ("noise multiplier", lambda release: f"{release.noise_multiplier:.5g}"),
        ("sample rate", lambda release: f"{release.sample_rate:.5g}"),
    ]
    caption = NOT_WHAT_LEAKS if checked.risk else None
    return facts(rows, title=title, caption=caption), table(columns, plan.releases, title="Releases")


def _unit_rows(unit: Any, number: Any) -> list[tuple[str, str]]:
    return [] if unit == RECORD else [("protected unit", f"{unit}, N = {number:,}, each with all its records")]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield texts of parameters by dotted names, such as "trial.training.steps"; values that differ are listed."""
    if isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _flat(each, f"{name}.{inner}" if name else inner)
    elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        several = [dict(_flat(each, name)) for each in value]
        for inner in dict.fromkeys(chain.from_iterable(several)):
            texts = [each.get(inner, "none") for each in several]
            separator = "; " if any(", " in text for text in texts) else ", "
            yield inner, texts[0] if len(set(texts)) == 1 else separator.join(texts)
    else:
        yield name, f"{value:.6g}" if isinstance(value, float) else str(value)


def run_table(result: "RunResult", saved: Path | None = None) -> "Table":
    record = result.record
    identity, privacy = record.identity, record.privacy
    seed = "no seed" if identity.seed is None else f"seed {identity.seed}"
    rows = list(record.metric_texts().items())
    if guess := record.constant_guess:
        measure = shown_measure(identity.facts, record.metrics)
        rows.append(("best constant guess", f"{measure.text(guess.value)}: this run is no better"))
    if record.released.get("winner", record) is None:
        rows.append(("trials", "none finished, so that nothing was trained: these are the initial weights"))
    rows += _unit_rows(identity.unit, identity.facts.get("n_records"))
    rows.append(("ε target", f"{identity.epsilon:g} at δ = {identity.delta:.3g}"))
    risk = record_risk(record) if privacy else None
    if privacy:
        planned, recomputed = privacy.planned, privacy.recomputed
        rows.append(("ε planned", _bounds_text(planned.by_accountant, planned.accountant)))
        if recomputed:
            bounds = _bounds_text(recomputed.by_accountant, recomputed.accountant)
            rows.append(("ε recomputed from the ledger", bounds))
        rows.append(("ε to quote", f"{privacy.epsilon:.6g}"))
        rows.append(("share spent on tuning", f"{privacy.tuning_share:.2%}"))
        rows += _risk_rows(risk, identity.unit)
    if record.cost:
        rows.append(("steps", f"{record.cost.steps:,}"))
    rows.append(("seconds", ", ".join(f"{phase} {value:.1f}" for phase, value in record.seconds.items())))
    if record.peak_memory_bytes is not None:
        rows.append(("peak memory", f"{record.peak_memory_bytes / 2**30:.2f} GiB"))
    rows.append(("record", str(result.path)))
    if saved:
        rows.append(("model", str(saved)))
    title = f"{identity.method} on {identity.task} ({identity.model}), {seed}: {record.status}"
    return facts(rows, title=title, caption=NOT_WHAT_LEAKS if risk else None)


def _risk_rows(risk: "Risk | None", unit: str) -> list[tuple[str, str]]:
    return [(label if text is texts[0] else "", text) for label, texts in risk_rows(risk, unit) for text in texts]


def audit_table(audit: "Audit", title: str, path: Path) -> "Table":
    columns: Columns = [
        ("attack", lambda row: row[0]),
        ("guesses", lambda row: f"{row[1].guesses.guessed:,} of {row[1].guesses.canaries:,}"),
        ("right", lambda row: f"{row[1].guesses.correct:,}"),
        ("ε at least", lambda row: rounded_down(row[1].epsilon)),
        ("at most shown", lambda row: rounded_down(row[1].ceiling)),
    ]
    caption = (
        f"Claimed: ε = {audit.claimed:.6g} at δ = {audit.delta:.3g}. All bounds hold at once with confidence "
        f"{audit.bound.confidence:g}. {audit_verdict(audit)} Record: {path}"
    )
    title = f"{title}. {hidden_faults(audit)}" if audit.can_refute else title
    return table(
        columns, audit.by_attack.items(), title=title, title_justify="left", caption=caption, caption_justify="left"
    )


def hidden_faults(audit: "Audit") -> str:
    """Return what an audit of this size does not find, a line to read before its result."""
    if audit.reach is None:
        return "It attacks no released gradient, so it finds large faults only."
    single = f" of fewer than {math.ceil(100 * audit.reach.rate)} % of the records" if audit.reach.rate else ""
    return (
        f"Hidden at this size: {math.ceil(100 * audit.reach.noise)} % of the claimed noise or more; one release "
        f"without noise{single}; what losing trials release."
    )


def audit_verdict(audit: "Audit") -> str:
    """Return sentences on the claim; an attack that fails is never praise."""
    if audit.bound.epsilon > audit.claimed:
        return f"Refuted: the audit shows ε ≥ {audit.bound.epsilon:.4g} where {audit.claimed:.4g} is claimed."
    if audit.refutes:
        return f"Refuted: so many right guesses contradict the claim's privacy curve, that of ε = {audit.claimed:.4g}."
    if audit.claimed == math.inf:
        return "No finite ε is claimed, so there is nothing to refute."
    if not audit.can_refute:
        first, more = "This audit cannot refute the claim, whatever leaks, and says nothing about it", "could refute it"
        needed = audit.needed
    else:
        first, more = "Not refuted, which is no proof of privacy", "could show more"
        needed = None if audit.ceiling > audit.claimed else audit.needed_for_epsilon
    most = f"with all guesses right it would show ε ≥ {rounded_down(audit.ceiling)}"
    if audit.ceiling > audit.claimed:
        return f"{first}: {most}."
    if needed is None:
        return f"{first}: {most}, less than is claimed."
    each = f" in each of {needed.runs:,} runs" if needed.runs > 1 else ""
    return f"{first}: {most}, less than is claimed. {needed.canaries:,} canaries{each} {more}."


def _bounds_text(by_accountant: Mapping[str, float], quoted: str) -> str:
    names = sorted(by_accountant, key=lambda name: (name != quoted, name))
    return ", ".join(f"{by_accountant[name]:.6g} ({name}{', quoted' if name == quoted else ''})" for name in names)
