"""At one secret seed, runs on private records that differ in anything draw unrelated noise."""

import warnings
from dataclasses import replace

import pytest
import torch

import dphpo_bench as bench
from tests.conftest import TinyTask


class Private(TinyTask):
    public = False


class Renamed(Private):
    version = 2


class Faster(Private):
    """Two rates at one secret seed: with equal noise, the difference of the runs told who was there."""

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, learning_rate=0.06)


def trained(task: bench.Task, method, budget: bench.PrivacyBudget) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bench.run(method, task, budget, seed=7).model
    assert model is not None
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_noise_follows_versions_facts_and_records(fixed_noise, budget) -> None:
    class Moved(Private):
        def load_train(self, source: bench.DataSource) -> bench.Records:
            records = super().load_train(source)
            records.inputs[0] += 1e-6  # type: ignore[index]
            return records

    first = trained(Private(), fixed_noise(), budget)
    torch.testing.assert_close(trained(Private(), fixed_noise(), budget), first, rtol=0, atol=0)
    for other in (Renamed(), Faster(), Moved()):
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
