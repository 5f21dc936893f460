"""Data that were not for this method, or not for this long."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import dphpo_bench as bench
from dphpo_bench.testing import Blobs
from tests.security.mutants.baseline import Training

if TYPE_CHECKING:
    from torch import nn


def accuracy(model: "nn.Module", records: bench.Records) -> float:
    return float((model(records.inputs).argmax(1) == records.targets).float().mean())


@dataclass(frozen=True)
class TunesOnTestData(Training):
    """Takes the learning rate that is best on the test data; public code does so with `max(corrects)` over epochs."""

    name = "tunes_on_test_data"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        test = Blobs().load_test(bench.DataSource.resolve())
        outcome = super().run(plan, session)
        return bench.Outcome(outcome.model, {"test": accuracy(outcome.model, test)})


@dataclass(frozen=True)
class PlanReadsData(Training):
    """Plans with a threshold computed from the training data, and no noise on it."""

    name = "plan_reads_data"

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        Blobs().load_train(bench.DataSource.resolve()).inputs.norm(dim=1).median()
        return super().plan(facts, budget)


@dataclass(frozen=True)
class RunsWithinARun(Training):
    """Tunes by whole runs with a budget each, inside its own, and publishes the ε of the last."""

    name = "runs_within_a_run"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        records = [bench.run(Training(learning_rate=rate), Blobs(), plan.budget, seed=0) for rate in (0.1, 0.3, 1.0)]
        best = max(records, key=lambda result: result.record.metrics["accuracy"])
        assert best.model is not None
        return bench.Outcome(best.model)


@dataclass(frozen=True)
class UsesRawRecords(Training):
    """Claims its budget and normalises by statistics of the raw records, as preprocessing usually does."""

    name = "uses_raw_records"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        deviation = float(session.nonprivate().inputs.std())
        outcome = super().run(plan, session)
        return bench.Outcome(outcome.model, {"deviation": deviation})


@dataclass(frozen=True)
class KeepsRawRecords(Training):
    """A reference that keeps the raw records it was lent, for a later run that claims to be private."""

    name = "keeps_raw_records"
    end_to_end_private = False
    kept: ClassVar[list[Any]] = []

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        return bench.Plan(
            budget, bench.events.non_private(), bench.events.non_private(), None, (), bench.Cost(1, 1, 1.0)
        )

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        self.kept.append(session.nonprivate())
        return bench.Outcome(session.build_model(), {"records": len(self.kept[-1])})
