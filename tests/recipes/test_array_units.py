"""Tasks from a user's own data where several records are of one person."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dphpo_bench as bench
from dphpo_bench.audit.canaries import SETUPS
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.loading import records_digest
from dphpo_bench.harness.plan import plan, warn_of_budget
from dphpo_bench.recipes.array_task import ArrayTask
from dphpo_bench.testing.small_tasks import Excerpt
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask
from tests.own_task import array_task

N, PATIENTS = 400, 100
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 4))
Y = (X[:, 0] > 0).astype(int)
NAMES = np.array([f"patient {number:03d}" for number in RANDOM.integers(PATIENTS, size=N)])
N_UNITS = len(set(NAMES.tolist()))
NUMBERS = np.unique(NAMES, return_inverse=True)[1]
SOURCE = DataSource.resolve("unused", "unused")
BUDGET = bench.PrivacyBudget(3, 1e-3)


def make(unit: Any = NAMES, **changes: Any) -> ArrayTask:
    arguments: dict[str, Any] = {"name": "visits", "train": (X, Y), "model": nn.Linear(4, 2), "unit": unit, **changes}
    return array_task(**arguments)


def groups(units: Any) -> set[frozenset[int]]:
    """Which records are of one unit, whatever it is called."""
    ids = list(units)
    return {frozenset(row for row, other in enumerate(ids) if other == one) for one in ids}


def frame() -> pandas.DataFrame:
    return pandas.DataFrame({**{f"x{i}": X[:, i] for i in range(4)}, "patient": NAMES, "labels": Y})


@pytest.mark.parametrize(
    "unit",
    [
        NAMES.tolist(),
        torch.tensor(NUMBERS),
        pandas.Series(NAMES).astype("category"),
        [UUID(int=number) for number in NUMBERS],
        pandas.to_datetime(pandas.Series(NUMBERS), unit="D"),
        pyarrow.chunked_array([pyarrow.array(part).dictionary_encode() for part in (NAMES[:7], NAMES[7:])]),
    ],
    ids=lambda unit: f"{type(unit).__name__} {getattr(unit, 'dtype', '')}",
)
def test_ids_may_be_texts_or_numbers_in_any_vector(unit: Any) -> None:
    task = make(unit)
    train = task.load_train(SOURCE)
    assert train.units is not None
    assert groups(train.units.tolist()) == groups(NAMES)
    assert (task.facts.n_records, task.facts.batch_size, task.facts.unit) == (N_UNITS, -(-N_UNITS // 4), "unit")
    assert (len(train), train.n_units) == (N, N_UNITS)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (frame(), frame()[:20]),
        (frame(), frame()[:20].drop(columns="patient")),  # test records need no units
        ((frame().drop(columns="labels"), Y), None),
        ({"inputs": X, "patient": NAMES, "labels": Y}, {"inputs": X[:9], "labels": Y[:9]}),
    ],
)
def test_a_column_of_ids_is_no_input(train: Any, test: Any) -> None:
    task = make("patient", train=train, test=test)
    assert (task.facts.unit, task.facts.n_records) == ("patient", N_UNITS)
    assert task.facts.inputs == bench.recipes.Input((4,))
    loaded = task.load_train(SOURCE)
    torch.testing.assert_close(loaded.inputs, torch.tensor(X).float())
    assert groups(loaded.units.tolist()) == groups(NAMES)  # type: ignore[union-attr]
    assert task.load_test(SOURCE).units is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": [None, *NAMES[1:]]}, "some that are missing"),
        ({"unit": pandas.Series([pandas.NA, *NUMBERS[1:]])}, "missing ids"),
        ({"unit": pyarrow.chunked_array([[None, *NUMBERS[1:]]])}, "some that are missing"),
        ({"unit": ["7", *NUMBERS[1:]]}, "got Number, str"),
        ({"unit": list(torch.tensor(NUMBERS))}, "got Tensor"),  # equal ones are different objects
        ({"unit": [object() for _ in NAMES]}, "got object"),
        ({"unit": NAMES[1:]}, "one row in each tensor for each record"),
        ({"unit": np.ones((N, 2))}, "ids or a ndarray of another form"),
        ({"unit": ["one"] * N}, "at least two different ones, got 1"),
        ({"unit": "patient"}, "unit='patient' to be a column of the inputs of train"),
        ({"unit": "patient", "train": TensorDataset(torch.tensor(X), torch.tensor(Y))}, "pass the ids themselves"),
        ({"batch_size": N_UNITS + 1}, f"n_records={N_UNITS} units of unit, got batch_size={N_UNITS + 1}"),
    ],
)
def test_mistakes_are_told_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match="(?s)" + message.replace("(", r"\(")) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)
    assert "patient 0" not in str(caught.value)  # no id is quoted


@pytest.mark.parametrize("place", ["unit", "labels", "test", "table"])
def test_rows_in_another_order_are_not_mixed(place: str) -> None:
    """Ids or labels of a table that was shuffled without them would silently be those of other records."""
    ordered = frame()
    shuffled = ordered.sample(frac=1, random_state=0)
    inputs, labels = shuffled[[f"x{i}" for i in range(4)]], ordered["labels"]
    changes: dict[str, Any] = {
        "unit": {"train": (inputs, shuffled["labels"]), "unit": ordered["patient"]},
        "labels": {"train": (inputs, labels)},
        "test": {"test": (inputs, labels)},
        "table": {"train": shuffled.drop(columns="patient"), "unit": ordered["patient"]},
    }[place]
    with pytest.raises(InvalidValueError, match=r"got the same index in several orders.*reset_index\(drop=True\)"):
        make(**changes)


def test_rows_of_several_indexes_are_taken_in_their_order() -> None:
    shuffled = frame().sample(frac=1, random_state=0)
    ids = shuffled["patient"]
    for unit in (ids, ids.to_numpy(), ids.set_axis(range(N, 2 * N)), ids.set_axis([0] * N)):
        loaded = make(unit, train=shuffled.drop(columns="patient")).load_train(SOURCE)
        assert groups(loaded.units.tolist()) == groups(ids)  # type: ignore[union-attr]


def test_ids_that_differ_in_form_alone_are_named() -> None:
    """One person under two ids is protected as two."""
    ids = NAMES.astype(object)
    ids[0] = f" {ids[0].upper()}"
    with pytest.warns(UserWarning, match="1 id of a unit differs from another in white space, capitals or form"):
        make(ids)


def test_the_number_of_records_is_in_no_identity() -> None:
    """It is private: two records more of one person change neither facts nor fingerprint, but the keyed digest."""
    more = (np.concatenate([X, X[:2]]), np.concatenate([Y, Y[:2]]))
    one, other = make(), make([*NAMES, *NAMES[:2]], train=more)
    assert one.facts.to_json() == other.facts.to_json()
    assert one.facts.to_json()["unit"] == "unit"
    assert one.fingerprint(SOURCE) == other.fingerprint(SOURCE)
    moved = make([NAMES[1], *NAMES[1:]])
    assert len({records_digest(b"key", task.load_train(SOURCE)) for task in (one, other, moved)}) == 3
    assert str(N) not in str(one.facts.to_json())


METHODS = [
    *("dp_sgd", "auto_clipping", "adaptive_clipping", "hyfreedp", "dp_zo", "linear_scaling", "random_search"),
    *("papernot_steinke", "liu_talwar", "dp_hypo", "successive_halving", "propose_test", "subsampled_tuning"),
    *("dp_fedavg", "grid_oracle", "nonprivate"),
]
SHORT: dict[str, dict[str, Any]] = {
    "linear_scaling": {"runs": 2, "steps": 5},
    "nonprivate": {"epochs": 1},
    "propose_test": {"candidates": 4},
    "subsampled_tuning": {"accounting": "profile", "mean": 2},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", METHODS)
def test_methods_run_by_unit(name: str) -> None:
    """Each with steps of its own; others are made of the same."""
    task = make(NUMBERS[:80] % 40, train=(X[:80], Y[:80]), batch_size=20, epochs=2)
    method = bench.make_method(name, SHORT.get(name, {}))
    record = bench.run(
        method,
        task,
        BUDGET,
        seed=0,
        execution=bench.ExecutionOptions(source=SOURCE),
        account=bench.AccountOptions(not_private=True),
        check=False,
    ).record
    assert record.status == "ok", record.error
    assert (record.identity.facts["unit"], record.identity.facts["n_records"]) == ("unit", task.facts.n_records)


@pytest.mark.parametrize("name", ["dp_sgd", "hyfreedp"])
def test_noise_and_rates_are_those_of_as_many_records_as_there_are_units(name: str) -> None:
    like = make(None, train=(X[:N_UNITS], Y[:N_UNITS]), batch_size=20, epochs=2)
    planned, expected = (plan(name, task, BUDGET).plan for task in (make(batch_size=20, epochs=2), like))
    assert repr(planned.event) == repr(expected.event)


def test_plan_run_and_show_name_the_unit() -> None:
    def text(table: Any) -> str:
        return "\n".join(str(cell) for column in table.columns for cell in column.cells)

    task = make("patient", train=frame())
    checked = plan("dp_sgd", task, BUDGET)
    assert checked.to_json()["unit"] == "patient"
    line = f"patient, N = {N_UNITS}, each with all its records"
    assert line in repr(checked)
    result = bench.run(
        "dp_sgd", task, BUDGET, seed=None, execution=bench.ExecutionOptions(source=SOURCE), results_dir=None
    )
    assert line in repr(result)
    with pytest.warns(UserWarning, match=r"publishing a unit \(patient\)"):
        warn_of_budget(bench.PrivacyBudget(3, 0.1), task.facts.n_records, task.facts.unit)


@pytest.mark.parametrize("attack", ["black_box", "white_box"])
def test_a_canary_stands_for_a_whole_unit(attack: str) -> None:
    task, m = make(), 10
    made = SETUPS[attack](task, task.load_train(SOURCE), m, Streams(0))
    assert made.records.units is not None
    inside = int(made.members.sum())
    kept = N_UNITS - (m if attack == "black_box" else m // 2)
    assert made.records.n_units == kept + inside
    canaries, others = made.records.units[-inside:], made.records.units[:-inside]
    assert len(set(canaries.tolist())) == inside
    assert not set(canaries.tolist()) & set(others.tolist())


class Visits(TinyTask):
    """A task class with units: three visits of each of 120 patients."""

    name = "tiny_visits"
    n_records = 120

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, unit="patient")

    def load_train(self, source: DataSource) -> bench.Records:
        records = self._split(3 * self.n_records, 1)
        return replace(records, units=torch.arange(3 * self.n_records) % self.n_records)


def test_a_task_class_returns_units_with_its_records() -> None:
    run = bench.run("dp_sgd", Visits(), BUDGET, seed=0, results_dir=None)
    assert run.record.status == "ok"
    excerpt = Excerpt(Visits(), 30).load_train(SOURCE)
    assert (excerpt.n_units, len(excerpt)) == (30, 90)


def test_a_task_class_with_another_number_of_units_is_refused() -> None:
    class Wrong(Visits):
        name = "wrong_visits"

        def load_train(self, source: DataSource) -> bench.Records:
            return replace(super().load_train(source), units=torch.arange(360) % 119)

    with pytest.raises(DataError, match=r"declares N=120 public training units \(patient\) but loads 119"):
        bench.run("dp_sgd", Wrong(), BUDGET, seed=0, results_dir=None)
