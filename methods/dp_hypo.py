"""DP-HyPO: a search that learns from its trials, within bounds that privacy can afford."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dp_accounting.dp_event import DpEvent
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True)
class DpHypo(bench.search.RandomStopping[bench.search.Trial]):
    """Adaptive private hyperparameter optimisation (Wang, Gao, Zhang, Shen and Su 2023, arXiv:2306.05734).

    As `papernot_steinke`, but each trial's candidate is drawn from a distribution that a Gaussian process learnt
    from the scores of the earlier trials. Its density stays between c and C times a uniform prior, by clamping.
    For a negative binomial number of trials of shape η, the Rényi bound of Papernot and Steinke grows by
    (α/(α − 1) + 1 + η) ln(C/c) (their Theorem 1; docs/accounting.md has a proof). The bound by privacy profiles
    grows by (2 + η) ln(C/c) and a factor C in δ (proved there too), and is mostly the smaller one.

    What that means: at η = 1, ln(C/c) costs about three times its value in ε. The paper's C/c of 1.8 would cost
    ε = 1.7 for adaptivity alone. Here ln(C/c) follows from the budget, a twentieth of it at the default, and the
    search is a random one with a slight bias.

    The other parameters are those of every `RandomStopping`.

    Attributes:
        shape: η of the negative binomial distribution of the number of trials.
        adaptivity_share: ε that learning may cost, about, as a share of the whole.
        points: candidates of the prior, drawn from the search space in advance.
        accounting: "rdp" is as published.
    """

    name = "dp_hypo"
    summary = "Random search that learns from earlier trials as far as privacy allows."
    reference = "Wang et al. 2023, DP-HyPO: an adaptive private hyperparameter optimization framework, Theorem 1"
    tuning = ("learning rate",)
    version = 2
    end_to_end_private = True

    independent = False  # what a trial draws depends on earlier scores

    mean: Annotated[float, Interval(gt=1)] = 3.0
    shape: Annotated[float, Interval(ge=0)] = 1.0
    adaptivity_share: Annotated[float, Interval(ge=0, lt=1)] = 0.05
    points: Annotated[int, Interval(ge=2)] = 32
    accounting: Literal["tightest", "rdp", "profile"] = "tightest"

    @property
    def runs(self) -> "bench.search.RunCount":
        """The distribution of the number of trials."""
        return bench.search.TruncatedNegativeBinomial(self.mean, self.shape)

    def bounds(self, budget: bench.PrivacyBudget) -> tuple[float, float]:
        """Return c and C: how far the search may learn."""
        high = math.exp(self.adaptivity_share * budget.epsilon / (2 * (2 + self.shape)))
        return 1 / high, high

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[bench.search.Trial]:
        """Calibrate the noise of a trial's training and of its score."""

        def whole(trial: "DpEvent") -> "DpEvent":
            return bench.events.best_of(trial, self.runs, *self.bounds(budget))

        return self.plan_search(facts, budget, whole)

    def run(self, plan: bench.Plan[bench.search.Trial], session: "bench.Session") -> bench.Outcome:
        """Run trials one after the other, each drawn from what earlier trials suggest; release the best."""
        space = self.searched_space(session.facts)
        prior = [session.fork(f"candidate {index}").candidate(space) for index in range(self.points)]
        encoded = [_encoded(candidate, session.facts.searched(space)) for candidate in prior]

        def weights(tried: list[int], scores: list[float]) -> list[float]:
            return _promise(encoded, tried, scores)

        proposals = bench.search.Proposals(tuple(prior), weights, *self.bounds(plan.budget))
        return bench.search.winner_outcome(plan.parameters.best_of(session, self.runs, proposals), session)


def _promise(points: "Sequence[Sequence[float]]", tried: "Sequence[int]", scores: "Sequence[float]") -> list[float]:
    """Rate how promising each point is: exponential in the upper confidence bound of a Gaussian process."""
    finite = [(index, score) for index, score in zip(tried, scores, strict=True) if math.isfinite(score)]
    if len(finite) < 2:
        return [1.0] * len(points)
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    values = np.array([score for _, score in finite])
    spread = float(values.std()) or 1.0
    # Kernel and noise are fixed: fitting them to a handful of scores adds more noise than it removes.
    process = GaussianProcessRegressor(Matern(length_scale=0.3, nu=2.5), alpha=0.05, optimizer=None)
    process.fit([points[index] for index, _ in finite], (values - values.mean()) / spread)
    mean, deviation = process.predict(points, return_std=True)
    return [float(value) for value in np.exp(mean + deviation)]


def _encoded(candidate: "bench.search.Candidate", space: "Mapping[str, BaseDistribution]") -> list[float]:
    """Return a candidate as numbers in [0, 1], on the scale of the space; one-hot for categories."""
    from optuna.distributions import CategoricalDistribution

    numbers: list[float] = []
    for name, value in candidate.items():
        distribution = bench.search.distribution_of(space, name, candidate)
        if isinstance(distribution, CategoricalDistribution):
            numbers += [float(choice == value) for choice in distribution.choices]
            continue
        scale = math.log if distribution.log else float  # type: ignore[attr-defined]
        low, high = scale(distribution.low), scale(distribution.high)  # type: ignore[attr-defined]
        numbers.append((scale(value) - low) / (high - low) if high > low else 0.5)
    return numbers
