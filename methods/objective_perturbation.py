"""Objective perturbation: the exact minimum of a randomly tilted convex loss, in one release, without steps."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn


@dataclass(frozen=True)
class Perturbation:
    """Parameters of a plan.

    Attributes:
        noise_multiplier: of the random linear term.
        regularisation: λ.
        output_noise: multiplier of the noise that covers the solver's tolerance.
    """

    noise_multiplier: float
    regularisation: float
    output_noise: float


@dataclass(frozen=True)
class ObjectivePerturbation(bench.Method[Perturbation]):
    """Objective perturbation for linear models (Kifer et al. 2012; Redberg et al. 2023; Iyengar et al. 2019).

    The release is the minimum of the training loss plus λ/2 ‖W‖² and a random linear term, which a solver finds up to
    a tolerance that a little noise on the weights covers. There are no steps, no learning rate, no batches and no
    clipping threshold: inputs are scaled to norm 1 (docs/accounting.md, objective perturbation).

    The one hyperparameter left is λ. A small one lets a record change the curvature of the loss by up to a factor e^κ,
    and κ comes off ε; a large one biases the weights. By default κ is a tenth of ε, a share that was settled on
    `digits` and `adult`. The papers tune λ.

    Attributes:
        regularisation: λ, of the sum of losses; default: by `curvature_share`.
        curvature_share: κ / ε.
        input_norm: the norm that inputs, with a constant 1, are taken to have when the model is applied to them. It
            changes how sure the model is, and no prediction. Default: √(d + 1), of d entries of size 1.
    """

    name = "objective_perturbation"
    summary = "Exact minimum of a randomly tilted loss, for linear classifiers: one release, no steps; tunes nothing."
    reference = "Redberg, Koskela and Wang 2023, Improving the Privacy and Practicality of Objective Perturbation"
    tuning = ()
    end_to_end_private = True
    linear_only = True

    regularisation: bench.parameters.Positive | None = None
    curvature_share: bench.parameters.Share = 0.1
    input_norm: bench.parameters.Positive | None = None

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Perturbation]:
        """Plan one minimum at the least noise that meets the budget."""
        outputs = outputs_of(facts, self.name)
        regularisation = self.regularisation or _regularisation(self.curvature_share * budget.epsilon, outputs)

        def event(noise: float) -> "DpEvent":
            return bench.events.compose(
                bench.events.objective_perturbation(noise, regularisation, outputs),
                bench.events.gaussian(OUTPUT_SHARE * noise),
            )

        try:
            noise = bench.events.calibrate(event, budget)
        except bench.errors.BudgetTooSmallError:
            raise bench.errors.BudgetTooSmallError(
                f"Expected a regularisation with which some noise meets epsilon={budget.epsilon:g}, got "
                f"{regularisation:.4g}: a record changes the loss's curvature by too much. Raise it, or leave it out."
            ) from None
        return bench.Plan(
            budget=budget,
            event=event(noise),
            training_event=event(noise),
            parameters=Perturbation(noise, regularisation, OUTPUT_SHARE * noise),
            releases=(bench.Release("minimum of the perturbed loss", 1, noise, 1.0),),
            cost=bench.Cost(runs=1, steps=1, examples=100.0 * facts.n_records),
        )

    def run(self, plan: bench.Plan[Perturbation], session: bench.Session) -> bench.Outcome:
        """Ask for the minimum."""
        planned, model = plan.parameters, session.build_model()
        batch = session.sample(bench.events.poisson_sampled(1.0, plan.event))
        minimum = batch.perturbed_minimum(model, planned.regularisation, planned.noise_multiplier, planned.output_noise)
        return bench.Outcome(loaded(model, minimum, self.input_norm), {"regularisation": planned.regularisation})


OUTPUT_SHARE = 30.0
"""The multiplier of the noise on the weights relative to that of the linear term; it takes a thousandth of μ²."""


def loaded(model: "nn.Module", minimum: "list[Tensor]", input_norm: float | None) -> "nn.Module":
    """Return the model with the weights of a minimum, for inputs of this norm; default: √(d + 1)."""
    import torch

    weights = bench.recipes.trainable(model)
    norm = input_norm or math.sqrt(weights[0][0].numel() + 1)
    with torch.no_grad():
        for weight, value in zip(weights, minimum, strict=True):
            weight.copy_(value / norm)
    return model


def outputs_of(facts: bench.TaskFacts, method: str) -> int:
    """Return the number of the model's outputs; reject tasks that no theorem covers."""
    if facts.kind == "binary" and facts.unit == "record":
        return 1
    if facts.kind == "classification" and facts.unit == "record":
        assert facts.n_classes is not None
        return facts.n_classes
    raise bench.errors.InvalidValueError(
        f"Expected a binary task or a classification whose unit is a record, got task {facts.task} of kind "
        f"{facts.kind!r} and unit {facts.unit!r}: {method} has a theorem for these alone. Use another "
        "method, such as dp_sgd."
    )


def _regularisation(curvature: float, outputs: int) -> float:
    """Return the λ at which a record adds at most `curvature` to the logarithm of the determinant."""
    if outputs == 1:
        return 1 / (4 * math.expm1(curvature))
    return 1 / (outputs * math.expm1(curvature / (outputs - 1)))
