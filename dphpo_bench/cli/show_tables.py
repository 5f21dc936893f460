"""Lines and JSON of `show`."""

import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import count, one_line, rounded_down, value_text
from dphpo_bench.cli.plots import bar, step_plot
from dphpo_bench.cli.risk_text import record_risk, risk_rows
from dphpo_bench.records.choices import chosen, is_number, series, tried
from dphpo_bench.records.record import Privacy, RunRecord
from dphpo_bench.records.statement import releases

WIDEST = 100
PLOT_HEIGHT = 6
BAR_WIDTH = 40
MAX_RELEASES = 4
MAX_CHOSEN = 8
MAX_TRIED = 9
MAX_VALUE = 30
NOTHING = "–"


def record_json(record: RunRecord, oracle: RunRecord | None, again: str | None) -> dict[str, Any]:
    return {**_values_of(record), "oracle": _values_of(oracle) if oracle else None, "command": again}


def _values_of(record: RunRecord) -> dict[str, Any]:
    identity, privacy = record.identity, record.privacy
    names = ("method", "parameters", "task", "model", "epsilon", "delta", "seed")
    return {
        "key": identity.key,
        **{name: getattr(identity, name) for name in names},
        "unit": identity.unit,
        "status": record.status,
        "accounting": record.accounting,
        "error": record.error,
        "metrics": record.metrics,
        "further": {name: test.model_dump() for name, test in record.further.items()},
        "constant_guess": record.constant_guess and record.constant_guess.model_dump(),
        "chosen": chosen(record.released),
        "paths": {path.name: [list(point) for point in path.points] for path in series(record.released)},
        "tried": tried(record.released),
        "epsilon_quoted": privacy and privacy.epsilon,
        "tuning_share": privacy and privacy.tuning_share,
        "risk": asdict(risk) if (risk := record_risk(record)) else None,
        "releases": releases(privacy) if privacy else [],
    }


def record_lines(record: RunRecord, oracle: RunRecord | None, again: str | None) -> Iterator[str]:
    identity = record.identity
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    seed = "no seed" if identity.seed is None else f"seed {identity.seed}"
    yield one_line(
        f"{identity.method} on {identity.task} ({identity.model}), ε = {identity.epsilon:g} "
        f"at δ = {identity.delta:.3g}, {seed}: {record.status}"
    )
    if (unit := identity.unit) != RECORD:
        yield one_line(f"Protected unit: {unit}, each with all its records")
    if record.accounting:
        yield f"Accounting: {record.accounting}. ε is that of the declared event; nobody checked the training."
    if record.error:
        yield one_line(record.error)
    yield ""
    yield from _side_by_side(record, oracle)
    if line := record.guess_line():
        yield from wrap(one_line(line, len(line)), width)
    yield from _drawn(record, width)
    if record.privacy:
        yield from _spent(record, record.privacy, width)
    yield from _work(record)
    if record.accounting:
        return
    yield ""
    yield f"Again: {again}"
    if identity.seed is None:
        yield "It had no seed, so this makes another run of the same kind, a second release of its own ε."


def _side_by_side(record: RunRecord, oracle: RunRecord | None) -> Iterator[str]:
    columns = [(record.identity.method, record)]
    if oracle:
        columns.append((f"{oracle.identity.method}, seed {oracle.identity.seed}", oracle))
    rows = [["", *(one_line(title, MAX_VALUE) for title, _ in columns)]]
    metrics = [run.metric_texts() for _, run in columns]
    for name in dict.fromkeys(name for texts in metrics for name in texts):
        rows.append([one_line(name, MAX_VALUE), *(texts.get(name, NOTHING) for texts in metrics)])
    choices = [chosen(run.released) for _, run in columns]
    for name in list(dict.fromkeys(name for values in choices for name in values))[:MAX_CHOSEN]:
        texts = (_value(values[name]) if name in values else NOTHING for values in choices)
        rows.append([one_line(name, MAX_VALUE), *texts])
    if len(rows) == 1:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip()


def _value(value: Any) -> str:
    return one_line(f"{value:.4g}" if isinstance(value, float) else value_text(value), MAX_VALUE)


def _drawn(record: RunRecord, width: int) -> Iterator[str]:
    paths, rows = series(record.released), tried(record.released)
    if paths:
        others = ", ".join(path.name for path in paths[1:])
        yield ""
        yield one_line(f"{paths[0].name}, by step{f' (also released: {others})' if others else ''}", width)
        yield from step_plot(paths[0].points, width, PLOT_HEIGHT)
    elif rows:
        yield ""
        yield from _compared(rows)


def _compared(rows: list[dict[str, Any]]) -> Iterator[str]:
    scores = [row["score"] for row in rows if is_number(row.get("score"))]
    if len(scores) < len(rows):
        yield f"{len(rows):,} candidates were compared; their scores are not released."
        return
    yield f"{len(rows):,} candidates, by score:"
    low, high = min(scores), max(scores)
    for row in sorted(rows, key=lambda row: -row["score"])[:MAX_TRIED]:
        values = ", ".join(f"{name} {_value(value)}" for name, value in row.items() if name != "score")
        share = (row["score"] - low) / (high - low) if high > low else 1.0
        yield f"  {bar(share, BAR_WIDTH // 2)} {row['score']:<8.4g} {one_line(values, 60)}"
    if len(rows) > MAX_TRIED:
        yield f"  and {len(rows) - MAX_TRIED:,} more"


def _spent(record: RunRecord, privacy: Privacy, width: int) -> Iterator[str]:
    yield ""
    recomputed = privacy.recomputed or privacy.planned
    by = f"by the accountant {one_line(recomputed.accountant, MAX_VALUE)}"
    if not privacy.end_to_end_private or privacy.epsilon == math.inf:
        yield "This run is a reference, its true ε is infinite: what it chose depends on records that nobody paid for."
    else:
        share = privacy.tuning_share
        yield f"ε = {privacy.epsilon:.6g} of {record.identity.epsilon:g}, {by}{'' if share else ': all for training'}"
        if share:
            yield f"  tuning {share:.2%} {bar(share, BAR_WIDTH)} training {1 - share:.2%}"
    for label, texts in risk_rows(record_risk(record), record.identity.unit):
        yield from wrap(f"{label}: {', '.join(texts)}", width, initial_indent="  ", subsequent_indent="    ")
    texts = releases(privacy)
    for text in texts[:MAX_RELEASES]:
        yield from wrap(one_line(text, 3 * width), width, initial_indent="  ", subsequent_indent="    ")
    if len(texts) > MAX_RELEASES:
        yield f"  and {len(texts) - MAX_RELEASES:,} other kinds of releases"
    if record.audit:
        audit = record.audit
        attack = one_line(audit.attack, MAX_VALUE)
        yield f"An audit shows ε ≥ {audit.lower_bound:.3g} with confidence {audit.confidence:g} ({attack})."
        if audit.ceiling is not None:
            yield f"With all guesses right it would have shown ε ≥ {rounded_down(audit.ceiling)}."
        if audit.refuted:
            yield "It refutes the claim."


def _work(record: RunRecord) -> Iterator[str]:
    parts = []
    if record.cost:
        runs = count(record.cost.runs, "run")
        parts.append(f"{runs}, {record.cost.steps:,} steps, {record.cost.examples:,.0f} example passes")
    parts.append(", ".join(f"{phase} {value:.1f} s" for phase, value in record.seconds.items()))
    environment = record.environment
    parts.append(
        f"dphpo-bench {environment.get('dphpo-bench', '?')}, torch {environment.get('torch', '?')} "
        f"on {environment.get('device', '?')}"
    )
    yield ""
    for part in parts:
        if part:
            yield one_line(part)
