"""Tables of `results`."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.text import MAX_LINE, compact_json, count, one_line, value_text, varying_names
from dphpo_bench.cli.output import UNLIMITED_WIDTH, Columns, table
from dphpo_bench.records.measure import ACCURACY, Measure, measure_named
from dphpo_bench.records.reading import Result, guesses_line
from dphpo_bench.records.record import Identity
from dphpo_bench.records.tables import summary_rows

if TYPE_CHECKING:
    from rich.table import Table

MAX_SHOWN = 20
MAX_CELL = 60


def to_text(results: Sequence[Result], *, summarise: bool, width: int | None = None, styled: bool = False) -> str:
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=styled, width=width or UNLIMITED_WIDTH)
    console.print(_summary_table(results) if summarise else _run_table(results))
    for line in _closing_lines(results):
        console.print(Text(line), soft_wrap=True)
    return buffer.getvalue()


def _run_table(results: Sequence[Result]) -> "Table":
    scores = _Scores(results)
    columns: Columns = [
        *_setting_columns(results),
        (">seed", lambda result: "none" if result.record.identity.seed is None else str(result.record.identity.seed)),
        ("status", lambda result: result.record.status),
        (f">{scores.header}", lambda result: scores.text(result.measure, result.value)),
        (">ε\nrecomputed", lambda result: _epsilon_text(result.record.privacy and result.record.privacy.recomputed)),
        (">ε\nquoted", lambda result: _epsilon_text(result.record.privacy)),
        (">seconds", lambda result: "" if result.seconds is None else f"{result.seconds:,.1f}"),
    ]
    return _cut(columns, results, lambda result: result.record.status != "ok")


def _summary_table(results: Sequence[Result]) -> "Table":
    scores, rows = _Scores(results), summary_rows(results)

    def measure_of(row: dict[str, Any]) -> Measure:
        return measure_named(row["metric"] or "", row["first"].record.identity.facts)

    def range_text(row: dict[str, Any]) -> str:
        form = measure_of(row).text
        return "" if row["mean"] is None else f"{form(row['min'])} .. {form(row['max'])}"

    columns: Columns = [
        *((header, lambda row, cell=cell: cell(row["first"])) for header, cell in _setting_columns(results)),
        (">seeds", lambda row: str(row["seeds"])),
    ]
    if any(row["ok"] != row["seeds"] for row in rows):  # there are copies
        columns.append((">runs", lambda row: str(row["ok"])))
    if any(row["failed"] for row in rows):
        columns.append((">failed", lambda row: str(row["failed"] or "")))
    columns += [
        (f">mean\n{scores.header}", lambda row: scores.text(measure_of(row), row["mean"])),
        (">min .. max", range_text),
        (">ε\nquoted", lambda row: "" if row["epsilon"] is None else f"{row['epsilon']:.6g}"),
    ]
    return _cut(columns, rows, lambda row: row["failed"])


def _epsilon_text(bound: Any) -> str:
    return f"{bound.epsilon:.6g}" if bound else ""


def _setting_columns(results: Sequence[Result]) -> Columns:
    identities = [result.record.identity for result in results]
    deltas = {(identity.task, identity.delta) for identity in identities}
    several_deltas = len(deltas) > len({task for task, _ in deltas})
    several_models = len({identity.model for identity in identities}) > 1
    parameters = _differences(
        identities,
        lambda identity: identity.method,
        lambda identity: {name: value_text(value) for name, value in identity.parameters.items()},
    )
    details = _differences(identities, lambda identity: (identity.task, identity.model, identity.method), _details)
    columns: list[tuple[str, Callable[[Result], str] | None]] = [
        ("task", lambda result: result.record.identity.task),
        ("model", (lambda result: result.record.identity.model) if several_models else None),
        (">ε\ntarget", lambda result: f"{result.record.identity.epsilon:g}"),
        (">δ", (lambda result: f"{result.record.identity.delta:.3g}") if several_deltas else None),
        ("method", lambda result: result.record.identity.method),
        ("parameters", parameters),
        ("what else\ndiffers", details),
    ]
    return [(header, cell) for header, cell in columns if cell]


def _differences(
    identities: Iterable[Identity], group: Callable[[Identity], Any], values: Callable[[Identity], dict[str, str]]
) -> Callable[[Result], str] | None:
    """Return the function to values that differ within the groups, such as "rate=0.5, steps=20"; None if none does."""
    groups: dict[Any, dict[str, dict[str, str]]] = {}
    for identity in identities:
        named = values(identity)
        groups.setdefault(group(identity), {})[compact_json(named)] = named
    varying = {key: varying_names(list(different.values())) for key, different in groups.items()}

    def text(result: Result) -> str:
        named = values(result.record.identity)
        names = varying[group(result.record.identity)]
        return ", ".join(f"{name}={named[name]}" for name in names if name in named)

    return text if any(varying.values()) else None


def _details(identity: Identity) -> dict[str, str]:
    return {
        "method_version": str(identity.method_version),
        "task_version": str(identity.task_version),
        **{name: value_text(value) for name, value in identity.facts.items()},
        "model_fingerprint": identity.model_fingerprint[:12],
        "data_fingerprint": identity.data_fingerprint[:12],
    }


def _closing_lines(results: Sequence[Result]) -> Iterator[str]:
    counts = Counter(result.record.status for result in results)
    statuses = sorted(counts, key=lambda status: (status != "ok", status))
    yield f"{count(len(results), 'record')}: {', '.join(f'{counts[status]:,} {status}' for status in statuses)}."
    if line := guesses_line(results):
        yield one_line(line, MAX_LINE * 2)
    failed = [result for result in results if result.record.status != "ok"]
    for result in failed[:MAX_SHOWN]:
        yield one_line(f"{result.path}: {result.record.status}: {result.record.error}")
    if len(failed) > MAX_SHOWN:
        yield f"{len(failed) - MAX_SHOWN:,} more; --format csv or json has all errors."


class _Scores:
    """Texts of metrics: the name is in the header if all results have the same, else in each cell."""

    def __init__(self, results: Sequence[Result]) -> None:
        names = {result.measure.name for result in results if result.value is not None}
        self._same = len(names) <= 1
        self.header = one_line(Measure(min(names, default=ACCURACY.name)).title, MAX_CELL) if self._same else "metric"

    def text(self, measure: Measure, value: float | None) -> str:
        if value is None:
            return ""
        return measure.text(value) if self._same else f"{measure.name} {measure.text(value)}"


def _cut(columns: Columns, rows: Iterable[Any], failed: Callable[[Any], object]) -> "Table":
    def short(cell: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda row: one_line(cell(row), MAX_CELL)

    return table([(header, short(cell)) for header, cell in columns], rows, plain=True, failed=failed)
