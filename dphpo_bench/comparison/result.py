"""The outcome of a comparison: a table to print, a drawing, a board, and the records under all of them."""

import html
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from dphpo_bench.base.displays import html_table
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.extras import require_extra
from dphpo_bench.base.text import MAX_LINE, duration_text, one_line, shown, value_text, varying_names
from dphpo_bench.records.estimates import NOTHING, Estimate, metric_mean, metric_text
from dphpo_bench.records.measure import Measure, compared_value
from dphpo_bench.records.reading import Result, guesses_line
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.tables import frame

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 160
MAX_FAILURES = 5


@dataclass(frozen=True)
class Line:
    """A method with its parameters, and its results.

    Attributes:
        label: the name, and the parameters in which methods of this name differ.
        private: whether its ε covers tuning. The others are there to compare with, not to choose.
        by_epsilon: target ε → mean over seeds of the metric on test data, with a 95 % interval; None if no run ended
            well, or nothing was measured.
        failed: number of failed runs, which are in no mean.
        seconds: median time of a run; None if none tells.
    """

    label: str
    private: bool
    by_epsilon: Mapping[float, Estimate | None]
    failed: int
    seconds: float | None

    def order(self, measure: Measure) -> tuple[bool, float, str]:
        """Return the key by which lines are sorted: private ones first, then the best mean over all ε."""
        means = [estimate.mean for estimate in self.by_epsilon.values() if estimate]
        mean = fmean(means) if means else -math.inf if measure.higher_is_better else math.inf
        return not self.private, -mean if measure.higher_is_better else mean, self.label


@dataclass(frozen=True)
class Plot:
    """A drawing, which a notebook shows.

    Attributes:
        svg: its file.
    """

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: Path | str) -> None:
        """Write the file.

        Raises:
            InvalidValueError: if the name does not end in .svg, or the file cannot be written.
        """
        if Path(path).suffix != ".svg":
            raise InvalidValueError(f"Expected a file that ends in .svg, got {shown(path, 300)}.")
        try:
            Path(path).write_text(self.svg, encoding="utf-8")
        except OSError as error:
            raise InvalidValueError(f"Cannot write {shown(path, 300)}: {error.strerror}.") from None


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods side by side on one task.

    Attributes:
        results: a record and its path below `root` for each run; failed runs are among them.
        root: the folder of records.
    """

    results: tuple[Result, ...]
    root: Path

    @property
    def records(self) -> tuple[RunRecord, ...]:
        """The records."""
        return tuple(result.record for result in self.results)

    @property
    def failures(self) -> tuple[RunRecord, ...]:
        """The records of runs that did not end well; their `error` says why."""
        return tuple(record for record in self.records if record.status != "ok")

    @property
    def measure(self) -> Measure:
        """The metric that is compared."""
        return next((result.measure for result in self.results if result.value is not None), self.results[0].measure)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The target ε, sorted."""
        return tuple(sorted({record.identity.epsilon for record in self.records}))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The methods, the best one first; those that are not private come last."""

        def who(result: Result) -> tuple[str, str]:
            return result.record.identity.method, result.parameters

        lines = []
        for method, same in groupby(sorted(self.results, key=who), key=lambda result: who(result)[0]):
            groups = [list(group) for _, group in groupby(same, key=who)]
            parameters = [_texts(group[0].record) for group in groups]
            varying = varying_names(parameters)
            for group, each in zip(groups, parameters, strict=True):
                details = ", ".join(f"{name}={each[name]}" for name in varying if name in each)
                lines.append(self._line(one_line(f"{method} ({details})" if details else method, WIDTH // 2), group))
        return tuple(sorted(lines, key=lambda line: line.order(self.measure)))

    def _line(self, label: str, group: Sequence[Result]) -> Line:
        by_epsilon: dict[float, Estimate | None] = {}
        for epsilon in self.epsilons:
            values = [
                compared_value(result.measure, result.value, result.record.identity.facts)
                for result in group
                if result.record.identity.epsilon == epsilon
                if result.record.status == "ok" and result.value is not None
            ]
            values = [value for value in values if math.isfinite(value)]
            by_epsilon[epsilon] = metric_mean(values, self.measure) if values else None
        private = [result.record.privacy.end_to_end_private for result in group if result.record.privacy]
        times = [result.seconds for result in group if result.seconds is not None]
        return Line(
            label=label,
            private=all(private),
            by_epsilon=by_epsilon,
            failed=sum(result.record.status != "ok" for result in group),
            seconds=median(times) if times else None,
        )

    def frame(self) -> "pd.DataFrame":
        """Return a row for each run: identity, ε, metrics, cost, times."""
        return frame(self.results)

    def _title(self) -> str:
        identity = self.records[0].identity
        runs = max(Counter(result.setting for result in self.results).values())
        noun = "runs" if identity.seed is None else "seeds"
        title = f"{identity.task} ({identity.model}), δ = {identity.delta:.3g}: {self.measure.header} on test data"
        average = f"mean of {runs} {noun} ± 95 % interval" if runs > 1 else f"one {noun[:-1]}"
        return f"{one_line(title)}, {average}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the header, and a row for each method, with a column for each ε."""
        lines = self.lines
        header = ["method", *(f"ε = {epsilon:g}" for epsilon in self.epsilons), "a run"]
        header += ["failed"] if any(line.failed for line in lines) else []
        rows = []
        for line in lines:
            name = line.label if line.private else f"{line.label}, not private"
            cells = [metric_text(estimate, self.measure) for estimate in line.by_epsilon.values()]
            time = NOTHING if line.seconds is None else duration_text(line.seconds)
            rows.append([name, *cells, time, str(line.failed or "")][: len(header)])
        return header, rows

    def _notes(self) -> Iterator[str]:
        """Yield lines on failed runs, and on those that learned nothing."""
        for record in self.failures[:MAX_FAILURES]:
            failed = record.identity
            which = f"run {failed.run}" if failed.seed is None else f"seed {failed.seed}"
            who = f"{failed.method}, ε {failed.epsilon:g}, {which}"
            yield one_line(f"{who}: {record.status}: {record.error}")
        if unlearned := guesses_line(self.results):
            yield one_line(unlearned, 2 * MAX_LINE)

    def __str__(self) -> str:
        """Return the table: a row for each method, a column for each ε."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        (first, *others), rows = self._cells()
        table = Table(first, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left")
        for name in others:
            table.add_column(name, justify="right", no_wrap=name != "failed")
        for row in rows:
            table.add_row(*map(Text, row))
        buffer = io.StringIO()
        console = Console(file=buffer, width=WIDTH, markup=False, highlight=False)
        console.print(Text(self._title()), soft_wrap=True)
        console.print(table)
        for note in self._notes():
            console.print(Text(note), soft_wrap=True)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, rows = self._cells()
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return html_table(self._title(), rows, header) + notes

    def plot(self) -> "Plot":
        """Return a drawing: a panel for each ε, in it a line for each method, its mean and its 95 % interval.

        Intervals that would dwarf the differences are cut off, with an arrow. A notebook shows the drawing, and
        `plot().save("comparison.svg")` writes it.

        Raises:
            InvalidValueError: if the extra `leaderboard` is not installed, or nothing was measured.
        """
        require_extra("leaderboard", "Drawing needs", "vl_convert")
        from dphpo_bench.records.charts import estimates_axis, forest, on_one_axis

        lines, identity, measure = self.lines, self.records[0].identity, self.measure
        unit = 100 if measure.share else 1
        panels = {
            f"ε = {at:g}": {
                line.label: estimate.through(lambda value: unit * value)
                for line in lines
                if (estimate := line.by_epsilon[at])
            }
            for at in self.epsilons
        }
        known = [estimate for panel in panels.values() for estimate in panel.values()]
        if not known:
            raise InvalidValueError(
                "Expected a run with a result, got none: all failed, or the task has no test records."
            )
        return Plot(
            forest(
                on_one_axis(panels, estimates_axis(known, suffix=" %" if measure.share else "")),
                {line.label: "" if line.private else "reference" for line in lines},
                title=one_line(f"{identity.task} ({identity.model})", WIDTH // 2),
                note=f"{measure.header} on test data; line: 95 % interval; grey: not private, to compare with.",
            )
        )


def _texts(record: RunRecord) -> dict[str, str]:
    return {name: value_text(value) for name, value in record.identity.parameters.items()}
