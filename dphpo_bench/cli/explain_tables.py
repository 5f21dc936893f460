"""Tables and JSON of `explain`."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.text import one_line, value_text
from dphpo_bench.cli.output import Columns, table
from dphpo_bench.harness.recording import changed_parameters
from dphpo_bench.records.choices import chosen
from dphpo_bench.records.measure import Measure, shown_measure
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.extra_runs import Question, Split

if TYPE_CHECKING:
    from rich.table import Table

MAX_TEXT = 70
NOTHING = "–"


def json_row(question: Question, split: Split, store: RecordStore) -> dict[str, Any]:
    identity = question.record.identity
    paths = {
        name: cell and str(store.path_of(cell.identity))
        for name, cell in (("at_full", question.at_full), ("at_left", question.at_left))
    }
    return {
        "key": identity.key,
        **{name: getattr(identity, name) for name in ("method", "parameters", "task", "model", "epsilon", "seed")},
        "oracle": question.oracle.identity.key,
        "metric": _measure(question).name,
        "results": {"own": split.run, "oracle": split.oracle, "at_full": split.at_full, "at_left": split.at_left},
        "extra_runs": paths,
        "loss": split.loss,
        "noise": split.noise,
        "choice": split.choice,
        "note": question.note or None,
    }


def one_table(question: Question, split: Split) -> "Table":
    record, measure = question.record, _measure(question)
    identity, privacy = record.identity, record.privacy
    assert privacy is not None
    left = f"{(1 - privacy.tuning_share) * identity.epsilon:.3g}"
    ours, theirs = _values(record), _values(question.oracle)

    def row(run: str, values: str, epsilon: str, score: float | None) -> tuple[str, ...]:
        return run, values, epsilon, NOTHING if score is None else measure.text(measure.value(score))

    rows = [row(f"oracle, seed {question.oracle.identity.seed}", theirs, f"{identity.epsilon:g}", split.oracle)]
    if question.at_left is not None:
        again = question.at_full and question.at_full.identity.parameters["again"]
        rows.append(row("extra", "found again" if again else ours, f"{identity.epsilon:g}", split.at_full))
        rows.append(row("extra", theirs, left, split.at_left))
    rows.append(row(f"{identity.method}, seed {identity.seed}", ours, left, split.run))
    runs = len(rows)
    for part, value in (("lost", split.loss), ("to noise", split.noise), ("to a worse choice", split.choice)):
        rows.append((part, "", "", difference_text(value, measure)))
    headers = "run", "values", "ε of its training", f">{measure.header}"
    where = f"{identity.task} ({identity.model}), ε = {identity.epsilon:g}, seed {identity.seed}"
    title = f"Why {identity.method} lost: {one_line(where)}"
    note = f"{question.note[0].upper()}{question.note[1:]}." if question.note else None
    lines = table(_columns(headers), rows, title=title, caption=note)
    lines.rows[runs - 1].end_section = True
    return lines


def summary_table(splits: Sequence[tuple[Question, Split]]) -> "Table":
    rows = []
    for (task, epsilon, label), same in groupby(sorted(splits, key=_setting), key=_setting):
        group = list(same)
        measure = _measure(group[0][0])
        oracle, run = (measure.text(measure.value(_mean(group, name))) for name in ("oracle", "run"))
        parts = [difference_text(_mean(group, name), measure) for name in ("loss", "noise", "choice")]
        rows.append((task, f"{epsilon:g}", label, str(len(group)), oracle, run, *parts))
    headers = "task", "ε", "method", ">seeds", ">oracle", ">own", ">lost", ">to noise", ">to choice"
    caption = "Differences of shares are in points, of perplexities in nats. A negative loss is a gain."
    title = "Why they lost against the oracle, means over seeds"
    return table(_columns(headers), rows, title=title, caption=caption)


def _mean(group: Sequence[tuple[Question, Split]], name: str) -> float:
    return fmean(getattr(split, name) for _, split in group)


def _columns(headers: Sequence[str]) -> Columns:
    return [(header, itemgetter(place)) for place, header in enumerate(headers)]


def difference_text(value: float, measure: Measure) -> str:
    text = f"{100 * value + 0.0:.2f}" if measure.share else f"{value + 0.0:.3g}"
    return text.replace("-", "−")


def _setting(split: tuple[Question, Split]) -> tuple[str, float, str]:
    identity = split[0].record.identity
    changed = [f"{name}={value_text(value)}" for name, value in changed_parameters(identity).items()]
    label = one_line(" ".join([identity.method, *changed]), MAX_TEXT)
    return one_line(f"{identity.task} ({identity.model})"), identity.epsilon, label


def _measure(question: Question) -> Measure:
    return shown_measure(question.record.identity.facts, question.record.metrics)


def _values(record: RunRecord) -> str:
    texts = [
        f"{name}={f'{value:.4g}' if isinstance(value, float) else value_text(value)}"
        for name, value in chosen(record.released).items()
    ]
    return one_line(", ".join(texts), MAX_TEXT) or NOTHING
