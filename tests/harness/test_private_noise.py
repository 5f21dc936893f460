"""At one secret seed, runs on private records that differ in anything draw unrelated noise."""

import secrets
import warnings

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from tests.conftest import TinyTask

METHOD = bench.make_method("dp_sgd", {"averaging": 0.0})
SLOW, FAST = 1e-3, 1e3
TRIALS = 40


class OneWeight(nn.Module):
    """Logistic regression with one weight, which starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight


def weight_of(targets: torch.Tensor, present: bool, learning_rate: float, seed: int) -> float:
    """The released weight after two steps on all records; an input of 0 adds nothing, as if the record were absent."""
    inputs = torch.ones(len(targets), 1)
    inputs[0] = float(present)
    task = bench.ArrayTask(
        "secret",
        (inputs, targets),
        OneWeight,
        kind="binary",
        batch_size=len(targets),
        epochs=2,
        optimizer="SGD",
        learning_rate=learning_rate,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the seed, and of no account
        model = bench.run(METHOD, task, bench.PrivacyBudget(0.1, 1e-3), seed=seed).model
    assert isinstance(model, OneWeight)
    return model.weight.item()


def test_two_learning_rates_at_one_secret_seed_do_not_tell_who_is_there() -> None:
    """An attack that subtracts the noise of one run from that of another is as good as guessing.

    Both runs sum the same two gradients and the same noise, but for the second gradient: at the tiny rate it is the
    first again, at the huge one all records are on one side. If the noise was the same, the difference of the sums is
    plus or minus half the number of records, and shows at ε = 0.1 whether one is there. Streams that did not follow
    the task's facts gave 40 right guesses of 40. False alarms: Pr[Bin(40, 1/2) ≤ 4 or ≥ 36] = 1.9e-7.
    """
    n, right = 41, 0
    targets = torch.arange(n) % 2
    for trial in range(TRIALS):
        seed, present = secrets.randbits(60), trial % 2 == 0
        slow, fast = (weight_of(targets, present, rate, seed) for rate in (SLOW, FAST))
        difference = abs((fast / FAST - slow / SLOW) * n)
        right += (abs(difference - n / 2) < abs(difference - (n - 1) / 2)) == present
    assert 4 < right < 36


class Private(TinyTask):
    public = False


class Renamed(Private):
    version = 2


def trained(task: bench.Task, method, budget: bench.PrivacyBudget) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bench.run(method, task, budget, seed=7).model
    assert model is not None
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_noise_follows_versions_and_records(fixed_noise, budget) -> None:
    class Moved(Private):
        def load_train(self, source: bench.DataSource) -> bench.Records:
            records = super().load_train(source)
            records.inputs[0] += 1e-6  # type: ignore[index]
            return records

    first = trained(Private(), fixed_noise(), budget)
    torch.testing.assert_close(trained(Private(), fixed_noise(), budget), first, rtol=0, atol=0)
    for other in (Renamed(), Moved()):
        # Records that hardly differ have gradients that hardly differ: what differs is the noise.
        assert not torch.allclose(trained(other, fixed_noise(), budget), first, atol=1e-3)


def test_public_runs_draw_the_noise_that_published_ones_drew(fixed_noise, budget) -> None:
    class Newer(TinyTask):
        version = 2

    first, second = (trained(task, fixed_noise(), budget) for task in (TinyTask(), Newer()))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("declared", [False, True])
def test_private_records_leave_no_hash_without_a_key(declared: bool, fixed_noise, budget, tmp_path) -> None:
    """Two neighbouring tables differ in no identity, no name of a file and no saved model."""

    class Own(Private):
        fingerprint_is_declared = declared

        def fingerprint(self, source: bench.DataSource) -> str:
            assert declared, "a hash of private records was asked for"
            return "the table of May"

    record = bench.run(fixed_noise(), Own(), budget, results_dir=tmp_path).record
    assert record.identity.facts["public"] is False
    assert record.identity.data_fingerprint == Own().data_fingerprint(bench.DataSource.resolve())
    assert (record.identity.data_fingerprint == "the table of May") is declared
