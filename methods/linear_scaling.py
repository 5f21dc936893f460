"""The linear scaling rule: two cheap sweeps, a line through what they found, one expensive run on the line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, linear_regression
from typing import TYPE_CHECKING

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan.

    Attributes:
        sweep_noise: σ of a run of each sweep.
        score_noise: σ_s.
        final: the final run, but for what the line gives.
        final_epsilon: ε_f.
    """

    sweep_noise: tuple[float, ...]
    score_noise: float
    final: bench.recipes.DpSgd
    final_epsilon: float


@dataclass(frozen=True)
class LinearScaling(bench.Method[Planned]):
    """The new linear scaling rule (Panda, Tang, Mahloujifar, Sehwag and Mittal 2024, arXiv:2212.04486, Algorithm 3).

    Full-batch gradient descent with momentum 0.9, zero initialisation and unit clipping has one hyperparameter
    that matters, the total step size r = η·T, and its best value grows linearly with ε. So: n runs at a small
    ε₁, n at ε₂, the best r of each, a line through (ε₁, r₁) and (ε₂, r₂), one run with what it gives at ε_f.
    Full-batch runs are Gaussian mechanisms, so all of it is one: μ² = n μ₁² + n μ₂² + μ_f² + 2n/σ_s².

    What the paper leaves unpaid: it keeps the run that is best on the training data, 2n queries without noise.
    (Its public code picks by test accuracy.) Here each run releases a noisy count of correct predictions, the last
    term above; the final run has a little less left. That all 2n runs are published costs nothing more.

    What the paper leaves open: a line that falls, or leads out of the range of r. A larger ε never asks for a
    smaller r, so the line is taken as flat if it falls; and r stays within its range.

    Attributes:
        first_share: ε₁ as a share of the whole ε.
        second_share: ε₂ as a share of the whole ε.
        runs: n, runs of each sweep.
        smallest: least r; the candidates are spaced evenly in its logarithm.
        largest: greatest r.
        steps: T of every run.
        score_share: share of μ² that pays for the counts.
        clipping: "abadi:1" is unit clipping.
        averaging: decay of the exponential average of weights that a run returns; 0, the paper's, the last ones.
        third_share: ε₃ as a share of the whole ε, of a third sweep; the line is then the least squares of three points.
            None: two sweeps.
    """

    name = "linear_scaling"
    summary = "Two sweeps at small ε, a line through their best step sizes, one run on the line."
    reference = "Panda et al. 2024, A new linear scaling rule for private adaptive hyperparameter optimization"
    tuning = ("learning rate",)
    end_to_end_private = True
    needs_scores = True

    first_share: bench.parameters.Share = 0.1
    second_share: bench.parameters.Share = 0.2
    runs: bench.parameters.Count = 3
    smallest: bench.parameters.Positive = 1.0
    largest: bench.parameters.Positive = 300.0
    steps: bench.parameters.Count = 60
    score_share: bench.parameters.Share = 0.02
    clipping: bench.parameters.ClippingRule = "abadi:1"
    averaging: bench.parameters.Decay = 0.0
    third_share: bench.parameters.Share | None = field(default=None, metadata=bench.parameters.LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = [("first_share", "second_share"), ("smallest", "largest")]
        if self.third_share is not None:
            pairs.append(("second_share", "third_share"))
        for low, high in pairs:
            least, most = getattr(self, low), getattr(self, high)
            if not least < most:
                raise bench.errors.InvalidValueError(f"Expected {low} < {high}, got {low}={least} and {high}={most}.")

    def descent(self, noise_multiplier: float = 0.0, total: float = 1.0) -> bench.recipes.DpSgd:
        """Return one run on all records, of this total step size."""
        return bench.recipes.DpSgd(
            1.0, self.steps, noise_multiplier, total / self.steps, clipping=self.clipping, averaging=self.averaging
        )

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Calibrate the noise of all sweeps, of the counts, and of the final run: what is left."""
        bench.search.refuse_search_space(
            facts, {"learning_rate"}, "the rule scales one step size, and finds its range by itself"
        )
        run = self.descent()
        sweeps = [run.calibrated(bench.PrivacyBudget(share * budget.epsilon, budget.delta)) for share in self._shares]
        joint = bench.events.calibrate(bench.events.gaussian, budget)
        score_noise = joint * math.sqrt(len(sweeps) * self.runs / self.score_share)
        search = bench.events.compose(
            *(bench.events.repeat(sweep.event, self.runs) for sweep in sweeps),
            bench.events.repeat(bench.events.gaussian(score_noise), len(sweeps) * self.runs),
        )

        def whole(noise_multiplier: float) -> "DpEvent":
            return bench.events.compose(search, run.with_noise(noise_multiplier).event)

        final = run.with_noise(bench.events.calibrate(whole, budget))
        n_runs = len(sweeps) * self.runs + 1
        return bench.Plan(
            budget=budget,
            event=whole(final.noise_multiplier),
            training_event=final.event,
            parameters=Planned(
                sweep_noise=tuple(sweep.noise_multiplier for sweep in sweeps),
                score_noise=score_noise,
                final=final,
                final_epsilon=bench.events.epsilon(final.event, budget.delta).epsilon,
            ),
            releases=(
                *(replace(sweep.releases[0], count=sweep.steps * self.runs) for sweep in sweeps),
                bench.Release("count of correct predictions", len(sweeps) * self.runs, score_noise, 1.0),
                *final.releases,
            ),
            cost=bench.Cost(
                runs=n_runs,
                steps=n_runs * self.steps,
                examples=float((n_runs * self.steps + n_runs - 1) * facts.n_records),
            ),
        )

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Sweep at each small ε, extrapolate, train."""
        planned = plan.parameters
        points, sweeps = [], []
        for share, noise in zip(self._shares, planned.sweep_noise, strict=True):
            candidates = self._candidates()
            sessions = [session.fork(f"ε share {share}, run {index}") for index in range(self.runs)]
            runs = [self.descent(noise, total) for total in candidates]
            models = bench.recipes.DpSgd.train_together(sessions, runs, f"Sweep at {share:.0%} of ε")
            scores = [part.score(model, planned.score_noise) for part, model in zip(sessions, models, strict=True)]
            best = candidates[max(range(self.runs), key=scores.__getitem__)]
            points.append((share * plan.budget.epsilon, best))
            sweeps.append({"epsilon": points[-1][0], "total_step_sizes": candidates, "scores": scores})
        total = on_line(points, planned.final_epsilon, (self.smallest, self.largest))
        final = self.descent(planned.final.noise_multiplier, total)
        model = final.train(session, "Final run")
        return bench.Outcome(model, {"learning_rate": final.learning_rate, "total_step_size": total, "sweeps": sweeps})

    @property
    def _shares(self) -> tuple[float, ...]:
        two = self.first_share, self.second_share
        return two if self.third_share is None else (*two, self.third_share)

    def _candidates(self) -> list[float]:
        low, high = self.smallest, self.largest
        if self.runs == 1:
            return [math.sqrt(low * high)]
        return [low * (high / low) ** (index / (self.runs - 1)) for index in range(self.runs)]


def on_line(points: Sequence[tuple[float, float]], epsilon: float, limits: tuple[float, float]) -> float:
    """Return r at `epsilon` on the line through points (ε, r) in the order of ε, of several the least squares.

    The result is within the limits. A line that falls is taken as flat, at the last point: that sweep had least noise.
    """
    first, last = points[0], points[-1]
    if len(points) == 2:
        slope, place = (last[1] - first[1]) / (last[0] - first[0]), last
    else:
        sizes, best = zip(*points, strict=True)
        slope, place = linear_regression(sizes, best).slope, (fmean(sizes), fmean(best))
    total = place[1] + slope * (epsilon - place[0]) if slope > 0 else last[1]
    return min(max(total, limits[0]), limits[1])
