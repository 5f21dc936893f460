"""Tables of labels by attributes: what they count, what a record adds, and the network of naive Bayes."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes.bins import Bins
from dphpo_bench.recipes.noisy_sums import LABELS_NOISE, NoisyTables
from dphpo_bench.session.session import Session, session_on_made_up
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.values import Query
from tests.conftest import session_on
from tests.own_task import array_task

NO_NOISE = 1e-9
COLUMNS = bench.Columns(
    {
        "age": bench.Number(40, 15),
        "left out": None,
        "job": bench.Category(("a", "b", "c")),
        "income": bench.Number(0, 8, logarithmic=True, missing=5, indicator=True),
        "sex": bench.Category((0, 1)),
    }
)
N_INPUTS, N_ATTRIBUTES = 8, 5


class Table(bench.Task):
    """A made-up table: only names, shapes and columns of it matter, or records that are given."""

    name, summary, models, public = "table", "A table.", ("linear",), True
    columns: Any = COLUMNS

    def __init__(self, kind: Any = "binary", records: bench.Records | None = None, n_classes: int = 3) -> None:
        super().__init__()
        self.kind, self.records, self.n_classes = kind, records, n_classes

    @property
    def facts(self) -> bench.TaskFacts:
        n = 100 if self.records is None else len(self.records)
        classes = self.n_classes if self.kind == "classification" else None
        inputs = bench.recipes.Input((N_INPUTS,))
        return bench.TaskFacts(self.name, "linear", n, inputs, n, 1, "SGD", 1.0, kind=self.kind, n_classes=classes)

    def load_train(self, source: bench.DataSource) -> bench.Records:
        del source
        assert self.records is not None
        return self.records

    load_test = load_train

    def build_model(self) -> nn.Module:
        return nn.Linear(N_INPUTS, self.facts.n_classes or 1)

    def fingerprint(self, source: bench.DataSource) -> str:
        del source
        return "table"


def rows(n: int, seed: int = 0, labels: int = 2) -> bench.Records:
    """Return records whose job and age go with the label."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(labels, (n,), generator=generator)
    job = (targets + (torch.rand(n, generator=generator) < 0.3)) % 3
    data = {
        "age": (40 + 10 * targets + 15 * torch.randn(n, generator=generator)).numpy(),
        "job": ["abc"[place] for place in job],
        "income": [None if value > 0.9 else float(1000 * value) for value in torch.rand(n, generator=generator)],
        "sex": torch.randint(2, (n,), generator=generator).tolist(),
    }
    return bench.Records(COLUMNS.encode(data), targets if labels > 2 else targets.float())


def opened(records: bench.Records, kind: str = "binary", ledger: Ledger | None = None, n_classes: int = 3) -> Session:
    return session_on(Table(kind, records, n_classes), records, *([] if ledger is None else [ledger]))


def vectors(query: Query, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return what each record adds to the sums."""
    model, scores = nn.Linear(N_INPUTS, 1), Objective(lambda *_: torch.zeros(1), lambda *_: torch.zeros(1))
    sums = [query.total(model, scores, bench.Records(x[None], y[None])) for x, y in zip(inputs, targets, strict=True)]
    return torch.stack(sums)


@pytest.mark.parametrize("kind", ["binary", "classification", "regression"])
def test_no_record_whatever_it_holds_adds_more_than_the_bound(kind: str) -> None:
    """So sums of neighbours differ by √A at most. Inputs that no encoding gives, such as two jobs, are scaled."""
    session = opened(rows(50), kind)
    bins = Bins.of(session, 4)
    assert len(bins.attributes) == N_ATTRIBUTES
    bound, n_labels = math.sqrt(N_ATTRIBUTES), len(bins.labels) + 1
    assert n_labels == {"binary": 2, "classification": 3, "regression": 8}[kind]
    query = Query(bins.values(torch.device("cpu")), bound, n_labels * sum(map(len, bins.attributes)), together=True)
    jobs = [(1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 1.0, math.inf)]
    odd = [0.4, -math.inf, math.nan, 3e38]
    inputs = torch.tensor([[x, *job, x, 1.0, 0.0, 1.0] for x in odd for job in jobs])
    for label in (0.0, -7.0, 2.6, math.nan):
        norms = vectors(query, inputs, torch.full((len(inputs),), label)).norm(dim=1)
        assert norms.max() <= bound * (1 + 1e-12)
        assert norms.max() == pytest.approx(0 if math.isnan(label) else bound, abs=1e-9)


def every_pair(query: Query, few: bench.Records, bound: float) -> Tensor:
    """Compare sums over all sets of up to two of these records with and without each; return the records' vectors."""
    each = vectors(query, *(torch.as_tensor(part) for part in (few.inputs, few.targets)))
    model, scores = nn.Linear(N_INPUTS, 1), Objective(lambda *_: torch.zeros(1), lambda *_: torch.zeros(1))
    for size in (0, 1, 2):
        for others in itertools.combinations(range(len(few)), size):
            without = query.total(model, scores, few.rows(torch.tensor(others, dtype=torch.int64)))
            for more in range(len(few)):
                whole = query.total(model, scores, few.rows(torch.tensor([*others, more])))
                torch.testing.assert_close(whole - without, each[more])
                assert (whole - without).norm() <= bound * (1 + 1e-12)
    return each


def test_every_pair_of_tiny_neighbours() -> None:
    """All data sets of up to two of these records, with and without each of them."""
    session = opened(rows(50))
    bins = Bins.of(session, 4)
    query = Query(bins.values(torch.device("cpu")), math.sqrt(N_ATTRIBUTES), 2 * sum(map(len, bins.attributes)), True)
    few = rows(5, seed=1)
    every_pair(query, few, math.sqrt(N_ATTRIBUTES))


@pytest.mark.parametrize(("kind", "labels"), [("binary", 2), ("classification", 2), ("classification", 3)])
def test_without_noise_the_network_is_naive_bayes_of_the_counts(kind: str, labels: int) -> None:
    """Bins are counted here by NumPy's `digitize`, the posterior by hand."""
    import numpy as np

    records = rows(3000, labels=labels)
    records = records if kind == "binary" else replace(records, targets=records.targets.long())  # type: ignore[union-attr]
    model = NoisyTables(NO_NOISE, 16).fit(opened(records, kind, n_classes=labels))
    u = np.arange(1, 16) / 16
    x, y = records.inputs.numpy(), records.targets.numpy()  # type: ignore[union-attr]
    codes = [np.digitize(x[:, place], np.log(u / (1 - u)), right=True) for place in (0, 4, 5)]
    codes += [x[:, 1:4].argmax(1), x[:, 6:].argmax(1)]
    shares = np.bincount(y.astype(int)) / len(y)
    expected = np.tile(np.log(shares), (len(y), 1))
    for code, size in zip(codes, (16, 16, 16, 3, 2), strict=True):
        table = np.stack([np.bincount(code[y == label], minlength=size) for label in range(labels)])
        smooth = table + 0.5 * labels * shares[:, None]
        expected += np.log(smooth / smooth.sum(1, keepdims=True))[:, code].T
    outputs = model.network(binary=kind == "binary")(records.inputs).detach().double().numpy()
    if kind == "binary":
        expected = expected[:, 1:] - expected[:, :1]
    np.testing.assert_allclose(outputs, expected, atol=2e-4)


def test_both_releases_are_charged_before_and_refused_beyond() -> None:
    records, tables = rows(400), NoisyTables(2.0)
    ledger = Ledger(allowance=tables.event)
    tables.fit(opened(records, ledger=ledger))
    assert multiset(ledger.event) == multiset(tables.event)
    assert multiset(tables.event) == multiset(
        bench.events.compose(bench.events.gaussian(LABELS_NOISE * 2.0), bench.events.gaussian(2.0))
    )
    with pytest.raises(bench.errors.OverBudgetError):
        tables.fit(opened(records, ledger=ledger))


@pytest.mark.parametrize(
    ("n", "noise", "bins"), [(40, 0.01, 4), (2_000, 0.01, 32), (20_000, 0.01, 128), (20_000, 50.0, 8)]
)
def test_bins_leave_enough_in_a_mean_cell_of_the_rarest_label(n: int, noise: float, bins: int) -> None:
    """Half of the records have each label: n / 60 bins, or n / (16 · noise · √5), the power of two below."""
    assert NoisyTables(noise).fit(opened(rows(n))).bins.k == bins


def test_a_cell_of_nothing_but_noise_says_nothing() -> None:
    """Labels are as likely as before there. Records are of one age, so most bins are empty; noise is mean-free."""
    records = rows(1000)
    records.inputs[:, 0] = 0.1  # type: ignore[index]
    model = NoisyTables(NO_NOISE, 16).fit(opened(records))
    ages = model.probabilities[0]
    ratio = (ages[1] / ages[0])[torch.arange(16) != 8]
    torch.testing.assert_close(ratio, torch.ones(15, dtype=torch.float64), atol=1e-6, rtol=0)


def test_inputs_of_no_declared_table_are_numbers() -> None:
    class Plain(Table):
        columns = None

    session = session_on(Plain(), rows(20))
    bins = Bins.of(session, 8)
    assert [len(places) for places in bins.attributes] == [8] * N_INPUTS
    assert len(Bins.of(session_on(bench.make_task("adult"), adult_like()), 8).attributes) == 13


def adult_like() -> bench.Records:
    (size,) = bench.make_task("adult").facts.inputs.shape  # type: ignore[union-attr]
    return bench.Records(torch.zeros(3, size), torch.zeros(3))


def test_a_saved_model_predicts_as_before(tmp_path: Any) -> None:
    records = rows(500)
    task = array_task("mine", (records.inputs, records.targets), nn.Linear(N_INPUTS, 1), kind="binary")
    result = bench.run("naive_bayes", task, bench.PrivacyBudget(5, 1e-4), progress=bench.NullProgress())
    loaded = bench.load_model(result.save(tmp_path / "m.safetensors"))
    inputs = rows(20, seed=2).inputs
    assert result.trained is not None
    assert (loaded.predict_proba(inputs) == result.trained.predict_proba(inputs)).all()


METHODS = ("naive_bayes", "marginals", "dp_ebm")


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("naive_bayes", {"kind": "regression", "n_classes": None}, "of kind regression"),
        *[(method, {"kind": "multilabel", "n_classes": 2}, "of kind multilabel") for method in METHODS],
        *[(method, {"inputs": bench.recipes.Input((7,), "int", 100)}, "dtype='int'") for method in METHODS],
        *[(method, {"inputs": bench.recipes.Input((3, 8, 8))}, r"shape=\(3, 8, 8\)") for method in METHODS],
        *[(method, {"inputs": {"ids": bench.recipes.Input((7,), "int")}}, "ids") for method in METHODS],
        ("marginals", {"inputs": bench.recipes.Input((7776,))}, "at most 2,048 inputs, got 7,776"),
        ("dp_ebm", {"inputs": bench.recipes.Input((384,))}, "at most 256 inputs, got 384"),
    ],
)
def test_other_tasks_are_refused_in_a_line_at_plan_time(method: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match=words) as caught:
        bench.make_method(method).plan(replace(Table().facts, **change), bench.PrivacyBudget(1, 1e-5))
    assert "\n" not in str(caught.value)
    assert ("at most" in words) != ("texts and pictures do not have" in str(caught.value))


@pytest.mark.parametrize(("method", "squares"), [("naive_bayes", 50 / 49), ("marginals", 1), ("dp_ebm", 10 / 9)])
@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_the_noise_is_that_of_the_closed_form(epsilon: float, method: str, squares: float) -> None:
    """δ of a Gaussian mechanism (Balle and Wang 2018) of μ², the sum of both releases' σ⁻², of the planned noise."""
    plan = bench.make_method(method).plan(Table().facts, bench.PrivacyBudget(epsilon, 1e-5))
    mu = math.sqrt(squares) / plan.parameters.noise_multiplier
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert 0.98e-5 < delta <= 1e-5


@pytest.mark.parametrize("kind", ["binary", "classification", "regression"])
def test_made_up_records_fall_into_the_bins_as_often_as_the_model_says(kind: str) -> None:
    """Each count is within 6.5 deviations of its mean: a false alarm has a probability below 1e-7 for 600 cells."""
    n = 40_000
    session = opened(rows(500, labels=3 if kind == "classification" else 2), kind)
    model = NoisyTables(0.5, 8).fit(session)
    drawn = model.records(session.facts, n, torch.Generator().manual_seed(4))
    assert torch.as_tensor(drawn.inputs)[:, 1:4].sum(1).eq(1).all()  # of the three jobs
    values: Any = model.bins.values(torch.device("cpu"))
    counts = values(None, drawn.inputs, drawn.targets).sum(0)
    each = [model.shares[:, None] * probabilities for probabilities in model.probabilities]
    expected = torch.cat(each, 1).flatten() * n
    assert (counts.sum(), expected.sum()) == (n * N_ATTRIBUTES, pytest.approx(n * N_ATTRIBUTES))
    assert ((counts - expected).abs() <= 6.5 * expected.sqrt() + 1).all()


def test_made_up_targets_are_in_the_units_of_the_declared_scale() -> None:
    records = rows(500)
    records = replace(records, targets=1000 + 50 * torch.as_tensor(records.inputs)[:, 0])

    class Scaled(Table):
        @property
        def facts(self) -> bench.TaskFacts:
            return replace(super().facts, target_scale=(1000, 50))

    session = session_on(Scaled("regression", records), records)
    drawn = NoisyTables(NO_NOISE, 8).fit(session).records(session.facts, 2000, torch.Generator().manual_seed(4))
    targets, ages = torch.as_tensor(drawn.targets), torch.as_tensor(drawn.inputs)[:, 0]
    assert abs(float(targets.mean()) - float(torch.as_tensor(records.targets).mean())) < 20
    assert float(torch.corrcoef(torch.stack([targets, ages]))[0, 1]) > 0.8


def test_a_session_on_made_up_records_charges_nobody_and_has_units_of_one() -> None:
    from tests.session.test_units import open_on, visits

    session = open_on(visits(), "linear")
    before = multiset(session._access.ledger.event)
    visited = visits()
    made_up = session_on_made_up(session, replace(visited, units=None))
    batch = made_up.sample(bench.events.poisson_sampled(0.5, bench.events.gaussian(0.0)))
    batch.gradient(made_up.build_model(), bench.clipping.Abadi(1.0), 0.0)
    assert multiset(session._access.ledger.event) == before
    assert made_up.expected_records == len(visited) > session.expected_records
    assert made_up._access.raw.n_units == len(visited)
    assert made_up.holdout(0.5)[0]._access.rows.tolist() != session.holdout(0.5)[0]._access.rows.tolist()  # type: ignore[union-attr]
