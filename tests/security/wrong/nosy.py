"""A method that reads what belongs to the session."""

from dataclasses import dataclass

import dphpo_bench as bench
from tests.security.wrong.methods import Sound


@dataclass(frozen=True)
class CountsTheRecords(Sound):
    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        len(session._access.raw.train)
        return super().run(plan, session)
