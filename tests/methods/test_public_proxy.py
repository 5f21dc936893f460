"""`public_proxy`: refused without a fit sibling, blind to the private records until its one run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.contract import registry
from dphpo_bench.contract.method import sibling_of
from dphpo_bench.data.source import Weights
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.methods.noise_scaled import NoiseScaled
from dphpo_bench.methods.public_proxy import PublicProxy, transferred
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.session import Session
from dphpo_bench.testing import Blobs
from dphpo_bench.testing.runs import Bench
from dphpo_bench.training.randomness import Streams
from dphpo_bench.training.structure import weights_hash
from tests.conftest import TinyTask, session_on
from tests.own_task import array_task

SOURCE = bench.DataSource.resolve()
BUDGET = bench.PrivacyBudget(3, 1e-4)


class WithSibling(TinyTask):
    """The tiny task beside any other."""

    def __init__(self, other: bench.Task | None) -> None:
        super().__init__()
        self.other = other

    @property
    def sibling(self) -> bench.Task | None:
        return self.other


class Private(TinyTask):
    public = False


class Regression(TinyTask):
    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, kind="regression", n_classes=None)


class OfMnist(TinyTask):
    datasets = bench.make_task("mnist").datasets


class OnMnistsModel(TinyTask):
    @property
    def pretrained_models(self) -> tuple[Weights, ...]:
        return (Weights("seer", (), ("mnist",), "", "", has_seen=("mnist",)),)


class MnistBeside(OfMnist, WithSibling):
    pass


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (TinyTask(), "task tiny declares none. Let `sibling` of the task return"),
        (WithSibling(Private()), "sibling of task tiny with public records, got tiny, whose records are private"),
        (WithSibling(Regression()), "of kind 'classification', got tiny of kind 'regression'"),
        (MnistBeside(OfMnist()), "has seen none of its records, got tiny with mnist"),
        (MnistBeside(OnMnistsModel()), "has seen none of its records, got tiny with seer, trained on them"),
    ],
)
def test_an_unfit_sibling_is_refused_before_anything_is_read(task: bench.Task, reason: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(TinyTask, "_split", lambda *_: pytest.fail("records were read"))
    with pytest.raises(bench.errors.InvalidValueError, match="sibling") as caught:
        bench.run(PublicProxy(), task, BUDGET, seed=0)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


class Shifted(TinyTask):
    """Some rows of the tiny task, and others."""

    def __init__(self, shared: int) -> None:
        super().__init__()
        self.shared = shared

    def load_train(self, source: bench.DataSource) -> bench.Records:
        same, others = super().load_train(source), self._split(self.n_records, 7)
        inputs = torch.cat([same.inputs[: self.shared], others.inputs[self.shared :]])
        return bench.Records(inputs, others.targets)


@pytest.mark.parametrize(("shared", "is_refused"), [(0, False), (299, False), (301, True), (600, True)])
def test_a_sibling_that_holds_the_private_records_is_refused(shared: int, is_refused: bool) -> None:
    """Whatever its labels, at half of the rows; and nothing has been released."""
    task = WithSibling(Shifted(shared))
    if is_refused:
        with pytest.raises(bench.errors.DataError, match="shares records with it"):
            bench.run(PublicProxy(points=2), task, BUDGET, seed=0)
    else:
        assert bench.run(PublicProxy(points=2), task, BUDGET, seed=0).record.status == "ok"


def test_equal_rows_of_a_coarse_table_are_no_shared_records() -> None:
    rows, labels = torch.randint(2, (200, 3)).float(), torch.randint(2, (200,))
    public = array_task("public", (rows.flip(0), labels), nn.Linear(3, 2), public=True)
    task = array_task("mine", (rows, labels), nn.Linear(3, 2), public=True, sibling=public, epochs=2)
    assert bench.run(PublicProxy(points=2), task, BUDGET, seed=0).record.status == "ok"


class TestPrivateRecords:
    """Of a caller, counted in an account, without a seed."""

    def task(self, shared: int) -> bench.ArrayTask:
        generator = torch.Generator().manual_seed(1)
        rows, labels = torch.randn(700, 5, generator=generator), torch.randint(3, (700,), generator=generator)
        others = rows[300 - shared : 700 - shared], labels[:400]
        public = array_task("last", others, nn.Linear(5, 3), public=True)
        return array_task("mine", (rows[:300], labels[:300]), nn.Linear(5, 3), sibling=public, epochs=3)

    def test_one_run_is_counted(self, tmp_path: Path) -> None:
        result = bench.run(PublicProxy(points=2), self.task(0), BUDGET, results_dir=tmp_path)
        (total,) = result.account.totals
        assert (total.releases, total.together) == (1, pytest.approx(3, rel=0.01))
        assert result.record.status == "ok"

    def test_a_refused_sibling_costs_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(bench.errors.DataError, match="sibling of task mine on other records"):
            bench.run(PublicProxy(points=2), self.task(200), BUDGET, results_dir=tmp_path)
        assert not bench.account(tmp_path).releases
        assert not list(tmp_path.glob("mine/**/*.json"))


def test_only_the_final_run_asks_the_private_records() -> None:
    """Its ledger is that of DP-SGD, and another draw of private records changes neither scores nor choice."""
    method = PublicProxy(points=3)
    bench_of = Bench(method, Blobs())
    checked = bench_of.planned()
    first, other = (bench_of.run(task=Blobs(draw=draw), checked=checked) for draw in (1, 2))
    assert first.outcome.released == other.outcome.released
    assert first.outcome.released["sibling"] == "blobs"
    weights = [next(attempt.outcome.model.parameters()) for attempt in (first, other)]
    assert not torch.equal(*weights)
    ((event, count),) = first.ledger.entries
    assert (event, count) == (checked.plan.parameters.step, checked.plan.parameters.steps)


def test_the_search_leaves_no_trace_in_the_final_run() -> None:
    """Its weights are those of the chosen run alone, with the same random streams."""

    def opened(sibling: Session | None = None) -> Session:
        return session_on(Blobs(), Blobs().load_train(SOURCE), streams=Streams(5), sibling=sibling)

    method = PublicProxy(points=3)
    plan = method.plan(Blobs().facts, BUDGET)
    public = session_on(Blobs().sibling, Blobs().sibling.load_train(SOURCE), streams=Streams(5).within("sibling"))
    outcome = method.run(plan, opened(public))
    alone = plan.parameters.having({"learning_rate": outcome.released["learning_rate"]}).train(opened())
    assert weights_hash(alone) == weights_hash(outcome.model)


@pytest.mark.parametrize(("public", "rate", "noise"), [(1000.0, 0.1, 2.0), (100.0, 1.0, 2.0), (50.0, 1.0, 1.0)])
def test_a_repeated_run_has_the_same_noise_on_the_mean_gradient(public: float, rate: float, noise: float) -> None:
    run = bench.recipes.DpSgd(0.2, 30, 2.0, 0.1)  # batches of 100 of 500 records
    repeated = transferred(run, 500, public)
    assert (repeated.sample_rate, repeated.noise_multiplier, repeated.steps) == (rate, noise, 30)
    assert repeated.noise_multiplier / (repeated.sample_rate * public) == pytest.approx(2.0 / 100)


@pytest.mark.parametrize("name", ["batch_size", "epochs"])
def test_it_searches_nothing_that_changes_the_noise(name: str) -> None:
    from optuna.distributions import IntDistribution

    class Searched(Blobs):
        @property
        def facts(self) -> bench.TaskFacts:
            return replace(super().facts, search_space=lambda: {name: IntDistribution(10, 20)})

    with pytest.raises(bench.errors.InvalidValueError, match=f"got '{name}'"):
        bench.plan(PublicProxy(), Searched(), BUDGET)


class TestIdentity:
    def test_the_sibling_belongs_to_it_only_where_it_is_used(self) -> None:
        first, second = (task_identity(WithSibling(Blobs(draw=draw)), TinyTask().facts, SOURCE) for draw in (3, 4))
        keys = {
            method.name: [identity_of(method, of_task, BUDGET, 0).key for of_task in (first, second)]
            for method in (PublicProxy(), NoiseScaled())
        }
        assert len({*keys["public_proxy"]}) == 2
        assert len({*keys["noise_scaled"]}) == 1


DECLARED = ("adult", "cifar10", "cifar100", "diabetes", "diamonds", "digits", "digits_eight")
DECLARED += (
    "fashion_mnist",
    "mnist",
    "readmissions",
    "sst2",
    "affairs",
    "friedman",
    "patches",
    "digits_by_writer",
    "readmissions_by_hospital",
)


@pytest.mark.parametrize(
    ("name", "model"), [(name, model) for name in DECLARED for model in registry.tasks()[name].cls.models]
)
def test_declared_siblings_are_fit(name: str, model: str) -> None:
    task = bench.make_task(name, model)
    sibling = sibling_of(PublicProxy(), task)
    assert sibling is not None
    assert (sibling.facts.inputs, sibling.facts.kind) == (task.facts.inputs, task.facts.kind)
    assert sibling.facts.n_records >= (0.25 if name == "sst2" else 0.8) * task.facts.n_records


class AsksTheSibling:
    def __init__(self, from_outside: bench.Session | None) -> None:
        self.outer = from_outside

    def __call__(self, session: bench.Session) -> bench.search.TrialResult:
        public = self.outer or session.sibling
        score = bench.recipes.mean_score(public, public.build_model(), 1.0)
        return bench.search.TrialResult("asked", score)


def test_no_trial_asks_the_sibling() -> None:
    """The state of its random streams would count the trials afterwards."""
    public = session_on(Blobs(), Blobs().load_train(SOURCE), ledger := Ledger(), Streams(6))
    session = session_on(Blobs(), Blobs().load_train(SOURCE), sibling=public)
    for from_outside in (None, public):
        trial = AsksTheSibling(from_outside)
        assert session.best_of(trial, bench.search.UniformCount(1, 3), bench.events.gaussian(1.0)) is None
    assert not ledger.entries
    assert AsksTheSibling(None)(session).outcome == "asked"  # afterwards it may be asked


def test_a_method_that_declares_nothing_gets_no_sibling() -> None:
    class Curious(NoiseScaled):
        name = "curious"

        def run(self, plan: Any, session: bench.Session) -> bench.Outcome:
            return bench.Outcome(session.sibling.build_model())

    with pytest.raises(bench.errors.InvalidValueError, match="needs_sibling = True"):
        bench.run(Curious(), Blobs(), BUDGET, seed=0)
