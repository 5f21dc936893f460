"""Noisy second moments: what a record adds, what ridge regression makes of them, and who is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch import nn

import dphpo_bench as bench
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.noisy_sums import NoisyMoments, input_norm, moments
from dphpo_bench.session.session import Session
from dphpo_bench.training.values import Query
from tests.conftest import session_on
from tests.own_task import array_task
from tests.recipes.test_tables import N_ATTRIBUTES, N_INPUTS, NO_NOISE, every_pair, opened, rows, vectors

BOUND = math.sqrt(2)
SIZE = N_INPUTS + 1


def query_of(session: Session) -> Query:
    outputs = session.facts.n_classes or 1
    return Query(
        moments(session.facts, input_norm(session)), BOUND, SIZE * (SIZE + 1) // 2 + SIZE * outputs, together=True
    )


@pytest.mark.parametrize("kind", ["binary", "classification", "regression"])
def test_no_record_whatever_it_holds_adds_more_than_the_bound(kind: str) -> None:
    """So sums of neighbours differ by √2 at most. The session would hold them to it; finite records are there alone."""
    session = opened(rows(50), kind)
    query, values = query_of(session), [0.4, -7.0, 0.0, 1e15, -math.inf, math.nan]
    inputs = torch.tensor([[x, *job, x, 1.0, 0.0, 1.0] for x in values for job in ((1, 0, 0), (0, 0, 0), (9, 1, -3))])
    for label in (0.0, 1.0, 2.0, -1e9, 0.6, math.nan):
        targets = torch.full((len(inputs),), label)
        assert vectors(query, inputs, targets).norm(dim=1).max() <= BOUND * (1 + 1e-12)
        alone = query.values(None, inputs[:12], targets[:12])  # type: ignore[arg-type]
        if not (kind == "regression" and math.isnan(label)):
            assert alone.norm(dim=1).max() <= BOUND * (1 + 1e-12)


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_every_pair_of_tiny_neighbours(kind: str) -> None:
    """All data sets of up to two of these records, with and without each of them; one record attains the bound."""
    query, few = query_of(opened(rows(50), kind)), rows(5, seed=1)
    each = every_pair(query, few, BOUND)
    assert kind == "regression" or each.norm(dim=1).max() == pytest.approx(BOUND)


def numbers(n: int, classes: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(n, 4, generator=generator)
    targets = inputs @ torch.tensor([0.3, -0.2, 0.1, 0.0]) + 0.1 * torch.randn(n, generator=generator) + 0.2
    return inputs, torch.bucketize(targets, torch.tensor([0.0, 0.4])[: classes - 1]) if classes else targets


def layer_of(inputs: Any, targets: Any, **labels: Any) -> nn.Linear:
    task = array_task("mine", (inputs, targets), nn.Linear(4, labels.get("n_classes", 1)), public=True, **labels)
    return NoisyMoments(NO_NOISE, 0.5).fit(session_on(task, bench.Records(inputs, targets)))


def test_without_noise_it_is_weighted_least_squares() -> None:
    """By scikit-learn, of records with weights 1/‖(x, 1)‖²; no target reaches the bound of 2."""
    inputs, targets = numbers(300)
    layer = layer_of(inputs, targets, kind="regression")
    expected = LinearRegression().fit(inputs, targets, 1 / (1 + inputs.square().sum(1)))
    np.testing.assert_allclose(layer.weight.detach()[0], expected.coef_, atol=1e-5)
    assert layer.bias.item() == pytest.approx(expected.intercept_, abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_without_noise_classes_are_fitted_by_least_squares(classes: int) -> None:
    """By NumPy, on inputs of norm 1; outputs of two classes are those of a binary task, but for a constant."""
    inputs, targets = numbers(300, classes)
    layer = layer_of(inputs, targets, n_classes=classes)
    whole = np.hstack([inputs.numpy(), np.ones((300, 1))])
    weights, *_ = np.linalg.lstsq(
        whole / np.linalg.norm(whole, axis=1, keepdims=True), np.eye(classes)[targets.numpy()], rcond=None
    )
    outputs = layer(inputs).detach().numpy()
    np.testing.assert_allclose(outputs, classes * (whole @ weights) / math.sqrt(5), atol=1e-5)
    if classes == 2:
        binary = layer_of(inputs, targets.float(), kind="binary")(inputs).detach().numpy()
        np.testing.assert_allclose(binary[:, 0], outputs[:, 1] - outputs[:, 0], atol=1e-5)


def test_the_penalty_lifts_the_least_eigenvalue(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a matrix in place of the release, its packing included; the noise has the norm √2 σ √(2 (d + 1))."""
    inputs, targets = numbers(40)
    square = torch.randn(5, 5, generator=torch.Generator().manual_seed(1)).double()
    square, cross = square + square.T, torch.arange(5.0).double()
    rows_, columns = torch.triu_indices(5, 5)
    packed = square[rows_, columns] * torch.where(rows_ == columns, 1, math.sqrt(2))
    monkeypatch.setattr(Session, "release", lambda *_, **__: (torch.cat([packed, cross]) / 40).tolist())
    task = array_task("mine", (inputs, targets), nn.Linear(4, 1), public=True, kind="regression")
    layer = NoisyMoments(3.0, 0.7).fit(session_on(task, bench.Records(inputs, targets)))
    noise = math.sqrt(2) * 3 * math.sqrt(10)
    lifted = square + (0.7 * noise - torch.linalg.eigvalsh(square)[0]) * torch.eye(5)
    assert torch.linalg.eigvalsh(lifted)[0].item() == pytest.approx(0.7 * noise)
    expected = torch.linalg.solve(lifted, cross) * 2 / math.sqrt(5)
    torch.testing.assert_close(torch.cat([layer.weight[0], layer.bias]).double(), expected, atol=1e-5, rtol=1e-5)


def test_the_norm_of_inputs_counts_attributes() -> None:
    assert input_norm(opened(rows(20))) == pytest.approx(math.sqrt(1 + N_ATTRIBUTES))
    digits = bench.make_task("digits")
    assert input_norm(session_on(digits, bench.Records(torch.zeros(3, 64), torch.zeros(3).long()))) == math.sqrt(65)


def test_the_release_is_charged_before_and_refused_beyond() -> None:
    records, noisy = rows(400), NoisyMoments(2.0, 0.5)
    ledger = Ledger(allowance=noisy.event)
    noisy.fit(opened(records, ledger=ledger))
    assert multiset(ledger.event) == multiset(bench.events.gaussian(2.0))
    with pytest.raises(bench.errors.OverBudgetError):
        noisy.fit(opened(records, ledger=ledger))


def test_a_saved_model_predicts_as_before_in_the_units_of_the_target(tmp_path: Any) -> None:
    inputs, targets = numbers(2000)
    task = array_task(
        "mine",
        (inputs, 1000 + 50 * targets),
        nn.Linear(4, 1),
        kind="regression",
        target_scale=(1000, 50),
        public=True,
    )
    result = bench.run("marginals", task, bench.PrivacyBudget(8, 1e-4), seed=0, progress=bench.NullProgress())
    loaded = bench.load_model(result.save(tmp_path / "m.safetensors"))
    assert (loaded.predict(inputs) == result.trained.predict(inputs)).all()  # type: ignore[union-attr]
    assert np.abs(np.ravel(loaded.predict(inputs)) - (1000 + 50 * targets.numpy())).mean() < 10


def test_it_learns_a_regression() -> None:
    """At seed 0; a public task."""
    record = bench.run("marginals", bench.make_task("diabetes"), bench.PrivacyBudget(8, 1e-4), seed=0).record
    assert record.metrics["r2"] > 0.4
