"""Votes of parts of the records: who wins, what one record changes, what is charged."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from optuna.distributions import CategoricalDistribution

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, ModelFailedError, OverBudgetError
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.event_trees import multiset
from dphpo_bench.privacy.events import gaussian
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.access import Access
from dphpo_bench.session.session import Session
from dphpo_bench.testing.small_tasks import Blobs
from dphpo_bench.training.randomness import Streams
from tests.conftest import session_on

NO_NOISE = 1e-12
RATES = (1e-9, 0.5, 0.5)


def runs(*rates: float, noise: float = 0.0) -> list[bench.recipes.DpSgd]:
    return [bench.recipes.DpSgd(1.0, 15, noise, rate, optimizer="SGD", averaging=0.0) for rate in rates]


@pytest.fixture
def opened(tiny_task, tmp_path):
    """Open a session on the first records of the tiny task, of which one may be another."""

    def make(ledger: Ledger | None = None, n_records: int = 600, changed: int | None = None) -> Session:
        records = tiny_task.load_train(DataSource.resolve(cache_dir=tmp_path)).rows(torch.arange(n_records))
        if changed is not None:
            records.inputs[changed], records.targets[changed] = 1e3, (records.targets[changed] + 1) % 3
        return session_on(tiny_task, records, ledger or Ledger(), Streams(0))

    return make


def count(session: Session, partitions: int = 4, noise: float = NO_NOISE, **options: Any) -> list[float]:
    return bench.recipes.noisy_votes(session, runs(*RATES, **options), partitions, 0.4, noise)


def test_the_good_candidates_win_and_share_votes(opened) -> None:
    session = opened()
    assert count(session, noise=2.0) != pytest.approx([0.0, 2.0, 2.0], abs=0.01)
    assert multiset(session._access.ledger.event) == multiset(gaussian(2.0))
    assert count(opened()) == pytest.approx([0.0, 2.0, 2.0], abs=1e-6)  # two candidates of one rate always tie


def test_the_noise_has_the_standard_deviation_that_is_charged(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Access, "with_noise", lambda _, sums, *rest: asked.append(rest) or sums)
    count(opened(), noise=3.0)
    assert asked[-1] == (3.0, math.sqrt(2), "votes")
    assert {rest[-1] for rest in asked[:-1]} == {"gradient"}


def test_a_record_changes_one_vote(opened) -> None:
    """Each of 12 records in turn becomes an outlier; some change a vote, none more than one."""
    before = torch.tensor(count(opened(n_records=12), partitions=3))
    votes = [torch.tensor(count(opened(n_records=12, changed=record), partitions=3)) for record in range(12)]
    assert all(after.sum().item() == pytest.approx(3, abs=1e-6) for after in votes)
    assert 0.1 < max((after - before).norm().item() for after in votes) <= math.sqrt(2) + 1e-6


def test_an_empty_part_votes_for_all(opened) -> None:
    assert count(opened(n_records=1), partitions=9)[0] >= 8 / 3 - 1e-6


def test_what_the_plan_does_not_cover_is_refused_before_anything_is_trained(
    opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.recipes.DpSgd, "train_together", staticmethod(lambda *_: pytest.fail("It trained.")))
    with pytest.raises(OverBudgetError):
        count(opened(Ledger(allowance=gaussian(2.0))), noise=1.9)
    session = opened(Ledger(allowance=gaussian(2.0)))
    for mistake in ({"partitions": 1}, {"runs": [object()]}, {"runs": []}, {"validation": 1.0}):
        options = {"runs": runs(0.1), "partitions": 2, "validation": 0.4, "noise_multiplier": 2.0, **mistake}
        with pytest.raises(InvalidValueError):
            bench.recipes.noisy_votes(session, **options)
    assert not session._access.ledger.entries


def test_a_failure_on_a_part_is_charged_and_ends_the_run(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()

    def fail(*_: Any) -> None:
        raise ModelFailedError("The model raised.")

    monkeypatch.setattr(bench.recipes.DpSgd, "train_together", staticmethod(fail))
    with pytest.raises(ModelFailedError):
        count(session, noise=2.0)
    monkeypatch.undo()
    with pytest.raises(OverBudgetError, match="comes too late"):
        count(session, noise=2.0)


# --------------------------------------------------------------------------------------------------- the method


def test_the_price_does_not_depend_on_the_number_of_candidates() -> None:
    facts, budget = bench.make_task("cifar10").facts, bench.PrivacyBudget(1, 1e-5)
    few, many = (bench.make_method("dp_hype", {"points": points}).plan(facts, budget) for points in (2, 40))
    assert few.event == many.event
    assert many.cost.runs == 2001


def test_a_run_on_a_part_moves_weights_as_far_as_the_final_one() -> None:
    """SGD: by η T in all along a fixed gradient, and by η √T σ / B through the noise."""
    method, facts = bench.make_method("dp_hype", {"optimizer": "SGD"}), bench.make_task("adult").facts
    final = method.training(facts).with_noise(1.5)
    part = method.on_part(final, facts.n_records, {"learning_rate": 0.2})
    trained = 0.7 * facts.n_records / 50
    assert (part.steps, part.sample_rate) == (facts.epochs, 1.0)
    assert part.learning_rate * part.steps == pytest.approx(0.2 * final.steps)
    through_noise = part.learning_rate * part.steps**0.5 * part.noise_multiplier / trained
    assert through_noise == pytest.approx(0.2 * final.steps**0.5 * 1.5 / facts.batch_size)
    assert part.averaging**part.steps == pytest.approx(final.averaging**final.steps)


class Searching(Blobs):
    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, search_space=lambda: {"learning_rate": CategoricalDistribution([1e-6, 0.3])})


def test_the_winner_trains_the_model() -> None:
    """Ten parts at ε = 50 name the rate that learns; a wrong one would have to gain ten votes by noise of .2."""
    record = bench.run(
        bench.make_method("dp_hype", {"partitions": 10, "optimizer": "SGD"}),
        Searching(),
        bench.PrivacyBudget(50.0, 1e-5),
        seed=0,
    ).record
    assert record.status == "ok", record.error
    assert record.released["learning_rate"] == 0.3
    assert record.metrics["accuracy"] > 0.8
