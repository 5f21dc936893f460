"""What a stack saves: 104 runs at once against as many runs of the package, one after the other, on one thread."""

from dataclasses import replace

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import open_session
from dphpo_bench.training.randomness import Streams
from research import development_set, made_up
from research.stacked import gaussian_noise, stack_of, train
from tests.benchmarks.test_training_speed import interleaved, record

RUNS = development_set.RUNS


@pytest.mark.parametrize("name", ["gaussian_50", "gaussian_200", "18", "28", "13"])
def test_a_stack_against_single_runs(benchmark, name: str) -> None:
    torch.set_num_threads(1)
    task = made_up.task(name)
    task.draw = replace(task.draw, steps=20)
    records = task.load_train(bench.DataSource.resolve())
    noise = torch.ones(RUNS)

    def together() -> None:
        stack = stack_of(task, records, RUNS, 0)
        generator = torch.Generator()
        draws = development_set.batches(task, generator)
        of_all = gaussian_noise(stack, noise, generator)
        train(stack, records, task.facts.batch_size, draws, of_all, noise, development_set.OPTIMIZERS)

    def alone() -> None:
        for optimizer in development_set.OPTIMIZERS:
            run = bench.recipes.DpSgd.of(task.facts, optimizer=optimizer).with_noise(1.0)
            run.train(open_session(RawRecords(task, records, "cpu"), Ledger(run.event), Streams(0)))

    times = interleaved({"104 at once": together, "2 alone": alone}, rounds=3)
    times["104 alone"] = RUNS / 2 * times.pop("2 alone")
    assert record(benchmark, times, "104 at once")["104 alone"] > 1.5
