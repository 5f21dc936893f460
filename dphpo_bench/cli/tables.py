"""Tables of results on a terminal."""

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dphpo_bench.base.text import one_line
from dphpo_bench.records.record import Identity

if TYPE_CHECKING:
    from rich.table import Table

from dphpo_bench.base.text import compact_json, value_text, varying_names
from dphpo_bench.records.measure import ACCURACY, Measure
from dphpo_bench.records.reading import Result
from dphpo_bench.records.tables import summary_rows

MAX_SHOWN = 20
MAX_CELL = 60
UNLIMITED_WIDTH = 1000


def to_text(results: Sequence[Result], *, summarise: bool, width: int | None = None, styled: bool = False) -> str:
    """A table for people, then how many runs there are of each status, and why runs failed.

    Args:
        results: what to show.
        summarise: one row a setting rather than one a run.
        width: of the terminal; None makes lines as long as they need to be.
        styled: whether to use a terminal's colours.
    """
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=styled, width=width or UNLIMITED_WIDTH)
    console.print(_summary_table(results) if summarise else _run_table(results))
    for line in _closing_lines(results):
        console.print(Text(line), soft_wrap=True)
    return buffer.getvalue()


def _run_table(results: Sequence[Result]) -> "Table":
    shared, scores = _SharedColumns(results), _Scores(results)
    table = _table(
        *shared.headers,
        ">seed",
        "status",
        f">{scores.header}",
        ">ε\nrecomputed",
        ">ε\nquoted",
        ">seconds",
    )
    for result in results:
        record = result.record
        privacy = record.privacy
        recomputed = privacy.recomputed if privacy else None
        cells = [
            *shared.cells(result),
            "none" if record.identity.seed is None else str(record.identity.seed),
            record.status,
            "" if result.value is None else scores.text(result.measure, result.value),
            f"{recomputed.epsilon:.6g}" if recomputed else "",
            f"{privacy.epsilon:.6g}" if privacy else "",
            "" if result.seconds is None else f"{result.seconds:,.1f}",
        ]
        _add(table, cells, style="" if record.status == "ok" else "red")
    return table


def _summary_table(results: Sequence[Result]) -> "Table":
    shared, scores = _SharedColumns(results), _Scores(results)
    first = {result.setting: result for result in sorted(results, key=lambda result: result.order)}  # one of each
    rows = summary_rows(results)
    repeated = any(row["ok"] != row["seeds"] for row in rows)  # copies
    any_failed = any(row["failed"] for row in rows)
    counts = [">seeds", *([">runs"] if repeated else []), *([">failed"] if any_failed else [])]
    table = _table(*shared.headers, *counts, f">mean\n{scores.header}", ">min .. max", ">ε\nquoted")
    for result, row in zip(first.values(), rows, strict=True):
        told = row["mean"] is not None
        measure = Measure(row["metric"] or "")
        cells = [
            *shared.cells(result),
            str(row["seeds"]),
            *([str(row["ok"])] if repeated else []),
            *([str(row["failed"] or "")] if any_failed else []),
            scores.text(measure, row["mean"]) if told else "",
            " .. ".join(measure.text(row[name]) for name in ("min", "max")) if told else "",
            "" if row["epsilon"] is None else f"{row['epsilon']:.6g}",
        ]
        _add(table, cells, style="red" if row["failed"] else "")
    return table


class _SharedColumns:
    """The first columns of both tables: the setting of a run, without what is the same for all.

    Args:
        results: all that will be shown.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        identities = [result.record.identity for result in results]
        self._models = len({identity.model for identity in identities}) > 1
        deltas = {(identity.task, identity.delta) for identity in identities}
        self._deltas = len(deltas) > len({task for task, _ in deltas})
        self._varying = _varying_parameters(identities)
        self._details = _varying_details(identities)

    @property
    def headers(self) -> list[str]:
        """Headers; a `>` in front aligns to the right."""
        optional = [*(["model"] if self._models else []), ">ε\ntarget", *([">δ"] if self._deltas else [])]
        parameters = ["parameters"] if any(self._varying.values()) else []
        return ["task", *optional, "method", *parameters, *(["what else\ndiffers"] if self._details else [])]

    def cells(self, result: Result) -> list[str]:
        """The cells of a result, or of all results of its setting."""
        identity = result.record.identity
        names = self._varying[identity.method]
        parameters = ((name, identity.parameters[name]) for name in names if name in identity.parameters)
        changed = ", ".join(f"{name}={value_text(value)}" for name, value in parameters)
        return [
            identity.task,
            *([identity.model] if self._models else []),
            f"{identity.epsilon:g}",
            *([f"{identity.delta:.3g}"] if self._deltas else []),
            identity.method,
            *([changed] if any(self._varying.values()) else []),
            *([_details_text(identity, self._details)] if self._details else []),
        ]


def _details(identity: Identity) -> dict[str, str]:
    """What else tells settings apart: versions, facts, and the beginnings of hashes."""
    return {
        "method_version": str(identity.method_version),
        "task_version": str(identity.task_version),
        **{name: value_text(value) for name, value in identity.facts.items()},
        "model_fingerprint": identity.model_fingerprint[:12],
        "data_fingerprint": identity.data_fingerprint[:12],
    }


def _varying_details(identities: Sequence[Identity]) -> dict[tuple[str, str, str], list[str]]:
    """Of each task, model and method, the details that not all its runs share, if there are any."""
    groups: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for identity in identities:
        who = identity.task, identity.model, identity.method
        details = _details(identity)
        groups.setdefault(who, {})[compact_json(details)] = details
    varying = {who: varying_names(list(different.values())) for who, different in groups.items()}
    return {who: names for who, names in varying.items() if names}


def _details_text(identity: Identity, varying: Mapping[tuple[str, str, str], list[str]]) -> str:
    details = _details(identity)
    names = varying.get((identity.task, identity.model, identity.method), [])
    return ", ".join(f"{name}={details[name]}" for name in names if name in details)


def _varying_parameters(identities: Iterable[Identity]) -> dict[str, list[str]]:
    """Of each method, the parameters that not all its runs share."""
    by_method: dict[str, dict[str, Identity]] = {}
    for identity in identities:
        by_method.setdefault(identity.method, {})[compact_json(identity.parameters)] = identity
    varying = {}
    for method, different in by_method.items():
        settings = [
            {name: compact_json(value) for name, value in identity.parameters.items()}
            for identity in different.values()
        ]
        varying[method] = varying_names(settings)
    return varying


def _closing_lines(results: Sequence[Result]) -> Iterator[str]:
    counts = Counter(result.record.status for result in results)
    statuses = sorted(counts, key=lambda status: (status != "ok", status))
    yield f"{len(results):,} records: {', '.join(f'{counts[status]:,} {status}' for status in statuses)}."
    failed = [result for result in results if result.record.status != "ok"]
    for result in failed[:MAX_SHOWN]:
        yield one_line(f"{result.path}: {result.record.status}: {result.record.error}")
    if len(failed) > MAX_SHOWN:
        yield f"{len(failed) - MAX_SHOWN:,} more; --format csv or json has all errors."


class _Scores:
    """How metrics are shown: by name in the header if all results have the same, else in each cell.

    Args:
        results: all that will be shown.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        names = {result.measure.name for result in results if result.value is not None}
        self._same = len(names) <= 1
        self.header = Measure(min(names, default=ACCURACY.name)).title if self._same else "metric"

    def text(self, measure: Measure, value: float) -> str:
        """The cell."""
        return measure.text(value) if self._same else f"{measure.name} {measure.text(value)}"


def _table(*headers: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for header in headers:
        if header.startswith(">"):
            table.add_column(header.removeprefix(">"), justify="right", no_wrap=True)
        else:  # where it is narrow, long names are broken rather than numbers
            table.add_column(header, overflow="fold")
    return table


def _add(table: "Table", cells: Iterable[str], style: str) -> None:
    """Add a row of texts in which nothing is markup."""
    from rich.text import Text

    table.add_row(*(Text(one_line(cell, MAX_CELL)) for cell in cells), style=style)
