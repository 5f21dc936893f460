"""HyFreeDP in a loop of the caller: the method's releases and rates, whoever computes the gradients."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import dphpo_bench as bench
from dphpo_bench.base.errors import RecordError
from dphpo_bench.external.tuner import Rows
from dphpo_bench.methods.hyfreedp import HyFreeDP
from dphpo_bench.recipes.noise_law import noise_walk
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask, session_on
from tests.external.loops import (
    BUDGET,
    STEPS,
    TEST,
    TRAIN,
    as_the_session,
    batches,
    having,
    losses,
    network,
    private,
    tuner_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:No account counts", "ignore:.*hook")


class Watching:
    """An observer that keeps the gradients."""

    def __init__(self) -> None:
        self.gradients: list[list[torch.Tensor]] = []

    def gradient(self, model: nn.Module, released: Any, share: float) -> None:
        del model, share
        self.gradients.append([part.clone() for part in released])


def by_the_method(
    model: str, *, regression: bool = False, **parameters: Any
) -> tuple[Any, nn.Module, list[list[torch.Tensor]], nn.Module]:
    """The outcome of the method, its model, its gradients, and the model where it began."""
    watching, task = Watching(), TinyTask(model)
    session = session_on(task, TRAIN, streams=Streams(7), observer=watching)
    method = HyFreeDP(**parameters)
    facts = replace(task.facts, kind="regression", n_classes=None) if regression else task.facts
    outcome = method.run(method.plan(facts, BUDGET), session)
    start = session_on(task, TRAIN, streams=Streams(7)).build_model()
    return outcome.released, outcome.model, watching.gradients, start


def assert_same(finished: Any, expected: Any, rel: float) -> None:
    assert finished.record.released == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_a_plain_loop_releases_what_the_method_releases(name: str, regression: bool) -> None:
    """Gradients differ by the order of sums only: 1e-4 of their noise; queries, rates and weights accordingly."""
    expected, trained, gradients, model = by_the_method(name, regression=regression)
    tuner = having(tuner_of(model, regression=regression), Streams(7))
    for gradient in gradients:
        tuner.backward()
        for weight, part in zip(model.parameters(), gradient, strict=True):
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, part, rtol=1e-3, atol=1e-5)
        tuner.step()
    finished = tuner.finish()
    if not regression:
        assert tuner.planned == HyFreeDP().plan(TinyTask(name).facts, BUDGET).parameters
    assert_same(finished, expected, 1e-2)
    for weight, other in zip(model.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-2, atol=1e-3)


def opacus_loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[bench.hyfreedp.Tuner, Any]:
    """An Opacus loop with batches and noise of a session, and what it ends with."""
    tuner = having(tuner_of(model), Streams(7))
    module, private_optimizer, loader = as_the_session(model, tuner, 0.5, Streams(7), optimizer)
    tuner.attach(private_optimizer, loader)
    for x, y in loader:
        functional.cross_entropy(module(x), y).backward()
        tuner.step()
    return tuner, tuner.finish()


@pytest.mark.parametrize("name", ["linear", "mlp"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_an_opacus_loop_fed_with_batches_and_noise_of_the_method_has_its_rates(name: str, optimizer: str) -> None:
    """Opacus clips by C / (norm + 1e-6) and the method by C / norm; else all is the same but for the order of sums."""
    expected, trained, _, model = by_the_method(name, clipping="abadi:0.5", optimizer=optimizer)
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    _, finished = opacus_loop(model, getattr(torch.optim, optimizer)(model.parameters(), lr=9.0, **options))
    assert_same(finished, expected, 1e-2)
    for weight, other in zip(model.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("mode", "wrap_model"), [("hooks", True), ("hooks", False), ("functorch", True)])
def test_opacus_learns_without_a_learning_rate(mode: str, wrap_model: bool) -> None:
    """Whatever rate its optimiser has; and queries leave no gradients of records behind."""
    model = network()
    tuner = tuner_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e3)
    module, optimizer, loader, accountant = private(
        model, tuner, optimizer=optimizer, wrap_model=wrap_model, grad_sample_mode=mode
    )
    tuner.attach(optimizer, loader, accountant)
    for x, y in batches(loader, STEPS):
        functional.cross_entropy((module if wrap_model else model)(x), y).backward()
        tuner.step()
        assert all(weight.grad_sample is None for weight in model.parameters())
    assert tuner.finish() is not None
    assert (model(TEST.inputs).argmax(1) == TEST.targets).float().mean() > 0.75


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_a_record_without_a_finite_gradient_counts_as_none(bad: float, mode: str) -> None:
    """Opacus clips NaN to NaN, and weights of NaN would show that the record took part."""
    inputs = TRAIN.inputs[:50].clone()
    inputs[3] = bad
    gradients = []
    for rows in (inputs, torch.cat([inputs[:3], inputs[4:]])):
        model = network()
        tuner = tuner_of(model)
        module, optimizer, loader, accountant = private(model, tuner, grad_sample_mode=mode)
        tuner.attach(optimizer, loader, accountant)
        optimizer.noise_multiplier, optimizer.loss_reduction = 1e-9, "sum"
        functional.cross_entropy(module(rows), torch.zeros(len(rows), dtype=torch.long)).backward()
        gradients.append(tuner._optimizer.noisy_gradient())  # type: ignore[union-attr]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_seed_of_the_script_tells_nothing_of_noise_and_batches_of_opacus() -> None:
    """Scripts call torch.manual_seed, and publish it."""
    gradients = []
    for _ in range(2):
        model = network()
        tuner = tuner_of(model)
        module, optimizer, loader, accountant = private(model, tuner)
        tuner.attach(optimizer, loader, accountant)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            functional.cross_entropy(module(TRAIN.inputs[:50]), TRAIN.targets[:50]).backward()
            optimizer.pre_step()
            gradients.append((model[0].weight.grad, next(iter(loader.batch_sampler))))  # type: ignore[index]
    (noisy, batch), (again, other) = gradients
    assert not torch.equal(noisy, again)
    assert batch != other


def test_a_finished_model_holds_no_records() -> None:
    """Nothing in the file of the model is the size of a batch, as inputs and gradients of records are."""
    model = network("mlp")
    tuner = tuner_of(model)
    module, optimizer, loader, accountant = private(model, tuner)
    tuner.attach(optimizer, loader, accountant)
    for x, y in batches(loader, STEPS):
        functional.cross_entropy(module(x), y).backward()
        tuner.step()
    module(TRAIN.inputs)  # an input that stays on the layers
    assert any(hasattr(layer, "activations") for layer in module.modules())
    tuner.finish()
    assert not any(hasattr(layer, "activations") for layer in module.modules())
    assert all(weight.grad_sample is None and weight.summed_grad is None for weight in module.parameters())


# ------------------------------------------------------------------------------------------------------------- counted


def loop(tuner: bench.hyfreedp.Tuner, steps: int = STEPS) -> None:
    for _ in range(steps):
        tuner.backward()
        tuner.step()


def test_a_training_is_counted_at_its_first_step_and_recorded_at_its_end(tmp_path: Path) -> None:
    tuner = tuner_of(network(), results_dir=tmp_path)
    assert not [*tmp_path.iterdir()]
    loop(tuner, 1)
    assert [(entry.task, entry.method, entry.what) for entry in bench.account(tmp_path).releases] == [
        ("blobs", "hyfreedp", "training")
    ]
    loop(tuner, STEPS - 1)
    finished = tuner.finish(metrics={"accuracy": 0.5})
    assert finished is not None
    assert finished.path is not None
    record = bench.read_record(finished.path)
    assert (record.accounting, record.identity.method, record.identity.task) == (
        "declared by the caller",
        "hyfreedp",
        "blobs",
    )
    assert 0 < record.privacy.epsilon <= BUDGET.epsilon
    assert 0 < record.privacy.tuning_share < 0.1
    assert record.metrics == {"accuracy": 0.5}
    assert record.released["learning_rate"] == tuner.learning_rate
    assert record.released["scale"] > 0


def test_an_interrupted_training_is_not_continued_and_stays_counted(tmp_path: Path) -> None:
    first = tuner_of(network(), results_dir=tmp_path)
    loop(first, 2)
    first._run.release()  # as the end of its process does
    second = tuner_of(network(), results_dir=tmp_path)
    with pytest.raises(RecordError, match="second release"):
        second.backward()
    other = tuner_of(network(), results_dir=tmp_path, name="other")
    loop(other, 1)
    assert [entry.task for entry in bench.account(tmp_path).releases] == ["blobs", "other"]


def test_a_training_that_ends_early_costs_all_of_its_plan() -> None:
    tuner = tuner_of(network())
    loop(tuner, 3)
    with pytest.warns(UserWarning, match="3 of 30 planned steps; ε stays that of all"):
        finished = tuner.finish()
    assert finished is not None
    assert finished.record.privacy.epsilon == pytest.approx(
        bench.events.epsilon(tuner.event, BUDGET.delta).epsilon, rel=1e-6
    )


# ---------------------------------------------------------------------------------------------------------------- data


class Pairs(Dataset[Any]):
    """The blobs as dictionaries, read one by one."""

    def __len__(self) -> int:
        return len(TRAIN)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": TRAIN.inputs.double()[index], "y": TRAIN.targets[index]}


class RandomPairs(Pairs):
    """The blobs with a random transform."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        item = super().__getitem__(index)
        return item | {"x": item["x"] + torch.randn(5)}


class Point(NamedTuple):
    """A record, or a batch."""

    x: torch.Tensor
    y: torch.Tensor


def point_losses(model: nn.Module, batch: Point) -> torch.Tensor:
    return functional.cross_entropy(model(batch.x), batch.y, reduction="none")


def named_losses(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def test_a_data_set_read_by_index_and_tensors_give_the_same() -> None:
    rates = []
    for data, function in (
        (None, losses),
        (Pairs(), named_losses),
        ({"x": TRAIN.inputs, "y": TRAIN.targets}, named_losses),
        ([*zip(TRAIN.inputs, TRAIN.targets, strict=True)], losses),
        (Point(TRAIN.inputs, TRAIN.targets), point_losses),
        ([Point(*pair) for pair in zip(TRAIN.inputs, TRAIN.targets, strict=True)], point_losses),
    ):
        tuner = having(tuner_of(network(), data, function), Streams(1))
        loop(tuner)
        finished = tuner.finish()
        assert finished is not None
        rates.append((tuner.learning_rate, finished.record.released["scale"]))
    assert all(pair == rates[0] for pair in rates)


def test_the_tuner_leaves_the_generators_of_the_caller_alone() -> None:
    """Dropout draws its masks in queries, as it does in the method: from a stream of the session."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = torch.get_rng_state()
    tuner = tuner_of(model)
    loop(tuner)
    tuner.finish()
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------------------------------------------------- optimisers


def test_groups_have_rates_relative_to_the_first_and_options_of_their_own() -> None:
    model = network("mlp")
    first, second = [*model[0].parameters()], [*model[2].parameters()]  # type: ignore[index]
    optimizer = torch.optim.SGD(
        [{"params": second, "lr": 0.5}, {"params": first, "lr": 1.5, "weight_decay": 0.1}], lr=9.0, momentum=0.9
    )
    tuner = tuner_of(model)
    tuner.attach(optimizer)
    rule = tuner._optimizer.update_rule()  # type: ignore[union-attr]
    ones = [torch.ones_like(weight) for weight in model.parameters()]
    directions = rule.direction(ones)
    for direction, weight in zip(directions[:2], first, strict=True):
        torch.testing.assert_close(direction, 3 * (1 + 0.1 * weight.detach()))
    assert all(bool((direction == 1).all()) for direction in directions[2:])
    assert all(bool((direction == 1.9).all()) for direction in rule.direction(ones)[2:])  # momentum


@pytest.mark.parametrize(("name", "options"), [("AdamW", {}), ("SGD", {"momentum": 0.9})])
def test_directions_are_the_next_steps_of_the_optimiser_at_rate_one(name: str, options: dict[str, Any]) -> None:
    """Its state goes over: it has taken a step before it is attached."""
    model, twin = network(), network()
    optimizer, other = (getattr(torch.optim, name)(some.parameters(), lr=1.0, **options) for some in (model, twin))
    rule: Any = None
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        gradients = [torch.randn(weight.shape, generator=generator) for weight in model.parameters()]
        for some in (model, twin):
            for weight, gradient in zip(some.parameters(), gradients, strict=True):
                weight.grad = gradient.clone()
        other.step()
        if rule is None:
            optimizer.step()
            (tuner := tuner_of(model)).attach(optimizer)
            rule = tuner._optimizer.update_rule()  # type: ignore[union-attr]
        else:
            rule.apply(rule.direction(gradients), 1.0)
        for weight, expected in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)


OPTIMISERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("Adam", {"weight_decay": 0.1}),
    ("AdamW", {"amsgrad": True, "foreach": True}),
    ("AdamW", {"fused": True, "lr": torch.tensor(0.1)}),
    ("RAdam", {}),
    ("NAdam", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMISERS, ids=str)
def test_the_noise_walk_is_of_the_optimiser_in_its_first_state(name: str, options: dict[str, Any]) -> None:
    """Whatever steps the caller's has taken before: those that one made anew takes at rate one."""
    model = network()
    optimizer = getattr(torch.optim, name)(model.parameters(), **{"lr": 0.1, **options})
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    tuner = tuner_of(model)
    tuner.attach(optimizer)
    simulated = tuner._optimizer.rule_of([torch.zeros(50), torch.zeros(50)])  # type: ignore[union-attr]
    distance, _ = noise_walk(simulated, 0.3, 9)
    weight, generator = torch.zeros(50), torch.Generator().manual_seed(0)
    anew = getattr(torch.optim, name)([weight], **{**options, "lr": 1.0, "weight_decay": 0.0})
    for _ in range(9):
        weight.grad = torch.randn(50, generator=generator) * 0.3
        anew.step()
    assert float(weight.square().mean().sqrt()) == pytest.approx(distance, rel=1e-3)
    loop(tuner, 2)
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())


def test_a_memory_map_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 3), np.uint16))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings(action="error"):
        rows = Rows({"x": mapped, "y": torch.zeros(50)})
    assert rows._data["x"].data_ptr() == mapped.ctypes.data


def test_arrays_in_an_order_that_torch_does_not_know_are_copied() -> None:
    numbers = np.arange(6.0).reshape(3, 2)
    for data in (pandas.DataFrame(numbers), numbers + 1j, [*numbers[:, 0]]):
        assert Rows(data).batch([0, 2]).tolist() == np.asarray(data)[[0, 2]].tolist()
    assert Rows(numbers[::-1].astype(">f8")[::-1]).batch([0, 2]).tolist() == numbers[[0, 2]].tolist()
