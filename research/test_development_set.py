"""Curves of fixed rates: a stack's gradients and runs are those of the package, and what is kept can be read."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import dphpo_bench as bench
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.noise_law import BALANCE, BALANCE_OF_NUMBERS, output_spread
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import open_session
from dphpo_bench.training.clipping import Abadi, AutoS
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.randomness import Streams
from research import development_set
from research.made_up import MadeUp
from research.made_up import task as made_up
from research.stacked import Stack, StackedPerceptrons, gaussian_noise, initial_model, stack_of, train

SOURCE = bench.DataSource.resolve()
KINDS = ("1", "2", "3", "4", "13", "14", "20", "15")
"""Linear classes, a regression, a rare class; networks of one to three layers; many classes."""
RATES = (0.01, 0.3)
OPTIMIZERS = ("AdamW", "SGD")
NOISE = 0.7


def small(name: str, n_records: int = 60, batch_size: int = 20, steps: int = 6) -> MadeUp:
    task = made_up(name)
    task.draw = replace(task.draw, n_records=n_records, batch_size=batch_size, steps=steps)
    return task


def moved(stack: Stack) -> Stack:
    """The stack, each model at weights of its own."""
    generator = torch.Generator().manual_seed(1)
    for parameter in stack.parameters:
        parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return stack


@pytest.mark.parametrize("name", KINDS)
def test_clipped_sums_are_those_of_the_engine(name: str) -> None:
    task = small(name)
    records = task.load_train(SOURCE)
    fast, plain = (moved(cls(task, records, 3, 0)) for cls in (StackedPerceptrons, Stack))
    assert isinstance(stack_of(task, records, 3, 0), StackedPerceptrons)
    fast.parameters[0][1] = math.nan  # a run that diverged disturbs no other
    plain.parameters[0][1] = math.nan
    x, y = records.inputs, records.targets
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    for ours, theirs in zip(fast.clipped_sums(x, y), plain.clipped_sums(x, y), strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(fast.outputs(x)[[0, 2]], plain.outputs(x)[[0, 2]], rtol=1e-4, atol=1e-4)


def test_models_of_a_stack_are_clipped_by_rules_of_their_own() -> None:
    task, rules = small("1"), (Abadi(0.01), AutoS(), Abadi(100.0))
    records = task.load_train(SOURCE)
    assert isinstance(records.inputs, torch.Tensor)
    assert isinstance(records.targets, torch.Tensor)
    for cls in (StackedPerceptrons, Stack):
        sums = cls(task, records, 6, 0, rules).clipped_sums(records.inputs, records.targets)
        engine = gradient_engine(initial_model(task, 0), task.objective().losses, like=records)
        for index, rule in enumerate(rules):
            alone = engine.clipped_sum(records.inputs, records.targets, rule)
            for ours, theirs in zip(sums, alone, strict=True):
                for run in (2 * index, 2 * index + 1):
                    torch.testing.assert_close(ours[run], theirs.float(), rtol=2e-4, atol=2e-4)


def test_the_general_stack_takes_what_is_no_perceptron() -> None:
    task = small("7")
    records = task.load_train(SOURCE)
    stack = stack_of(task, records, 2, 0)
    assert type(stack) is Stack
    engine = gradient_engine(stack.model, task.objective().losses, like=records)
    sums = stack.clipped_sums(records.inputs, records.targets)  # type: ignore[arg-type]
    for ours, theirs in zip(sums, engine.clipped_sum(records.inputs, records.targets, AutoS()), strict=True):
        torch.testing.assert_close(ours[1], theirs.float(), rtol=1e-4, atol=1e-5)


def session_of(task: MadeUp, seed: int) -> bench.Session:
    run = bench.recipes.DpSgd.of(task.facts).with_noise(NOISE)
    return open_session(RawRecords(task, task.load_train(SOURCE), "cpu"), Ledger(run.event), Streams(seed))


def ordinary(task: MadeUp, seed: int, rate: float, optimizer: str) -> list[Tensor]:
    """Weights after a run of the package."""
    run = bench.recipes.DpSgd.of(task.facts, learning_rate=rate, optimizer=optimizer).with_noise(NOISE)
    return [weight.detach() for weight in run.train(session_of(task, seed)).parameters()]


@pytest.mark.parametrize(("name", "batch_size"), [("1", 20), ("2", 60), ("14", 20), ("7", 20)])
def test_runs_are_those_of_the_package(name: str, batch_size: int) -> None:
    """On its batches and its noise, each optimiser at two rates; float32 and float64 add in different orders."""
    task, seed = small(name, batch_size=batch_size), 3
    stack = stack_of(task, task.load_train(SOURCE), len(RATES) * len(OPTIMIZERS), seed)
    generator = Streams(seed).generator("noise", "gradient")
    sizes = [parameter[0].numel() for parameter in stack.parameters]

    def noise() -> list[Tensor]:
        drawn = NOISE * torch.randn(sum(sizes), dtype=torch.float64, generator=generator)
        parts = zip(torch.split(drawn, sizes), stack.parameters, strict=True)
        return [part.float().view(of.shape[1:]).expand_as(of) for part, of in parts]

    batches = development_set.batches(task, Streams(seed).generator("sample", "training"))
    rates = torch.tensor(RATES).repeat(len(OPTIMIZERS))
    train(stack, task.load_train(SOURCE), batch_size, batches, noise, rates, OPTIMIZERS)
    for number, (optimizer, rate) in enumerate((optimizer, rate) for optimizer in OPTIMIZERS for rate in RATES):
        for ours, theirs in zip(stack.parameters, ordinary(task, seed, rate, optimizer), strict=True):
            torch.testing.assert_close(ours[number], theirs, rtol=1e-3, atol=2e-3 * rate)


def test_a_run_that_shares_its_batches_has_the_distribution_of_one_that_does_not() -> None:
    """Mean and variance of a projection of the weights, over 300 seeds each: |z| < 6 fails once in 10⁸ runs or less.

    Variances of 300 nearly normal numbers differ by more than a factor of 2.2 less often than once in 10⁹.
    """
    task = small("1", n_records=40, batch_size=10, steps=3)
    records = task.load_train(SOURCE)
    stack = stack_of(task, records, 4, 0)
    direction = None
    ends: dict[str, list[float]] = {"shared": [], "apart": []}
    for seed in range(300):
        streams = Streams(seed).within("shared")

        for parameter in stack.parameters:
            parameter.zero_()
        noise = gaussian_noise(stack, torch.full((4,), NOISE), streams.generator("noise"))
        train(
            stack, records, 10, development_set.batches(task, streams.generator("batches")), noise,
            torch.full((4,), 0.1), ("SGD",),
        )  # fmt: skip
        if direction is None:
            direction = torch.randn(stack.parameters[0][0].shape, generator=torch.Generator().manual_seed(0))
        ends["shared"].append(float((stack.parameters[0][2] * direction).sum()))
        ends["apart"].append(float((ordinary(task, seed, 0.1, "SGD")[0] * direction).sum()))
    shared, apart = np.array(ends["shared"]), np.array(ends["apart"])
    assert abs(shared.mean() - apart.mean()) < 6 * math.sqrt((shared.var() + apart.var()) / 300)
    assert 1 / 2.2 < shared.var() / apart.var() < 2.2


def test_each_run_has_noise_of_its_own_size() -> None:
    """10,000 numbers a run: their deviation is within 6 % (8 standard errors)."""
    stack = stack_of(small("4"), small("4").load_train(SOURCE), 3, 0)
    draw = gaussian_noise(stack, torch.tensor([0.5, 1.0, 4.0]), torch.Generator().manual_seed(0))
    first, again = draw()[0], draw()[0]
    assert first[0].numel() > 10_000
    assert first.flatten(1).std(1).tolist() == pytest.approx([0.5, 1.0, 4.0], rel=0.06)
    assert not torch.equal(first, again)
    assert abs(float(torch.corrcoef(first.flatten(1))[0, 1])) < 0.06


def test_rates_follow_the_law() -> None:
    """Plain AdamW: η = ν / (J √T). J of a linear model is the centred root mean square of its inputs."""
    task = small("1")
    records = task.load_train(SOURCE)
    assert isinstance(records.inputs, torch.Tensor)
    spread = output_spread(initial_model(task, 0), records.inputs, draws=1_000)
    centred = records.inputs - records.inputs.mean(0)
    assert spread == pytest.approx(float(centred.square().sum(1).mean().sqrt()), rel=0.05)
    rates = development_set.learning_rates(task, 2.0, (1.0, 3.0))
    assert rates.shape == (2, 2, 13)
    assert rates[0, 0, 0] == pytest.approx(0.025 / (2 * math.sqrt(6)))
    assert (rates[1, 0] / rates[1, 1]).tolist() == pytest.approx([3.0] * 13)
    assert development_set.nus_of(small("2"))[1][4] == pytest.approx(0.4 / 16)  # regression, SGD


@pytest.mark.parametrize(("network", "numbers", "larger_helps", "none_helps", "smaller_helps"), [
    (False, False, 0.80, 0.83, 0.65),
    (True, False, 0.87, 0.65, 0.89),
    (False, True, 0.75, 0.91, 0.56),
    (True, True, 0.84, 0.94, 0.97),
])  # fmt: skip
def test_what_limits_a_run_is_said_rightly(
    network: bool, numbers: bool, larger_helps: float, none_helps: float, smaller_helps: float
) -> None:
    """docs/hyfreedp.md has these shares of runs, the less of AdamW's and SGD's; half a point counts as help."""
    low, high = BALANCE_OF_NUMBERS if numbers else BALANCE[not network]
    kind = f"{'numbers' if numbers else 'classes'}, {'networks' if network else 'linear'}"
    for optimizer in (0, 1):
        gains = {"rate": [], "noise": []}  # (of a larger rate, of a smaller)
        for task in development_set.read():
            if task.kind == kind:
                scores = 100 * np.nan_to_num(task.metric, nan=-0.1).clip(-0.1).mean(0)[optimizer]
                for at, nu in enumerate(task.nus[optimizer]):
                    if not low <= nu <= high:
                        gains["rate" if nu < low else "noise"] += [
                            (max(row[at:]) - row[at], max(row[: at + 1]) - row[at]) for row in scores
                        ]
        helps = {limit: (np.array(values) > 0.5).mean(0) for limit, values in gains.items()}
        assert helps["rate"][0] >= larger_helps
        assert 1 - helps["noise"][0] >= none_helps
        assert helps["noise"][1] >= smaller_helps


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(development_set, "SEEDS", {math.inf: 2})
    monkeypatch.setattr(development_set, "make", lambda name, _=0: small(name.split("-")[1]))


@pytest.mark.usefixtures("quick")
def test_each_run_has_its_optimiser_noise_and_rate() -> None:
    """R² of models that did not move is 0. Noise of 10⁶ spoils it, but not beyond what AdamW's steps can move."""
    rates = torch.full((2, 4, 13), 0.05)
    rates[1] = rates[0, :, 12] = 1e-12  # SGD, and AdamW's last rate
    metric = development_set.curve("synthetic-10", 0, (0.0, 0.0, 0.0, 1e6), rates)
    unmoved = metric[1, 0, 0]
    np.testing.assert_allclose(metric[1, :3], unmoved, atol=1e-6)
    np.testing.assert_allclose(metric[0, :3, 12], unmoved, atol=1e-6)
    assert (metric[0, :3, :12] > unmoved + 0.1).all()
    assert (abs(metric[0, 3, :12] - metric[0, 0, :12]) > 0.01).all()
    assert (metric[0, 3] > -5).all()
    np.testing.assert_allclose(metric[0, 0, :12], metric[0, 2, :12], atol=1e-5)


@pytest.mark.usefixtures("quick")
def test_curves_resume_and_come_back_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edition = development_set.EDITIONS[1]
    whole = development_set.compute("synthetic-10", tmp_path, edition.key)
    (tmp_path / "killed").mkdir()
    real, calls = development_set.curve, []

    def killed(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(development_set, "curve", killed)
    with pytest.raises(KeyboardInterrupt):
        development_set.compute("synthetic-10", tmp_path / "killed", edition.key)
    resumed = development_set.compute("synthetic-10", tmp_path / "killed", edition.key)
    assert len(calls) == 3  # the first seed was kept
    np.testing.assert_array_equal(resumed.metric, whole.metric)
    assert resumed.metric.shape == (2, 2, 4, 13)
    development_set.pack([whole], edition, tmp_path / "packed.npz")
    (back,) = development_set.read(edition, tmp_path / "packed.npz")
    assert back.header() == whole.header()
    np.testing.assert_allclose(back.metric, whole.metric, atol=6e-5)
    with pytest.raises(ValueError, match="other draws"):
        development_set.read(development_set.EDITIONS[2], tmp_path / "packed.npz")


@pytest.mark.parametrize("edition", development_set.EDITIONS.values(), ids=development_set.EDITIONS)
def test_the_curves_of_the_repository(edition: development_set.Edition) -> None:
    curves = development_set.read(edition)
    assert edition.results.stat().st_size < 1e6
    assert {each.name for each in curves} <= set(edition.names)
    for each in curves:
        assert len(each.metric) == development_set.n_seeds(development_set.make(each.name))
        assert -0.05 < np.nanmax(each.metric) <= 1  # some regressions on a hundred records are beyond all rates
