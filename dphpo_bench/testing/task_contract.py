"""Tests that hold for every task, to inherit: records, dependence between them, model, a short private run."""

import copy
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest
from unittest.mock import patch

from dphpo_bench.base.errors import DataError, InvalidValueError, SealedDataError
from dphpo_bench.base.tensors import Records, call, each
from dphpo_bench.contract.metrics import Metric
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.single_run import SingleRun
from dphpo_bench.testing.new_process import ask_new_process, expect_cheap
from dphpo_bench.testing.runs import (
    DELTA,
    EPSILON,
    ContractError,
    expect,
    expect_line,
    expect_name_and_version,
    other_global_randomness,
    quiet,
    recorded,
    shortened,
)
from dphpo_bench.testing.small_tasks import Excerpt
from dphpo_bench.training.augmentation import augmentation_of

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


ALONE = "inputs"  # the name of inputs that have none of their own
RECORDS = 8  # number of records that is enough to try a model on


class RecordsContract:
    """Tests of the declarations of a task, and of its records.

    Attributes:
        most_shared: the largest share of test records that may also be training records. Published datasets have a
            few duplicates.
    """

    most_shared: ClassVar[float] = 0.01

    def source(self) -> DataSource:
        """Return the source of datasets; default: environment, then the hub."""
        return DataSource.resolve()

    def test_declarations(self, task: Task) -> None:
        """Name, version, summary and models are declared."""
        expect_name_and_version(task, "--task")
        expect_line("summary", task.summary)
        ok = isinstance(task.models, tuple) and len(task.models) > 0 and len(set(task.models)) == len(task.models)
        expect(ok, f"Expected models to be a tuple of distinct names, got {shortened(task.models)}.")
        for model in task.models:
            expect(
                isinstance(model, str) and 0 < len(model) <= 100,
                f"Expected names of models of 1 to 100 characters, got {shortened(model)}.",
            )

    def test_facts_are_public(self, task: Task) -> None:
        """The facts are stated without reading data, never change, and are about this task and this model."""
        message = "The facts are computed from the records. State them: N, shape and classes are public constants."
        try:
            with sealed() as complaints:
                facts, again = task.facts, task.facts
        except SealedDataError:
            raise ContractError(message) from None
        expect(not complaints, message)
        expect(isinstance(facts, TaskFacts), f"Expected facts to be TaskFacts, got {type(facts).__name__}.")
        expect(facts == again, "The facts differ from one time to the next. They are constants.")
        expect(
            (facts.task, facts.model) == (task.name, task.model_name),
            f"Expected facts about {task.name} ({task.model_name}), got {facts.task} ({facts.model}). Use self.name "
            "and self.model_name.",
        )
        if facts.kind in ("classification", "tokens"):
            expect((facts.n_classes or 0) >= 2, f"Expected n_classes >= 2, got {facts.n_classes}.")
        expect(bool(task.metrics) or facts.kind == "own", "Expected at least one metric, got none.")
        expect(bool(facts.search_space()), "Expected at least one hyperparameter in the search space, got none.")

    def test_import_and_facts_are_cheap(self, task: Task) -> None:
        """Importing the module and asking for the facts imports neither torch nor another slow package."""
        expect_cheap("Import and facts need", self._elsewhere(task))

    def test_number_of_records_is_as_declared(self, task: Task) -> None:
        """There are as many training records as the facts say, or units of several."""
        train, facts = task.load_train(self.source()), task.facts
        try:
            train.check_unit(facts.unit)
        except DataError as error:
            raise ContractError(str(error)) from None
        actual, what = train.n_units, "records" if train.units is None else "units"
        expect(
            actual == facts.n_records,
            f"The facts say N={facts.n_records}, and load_train gives {actual} {what}: the noise would be wrong.",
        )

    def test_records_have_the_declared_shape(self, task: Task) -> None:
        """Inputs are finite tensors of the declared names, shapes and types; token ids are in the vocabulary."""
        for which, records in self._splits(task):
            inputs = records.inputs
            actual = {name: _like(tensor) for name, tensor in named(inputs).items()}
            stated = {name: (tuple(spec.shape), spec.dtype) for name, spec in named(task.facts.inputs).items()}
            expect(
                actual == stated,
                f"Expected {which} inputs as the facts state them, {shortened(stated)}, got {shortened(actual)}. Use "
                ".float() for real numbers and .long() for token ids.",
            )
            for name, spec in named(task.facts.inputs).items():
                values = named(inputs)[name]
                if spec.vocabulary is not None and len(values):
                    expect(
                        int(values.min()) >= 0 and int(values.max()) < spec.vocabulary,
                        f"Expected {which} token ids from 0 to {spec.vocabulary - 1}, got {int(values.min())} to "
                        f"{int(values.max())}.",
                    )
                pieces = (values[start : start + 4096] for start in range(0, len(values), 4096))
                expect(
                    all(bool(piece.isfinite().all()) for piece in pieces),
                    f"Expected finite {which} inputs, got NaN or infinity. Impute or drop them by a rule per record.",
                )

    def test_labels_are_classes(self, task: Task) -> None:
        """Labels of classes are int64 from 0 to n_classes − 1; binary and multiple labels are 0 and 1."""
        import torch

        from dphpo_bench.training.losses import IGNORED

        kind, n_classes = task.facts.kind, task.facts.n_classes or 2
        for which, records in self._splits(task):
            labels = records.targets
            if kind in ("own", "regression") or not len(records):
                continue
            if not isinstance(labels, torch.Tensor):
                raise ContractError(f"Expected one tensor of {which} labels of a {kind} task.")
            if kind in ("classification", "tokens"):
                expect(labels.dtype == torch.int64, f"Expected {which} labels of int64, got {labels.dtype}.")
                labels = labels[labels != IGNORED]
            most = n_classes - 1 if kind in ("classification", "tokens") else 1
            low, high = float(labels.min()), float(labels.max())
            expect(low >= 0 and high <= most, f"Expected {which} labels from 0 to {most}, got {low:g} to {high:g}.")

    def test_training_and_test_records_are_disjoint(self, task: Task) -> None:
        """No test record is a training record, by content; a few duplicates are forgiven."""
        (_, train), (_, test) = self._splits(task)
        known = set(contents(replace(train, units=None)))
        shared = sum(content in known for content in contents(replace(test, units=None)))
        expect(
            shared <= self.most_shared * len(test),
            f"{shared} of {len(test)} test records are also training records: the test would measure memory. Split "
            "by a rule on each record's content.",
        )

    def test_records_are_the_same_each_time(self, task: Task) -> None:
        """The records and their order depend neither on chance nor on what was loaded before."""
        with other_global_randomness(1):
            fresh = copy.deepcopy(task)
            train_first = fresh.load_train(self.source()), fresh.load_test(self.source())
        with other_global_randomness(2):
            fresh = copy.deepcopy(task)
            test = fresh.load_test(self.source())
            test_first = fresh.load_train(self.source()), test
        for which, first, second in zip(("training", "test"), train_first, test_first, strict=True):
            expect(
                list(contents(first)) == list(contents(second)),
                f"The {which} records differ from one time to the next, or with what is loaded first. Seeds select "
                "records by their order: load them in a fixed one, without chance.",
            )

    def test_fingerprint_is_stable(self, task: Task) -> None:
        """The fingerprints of records and model are texts that stay the same, even in another process."""
        source = self.source()
        structure = task.model_fingerprint()
        before = task.data_fingerprint(source)
        expect(isinstance(before, str) and before != "", f"Expected a text as fingerprint, got {shortened(before)}.")
        task.load_train(source)
        expect(
            task.data_fingerprint(source) == before, "The fingerprint names the records, yet loading them changes it."
        )
        elsewhere = self._elsewhere(task)
        for which, here, there in (
            ("fingerprint", before, elsewhere["fingerprint"]),
            ("model's fingerprint", structure, elsewhere["model_fingerprint"]),
        ):
            expect(
                there == here,
                f"The {which} is {here} here and {there} in another process: no run would be found again. Use "
                "hashlib; hash() of a text differs from process to process.",
            )

    def _splits(self, task: Task) -> tuple[tuple[str, Records], tuple[str, Records]]:
        source = self.source()
        return ("training", task.load_train(source)), ("test", task.load_test(source))

    def _few(self, task: Task) -> Records:
        import torch

        few = task.load_train(self.source()).rows(slice(RECORDS))
        return few.to(torch.device("cpu"), next(task.build_model().parameters()).dtype)

    def _elsewhere(self, task: Task) -> dict[str, Any]:
        source = self.source()
        data_dir = None if source.data_dir is None else str(source.data_dir)
        cache_dir = str(source.cache_dir)
        return ask_new_process(type(task), "facts", model=task.model_name, data_dir=data_dir, cache_dir=cache_dir)


def named(inputs: Any) -> dict[str, Any]:
    return dict(inputs) if isinstance(inputs, Mapping) else {ALONE: inputs}


def _like(tensor: "torch.Tensor") -> tuple[tuple[int, ...], str]:
    import torch

    kind = "float" if tensor.is_floating_point() else "bool" if tensor.dtype == torch.bool else "int"
    return tuple(tensor.shape[1:]), kind


def contents(records: Records) -> list[bytes]:
    """Return a hash of each record's inputs, labels and unit."""
    import torch

    contents = []
    for start in range(0, len(records), 4096):
        some = records.rows(slice(start, start + 4096))
        rows = [tensor.reshape(len(some), -1).contiguous().view(torch.uint8) for tensor in some.named().values()]
        for row in torch.cat(rows, dim=1).numpy():
            contents.append(hashlib.blake2b(row.tobytes(), digest_size=16).digest())
    return contents


PAID = "Nothing pays for what that tells of the records. Use public constants instead."
NO_MODEL = "the model"
WARM_UP = -1  # replaces no row; the task imports what it reads its table with, which can be altered from then on
COMPARED = 200  # number of records that look new and are compared with all others


class DependenceContract(RecordsContract):
    """Tests of dependence on the records: it is a release that no ledger holds."""

    def test_loading_the_records_changes_nothing_else(self, task: Task) -> None:
        """Facts, model, losses, scores and metrics are the same before and after the records are loaded."""
        loaded, source = _new(task), self.source()
        loaded.prepare(source)
        few = _spread(loaded.load_train(source))
        loaded.load_test(source)
        fresh = _new(task)
        with sealed() as complaints:
            before, after = _outward(fresh, few), _outward(loaded, few)
        if NO_MODEL in before and not complaints:  # weights may be where only `prepare` learns
            fresh.prepare(source)
            with sealed() as complaints:
                before = _outward(fresh, few)
        expect(not complaints, f"Records are loaded to state facts, or for a model, losses or scores. {PAID}")
        seen = _difference(before, after)
        expect(seen is None, f"Once the records are loaded, {seen}. {PAID}")

    def test_other_rows_of_a_table_change_no_record(self, task: Task) -> None:
        """A record, the model and the losses do not depend on the other rows of the table that is read."""
        base: tuple[Records, Records, dict[str, str]] | None = None
        is_altered = False
        for parity in (WARM_UP, None, 0, 1):
            with altered_tables(parity, task.facts.n_records, self.source()) as (elsewhere, readers):
                other = _new(task)
                try:
                    records = _together(other.load_train(elsewhere), other.load_test(elsewhere))
                except Exception as error:  # whatever a task raises at a table that it does not know
                    raise SkipTest(f"the task takes no other table: {type(error).__name__}: {error}") from None
                if parity == WARM_UP:
                    continue
                whole, few, before = base = base or (records, _spread(records), _outward(other, _spread(records)))
                seen = _difference(before, _outward(other, few))
            is_altered |= sorted(contents(records)) != sorted(contents(whole))
            table = ", ".join(dict.fromkeys(readers)) or "the files"
            read = f"With every second row of {table} replaced by a copy of another row,"
            changed = _new_records(whole, records)
            expect(
                not changed,
                f"{read} the task makes {changed} of {len(records)} records that it never made of the whole table: a "
                f"record depends on the rows of others, as by a scaler or a vocabulary that is fitted on them. {PAID}",
            )
            expect(seen is None, f"{read} {seen}. {PAID}")
        if not is_altered:
            raise SkipTest("its table is read by nothing that could give it another one")


def _new(task: Task) -> Task:
    """Return an instance that has not loaded anything."""
    try:
        return type(task)(task.model_name)
    except Exception:  # whatever a constructor of a task that is no plug-in raises
        return copy.deepcopy(task)


def _together(first: Records, second: Records) -> Records:
    import torch

    def joined(first: Any, second: Any) -> Any:
        if isinstance(first, Mapping):
            return {name: torch.cat([first[name], second[name]]) for name in first}
        return torch.cat([first, second])

    return Records(joined(first.inputs, second.inputs), joined(first.targets, second.targets)) if len(second) else first


def _spread(records: Records) -> Records:
    """Return a few records from all over the table, which may be sorted by class."""
    import torch

    return records.rows(torch.linspace(0, len(records) - 1, RECORDS).long())


def _new_records(known: Records, records: Records) -> int:
    """Count records that are not among the known ones, but for the rounding of sums in another order."""
    before = set(contents(known))
    new = [row for row, content in enumerate(contents(records)) if content not in before]
    return sum(not _is_among(known, records, row) for row in new[:COMPARED]) + len(new[COMPARED:])


def _is_among(known: Records, records: Records, row: int) -> bool:
    import torch

    close = torch.ones(len(known), dtype=torch.bool)
    for name, values in known.named().items():
        value = records.named()[name][row]
        is_equal = values == value
        if values.is_floating_point():
            slack = max(1e-5, 4 * torch.finfo(values.dtype).eps)
            is_equal |= (values - value).abs() <= slack * (1 + value.abs())
        close &= is_equal.reshape(len(known), -1).all(dim=1)
    return bool(close.any())


@quiet()
def _outward(task: Task, few: Records) -> dict[str, str]:
    """Return all that training, searches and boards see of a task, the records aside: names, and values in words."""
    import torch
    from torch import nn

    from dphpo_bench.training.structure import structure_hash

    metrics, _ = _attempt(lambda: task.metrics)
    with other_global_randomness(0):
        model, failure = _attempt(task.build_model)
    facts, unstated = _attempt(lambda: json.dumps(task.facts.to_json(), sort_keys=True))
    seen = {
        "facts": unstated or facts,
        "metrics": _described([metric.name for metric in metrics or ()]),
    }
    if failure:
        return {**seen, NO_MODEL: failure}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        seen[f"{name} of the model"] = _described(tensor)
    for name, module in model.named_modules():
        for attribute in sorted(vars(module).keys() - vars(nn.Module()).keys()):
            seen[f"the attribute {attribute} of {name or 'the model'}"] = _described(vars(module)[attribute])
    seen["the structure of the model"] = structure_hash(model)

    def predict() -> Any:
        with torch.no_grad():
            return call(model.eval(), few.to(torch.device("cpu"), next(model.parameters()).dtype).inputs)

    predicted, failure = _attempt(predict)
    if failure:
        return {**seen, "the model's output for a record": failure}
    seen["the model's output for a record"] = _described(predicted)
    # The weights are new, so most outputs are wrong; others are right for other records.
    made_up = (predicted, each(torch.neg, predicted), each(lambda first: first.roll(1, -1), predicted))
    for name, of in (("loss", "losses"), ("score", "scores")):
        values = [_attempt(partial(_per_record, task, of, outputs, few)) for outputs in made_up]
        seen[f"the {name} of a record"] = " ".join(failure or _described(value) for value, failure in values)
    for metric in metrics or ():
        if isinstance(metric, Metric):
            value, failure = _attempt(partial(metric.of, predicted, few.targets))
            seen[metric.name] = failure or _described(value)
    return seen


def _per_record(task: Task, which: str, outputs: Any, few: Records) -> Any:
    return getattr(task.objective(), which)(outputs, few.targets)


def _attempt(make: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return make(), ""
    except Exception as error:  # whatever a task raises: the same each time, or a difference
        return None, f"{type(error).__name__}: {error}"


def _described(value: Any) -> str:
    """Describe numbers, texts and tensors, and lists and dictionaries of them, so that different values differ."""
    import numpy as np
    import torch

    if isinstance(value, Mapping):
        return str({str(name): _described(first) for name, first in value.items()})
    if isinstance(value, list | tuple):
        return str([_described(first) for first in value])
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().reshape(-1).contiguous()
        content = flat.view(torch.uint8).numpy().tobytes()
        first = ", ".join(f"{number:.4g}" for number in flat[:3].tolist())
        return f"{first}{', ...' if len(flat) > 3 else ''} (hash {hashlib.blake2b(content, digest_size=6).hexdigest()})"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _described(torch.from_numpy(value))
    return f"a {type(value).__name__}"


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    for name in {**after, **before}:
        first, second = before.get(name, "missing"), after.get(name, "missing")
        if first != second:
            return f"{name} changes from {shortened(first, 80)} to {shortened(second, 80)}"
    return None


@dataclass(frozen=True)
class PlainDpSgd(SingleRun):
    """The plainest private method, to try tasks with: T steps of DP-SGD at the task's learning rate, no tuning."""

    name = "plain_dp_sgd"
    summary = "DP-SGD at the task's defaults."
    reference = "Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True


class TaskContract(DependenceContract):
    """Tests of one task at one of its models: its facts, its records, its model, and a short private run.

    Inherit, and give it a fixture `task` that returns an instance. `dphpo-bench check` does the same, for each model.
    """

    def test_model_gives_one_output_per_class(self, task: Task) -> None:
        """The model takes the declared inputs and gives finite outputs, one for each class where there are classes."""
        import torch

        from dphpo_bench.base.tensors import call
        from dphpo_bench.training.losses import logits

        facts = task.facts
        for n in (1, RECORDS):
            with other_global_randomness(0), torch.no_grad():
                inputs = {
                    name: torch.zeros(n, *spec.shape, dtype=getattr(torch, spec.dtype))
                    for name, spec in named(facts.inputs).items()
                }
                outputs = call(task.build_model(), inputs if isinstance(facts.inputs, Mapping) else inputs[ALONE])
            if facts.kind == "own":
                continue
            values = logits(outputs)
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            if facts.kind in ("classification", "multilabel"):
                expect(
                    shape == (n, facts.n_classes),
                    f"Expected outputs of shape {(n, facts.n_classes)} for {n} records, got {shape}.",
                )
            expect(bool(values.isfinite().all()), "Expected finite outputs for inputs of zeros.")

    def test_losses_and_scores_are_of_one_record_each(self, task: Task) -> None:
        """The model, the losses and the scores work on made-up records, one record at a time."""
        from dphpo_bench.training.own_model import OwnModel

        has_scores = task.facts.kind != "regression" or task.facts.error_bound is not None
        try:
            own_model = OwnModel(task.build_model, self._few(task), task.objective(), task.example)
            own_model.check(scores=has_scores)
        except InvalidValueError as error:
            raise ContractError(f"The model cannot be trained privately: {error}") from None

    def test_initial_weights_follow_the_seed(self, task: Task) -> None:
        """The initial weights are the same at one seed of torch's global generator."""
        import torch

        from dphpo_bench.training.structure import weights_hash

        hashes = []
        for other in (1, 2):
            with other_global_randomness(other):
                torch.manual_seed(7)
                hashes.append(weights_hash(task.build_model()))
        expect(
            hashes[0] == hashes[1],
            "At one seed the initial weights differ, so methods compared at it would start elsewhere. Draw them from "
            "torch's global generator, which the harness seeds; build a new model each time.",
        )

    def test_model_can_be_trained_privately(self, task: Task) -> None:
        """The gradient engine accepts the model and clips the gradient of each record."""
        import torch

        from dphpo_bench.training.clipping import Abadi
        from dphpo_bench.training.gradients import gradient_engine
        from dphpo_bench.training.model_checks import tried

        with other_global_randomness(0):
            model = task.build_model()
            few = self._few(task)
            try:
                with tried(few.inputs):
                    engine = gradient_engine(model, task.objective().losses, like=few)
                    total = engine.clipped_sum(few.inputs, few.targets, Abadi(0.5))
            except InvalidValueError as error:
                raise ContractError(f"The model cannot be trained privately: {error}") from None
        norm = float(torch.cat([part.flatten() for part in total]).double().norm())
        expect(
            norm <= 0.5 * len(few) * (1 + 1e-5),
            f"The sum of {len(few)} gradients clipped to 0.5 has norm {norm:g}.",
        )

    def test_model_treats_each_record_alone(self, task: Task) -> None:
        """The model's output for a record does not depend on the other records of its batch."""
        from dphpo_bench.training.model_checks import differs_in_batches

        way = differs_in_batches(task.build_model(), self._few(task).inputs)
        expect(
            not way,
            "The model's outputs for a record change with the others of a batch. Private training gives it one record "
            f"at a time, so that it is another network there. {way}",
        )

    def test_augmentation_treats_each_record_alone(self, task: Task) -> None:
        """A transform of the inputs, if the task declares some, keeps their form and combines no two records."""
        augmentation = augmentation_of(task.augment)
        if augmentation is None:
            return
        try:
            augmentation.check(self._few(task).inputs)
        except InvalidValueError as error:
            raise ContractError(f"{error} No clipping bounds the influence of one record then.") from None

    def test_private_run_works(self, task: Task) -> None:
        """A few steps of DP-SGD on the first records end with a model within the budget."""
        from dphpo_bench.harness.plan import plan

        excerpt = Excerpt(task)
        plan(PlainDpSgd(), task, PrivacyBudget(EPSILON, min(DELTA, task.facts.default_delta)))
        record = recorded(PlainDpSgd(), excerpt, self.source())
        expect(record.status == "ok", f"DP-SGD on the first {excerpt.facts.n_records} records failed: {record.error}")
        privacy = record.privacy
        expect(privacy is not None and privacy.epsilon <= EPSILON, f"DP-SGD overspent its budget of ε={EPSILON:g}.")
