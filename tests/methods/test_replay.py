"""Extra runs of `explain`: DP-SGD with values from elsewhere, or a method that runs again."""

import json
import math

import pytest

import dphpo_bench as bench
from dphpo_bench.methods.hyfreedp_paper import HyFreeDPPaper
from dphpo_bench.methods.replay import Replay
from tests.conftest import TinyTask

AGAIN = {"again": "hyfreedp_paper", "settings": json.dumps({"update_interval": 5})}


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_the_training_has_its_share_of_the_budget(share: float, budget) -> None:
    plan = Replay(share=share).plan(TinyTask().facts, budget)
    assert 0.99 * share * 3 <= bench.events.epsilon(plan.training_event, budget.delta).epsilon <= share * 3
    assert bench.events.epsilon(plan.event, budget.delta).epsilon == math.inf


def test_records_that_are_held_out_train_nothing(plain_run) -> None:
    ledger = plain_run(Replay(held_out=0.2)).record.privacy.ledger
    trained = [entry["event"] for entry in ledger["entries"] if entry["event"]["type"] == "part"]
    assert [(event["partition"], event["part"]) for event in trained] == [("holdout of 0.2", "training")]


def test_a_method_that_runs_again_has_more_for_its_training(budget) -> None:
    facts = TinyTask().facts
    once = HyFreeDPPaper(update_interval=5).plan(facts, budget)
    again = Replay(**AGAIN).plan(facts, budget)
    spent, all_of_it = (bench.events.epsilon(plan.training_event, budget.delta).epsilon for plan in (once, again))
    assert spent < 0.99 * 3
    assert all_of_it == pytest.approx(3, rel=2e-3)
    assert again.parameters.epsilon > 3
    half = Replay(**AGAIN, share=0.5).plan(facts, budget)
    assert bench.events.epsilon(half.training_event, budget.delta).epsilon == pytest.approx(1.5, rel=2e-3)
