"""Boosting on noisy sums of residuals: what a record adds, what the rounds make of it, and who is refused."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.harness.account import accounts_in
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.bins import Bins
from dphpo_bench.recipes.noisy_sums import COUNTS_NOISE, NoisyBoosting, random_leaves, residual_bound, residuals
from dphpo_bench.session.session import Session
from dphpo_bench.training.values import Query
from tests.own_task import array_task
from tests.recipes.test_tables import N_ATTRIBUTES, NO_NOISE, every_pair, opened, rows, vectors

SIZES = (4, 3, 4, 4, 2)
KINDS = ["binary", "classification", "regression"]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(6)


def query_of(session: Session, scale: float) -> Query:
    """A round's query, at random scores of a size."""
    bins, facts = Bins.of(session, 4), session.facts
    leaves = random_leaves(SIZES, bins.are_categories, generator())
    scores = scale * torch.randn(sum(SIZES), facts.n_classes or 1, generator=generator()).double()
    values = residuals(facts, bins.counts(torch.device("cpu")), scores, leaves)
    count = leaves.shape[1] * scores.shape[1]
    return Query(values, math.sqrt(N_ATTRIBUTES) * residual_bound(facts), count, together=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_no_record_whatever_it_holds_adds_more_than_the_bound(kind: str, scale: float) -> None:
    """Residuals of classes are within it by themselves; the session holds those of numbers, and odd inputs, to it."""
    query = query_of(opened(rows(50), kind), scale)
    jobs = [(1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 1.0, math.inf)]
    inputs = torch.tensor([[x, *job, x, 1.0, 0.0, 1.0] for x in (0.4, -math.inf, math.nan, 3e38) for job in jobs])
    for label in (0.0, 1.0, -7.0, 2.6, math.inf, math.nan):
        targets = torch.full((len(inputs),), label)
        assert vectors(query, inputs, targets).norm(dim=1).max() <= query.bound * (1 + 1e-12)
        if kind != "regression":
            plain: Any = query.values
            assert plain(None, inputs[:1], targets[:1]).norm(dim=1).max() <= query.bound * (1 + 1e-12)


def test_the_residual_of_a_number_is_held_to_the_bound_of_its_target() -> None:
    """As soon as the output leaves the target's range, it is beyond: 1e6 away, a record adds what 2 away adds."""
    session = opened(rows(50), "regression")
    few = rows(5)
    each = vectors(query_of(session, 1e6), torch.as_tensor(few.inputs), torch.as_tensor(few.targets))
    torch.testing.assert_close(each.norm(dim=1), torch.full((5,), 2 * math.sqrt(N_ATTRIBUTES)).double())
    assert each.abs().max() == pytest.approx(2)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_of_tiny_neighbours(kind: str) -> None:
    """All data sets of up to two of these records, with and without each of them."""
    query, few = query_of(opened(rows(50), kind), 3.0), rows(5, seed=1)
    every_pair(query, few, query.bound)


def test_leaves_hold_each_bin_once_and_neighbours_of_numbers_together() -> None:
    sizes, draws = (8, 6, 2, 1), set()
    for seed in range(50):
        leaves = random_leaves(sizes, (False, True, True, True), torch.Generator().manual_seed(seed))
        assert leaves.shape == (17, 3 + 3 + 2 + 1)
        assert leaves.unique().tolist() == [0, 1]
        assert leaves.sum(1).eq(1).all()
        assert leaves.sum(0).ge(1).all()
        number, category = leaves[:8, :3].argmax(1), leaves[8:14, 3:6].argmax(1)
        assert number.diff().ge(0).all()
        draws |= {tuple(number.tolist()), tuple(category.tolist())}
    assert len(draws) > 50
    assert any(np.diff(draw).min() < 0 for draw in draws if len(draw) == 6)


def boosted(codes: list[Any], targets: Any, kind: str, made: NoisyBoosting, leaves: list[Any]) -> Any:
    """Boost by hand, with NumPy: outputs of the records, shape (n, outputs)."""
    n, outputs = len(targets), np.zeros_like(targets)
    curvature = {"binary": 1 / 4, "classification": 2 / 9, "regression": 1}[kind]
    for of_round in leaves:
        expected = outputs
        if kind == "binary":
            expected = 1 / (1 + np.exp(-outputs))
        elif kind == "classification":
            expected = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        residual, moved, start, column = targets - expected, np.zeros_like(outputs), 0, 0
        for code, (size, width) in zip(codes, of_round[1], strict=True):
            leaf = of_round[0][start : start + size, column : column + width].argmax(1)[code]
            for place in range(width):
                inside = leaf == place
                moved[inside] += residual[inside].sum(0) / max(inside.sum(), n / 32)
            start, column = start + size, column + width
        outputs = outputs + min(made.step / made.rounds, 1 / len(codes)) / curvature * moved
    return outputs


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_the_network_is_what_boosting_by_hand_gives(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins are those of NumPy's `digitize`; leaves are those that were drawn."""
    import dphpo_bench.recipes.noisy_sums as module

    records = rows(2000, labels=3 if kind == "classification" else 2)
    targets: Any = torch.as_tensor(records.targets)
    if kind == "classification":
        records = replace(records, targets=targets.long())
    drawn: list[Any] = []

    def remembering(sizes: Any, *args: Any) -> Any:
        leaves = random_leaves(sizes, *args)
        drawn.append((leaves.numpy(), [(size, min(size, 3)) for size in sizes]))
        return leaves

    monkeypatch.setattr(module, "random_leaves", remembering)
    made = NoisyBoosting(NO_NOISE, 8, 2.0, 16)
    outputs = made.fit(opened(records, kind))(records.inputs).detach().double().numpy()
    x = records.inputs.numpy()  # type: ignore[union-attr]
    u = np.arange(1, 16) / 16
    numbers = {place: np.digitize(x[:, place], np.log(u / (1 - u)), right=True) for place in (0, 4, 5)}
    codes = [numbers[0], x[:, 1:4].argmax(1), numbers[4], numbers[5], x[:, 6:].argmax(1)]
    y = np.eye(3)[targets.long()] if kind == "classification" else targets.double().numpy()[:, None]
    assert len(drawn) == 8
    np.testing.assert_allclose(outputs, boosted(codes, y, kind, made, drawn), atol=2e-4)


def test_leaves_do_not_depend_on_records(monkeypatch: pytest.MonkeyPatch) -> None:
    import dphpo_bench.recipes.noisy_sums as module

    drawn: list[torch.Tensor] = []

    def remembering(*args: Any) -> torch.Tensor:
        drawn.append(random_leaves(*args))
        return drawn[-1]

    monkeypatch.setattr(module, "random_leaves", remembering)
    for seed in (0, 1):
        NoisyBoosting(1.0, 3, 1.0, 8).fit(opened(rows(60, seed=seed)))
    assert all(torch.equal(one, two) for one, two in zip(drawn[:3], drawn[3:], strict=True))
    assert not torch.equal(drawn[0], drawn[1])


def test_each_release_is_charged_before_and_refused_beyond() -> None:
    records, made = rows(100), NoisyBoosting(2.0, 4, 1.0, 8)
    ledger = Ledger(allowance=made.event)
    made.fit(opened(records, ledger=ledger))
    rounds = [bench.events.gaussian(2.0 * math.sqrt(4))] * 4
    expected = bench.events.compose(bench.events.gaussian(COUNTS_NOISE * 2.0), *rounds)
    assert multiset(ledger.event) == multiset(made.event) == multiset(expected)
    with pytest.raises(bench.errors.OverBudgetError):
        made.fit(opened(records, ledger=ledger))


def test_a_saved_model_predicts_as_before_in_the_units_of_the_target(tmp_path: Any) -> None:
    inputs = torch.randn(2000, 4, generator=generator())
    targets = 1000 + 50 * torch.tanh(inputs[:, 0]) + 25 * inputs[:, 1]
    task = array_task(
        "mine", (inputs, targets), nn.Linear(4, 1), kind="regression", target_scale=(1000, 50), public=True
    )
    result = bench.run("dp_ebm", task, bench.PrivacyBudget(8, 1e-4), seed=0, progress=bench.NullProgress())
    loaded = bench.load_model(result.save(tmp_path / "m.safetensors"))
    predicted = np.ravel(loaded.predict(inputs))
    assert (predicted == np.ravel(result.trained.predict(inputs))).all()  # type: ignore[union-attr]
    assert np.abs(predicted - targets.numpy()).mean() < 15


@pytest.mark.parametrize("method", ["dp_ebm", "marginals"])
def test_a_regression_of_several_numbers_is_refused_before_it_costs_anything(method: str, tmp_path: Any) -> None:
    inputs = torch.randn(60, 4)
    task = bench.ArrayTask("pairs", (inputs, inputs[:, :2]), torch.nn.Linear(4, 2), kind="regression")
    with pytest.raises(bench.errors.InvalidValueError, match="regression of one number, got 2 outputs"):
        bench.run(method, task, bench.PrivacyBudget(3, 1e-3), results_dir=tmp_path, check=False)
    (book,) = accounts_in(tmp_path)
    assert not book.read()[1]


@pytest.mark.parametrize("method", ["dp_ebm", "naive_bayes", "marginals"])
def test_class_weights_that_nothing_would_follow_are_refused(method: str) -> None:
    labels = bench.Labels(class_shares=(0.9, 0.1), class_weights="balanced")
    inputs = torch.randn(60, 4)
    task = bench.ArrayTask(
        "rare", (inputs, (inputs[:, 0] > 1).int()), torch.nn.Linear(4, 2), public=True, labels=labels
    )
    with pytest.raises(bench.errors.InvalidValueError, match="a task without class_weights, got 'balanced'"):
        bench.plan(method, task, bench.PrivacyBudget(3, 1e-3))


@pytest.mark.parametrize("method", ["dp_ebm", "marginals"])
def test_a_regression_of_a_model_in_float64_runs(method: str) -> None:
    inputs = torch.randn(60, 4)
    task = bench.ArrayTask("exact", (inputs, inputs[:, 0]), nn.Linear(4, 1).double(), kind="regression", public=True)
    assert bench.run(method, task, bench.PrivacyBudget(3, 1e-3), check=False).record.status == "ok"
