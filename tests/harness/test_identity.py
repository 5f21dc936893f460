"""Identities: two configurations never share a record's name, and no text of a source file is part of one."""

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import SealedDataError
from dphpo_bench.contract.search_space import default_search_space
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.records.record import Identity
from dphpo_bench.testing import Blobs
from tests.own_task import array_task

SOURCE = bench.DataSource.resolve("unused", "unused")
BUDGET = bench.PrivacyBudget(3.0, 1e-4)
X = torch.randn(120, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(120) % 3


def identity(method: bench.Method, task: bench.Task, seed: int | None = 0) -> Identity:
    return identity_of(method, task_identity(task, task.facts, SOURCE), BUDGET, seed)


def own(model: Any = None, **changes: Any) -> bench.ArrayTask:
    return array_task("own", (X, Y), model or (lambda: nn.Linear(5, 3)), **changes)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def test_runs_of_other_configurations_leave_records_of_their_own(fixed_noise, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"epochs": 2}, {"model": mlp}, {"version": "2"}, {"test": (X[:9], Y[:9])}]
    tasks = [own(public=True, **changed) for changed in changes]
    paths = [bench.run(fixed_noise(), task, BUDGET, seed=0, results_dir=tmp_path).path for task in tasks]
    again = bench.run(fixed_noise(), own(public=True), BUDGET, seed=0, results_dir=tmp_path).path
    assert len(set(paths)) == len(tasks)
    assert again == paths[0]
    assert len(list(tmp_path.glob("*/*/*.json"))) == len(tasks)


def test_weights_that_runs_start_from_are_part_of_the_identity(fixed_noise) -> None:
    module = nn.Linear(5, 3)
    task = own(module, pretrained=True)
    before = identity(fixed_noise(), task).key
    assert identity(fixed_noise(), own(module, pretrained=True)).key == before
    with torch.no_grad():
        module.weight[0, 0] += 1
    assert identity(fixed_noise(), own(module, pretrained=True)).key != before
    assert identity(fixed_noise(), task).key == before  # it has copied what its runs start from


def test_weights_that_follow_the_seed_are_not(fixed_noise) -> None:
    task = own()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = identity(fixed_noise(), task).key
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert identity(fixed_noise(), task).key == one


SHARES = (0.5, 0.3, 0.2)
CHANGED: dict[str, Any] = {
    "task": "other",
    "model": "other",
    "n_records": 601,
    "inputs": bench.recipes.Input((6,)),
    "n_classes": 4,
    "batch_size": 99,
    "epochs": 3.5,
    "optimizer": "SGD",
    "learning_rate": 0.06,
    "kind": "tokens",
    "error_bound": 3.0,
    "loss_bound": 5.0,
    "search_space": lambda: {"learning_rate": FloatDistribution(1e-4, 2.0, log=True)},
    "unit": "patient",
    "class_shares": SHARES,
    "class_weights": "balanced",
    "target_scale": (3.0, 2.0),
}
NEEDED: dict[str, dict[str, Any]] = {
    "class_weights": {"class_shares": SHARES},
    "target_scale": {"kind": "regression", "n_classes": None},
}


@pytest.mark.parametrize("name", [field.name for field in fields(bench.TaskFacts)])
def test_every_public_fact_is_part_of_the_identity(fixed_noise, name: str) -> None:
    facts = replace(Blobs().facts, **NEEDED.get(name, {}))
    changed = replace(facts, **{name: CHANGED[name]})
    assert name in changed.to_json()
    one, other = (
        identity_of(fixed_noise(), task_identity(Blobs(), each, SOURCE), BUDGET, 0) for each in (facts, changed)
    )
    assert one.key != other.key


def test_a_record_is_the_unit_of_older_identities() -> None:
    assert "unit" not in Blobs().facts.to_json()


def test_facts_come_back_from_json() -> None:
    def space() -> dict[str, Any]:
        return {**default_search_space(), "optimizer": CategoricalDistribution(["SGD", "AdamW"])}

    facts = replace(Blobs().facts, search_space=space, epochs=3)
    of_task = task_identity(Blobs(), facts, SOURCE)
    made = identity_of(bench.make_method("dp_sgd"), of_task, BUDGET, 0)
    again = Identity.model_validate_json(made.model_dump_json())
    assert (again, again.key) == (made, made.key)
    assert made.facts["epochs"] == 3.0
    assert made.facts["search_space"]["optimizer"]["attributes"] == {"choices": ["SGD", "AdamW"]}


def test_a_model_that_opens_the_records_is_refused(fixed_noise) -> None:
    """Kept on the task, they would be in every model that a session builds."""

    class Pretrains(Blobs):
        def build_model(self) -> nn.Module:
            with contextlib.suppress(SealedDataError):
                self.load_train(SOURCE)
            return super().build_model()

    with pytest.raises(SealedDataError, match="load_train of task blobs was called"):
        bench.run(fixed_noise(), Pretrains(), BUDGET, seed=0)


OUTCOMES: list[tuple[str, Callable[[Any], Any]]] = [
    ("failed", lambda method: method(fault="raise")),
    ("over_budget", lambda method: method(extra_steps=1)),
]


@pytest.mark.parametrize(("status", "made"), OUTCOMES)
def test_a_run_that_did_not_end_well_raises(fixed_noise, tmp_path: Path, status: str, made: Any) -> None:
    with pytest.raises(
        bench.errors.RunFailedError, match=f"The run of fixed_noise on blobs ended with status {status}: "
    ) as one:
        bench.run(made(fixed_noise), Blobs(), BUDGET, seed=0, results_dir=tmp_path)
    error = one.value
    assert "\n" not in str(error)
    assert str(error.path) in str(error)
    assert bench.read_record(error.path) == error.record
    assert error.record.status == status
    again = pickle.loads(pickle.dumps(error))  # as from a process of a pool
    assert (str(again), again.record, again.path) == (str(error), error.record, error.path)
    result = bench.run(made(fixed_noise), Blobs(), BUDGET, seed=0, results_dir=tmp_path, check=False)
    assert (result.record.status, result.model, result.path) == (status, None, error.path)
