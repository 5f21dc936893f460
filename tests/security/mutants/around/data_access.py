"""Data that the task does not give out while a method runs."""

from dataclasses import dataclass
from typing import Any

import dphpo_bench as bench
from dphpo_bench.testing import Blobs
from tests.security.mutants.baseline import Training
from tests.security.mutants.data_access import accuracy


@dataclass(frozen=True)
class TunesOnTestData(Training):
    """Takes the guard off the task's method."""

    name = "tunes_on_test_data"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Train, look."""
        load: Any = Blobs.load_test
        outcome = super().run(plan, session)
        test = load.__closure__[0].cell_contents(Blobs(), bench.DataSource.resolve())
        return bench.Outcome(outcome.model, {"test": accuracy(outcome.model, test)})


@dataclass(frozen=True)
class UsesRawRecords(Training):
    """Takes the raw records from the session."""

    name = "uses_raw_records"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        """Look first."""
        deviation = float(session._access.raw.train.inputs.std())
        outcome = super().run(plan, session)
        return bench.Outcome(outcome.model, {"deviation": deviation})
