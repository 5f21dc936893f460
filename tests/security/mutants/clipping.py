"""Clipping rules that do not bound what one record does, and models that do not treat each record alone."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dphpo_bench as bench
from tests.security.mutants.baseline import Training, descend

if TYPE_CHECKING:
    from torch import Tensor, nn


class Unclipped(bench.clipping.Clipping):
    """Leaves every gradient as it is."""

    interpolated = True

    def __init__(self, sensitivity: float) -> None:
        self.sensitivity = sensitivity

    def factors(self, norms: "Tensor") -> "Tensor":
        return norms * 0 + 1


class ByTheMean(bench.clipping.Clipping):
    """One factor for all: as if the mean gradient were clipped, whose norm is about the mean of the norms."""

    interpolated = True
    sensitivity = 1.0

    def factors(self, norms: "Tensor") -> "Tensor":
        return (self.sensitivity / norms.mean()).clamp(max=1.0).expand_as(norms)


@dataclass
class ByTheMedian(bench.clipping.Clipping):
    """Sets its own threshold to the median norm of the last batch, without noise."""

    interpolated = True
    sensitivity: float = 1.0
    seen: list[float] = field(default_factory=list)

    def factors(self, norms: "Tensor") -> "Tensor":
        factors = (self.sensitivity / norms).clamp(max=1.0)
        self.seen.append(float(norms.nanmedian()))
        return factors


@dataclass(frozen=True)
class NoClipping(Training):
    """No clipping, and honest about it: the sensitivity is infinite."""

    name = "no_clipping"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        return self.asked(session, model, rate, noise, Unclipped(math.inf))


@dataclass(frozen=True)
class LyingRule(Training):
    """No clipping, under a sensitivity of 1: gradients are "small anyway"."""

    name = "lying_rule"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        return self.asked(session, model, rate, noise, Unclipped(self.max_grad_norm))


@dataclass(frozen=True)
class ClippingAfterAveraging(Training):
    """The batch is clipped as a whole, as `clip_grad_norm_` does: one record moves the factor of all others."""

    name = "clipping_after_averaging"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        return self.asked(session, model, rate, noise, ByTheMean())


@dataclass(frozen=True)
class RawNormStatistics(Training):
    """A threshold that follows the median of raw norms, as adaptive clipping does before it is made private."""

    name = "raw_norm_statistics"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:
        model, rule = session.build_model(), ByTheMedian()
        rate, noise = plan.parameters.sample_rate, plan.parameters.noise_multiplier
        for _ in range(plan.parameters.steps):
            descend(model, self.asked(session, model, rate, noise, rule), self.learning_rate)
        return bench.Outcome(model, {"medians": rule.seen})


@dataclass(frozen=True)
class BatchNormLeftIn(Training):
    """A model with batch normalisation, which mixes the records of a batch before anything is clipped."""

    name = "batch_norm_left_in"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        from torch import nn

        mixing = nn.Sequential(nn.BatchNorm1d(5), model)
        return self.asked(session, mixing, rate, noise, bench.clipping.Abadi(self.max_grad_norm))[2:]


@dataclass(frozen=True)
class CentresByTheBatch(Training):
    """The same by a layer of its own, which no list of layers knows."""

    name = "centres_by_the_batch"

    def gradient(self, session: "bench.Session", model: "nn.Module", rate: float, noise: float) -> "list[Tensor]":
        from torch import nn

        class Centred(nn.Module):
            def forward(self, inputs: "Tensor") -> "Tensor":
                return inputs - inputs.mean(dim=0)

        return self.asked(
            session, nn.Sequential(Centred(), model), rate, noise, bench.clipping.Abadi(self.max_grad_norm)
        )


@dataclass(frozen=True)
class LogsActivations(Training):
    """A forward hook that logs the mean activation of each batch, as dashboards do."""

    name = "logs_activations"

    def run(self, plan: bench.Plan, session: "bench.Session") -> bench.Outcome:

        model, log = session.build_model(), list[float]()
        model.register_forward_hook(lambda *seen: log.append(float(seen[-1].mean())))
        for _ in range(plan.parameters.steps):
            descend(model, self.planned_gradient(plan, session, model), self.learning_rate)
        return bench.Outcome(model, {"activations": log})
