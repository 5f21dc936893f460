"""Mistakes with a tuner: each is refused in a line, before anything is released."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import RDPAccountant
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader, Subset

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.external.trainers import StepBudget
from tests.external.loops import DATA, RATE, STEPS, TRAIN, N, losses, network, private, tuner_of
from tests.external.test_tuner import RandomPairs

pytestmark = pytest.mark.filterwarnings("ignore:No account counts", "ignore:.*hook", "ignore:Secure RNG")


def attached(**options: Any) -> tuple[bench.hyfreedp.Tuner, Any, Any, Any]:
    """A tuner, Opacus' module, its optimiser and a function that computes gradients of one batch."""
    model = network()
    tuner = tuner_of(model)
    module, optimizer, loader, accountant = private(model, tuner, **options)
    tuner.attach(optimizer, loader, accountant)

    def backward() -> None:
        functional.cross_entropy(module(TRAIN.inputs[:50]), TRAIN.targets[:50]).backward()

    return tuner, module, optimizer, backward


def whole_model(model: nn.Module, data: Any = None, function: Any = losses, **options: Any) -> None:
    tuner_of(model, data, function, **options)


class Mixing(nn.Module):
    """A network with a layer that mixes records."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


class OwnRule(torch.optim.SGD):
    """An optimiser of a user's, of which nobody knows what its step follows from."""


def attach(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Attach an optimiser that cannot serve, which moves no weights."""
    model = network()
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = make(model.parameters())
    try:
        tuner_of(model).attach(optimizer)
    finally:
        assert "step" not in vars(optimizer)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


OTHER = network()

BEFORE_THE_LOOP: list[tuple[Callable[[], Any], str]] = [
    (lambda: whole_model(network(), RandomPairs()), "items stay"),
    (lambda: whole_model(network(), (TRAIN.inputs, TRAIN.targets[:5])), "one row for each record"),
    (lambda: whole_model(network(), [("text", 0)] * 9), "one part is of type str. Leave it out"),
    (lambda: whole_model(network(), DataLoader(DATA, 10)), "got a DataLoader, which raises TypeError. Of a DataLoader"),
    (lambda: whole_model(network(), (pair for pair in DATA)), "got a generator, which raises TypeError"),
    (lambda: whole_model(network(), {"x": TRAIN.inputs, "y": TRAIN.targets.tolist()}), "got a dict, which raises Key"),
    (lambda: whole_model(network(), (TRAIN.inputs.to_sparse(), TRAIN.targets)), "got a sparse tensor; convert it"),
    (lambda: whole_model(network(), (np.ma.masked_less(TRAIN.inputs, 0), TRAIN.targets)), "got a masked array"),
    (lambda: whole_model(network(), function=lambda m, b: functional.cross_entropy(m(b[0]), b[1])), "reduction='none'"),
    (lambda: whole_model(network(), function=lambda m, b: m(b[0]) - m(b[0]).mean(0)), "one loss for each record"),
    (lambda: whole_model(network(), function=lambda m, b: losses(m, b) - losses(m, b).mean()), "gradients of 0"),
    (lambda: whole_model(network(), function=lambda m, b: losses(m, b).detach()), "depend on the weights"),
    (lambda: whole_model(network(), function=lambda m, b: losses(m, b, 1)), "The model fails on made-up records"),  # type: ignore[call-arg]
    (lambda: whole_model(network(), function=lambda _, b: losses(OTHER, b)), "depend on the weights"),
    (lambda: whole_model(nn.Flatten()), "got Flatten with none"),
    (lambda: whole_model(Mixing()), "GroupNorm"),
    (lambda: whole_model(network(), sample_rate=0), "sample_rate"),
    (lambda: tuner_of(network()).step(), "tuner.backward()"),
    (lambda: tuner_of(network()).finish(), "after the last step"),
    (lambda: tuner_of(network()).attach(torch.optim.SGD(network().parameters(), lr=1)), "the model's trained weights"),
    (lambda: attach(torch.optim.LBFGS), "do not follow from gradients alone"),
    (lambda: attach(lambda weights: torch.optim.SGD(weights, lr=1.0, maximize=True)), "without maximize"),
    (lambda: attach(OwnRule), "do not follow from gradients alone"),
    (lambda: tuner_of(network()).attach("AdamW"), "Expected an optimizer of torch"),
]


@pytest.mark.parametrize(("mistake", "line"), BEFORE_THE_LOOP, ids=[line for _, line in BEFORE_THE_LOOP])
def test_a_mistake_before_the_loop(mistake: Callable[[], Any], line: str) -> None:
    with pytest.raises((InvalidValueError, LookupError)) as caught:
        mistake()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"noise_multiplier": 0.5}, "noise_multiplier=tuner.noise_multiplier"),
        ({"loader": DataLoader(DATA, batch_size=50)}, "sample_rate"),
        ({"poisson_sampling": False, "loader": DataLoader(DATA, 100, shuffle=True)}, "Poisson batches, on which"),
        (
            {"clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2,
             "max_clipbound": 1.0, "min_clipbound": 0.01, "unclipped_num_std": 1.0},
            "adaptive clipping",
        ),
        ({"loader": DataLoader(ConcatDataset([DATA, Subset(DATA, [0])]), 101)}, "Pass data=loader.dataset"),
        ({"accountant": "gdp"}, "PrivacyEngine(accountant='rdp')"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:GDP")
def test_an_optimiser_or_a_loader_that_does_something_else(options: dict[str, Any], line: str) -> None:
    model = network()
    tuner = tuner_of(model)
    _, optimizer, loader, accountant = private(model, tuner, **options)
    with pytest.raises(InvalidValueError) as caught:
        tuner.attach(optimizer, loader, accountant)
    assert line in str(caught.value)
    assert "step" not in vars(optimizer)  # it is as it was
    assert accountant.history == []


def test_loader_and_accountant_come_with_a_private_optimiser() -> None:
    model = network()
    tuner = tuner_of(model)
    _, optimizer, loader, _ = private(model, tuner)
    with pytest.raises(InvalidValueError, match="the loader of make_private"):
        tuner.attach(optimizer)
    _, larger, _, _ = private(network(), tuner, loader=DataLoader(DATA, batch_size=N // 2))
    larger.original_optimizer.param_groups[0]["params"] = [*model.parameters()]
    with pytest.raises(InvalidValueError, match="it is of another loader"):
        tuner.attach(larger, loader, RDPAccountant())
    for accountant in (None, RDPAccountant()):
        with pytest.raises(InvalidValueError, match="would lack the queries"):
            tuner.attach(optimizer, loader, accountant)
    with pytest.raises(InvalidValueError, match=r"accountant\.compose\(tuner\.event\)"):
        tuner.attach(optimizer, loader, RdpAccountant())


def test_the_optimiser_steps_by_the_tuner_only_until_the_end() -> None:
    tuner, _, optimizer, backward = attached()
    backward()
    with pytest.raises(InvalidValueError, match=r"in place of optimizer\.step\(\)"):
        optimizer.step()
    tuner.step()
    with pytest.warns(UserWarning, match="1 of 30"):
        tuner.finish()
    assert "step" not in vars(optimizer)


def test_noise_that_a_scheduler_takes_away_is_refused_before_the_step() -> None:
    tuner, _, optimizer, backward = attached()
    backward()
    optimizer.noise_multiplier /= 2
    accountant = tuner._accountant
    with pytest.raises(InvalidValueError, match="no noise scheduler"):
        tuner.step()
    assert accountant.history == []


def test_gradients_of_the_records_must_be_there_and_of_one_batch() -> None:
    tuner, module, _, backward = attached()
    with pytest.raises(InvalidValueError, match=r"loss\.backward\(\)"):
        tuner.step()
    module.allow_grad_accumulation()
    backward()
    backward()
    with pytest.raises(InvalidValueError, match="larger rate"):
        tuner.step()
    with pytest.raises(InvalidValueError, match="which adds the noise"):
        tuner.backward()


def test_a_step_that_ends_in_the_middle_ends_the_training() -> None:
    """`except: continue` around it would release gradients that no step of the plan pays for."""
    tuner, _, _, backward = attached()
    backward()
    tuner.step()
    tuner._average.update = lambda: 1 / 0  # type: ignore[method-assign]
    backward()
    with pytest.raises(ZeroDivisionError):
        tuner.step()
    noted = len(tuner._accountant.history)
    with pytest.raises(InvalidValueError, match="in the middle"):
        tuner.step()
    assert len(tuner._accountant.history) == noted


@pytest.mark.parametrize("workers", [0, 1])
def test_pieces_of_a_batch_are_refused(workers: int) -> None:
    """Pieces of two batches could be added up: a record of both would count twice."""
    model = network()
    tuner = tuner_of(model)
    loader = DataLoader(DATA, round(N * RATE), num_workers=workers)
    module, optimizer, loader, accountant = private(model, tuner, loader=loader)
    tuner.attach(optimizer, loader, accountant)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=16, optimizer=optimizer) as pieces:
        for x, y in pieces:
            functional.cross_entropy(module(x), y).backward()
            with pytest.raises(InvalidValueError, match="pieces of a BatchMemoryManager"):
                tuner.step()
            break
    assert accountant.history == []


def test_ghost_clipping_is_refused() -> None:
    """With another loss than its own it clips nothing."""
    model = network()
    tuner = tuner_of(model)
    _, optimizer, _, loader, accountant = private(
        model, tuner, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss()
    )
    with pytest.raises(InvalidValueError, match="ghost clipping"):
        tuner.attach(optimizer, loader, accountant)


def test_a_group_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would draw its own batches and noise, and release gradients that no plan pays for."""
    tuner = tuner_of(network())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(InvalidValueError, match="got a group of 2"):
        tuner.backward()
    with pytest.raises(InvalidValueError, match="got a group of 2"):
        tuner_of(network())
    with pytest.raises(InvalidValueError, match="got a group of 2"):
        StepBudget(bench.PrivacyBudget(3.0, 1e-5), name="t").begin(None, None, None, 1, 0)


def test_a_model_that_trains_other_weights_than_at_the_start_is_refused() -> None:
    model: Any = network()
    tuner = tuner_of(model)
    tuner.backward()
    tuner.step()
    model[0].weight = nn.Parameter(model[0].weight.detach())
    with pytest.raises(InvalidValueError, match="frozen, unfrozen or replaced"):
        tuner.backward()


def test_there_are_as_many_steps_as_planned_and_an_end() -> None:
    model = network()
    tuner = tuner_of(model)
    for _ in range(STEPS):
        tuner.backward()
        with pytest.raises(InvalidValueError, match="between two calls"):
            tuner.backward()
        tuner.step()
    before = [weight.detach().clone() for weight in model.parameters()]
    for more in (tuner.backward, tuner.step):
        with pytest.raises(InvalidValueError, match="as declared"):
            more()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for metrics in ({"accuracy": None}, {1: 1.0}):
        with pytest.raises(InvalidValueError):
            tuner.finish(metrics=metrics)
    assert tuner.finish(metrics={"accuracy": 0.5}) is not None
    for more in (tuner.backward, tuner.step, tuner.finish):
        with pytest.raises(InvalidValueError):
            more()


def test_a_step_that_is_refused_is_not_counted(tmp_path: Path) -> None:
    model = network()
    tuner = tuner_of(model, results_dir=tmp_path)
    _, optimizer, loader, accountant = private(model, tuner)
    tuner.attach(optimizer, loader, accountant)
    with pytest.raises(InvalidValueError, match=r"loss\.backward\(\)"):
        tuner.step()
    assert not [*tmp_path.iterdir()]


def test_a_model_of_make_private_serves_too() -> None:
    """Its wrappers are taken off, and its hooks see none of what queries pass."""
    model = network()
    module, optimizer, loader, accountant = private(model, None, noise_multiplier=9.0)
    tuner = tuner_of(module)
    tuner.attach(optimizer, loader, accountant)
    functional.cross_entropy(module(TRAIN.inputs[:90]), TRAIN.targets[:90]).backward()
    tuner.step()
    assert all(weight.grad_sample is None for weight in model.parameters())
    assert [len(layer.activations) for layer in model if hasattr(layer, "activations")] in ([0, 0], [])
    assert 90 / N < RATE  # of the batch above nothing was said


def test_attach_comes_before_the_first_backward() -> None:
    """An accountant attached later would take in neither the queries nor the first step."""
    model = network()
    tuner = tuner_of(model)
    tuner.backward()
    with pytest.raises(InvalidValueError, match=r"one attach\(\) before the first backward"):
        tuner.attach(torch.optim.AdamW(model.parameters()))


class Exits(nn.Module):
    """A network that leaves early if it is sure of all records of a batch."""

    rows_at_once: int

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs).tanh()
        if self.last(hidden).softmax(1).amax(1).min() < 0.999:
            hidden = hidden + self.middle(hidden).tanh()
        outputs: torch.Tensor = self.last(hidden)
        return outputs


@pytest.mark.parametrize("says_so", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.filterwarnings("ignore:The model, or its loss, gets each record in turn")
def test_a_loop_of_whole_batches_is_none_for_a_model_that_takes_one_record_at_once(says_so: bool) -> None:
    """In queries and in `tuner.backward()` it gets each record alone; the loop's own passes are the caller's."""
    model = Exits()
    if says_so:
        model.rows_at_once = 1
    tuner = tuner_of(model)
    _, optimizer, loader, accountant = private(model, tuner)
    with pytest.raises(InvalidValueError, match="Expected a model for whole batches"):
        tuner.attach(optimizer, loader, accountant)
    tuner.attach(torch.optim.AdamW(model.parameters()))
    tuner.backward()
    tuner.step()
