"""A tuner in two processes: the releases of one process, noise drawn once, weights the same in both."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as PrivateParallel
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dphpo_bench.base.errors import AccountError, InvalidValueError
from dphpo_bench.harness.account import Account
from dphpo_bench.harness.account_report import open_account
from dphpo_bench.training.randomness import Streams
from tests.external.loops import (
    DATA,
    RATE,
    STEPS,
    TEST,
    TRAIN,
    SameBatches,
    SameNoiseOfTheFirst,
    as_the_session,
    batches,
    having,
    network,
    private,
    tuner_of,
)
from tests.external.loops import N as RECORDS

pytestmark = pytest.mark.filterwarnings("ignore:No account counts", "ignore:.*hook", "ignore:Secure RNG")


def plain(folder: Path | None, *, regression: bool = False) -> tuple[Any, nn.Module, Any]:
    """A loop of `backward`, counted in a folder."""
    tuner = having(tuner_of(model := network(), results_dir=folder, regression=regression), Streams(7))
    for _ in range(STEPS):
        tuner.backward()
        tuner.step()
    return tuner, model, tuner.finish()


def by_opacus(rank: int, size: int) -> tuple[Any, nn.Module, Any]:
    """A loop of Opacus with batches and noise of a session, shared by processes."""
    streams, model = Streams(7), network()
    tuner = having(tuner_of(model), streams)
    if size == 1:
        module, optimizer, loader = as_the_session(model, tuner, 0.5, streams)
    else:
        module = GradSampleModule(PrivateParallel(model))
        optimizer = SameNoiseOfTheFirst(
            torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
            noise_multiplier=tuner.noise_multiplier,
            max_grad_norm=0.5,
            expected_batch_size=round(RATE * RECORDS) // size,
        )
        optimizer.source = streams.source("noise", "gradient")
        loader = DataLoader(DATA, batch_sampler=SameBatches(streams, rank, size))
    tuner.attach(optimizer, loader)
    for x, y in loader:
        functional.cross_entropy(module(x), y).backward()
        tuner.step()
    return tuner, model, tuner.finish()


def as_users_do() -> tuple[Any, nn.Module, Any]:
    """A loop of `make_private` over a model for several processes."""
    torch.manual_seed(0)  # in both; the tuner gives each a secret generator for its share of the batches
    model = network()
    tuner = tuner_of(model)
    module, optimizer, loader, accountant = private(PrivateParallel(model), tuner)
    tuner.attach(optimizer, loader, accountant)
    for x, y in batches(loader, STEPS):
        functional.cross_entropy(module(x), y).backward()
        tuner.step()
    return tuner, model, tuner.finish()


def alone() -> None:
    tuner = tuner_of(model := network())
    _, optimizer, loader, accountant = private(model, tuner)
    tuner.attach(optimizer, loader, accountant)


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except (AccountError, InvalidValueError) as error:
        return str(error)
    return ""


def process(rank: int, folder: str) -> None:
    root = Path(folder)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{root}/group", rank=rank, world_size=2)
    results = {}
    loops = {
        "plain": lambda: plain(root / "results"),
        "regression": lambda: plain(None, regression=True),
        "opacus": lambda: by_opacus(rank, 2),
        "users": as_users_do,
    }
    for name, loop in loops.items():
        tuner, model, finished = loop()
        with torch.no_grad():
            accuracy = float((model(TEST.inputs).argmax(1) == TEST.targets).float().mean())
        results[name] = ((tuner.learning_rate, tuner.path), [*model.parameters()], accuracy, finished is not None)
    refused = [
        message(lambda: plain(root / "full")),
        message(lambda: tuner_of(network(seed=rank)).backward()),
        message(lambda: tuner_of(network(), (TRAIN.inputs[rank:599], TRAIN.targets[rank:599])).backward()),
        message(alone),
    ]
    torch.save((results, refused), root / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder and what each process ends with."""
    root = tmp_path_factory.mktemp("processes")
    open_account(root / "full", 0.01, 1e-6)
    multiprocessing.spawn(process, (str(root),), nprocs=2)
    return root, [torch.load(root / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def assert_close(weights: list[Tensor], others: list[Tensor]) -> None:
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["plain", "regression", "opacus", "users"])
def test_both_processes_have_the_same_releases_and_the_same_weights(both: tuple[Path, list[Any]], name: str) -> None:
    (first, second) = (results[name] for results, _ in both[1])
    assert first[0] == second[0]
    assert first[0][0] > 0
    assert (len(first[0][1]) > 10) == (name == "regression")
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    assert first[2] > 0.75
    assert (first[3], second[3]) == (True, False)  # the first one has the record


@pytest.mark.parametrize("name", ["plain", "regression", "opacus"])
def test_they_are_those_of_one_process(both: tuple[Path, list[Any]], name: str) -> None:
    """Sums of shares are in another order: tolerances as for loops beside the method."""
    tuner, model, _ = by_opacus(0, 1) if name == "opacus" else plain(None, regression=name == "regression")
    (rate, path), weights, _, _ = both[1][0][0][name]
    assert rate == pytest.approx(tuner.learning_rate, rel=1e-2)
    for ours, theirs in zip(path, tuner.path, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-2)
    assert_close(weights, [*model.parameters()])


def test_the_first_process_counts_and_records_once(both: tuple[Path, list[Any]]) -> None:
    (entry,) = Account(both[0] / "results").read()[1]
    assert (entry.task, entry.status) == ("blobs", "ok")
    assert len([*(both[0] / "results").rglob("*.json")]) == 1


@pytest.mark.parametrize(
    ("place", "line"), [*enumerate(["cap", "the same weights in each", "the same data in each", "Wrap the model"])]
)
def test_all_are_refused_together(both: tuple[Path, list[Any]], place: int, line: str) -> None:
    assert all(line in refused[place] for _, refused in both[1])
