"""Rows of a board's CSV as advice rests on them, and those that come with the package."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from os.path import relpath
from pathlib import Path

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.text import shown

TABLE = "leaderboard.csv"
SHIPPED = "advice.csv"
"""The columns and rows of the project's own board that advice needs: what an installed package has of it."""

KINDS = ("linear", "network", "fine-tuned")
"""Kinds of models; `submissions.model_kind` tells which models of the tasks are of which."""

SAME_RECORDS = {"adult_few": "adult", "digits_eight": "digits"}
"""Tasks on the records of another task: together they are one task to advice, or sizes of one data set were many."""

COLUMNS = (
    *("task", "model", "model_kind", "n_records", "metric", "epsilon_target", "label", "seeds", "failed"),
    *("collapsed", "gap_to_oracle", "untuned_runs"),
)


@dataclass(frozen=True)
class Measured:
    """A method's row in a table of the board.

    Attributes:
        kind: of the model, in `KINDS`.
        records: number of training records N.
        epsilon: the budget of tuning and training together.
        runs: number of seeds, those that failed included.
        collapsed: how many of these ended far below the median of the method's runs; those that failed count, too.
        distance: points behind the oracle, the mean over the seeds; below zero ahead of it. Of a metric that is no
            share, a hundredth of its unit.
        cost: examples processed, relative to untuned training in that table; ∞ where that is not known.
    """

    task: str
    model: str
    kind: str
    records: int
    epsilon: float
    metric: str
    label: str
    runs: int
    collapsed: int
    distance: float
    cost: float

    @property
    def data(self) -> str:
        """The name of the task whose records these are."""
        return SAME_RECORDS.get(self.task, self.task)

    @property
    def table(self) -> tuple[str, str, int, float, str]:
        return self.task, self.model, self.records, self.epsilon, self.metric


def measured_rows(table: str, name: str = TABLE) -> list[Measured]:
    """Return the rows of a board's CSV that advice may name: of private methods with a distance to the oracle.

    Raises:
        DataError: a column is missing, or a value is not what it should be.
    """
    lines = csv.DictReader(io.StringIO(table))
    missing = [column for column in COLUMNS if column not in (lines.fieldnames or ())]
    if missing:
        raise DataError(
            f"{name} has no column {', '.join(missing)}. Build the board again: dphpo-bench leaderboard build."
        )
    try:
        return [_measured(line) for line in _needed(lines)]
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is not the table of a board: {shown(error, 200)}.") from None


def shipped_table(table: str) -> str:
    """Return of a board's CSV what comes with the package."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_needed(csv.DictReader(io.StringIO(table))))
    return text.getvalue()


def shipped_file(folder: Path) -> str | None:
    """Return the place of the package's table from a board's folder, if the board is that of this source tree."""
    package = Path(__file__).parent
    root = package.parents[1]
    return relpath(package / SHIPPED, folder) if folder.resolve() == root / "leaderboard" else None


def read_board(board: Path | None) -> tuple[list[Measured], str]:
    """Return the rows of a board, and where they are from: a folder or its CSV.

    By default the board is in the folder `leaderboard` if there is one, else the package's own.
    """
    path = board or Path("leaderboard")
    if path.is_dir():
        path = path / TABLE
    if board is None and not path.is_file():
        shipped = files("dphpo_bench.leaderboard") / SHIPPED
        return measured_rows(shipped.read_text(encoding="utf-8"), SHIPPED), "the board that this package came with"
    try:
        return measured_rows(path.read_text(encoding="utf-8"), str(path)), str(path)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not the table of a board: it is not UTF-8.") from None
    except OSError as error:
        raise InvalidValueError(
            f"Cannot read {path}: {error.strerror}. Name the folder of a board that was built with --board."
        ) from None


def _needed(lines: "csv.DictReader[str]") -> Iterator[Mapping[str, str]]:
    for line in lines:
        private = line.get("end_to_end_private", "True") == "True" and line.get("reference", "False") == "False"
        if private and line["gap_to_oracle"] and line["model_kind"] and line["n_records"]:
            yield line


def _measured(line: Mapping[str, str]) -> Measured:
    row = Measured(
        line["task"],
        line["model"],
        line["model_kind"],
        int(line["n_records"]),
        float(line["epsilon_target"]),
        line["metric"],
        line["label"],
        int(line["seeds"]) + int(line["failed"]),
        int(line["collapsed"] or 0),
        100 * float(line["gap_to_oracle"]),
        float(line["untuned_runs"] or math.inf),
    )
    if row.records < 1 or not 0 < row.epsilon < math.inf or not 0 <= row.collapsed <= row.runs:
        raise ValueError(f"{row.records} records, ε = {row.epsilon}, {row.collapsed} of {row.runs} runs")
    return row
