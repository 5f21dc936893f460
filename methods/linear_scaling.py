"""The linear scaling rule: two cheap sweeps, a line through what they found, one expensive run on the line."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Choice = tuple[int, int, float]
"""T, B and C of a run."""


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan.

    Attributes:
        sweeps: the run of each sweep but for its step size, or one for each T and B.
        score_noise: σ_s.
        final: the same of the final run.
        final_epsilon: ε_f.
    """

    sweeps: tuple[bench.search.DpSgdRun, ...]
    score_noise: float
    final: bench.search.DpSgdRun
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

    With `most_steps`, rate and steps are searched jointly, as in the paper's code. Each run draws T, and η = r/T.
    From the second sweep on neither η nor T may lie on the other side of those of the last sweep's winner than r does.
    A full-batch run of T steps and noise σ√T costs the same for every T, so any rule may choose it. T is released as
    the number of epochs.

    With `joint`, B and C are drawn as T is (appendix A.4). The paper's step adds up B gradients of length C or less, so
    without momentum and noise T steps lead no further than r = η·T·B·C. A step here takes their mean, which makes that
    r = η·T·C, and B acts through the noise σC/B alone. So η = r/(T·C), and the paper's η is this one over B. Curves of
    samples and of full batches differ at other δ; the harness charges the largest of all (`SearchedRun`).

    Attributes:
        first_share: ε₁ as a share of the whole ε.
        second_share: ε₂ as a share of the whole ε.
        runs: n, runs of each sweep.
        smallest: least r; the candidates are spaced evenly in its logarithm.
        largest: greatest r.
        steps: T of every run; with `most_steps`, the least T.
        score_share: share of μ² that pays for the counts.
        clipping: "abadi:1" is unit clipping, of C = 1; with `joint`, this is the least C.
        averaging: decay of the exponential average of weights that a run returns; 0, the paper's, the last ones.
        third_share: ε₃ as a share of the whole ε, of a third sweep; the line is then the least squares of three points.
            None: two sweeps.
        most_steps: bound of T, which is then one of `steps`, doubled any number of times. None: T is not searched.
        degree: of the curve through the points: 1, a line, or 2 with a third sweep (Table 15).
        momentum: ρ; the paper's is 0.9 (Table 13).
        free_step: take one more step of the same size along the momentum buffer after training, which costs nothing
            (appendix A.3).
        batch_size: B, the expected size of the Poisson sample of each step; with `joint`, the least B. None: each step
            takes all records, as in the paper.
        joint: also search B, which is then `batch_size`, doubled any number of times, or N; and C, which is then that
            of `clipping`, doubled any number of times, or 1.
    """

    name = "linear_scaling"
    version = 2
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
    most_steps: bench.parameters.Count | None = field(default=None, metadata=bench.parameters.LATER)
    degree: Annotated[int, Interval(ge=1, le=2)] = field(default=1, metadata=bench.parameters.LATER)
    momentum: bench.parameters.Decay = field(default=0.9, metadata=bench.parameters.LATER)
    free_step: bool = field(default=True, metadata=bench.parameters.LATER)
    batch_size: bench.parameters.Count | None = field(default=None, metadata=bench.parameters.LATER)
    joint: bool = field(default=False, metadata=bench.parameters.LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = [("first_share", "second_share"), ("smallest", "largest")]
        if self.third_share is not None:
            pairs.append(("second_share", "third_share"))
        for low, high in pairs:
            least, most = getattr(self, low), getattr(self, high)
            if not least < most:
                raise bench.errors.InvalidValueError(f"Expected {low} < {high}, got {low}={least} and {high}={most}.")
        if self.degree == 2 and self.third_share is None:
            raise bench.errors.InvalidValueError("Expected third_share with degree=2: a parabola needs three points.")
        if self.most_steps is not None and self.most_steps < 2 * self.steps:
            raise bench.errors.InvalidValueError(
                f"Expected most_steps >= 2 x steps = {2 * self.steps}, got {self.most_steps}: there would be no other "
                "number of steps to choose. Raise it, lower steps, or leave it out."
            )
        if self.joint and self.batch_size is None and self._threshold >= 1:
            raise bench.errors.InvalidValueError(
                "Expected joint with batch_size, or with clipping abadi:C, C < 1: there would be nothing to search."
            )

    def descent(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.search.DpSgdRun:
        """Return one run, or one for each T and B; their noise is such that each alone costs about the budget."""

        def combination(steps: int, batch: int) -> bench.search.Combination:
            run = bench.recipes.DpSgd(
                *(facts.with_schedule(batch).sample_rate, steps, math.sqrt(steps), 1 / steps),
                clipping=self.clipping,
                averaging=self.averaging,
                momentum=self.momentum,
                free_step=self.free_step,
            )
            epochs = steps * batch / facts.n_records
            if self.batch_size is None:  # σ = √T, for any budget
                return bench.search.Combination(run, None, epochs)
            rough = bench.events.calibrate_roughly(lambda noise: run.with_noise(noise).event, budget, accountant="pld")
            return bench.search.Combination(run.with_noise(rough), batch, epochs)

        schedules = dict.fromkeys(choice[:2] for choice in self.choices(facts.n_records))
        combinations = tuple(combination(*schedule) for schedule in schedules)
        return combinations[0].run if len(combinations) == 1 else bench.search.SearchedRun(combinations, drawn=False)

    def choices(self, n_records: int, total: float = 1.0, best: tuple[Choice, float] | None = None) -> list[Choice]:
        """Return the T, B and C that a run of total step size r may take; `best` is ((T, B, C), r) of the last."""
        batch = self.batch_size or n_records
        batches, thresholds = {batch}, {self._threshold}
        if self.joint:
            batches, thresholds = {*_doubled(batch, n_records), n_records}, {*_doubled(self._threshold, 1.0), 1.0}
        lengths = _doubled(self.steps, self.most_steps or self.steps)
        choices = [*itertools.product(lengths, sorted(batches), sorted(thresholds))]
        if best is None:
            return choices
        low, high = sorted((1.0, total / best[1]))
        factors = [[new / old for new, old in zip(choice, best[0], strict=True)] for choice in choices]
        sides = [all(low <= factor <= high for factor in (*each, math.prod(each))) for each in factors]
        return [*itertools.compress(choices, sides)]

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Calibrate the noise of all sweeps, of the counts, and of the final run: what is left."""
        bench.search.refuse_search_space(
            facts, {"learning_rate"}, "the rule scales one step size, and finds its range by itself"
        )
        run, accountant = self.descent(facts, budget), None if self.batch_size is None else "pld"
        cheap = [bench.PrivacyBudget(share * budget.epsilon, budget.delta) for share in self._shares]
        sweeps = [self.descent(facts, each).calibrated(each, accountant) for each in cheap]
        joint = bench.events.calibrate(bench.events.gaussian, budget)
        score_noise = joint * math.sqrt(len(sweeps) * self.runs / self.score_share)
        search = bench.events.compose(
            *(bench.events.repeat(sweep.event, self.runs) for sweep in sweeps),
            bench.events.repeat(bench.events.gaussian(score_noise), len(sweeps) * self.runs),
        )

        def whole(noise_multiplier: float) -> "DpEvent":
            return bench.events.compose(search, run.with_noise(noise_multiplier).event)

        final = run.with_noise(bench.events.calibrate(whole, budget, accountant=accountant))
        n_runs, each = len(sweeps) * self.runs + 1, run.cost(facts.n_records)
        return bench.Plan(
            budget=budget,
            event=bench.events.compose(search, final.event),
            training_event=final.event,
            parameters=Planned(
                sweeps=tuple(sweeps),
                score_noise=score_noise,
                final=final,
                final_epsilon=bench.events.epsilon(final.event, budget.delta).epsilon,
            ),
            releases=(
                *(replace(kind, count=kind.count * self.runs) for sweep in sweeps for kind in sweep.releases),
                bench.Release("count of correct predictions", len(sweeps) * self.runs, score_noise, 1.0),
                *final.releases,
            ),
            cost=bench.Cost(
                runs=n_runs,
                steps=n_runs * each.steps,
                examples=n_runs * each.examples + (n_runs - 1) * facts.n_records,
            ),
        )

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Sweep at each small ε, extrapolate, train."""
        planned, best, names = plan.parameters, None, ("epochs", "batch_size", "clipping")
        points: list[tuple[float, float]] = []
        sweeps: list[dict[str, Any]] = []
        for share, sweep in zip(self._shares, planned.sweeps, strict=True):
            candidates, label = self._candidates(), f"Sweep at {share:.0%} of ε"
            sessions = [session.fork(f"ε share {share}, run {index}") for index in range(self.runs)]
            opened = [self._opened(sweep, *each, best) for each in zip(sessions, candidates, strict=True)]
            runs, charged, drawn, chosen = zip(*opened, strict=True)
            if type(sweep) is bench.recipes.DpSgd:
                models = bench.recipes.DpSgd.train_together([*charged], runs, label)
            else:
                models = [run.train(inner, label) for run, inner in zip(runs, charged, strict=True)]
            scores = [
                bench.recipes.mean_score(part, model, planned.score_noise)
                for part, model in zip(sessions, models, strict=True)
            ]
            first = max(range(self.runs), key=scores.__getitem__)
            best = chosen[first], candidates[first]
            points.append((share * plan.budget.epsilon, best[1]))
            sweeps.append({"epsilon": points[-1][0], "total_step_sizes": candidates, "scores": scores})
            sweeps[-1] |= {name: [each[name] for each in drawn] for name in names if name in drawn[0]}
        total = on_line(points, planned.final_epsilon, (self.smallest, self.largest), self.degree)
        final, inner, candidate, _ = self._opened(planned.final, session, total, best)
        model = final.train(inner, "Final run")
        return bench.Outcome(model, {**candidate, "total_step_size": total, "sweeps": sweeps})

    def _opened(
        self, planned: bench.search.DpSgdRun, session: "bench.Session", total: float, best: tuple[Choice, float] | None
    ) -> "tuple[bench.recipes.DpSgd, bench.Session, bench.search.Candidate, Choice]":
        """Draw T, B and C; return the run, the session that pays, its candidate, and (T, B, C)."""
        n_records = session.facts.n_records
        choices = self.choices(n_records, total, best)
        choice = steps, batch, threshold = choices[int(session.uniform("number of steps") * len(choices))]
        candidate: bench.search.Candidate = {"learning_rate": total / (steps * threshold)}
        if isinstance(planned, bench.search.SearchedRun):
            epochs = steps * batch / n_records
            candidate |= next(
                each.schedule for each in planned.combinations if (each.run.steps, each.epochs) == (steps, epochs)
            )
        if self.joint:
            candidate["clipping"] = self.clipping if threshold == self._threshold else f"abadi:{threshold}"
        return *planned.opened(session, candidate), choice

    @property
    def _threshold(self) -> float:
        return bench.clipping.parse_clipping(self.clipping).sensitivity

    @property
    def _shares(self) -> tuple[float, ...]:
        two = self.first_share, self.second_share
        return two if self.third_share is None else (*two, self.third_share)

    def _candidates(self) -> list[float]:
        low, high = self.smallest, self.largest
        if self.runs == 1:
            return [math.sqrt(low * high)]
        return [low * (high / low) ** (index / (self.runs - 1)) for index in range(self.runs)]


def _doubled(value: float, most: float) -> list[Any]:
    """Return the value, and whatever it is up to `most` when doubled again and again."""
    return [value * 2**power for power in range(max(int(most // value).bit_length(), 1))]


def on_line(
    points: Sequence[tuple[float, float]], epsilon: float, limits: tuple[float, float], degree: int = 1
) -> float:
    """Return r at `epsilon` on the least-squares line, or curve, through points (ε, r) in the order of ε.

    The result is within the limits. A line that falls after the last point is taken as flat: its sweep had least noise.
    """
    from numpy.polynomial import Polynomial

    sizes, best = zip(*points, strict=True)
    curve = Polynomial.fit(sizes, best, degree)
    total = float(curve(epsilon)) if curve(epsilon) > curve(sizes[-1]) else best[-1]
    return min(max(total, limits[0]), limits[1])
