"""Tables in which copies of other rows replace every second row, so that dependence between records shows.

A task that makes each record of its own row then makes no record that it did not make of the whole table.
"""

import copy
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from dphpo_bench.data.source import DataSource

if TYPE_CHECKING:
    import torch

READERS: Mapping[str, tuple[str, ...]] = {
    "sklearn.datasets": ("load_", "fetch_", "make_"),
    "pandas": ("read_",),
    "numpy": ("load", "genfromtxt", "fromfile"),
    "pyarrow.parquet": ("read_table",),
    "pyarrow.feather": ("read_table",),
    "pyarrow.csv": ("read_csv",),
}
"""Modules, and how the names of those of their functions begin that read tables."""

LINES = (".csv", ".tsv", ".jsonl", ".ndjson")
"""Suffixes of files that hold a row in each line; the first two begin with a line of column names."""

FEW = 64  # number of records of a published dataset that are read, since their features are extracted anew
MOST = 4  # a table has at most this many times the rows of a task's records, or records than rows


@contextmanager
def altered_tables(parity: int | None, n_records: int, source: DataSource) -> Iterator[tuple[DataSource, list[str]]]:
    """Let files of lines, and the readers that this process has imported, lose every second row while this lasts.

    A table of quite another size than the records, such as an embedding, stays as it is. Nothing comes from a cache.
    Parity 0 replaces the first, third, ... row, 1 the others; anything else replaces none. Yields the source to load
    from, and the names of the readers that gave a table so far.
    """
    from dphpo_bench.data import images, rows

    tables = _Tables(parity, n_records)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="dphpo-bench-check-")))
        if (weights := source.cache_dir.absolute() / "weights").is_dir():
            (folder / "weights").symlink_to(weights)
        for name, beginnings in READERS.items():
            module = sys.modules.get(name)
            for reader in [each for each in vars(module or object) if each.startswith(beginnings)]:
                if callable(read := getattr(module, reader)):
                    stack.enter_context(patch.object(module, reader, tables.read_by(read)))
        for module, reader in ((rows, "load_rows"), (images, "load_records")):
            stack.enter_context(patch.object(module, reader, tables.published(getattr(module, reader), source)))
        if zoo := sys.modules.get("dphpo_bench.zoo.features"):
            stack.enter_context(patch.object(zoo.CachedFeatures, "load", _extracted))
        data_dir = source.root
        if parity in (0, 1) and _holds_lines(data_dir):
            data_dir = folder / "data"
            tables.copy_files(source.root.absolute(), data_dir)
        yield replace(source, data_dir=data_dir, cache_dir=folder), tables.readers


@dataclass
class _Tables:
    parity: int | None
    n_records: int
    readers: list[str] = field(default_factory=list)
    depth: int = 0

    def read_by(self, read: Callable[..., Any]) -> Callable[..., Any]:

        @wraps(read)
        def read_altered(*arguments: Any, **options: Any) -> Any:
            self.depth += 1
            try:
                table = read(*arguments, **options)
            finally:
                self.depth -= 1
            return table if self.depth else self._altered(table, read.__name__)

        return read_altered

    def published(self, load: Callable[..., Any], source: DataSource) -> Callable[..., Any]:
        """Return a reader of a published dataset that checks all of its records and gives a few of them."""

        def load_few(_: DataSource, *which: Any) -> Any:
            few = load(source, *which)[:FEW]
            self.readers.append(load.__name__)
            return _rows(few, self._order(len(few)))

        return load_few

    def copy_files(self, folder: Path, copied: Path) -> None:
        """Copy a folder: files of lines with other rows, all else as links."""
        copied.mkdir()
        for entry in folder.iterdir():
            if entry.is_dir() and _holds_lines(entry):
                self.copy_files(entry, copied / entry.name)
            elif entry.suffix in LINES:
                head = int(entry.suffix in (".csv", ".tsv"))
                lines = entry.read_bytes().splitlines()
                rows = lines[head:]
                if self._is_of_records(len(rows)):
                    rows = _rows(rows, self._order(len(rows)))
                (copied / entry.name).write_bytes(b"\n".join([*lines[:head], *rows, b""]))
            else:
                (copied / entry.name).symlink_to(entry)

    def _is_of_records(self, n: int) -> bool:
        return n >= 4 and self.n_records / MOST <= n <= self.n_records * MOST

    def _altered(self, table: Any, reader: str) -> Any:
        if isinstance(table, tuple):
            return tuple(self._altered(each, reader) for each in table)
        if isinstance(table, Mapping):
            changed: Any = _Arrays() if type(table).__name__ == "NpzFile" else copy.copy(table)
            for name, each in table.items():
                changed[name] = self._altered(each, reader)
            return changed
        is_table = hasattr(table, "shape") or isinstance(table, list)
        n = (table.shape[0] if table.shape else 0) if hasattr(table, "shape") else len(table) if is_table else 0
        if not self._is_of_records(n):
            return table
        self.readers.append(reader)
        return _rows(table, self._order(n))

    def _order(self, n: int) -> list[int]:
        if self.parity not in (0, 1):
            return list(range(n))
        return [1 - self.parity if row % 2 == self.parity else row for row in range(n)]


def _holds_lines(folder: Path) -> bool:
    return any(Path(name).suffix in LINES for _, _, names in os.walk(folder) for name in names)


class _Arrays(dict[str, Any]):
    """Arrays of an `.npz` file, which is opened in a `with` statement as a rule."""

    def __enter__(self) -> "_Arrays":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _rows(table: Any, order: list[int]) -> Any:
    if isinstance(table, list):
        return [table[row] for row in order]
    if hasattr(table, "iloc"):
        return table.iloc[order].set_axis(table.index)
    return table.take(order) if hasattr(table, "schema") else table[order]


def _extracted(features: object, split: object, records: Any, extract: Callable[[Any], Any]) -> "torch.Tensor":
    """Return the features of these records, whatever is in the cache."""
    import torch

    del features, split
    return torch.cat(list(extract(records)))
