"""Output perturbation: the exact minimum of a regularised convex loss, with noise on its weights."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

import dphpo_bench as bench

from .objective_perturbation import loaded, outputs_of


@dataclass(frozen=True)
class Minimum:
    """Parameters of a plan.

    Attributes:
        noise_multiplier: of the noise on the weights.
        regularisation: λ.
    """

    noise_multiplier: float
    regularisation: float


@dataclass(frozen=True)
class OutputPerturbation(bench.Method[Minimum]):
    """Output perturbation for linear models (Chaudhuri, Monteleoni and Sarwate 2011, JMLR 12, algorithm 1).

    The release is the minimum of the training loss plus λ/2 ‖W‖², found by a solver up to a tolerance τ, with Gaussian
    noise of deviation σ (L + 2τ)/λ. A record moves the minimum by at most L/λ (docs/accounting.md).
    It is what objective perturbation is compared with: one release as well, whose noise knows nothing of the loss.

    λ trades a bias of about λ/2 ‖W‖² for noise, which costs about n (σL/λ)². The two are in balance where λ is
    proportional to (n σ² L²)^⅓; the factor was settled on `digits` and `adult`.

    Attributes:
        regularisation: λ, of the sum of losses; default: 0.4 (n σ² L²)^⅓.
        input_norm: as for `objective_perturbation`.
    """

    name = "output_perturbation"
    summary = "Exact minimum of a regularised loss, with noise on it, for linear classifiers: one release, no steps."
    reference = "Chaudhuri, Monteleoni and Sarwate 2011, Differentially Private Empirical Risk Minimization"
    tuning = ()
    end_to_end_private = True
    linear_only = True

    regularisation: Annotated[float, Interval(ge=1e-9, le=1e15)] | None = None
    input_norm: bench.parameters.Positive | None = None

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Minimum]:
        """Plan one minimum with the least noise that meets the budget."""
        squared_bound = 1 if outputs_of(facts, self.name) == 1 else 2
        noise = bench.events.calibrate(bench.events.gaussian, budget)
        rule = 0.4 * (facts.n_records * squared_bound * noise**2) ** (1 / 3)
        event = bench.events.gaussian(noise)
        return bench.Plan(
            budget=budget,
            event=event,
            training_event=event,
            parameters=Minimum(noise, self.regularisation or rule),
            releases=(bench.Release("minimum of the loss", 1, noise, 1.0),),
            cost=bench.Cost(runs=1, steps=1, examples=100.0 * facts.n_records),
        )

    def run(self, plan: bench.Plan[Minimum], session: bench.Session) -> bench.Outcome:
        """Ask for the minimum."""
        planned, model = plan.parameters, session.build_model()
        batch = session.sample(bench.events.poisson_sampled(1.0, plan.event))
        minimum = batch.noisy_minimum(model, planned.regularisation, planned.noise_multiplier)
        return bench.Outcome(loaded(model, minimum, self.input_norm), {"regularisation": planned.regularisation})
