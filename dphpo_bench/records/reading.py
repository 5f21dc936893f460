"""Records read back from folders and files."""

import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.base.text import compact_json, count, one_line
from dphpo_bench.records.columns import CHOICES, COLUMNS, SETTING
from dphpo_bench.records.filters import Only
from dphpo_bench.records.measure import Measure, shown_measure
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import read_record

MAX_NAMED = 3


@dataclass(frozen=True)
class Result:
    """A record and its file's path as text, relative to the folder that was read."""

    path: str
    record: RunRecord

    @property
    def parameters(self) -> str:
        """The method's parameters as JSON text, the same for the same parameters."""
        return compact_json(self.record.identity.parameters)

    @property
    def measure(self) -> Measure:
        """The metric to compare by."""
        return shown_measure(self.record.identity.facts, self.record.metrics)

    @property
    def value(self) -> float | None:
        """The value of `measure`; None if it was not measured."""
        return self.record.metrics.get(self.measure.name)

    @property
    def setting(self) -> tuple[Any, ...]:
        """The values that runs share if they differ in their seeds alone."""
        return tuple(COLUMNS[name].value(self) for name in SETTING)

    @property
    def order(self) -> tuple[Any, ...]:
        seed = self.record.identity.seed
        return *self.setting, math.inf if seed is None else seed, self.path

    @property
    def seconds(self) -> float | None:
        """Seconds of all phases; None if the record does not tell the time of training."""
        return sum(self.record.seconds.values()) if "train" in self.record.seconds else None


def read_results(root: Path) -> tuple[list[Result], list[RecordError]]:
    """Read and validate every `*.json` in a folder and the folders in it.

    Hidden files and folders are ignored, and no symbolic link is followed.

    Returns:
        The results, sorted by `Result.order`; and an error for each file that was skipped.

    Raises:
        InvalidValueError: if there is no such folder.
    """
    try:
        problem = "" if stat.S_ISDIR(root.stat().st_mode) else "Not a directory"
    except (OSError, ValueError) as error:  # the latter for a path with a null character
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        raise InvalidValueError(f"Expected a folder of run records, got {root}: {problem}. Name one as RESULTS_DIR.")
    results: list[Result] = []
    skipped: list[RecordError] = []
    for path in record_files(root, skipped.append):
        try:
            results.append(Result(path_text(path.relative_to(root)), read_record(path)))
        except RecordError as error:
            skipped.append(error)
    return sorted(results, key=lambda result: result.order), skipped


def select(results: Sequence[Result], only: Sequence[str]) -> list[Result]:
    """Return the results that `--only` texts such as "method=hyfreedp,task=mnist" ask for; see `_fields`.

    Raises:
        InvalidValueError: if a text is not of this form.
        UnknownNameError: if there is no such field, or no result with that value.
    """
    if not (only and results):
        return list(results)
    fields = [_fields(result) for result in results]
    available = {name: {values[name] for values in fields} for name in fields[0]}
    choice = Only.parse(only, available)
    return [result for result, values in zip(results, fields, strict=True) if choice.matches(values)]


def guesses_line(results: Sequence[Result]) -> str | None:
    """Return a line that names some runs that are no better than a constant guess; None if there are none."""
    paths = [result.path for result in results if result.record.guess_line()]
    if not paths:
        return None
    verb, more = "is" if len(paths) == 1 else "are", len(paths) - MAX_NAMED
    named = ", ".join(paths[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"{count(len(paths), 'run')} {verb} no better than a constant guess: {named}."


def skipped_lines(skipped: Sequence[RecordError], shown: int = 5) -> list[str]:
    lines = [f"Skipped: {one_line(str(error))}" for error in skipped[:shown]]
    if len(skipped) > shown:
        lines.append(f"Skipped: {len(skipped) - shown:,} more files.")
    return lines


def record_files(root: Path, skip: Callable[[RecordError], None]) -> Iterator[Path]:
    """Yield the regular files that may be records, and call `skip` for everything else that looks like one."""

    def unreadable(error: OSError) -> None:
        skip(RecordError(f"Cannot read the folder {error.filename}: {error.strerror}."))

    for folder, folders, files in os.walk(root, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if Path(folder, name).is_symlink():
                skip(RecordError(f"The folder {Path(folder, name)} is a symbolic link; links are not followed."))
        for name in sorted(files):
            if name.startswith(".") or not name.endswith(".json"):
                continue
            path = Path(folder, name)
            try:
                mode = path.lstat().st_mode
            except OSError as error:
                skip(RecordError(f"Cannot read the record {path}: {error.strerror}."))
                continue
            if stat.S_ISREG(mode):
                yield path
            elif stat.S_ISLNK(mode):
                skip(RecordError(f"The record {path} is a symbolic link; links are not followed."))
            else:  # a pipe would be waited for, forever
                skip(RecordError(f"The record {path} is not a regular file."))


def path_text(path: Path) -> str:
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _fields(result: Result) -> dict[str, str | float | None]:
    values = {name: COLUMNS[column].value(result) for name, column in CHOICES.items()}
    return {name: one_line(value) if isinstance(value, str) else value for name, value in values.items()}
