"""Tests of the facts and the records of every task; see `TaskContract`."""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from dphpo_bench.base.errors import DataError, SealedDataError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.source import DataSource
from dphpo_bench.testing.expectations import ContractError, expect, expect_line, expect_name_and_version, shortened
from dphpo_bench.testing.new_process import ask_new_process, expect_cheap
from dphpo_bench.testing.runs import other_global_randomness

if TYPE_CHECKING:
    import torch

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
        looked = "The facts are computed from the records. State them: N, shape and classes are public constants."
        try:
            with sealed() as complaints:
                facts, again = task.facts, task.facts
        except SealedDataError:
            raise ContractError(looked) from None
        expect(not complaints, looked)
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
