"""Tests that hold for every task, to inherit: records, dependence between them, model, a short private run."""

import copy
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest
from unittest.mock import patch

from dphpo_bench.base.tensors import Records, call, each, joined
from dphpo_bench.contract.metrics import Metric
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.testing.new_process import ask_new_process
from dphpo_bench.testing.runs import (
    DELTA,
    EPSILON,
    expect,
    expect_line,
    expect_name_and_version,
    other_global_randomness,
    quiet,
    recorded,
    shortened,
)
from dphpo_bench.testing.small_tasks import Excerpt

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

FEW = 64  # number of records of a published dataset that are read, since their features are extracted anew
MOST = 4  # a table has at most this many times the rows of a task's records, or records than rows


@contextmanager
def altered_tables(parity: int | None, n_records: int, source: DataSource) -> Iterator[DataSource]:
    """Let the readers that this process has imported replace every second row of a table while this lasts.

    A table of quite another size than the records, such as an embedding, stays as it is. Nothing comes from a cache.
    Parity 0 replaces the first, third, ... row by a copy of another one, 1 the others; anything else replaces none.
    Yields the source to load from.
    """
    from dphpo_bench.data import images, rows

    depth = 0

    def changed(table: Any, n: int) -> Any:
        order = [1 - parity if parity in (0, 1) and row % 2 == parity else row for row in range(n)]
        if isinstance(table, list):
            return [table[row] for row in order]
        if hasattr(table, "iloc"):
            return table.iloc[order].set_axis(table.index)
        return table.take(order) if hasattr(table, "schema") else table[order]

    def altered(table: Any) -> Any:
        if isinstance(table, tuple):
            return tuple(map(altered, table))
        if isinstance(table, dict):  # such as a data set of scikit-learn
            table = copy.copy(table)
            table.update({name: altered(part) for name, part in table.items()})
            return table
        n = len(table) if isinstance(table, list) else table.shape[0] if getattr(table, "shape", ()) else 0
        return changed(table, n) if n >= 4 and n_records / MOST <= n <= n_records * MOST else table

    def reader_of_altered(read: Callable[..., Any]) -> Callable[..., Any]:

        @wraps(read)
        def read_altered(*arguments: Any, **options: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                table = read(*arguments, **options)
            finally:
                depth -= 1
            return table if depth else altered(table)

        return read_altered

    def reader_of_few(load: Callable[..., Any]) -> Callable[..., Any]:
        """Return a reader of a published dataset that checks all of its records and gives a few of them."""

        def load_few(_: DataSource, *which: Any) -> Any:
            few = load(source, *which)[:FEW]
            return changed(few, len(few))

        return load_few

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="dphpo-bench-check-")))
        if (weights := source.cache_dir.absolute() / "weights").is_dir():
            (folder / "weights").symlink_to(weights)
        for name, beginnings in READERS.items():
            module = sys.modules.get(name)
            for reader in [each for each in vars(module or object) if each.startswith(beginnings)]:
                if callable(read := getattr(module, reader)):
                    stack.enter_context(patch.object(module, reader, reader_of_altered(read)))
        for module, reader in ((rows, "load_rows"), (images, "load_records")):
            stack.enter_context(patch.object(module, reader, reader_of_few(getattr(module, reader))))
        if zoo := sys.modules.get("dphpo_bench.zoo.features"):
            stack.enter_context(patch.object(zoo.CachedFeatures, "load", _extracted))
        yield replace(source, data_dir=source.root, cache_dir=folder)


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

    def test_facts_are_public(self, task: Task) -> None:
        """The facts are stated without reading data, never change, and are about this task and this model."""
        with sealed() as complaints:
            facts, again = task.facts, task.facts
        expect(not complaints, "The facts are computed from the records. State them: they are public constants.")
        expect(isinstance(facts, TaskFacts), f"Expected facts to be TaskFacts, got {type(facts).__name__}.")
        expect(facts == again, "The facts differ from one time to the next. They are constants.")
        expect(
            (facts.task, facts.model) == (task.name, task.model_name),
            f"Expected facts about {task.name} ({task.model_name}), got {facts.task} ({facts.model}). Use self.name "
            "and self.model_name.",
        )

    def test_records_are_as_declared(self, task: Task) -> None:
        """N, units, names, shapes and types are those of the facts; inputs are finite, ids and labels in range."""
        import torch

        from dphpo_bench.harness.loading import check_declared
        from dphpo_bench.training.losses import IGNORED

        facts, splits = task.facts, self._splits(task)
        stated = {name: (tuple(spec.shape), spec.dtype) for name, spec in named(facts.inputs).items()}
        check_declared(facts, splits[0][1])
        for which, records in splits:
            inputs, labels = named(records.inputs), records.targets
            actual = {name: _like(tensor) for name, tensor in inputs.items()}
            expect(
                actual == stated,
                f"Expected {which} inputs as the facts state them, {shortened(stated)}, got {shortened(actual)}. Use "
                ".float() for real numbers and .long() for token ids.",
            )
            for name, spec in named(facts.inputs).items():
                pieces = (inputs[name][start : start + 4096] for start in range(0, len(records), 4096))
                expect(
                    all(bool(piece.isfinite().all()) for piece in pieces),
                    f"Expected finite {which} inputs, got NaN or infinity. Impute or drop them by a rule per record.",
                )
                if spec.vocabulary is not None:
                    _expect_range(f"{which} token ids", inputs[name], spec.vocabulary - 1)
            if facts.kind in ("binary", "multilabel"):
                _expect_range(f"{which} labels", labels, 1)
            elif facts.kind in ("classification", "tokens") and facts.n_classes and isinstance(labels, torch.Tensor):
                expect(labels.dtype == torch.int64, f"Expected {which} labels of int64, got {labels.dtype}.")
                _expect_range(f"{which} labels", labels[labels != IGNORED], facts.n_classes - 1)

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
        after = task.data_fingerprint(source)
        expect(after == before, "The fingerprint names the records, yet loading them changes it.")
        places = {"data_dir": source.data_dir and str(source.data_dir), "cache_dir": str(source.cache_dir)}
        elsewhere = ask_new_process(type(task), "fingerprints", model=task.model_name, **places)
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


def named(inputs: Any) -> dict[str, Any]:
    return dict(inputs) if isinstance(inputs, Mapping) else {ALONE: inputs}


def _expect_range(what: str, values: Any, most: int) -> None:
    if len(values):
        low, high = float(values.min()), float(values.max())
        expect(low >= 0 and high <= most, f"Expected {what} from 0 to {most}, got {low:g} to {high:g}.")


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
            with altered_tables(parity, task.facts.n_records, self.source()) as elsewhere:
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
            read = "With every second row of its table replaced by a copy of another row,"
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
    if not len(second):
        return first
    return Records(joined([first.inputs, second.inputs]), joined([first.targets, second.targets]))


def _spread(records: Records) -> Records:
    """Return a few records from all over the table, which may be sorted by class."""
    import torch

    return records.rows(torch.linspace(0, len(records) - 1, RECORDS).long())


def _new_records(known: Records, records: Records) -> int:
    """Count records that are not among the known ones, but for the rounding of sums in another order."""
    import torch

    before = set(contents(known))
    unknown = [row for row, content in enumerate(contents(records)) if content not in before]
    new = len(unknown)
    for row in unknown[:COMPARED]:
        close = torch.ones(len(known), dtype=torch.bool)
        for name, values in known.named().items():
            value = records.named()[name][row]
            is_equal = values == value
            if values.is_floating_point():
                slack = max(1e-5, 4 * torch.finfo(values.dtype).eps)
                is_equal |= (values - value).abs() <= slack * (1 + value.abs())
            close &= is_equal.reshape(len(known), -1).all(dim=1)
        new -= bool(close.any())
    return new


@quiet()
def _outward(task: Task, few: Records) -> dict[str, str]:
    """Return all that training, searches and boards see of a task, the records aside: names, and values in words."""
    import torch

    from dphpo_bench.training.structure import named_tensors, structure_hash

    metrics, _ = _attempt(lambda: task.metrics)
    with other_global_randomness(0):
        model, failure = _attempt(task.build_model)
    facts, unstated = _attempt(lambda: json.dumps(task.facts.to_json(), sort_keys=True))
    seen = {"facts": unstated or facts, "metrics": _described([metric.name for metric in metrics or ()])}
    if failure:
        return {**seen, NO_MODEL: failure}
    for name, tensor in named_tensors(model):
        seen[f"{name} of the model"] = _described(tensor)
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
    import torch

    from dphpo_bench.training.structure import content

    if isinstance(value, Mapping):
        return str({str(name): _described(part) for name, part in value.items()})
    if isinstance(value, list | tuple):
        return str([_described(part) for part in value])
    if isinstance(value, torch.Tensor):
        first = ", ".join(f"{number:.4g}" for number in value.flatten()[:3].tolist())
        return f"{first}{', ...' * (value.numel() > 3)} (hash {hashlib.sha256(content(value)).hexdigest()[:12]})"
    return repr(value) if value is None or isinstance(value, int | float | str) else f"a {type(value).__name__}"


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    for name in {**after, **before}:
        first, second = before.get(name, "missing"), after.get(name, "missing")
        if first != second:
            return f"{name} changes from {shortened(first, 80)} to {shortened(second, 80)}"
    return None


class TaskContract(DependenceContract):
    """Tests of one task at one of its models: its facts, its records, its model, and a short private run.

    Inherit, and give it a fixture `task` that returns an instance. `dphpo-bench check` does the same, for each model.
    """

    def test_model_and_losses_are_of_one_record_each(self, task: Task) -> None:
        """Model, losses and scores work on made-up records, one at a time, and each output is of one record."""
        from dphpo_bench.training.own_model import OwnModel

        has_scores = task.facts.kind != "regression" or task.facts.error_bound is not None
        few = task.load_train(self.source()).rows(slice(RECORDS))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # of a model that is another network in a batch
            OwnModel(task.build_model, few, task.objective(), task.example).check(scores=has_scores)

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

    def test_private_run_works(self, task: Task) -> None:
        """A few steps of DP-SGD on the first records end with a model within the budget."""
        from dphpo_bench.contract.registry import make_method
        from dphpo_bench.harness.plan import plan

        excerpt, method = Excerpt(task), make_method("dp_sgd")
        plan(method, task, PrivacyBudget(EPSILON, min(DELTA, task.facts.default_delta)))
        record = recorded(method, excerpt, self.source())
        expect(record.status == "ok", f"DP-SGD on the first {excerpt.facts.n_records} records failed: {record.error}")
        privacy = record.privacy
        expect(privacy is not None and privacy.epsilon <= EPSILON, f"DP-SGD overspent its budget of ε={EPSILON:g}.")
