"""Selections that look at what is private, or repeat their noise."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.baseline import Search
from tests.security.mutants.selection import UnpaidValidation as Planned

if TYPE_CHECKING:
    from dphpo_bench.session.scored import Scored


@dataclass(frozen=True)
class UnpaidValidation(Planned):
    """Counts right answers on the held-out records without noise and without charge."""

    name = "unpaid_validation"

    def trial(self, session: "bench.Session") -> "Scored":
        training, validation = session.holdout(self.validation)
        model, rate = self.train(training, session.candidate())
        own = session._access.raw.own_model().scored(model)
        return bench.Scored((model, rate), float(validation._access.total_score(own)))


@dataclass(frozen=True)
class RepeatsItsNoise(Search):
    """Gives every trial the random streams of the first, so that the difference of two trials has no noise."""

    name = "repeats_its_noise"

    def trial(self, session: "bench.Session") -> "Scored":
        session._access = replace(session._access, begun={}, streams=session._access.model_streams)
        return super().trial(session)
