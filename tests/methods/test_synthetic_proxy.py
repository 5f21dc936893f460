"""`synthetic_proxy`: a share of the budget for tables, a search that sees nothing else, and one run."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from opacus.accountants import PRVAccountant

import dphpo_bench as bench
from dphpo_bench.methods.synthetic_proxy import SyntheticProxy
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.recipes.noisy_sums import LABELS_NOISE, NoisyTables
from dphpo_bench.testing import Blobs
from dphpo_bench.testing.runs import Bench

BUDGET = bench.PrivacyBudget(3, 1e-4)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_tables_take_their_share_and_the_run_the_rest(share: float) -> None:
    plan = SyntheticProxy(share=share).plan(Blobs().facts, BUDGET)
    alone = bench.events.calibrate(lambda noise: NoisyTables(noise).event, BUDGET)
    assert (alone / plan.parameters.tables.noise_multiplier) ** 2 == pytest.approx(share)
    assert multiset(plan.event) == multiset(
        bench.events.compose(plan.parameters.tables.event, plan.parameters.run.event)
    )
    assert 0.999 * BUDGET.epsilon <= bench.events.epsilon(plan.event, BUDGET.delta).epsilon <= BUDGET.epsilon


@pytest.mark.filterwarnings("ignore::Warning:opacus")
def test_opacus_agrees_on_what_it_costs() -> None:
    """Its PRV bound, with an error of 1e-3 in ε; tables are batches of everybody."""
    planned = SyntheticProxy(share=0.3).plan(Blobs().facts, BUDGET).parameters
    tables, run, accountant = planned.tables.noise_multiplier, planned.run, PRVAccountant()
    accountant.history = [(LABELS_NOISE * tables, 1.0, 1), (tables, 1.0, 1)]
    accountant.history += [(run.noise_multiplier, run.sample_rate, run.steps)]
    assert accountant.get_epsilon(BUDGET.delta, eps_error=1e-3) == pytest.approx(BUDGET.epsilon, abs=0.01)


def test_the_search_sees_the_tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tables of other records in their place, the choice is that of the other records; the model is not."""
    checked = Bench(method := SyntheticProxy(points=3), Blobs()).planned()
    bench_of, fits = Bench(method, Blobs()), []
    original = NoisyTables.fit
    monkeypatch.setattr(NoisyTables, "fit", lambda *args: fits.append(original(*args)) or fits[0])
    first, other = (bench_of.run(task=Blobs(draw=draw), checked=checked) for draw in (1, 2))
    assert len(fits) == 2
    assert first.outcome.released == other.outcome.released
    assert not torch.equal(*(next(attempt.outcome.model.parameters()) for attempt in (first, other)))
    assert multiset(first.ledger.event) == multiset(checked.plan.event)


def test_batch_size_and_epochs_may_be_searched() -> None:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    class Searched(Blobs):
        @property
        def facts(self) -> bench.TaskFacts:
            space = {
                "batch_size": CategoricalDistribution([100, 200]),
                "learning_rate": FloatDistribution(0.01, 0.1, log=True),
            }
            return replace(super().facts, search_space=lambda: space)

    record = bench.run(SyntheticProxy(points=2), Searched(), BUDGET, seed=0).record
    assert len(record.released["candidates"]) == 4
    assert record.privacy is not None
    assert record.privacy.epsilon <= BUDGET.epsilon


@pytest.mark.parametrize("inputs", [bench.recipes.Input((7,), "int", 9), bench.recipes.Input((1, 8, 8))])
def test_texts_and_pictures_are_refused_in_a_line(inputs: Any) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="texts and pictures do not have") as caught:
        SyntheticProxy().plan(replace(Blobs().facts, inputs=inputs), BUDGET)
    assert "\n" not in str(caught.value)


def test_it_searches_a_regression() -> None:
    record = bench.run(SyntheticProxy(points=2), bench.make_task("diabetes"), BUDGET, seed=0, check=False).record
    assert record.status == "ok"
