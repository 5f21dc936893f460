"""Propose-test with doubling: ask of sub-sampled models which hyperparameters are good, without training privately."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

import dphpo_bench as bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class Planned:
    """Parameters of a plan.

    Attributes:
        test_epsilon: ε₀ of a success.
        successes: c.
        final: the final run, but for what the search finds.
    """

    test_epsilon: float
    successes: int
    final: bench.recipes.DpSgd


@dataclass(frozen=True)
class ProposeTest(bench.search.SearchMethod[Planned]):
    """Subsample-and-aggregate, searched by AboveThreshold with steps that double.

    The records are split into k parts; every candidate is trained on each part without privacy, and its utility
    is the mean accuracy on held-out records, which one record changes by at most max(1/k, 1/n_validation). In
    each round AboveThreshold asks for a candidate better than what is known plus a step; where there is one the
    step doubles, else it halves; the search ends when the step is below `resolution`, the utility at 1, or after c
    successes. A final private run on all records uses the last candidate found.

    What is paid: an AboveThreshold is ε₀-DP (Dwork and Roth 2014, Theorem 3.23) until it names a candidate, so
    rounds that find none are free, and steps start large. A success ends it, and the next round opens another. Charged
    is c × ε₀ next to the final run, however many successes there were.

    What the paper gets wrong: it pays for every round, and bounds their number by the utility gained. An ε that
    depends on the records is no statement of differential privacy. Its held-out records are not protected.

    What to expect: the noise on a utility has scale 4/(k ε₀), against utilities in [0, 1]. A budget of ε = 1 leaves
    ε₀ in the tenths, and the choice is close to a random one. A useful search needs k·ε₀ near 100.

    The other parameters are those of every `SearchMethod`; `batch_size` and `epochs` are the final run's.
    Parts are trained in full batches, for as many steps as the final run has epochs.

    Attributes:
        candidates: number of candidates, drawn from the search space.
        partitions: k.
        resolution: least step g in the utility.
        successes: c, after which the search ends.
        final_share: ε of the final run by itself, as a share of the whole.
    """

    name = "propose_test"
    summary = "Non-private models on parts of the data vote on hyperparameters through AboveThreshold."
    reference = "propose-test with doubling; Dwork and Roth 2014, Theorem 3.23"
    tuning = ("learning rate",)
    end_to_end_private = True

    candidates: bench.parameters.Count = 16
    partitions: Annotated[int, Interval(ge=2)] = 10
    resolution: Annotated[float, Interval(gt=0, lt=1)] = 0.01
    successes: bench.parameters.Count = 1
    final_share: bench.parameters.Share = 0.85

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan[Planned]:
        """Calibrate the noise of the final run, then ε₀ of a success."""
        space, why = self.searched_space(facts), "candidates are compared after equally many steps without noise"
        bench.search.refuse_search_space(facts, bench.recipes.HYPERPARAMETERS, why, space)
        final = self.training(facts).calibrated(bench.PrivacyBudget(self.final_share * budget.epsilon, budget.delta))
        successes = min(self.successes, most_successes(self.resolution))

        def whole(inverse: float) -> "DpEvent":
            return bench.events.compose(bench.events.repeat(bench.events.pure_dp(1 / inverse), successes), final.event)

        inverse = bench.events.calibrate(whole, budget)
        search = self._on_part(facts)
        trained = self.candidates * (1 - self.validation) * facts.n_records
        cost = final.cost(facts.n_records)
        return bench.Plan(
            budget=budget,
            event=whole(inverse),
            training_event=final.event,
            parameters=Planned(1 / inverse, successes, final),
            releases=(
                bench.Release("AboveThreshold (Laplace)", successes, inverse, 1.0),
                *final.releases,
            ),
            cost=bench.Cost(
                runs=1 + self.candidates * self.partitions,
                steps=cost.steps + self.candidates * self.partitions * search.steps,
                examples=cost.examples
                + trained * search.steps
                + self.candidates * self.partitions * self.validation * facts.n_records,
            ),
        )

    def _on_part(self, facts: bench.TaskFacts) -> "bench.recipes.DpSgd":
        """Return a run on one part of the records: full batches, as many steps as the final run has epochs."""
        epochs = facts.with_schedule(None, self.epochs).epochs
        return replace(self.training(facts), sample_rate=1.0, steps=max(1, round(epochs)))

    def run(self, plan: bench.Plan[Planned], session: "bench.Session") -> bench.Outcome:
        """Train on the parts, search, train on everything."""
        planned, space = plan.parameters, self.searched_space(session.facts)
        candidates = [session.fork(f"candidate {index}").candidate(space) for index in range(self.candidates)]
        on_part = self._on_part(session.facts)
        runs = [on_part.having(candidate) for candidate in candidates]
        bench.search.Trial(planned.final, 0.0, self.validation, space).check(session)
        sealed = session.sealed_utilities(runs, self.partitions, self.validation)
        answers = propose_and_test(
            lambda: sealed.open_test(planned.test_epsilon).first, self.resolution, planned.successes
        )
        successes = [index for index in answers if index is not None]
        chosen = candidates[successes[-1]] if successes else {}
        model = planned.final.having(chosen).train(session, "Final run")
        return bench.Outcome(model, {**chosen, "candidates": candidates, "answers": answers})


def most_successes(resolution: float) -> int:
    """Return M = ⌈1/resolution⌉: each success gains a step at least."""
    return math.ceil(1 / resolution)


def propose_and_test(
    open_test: "Callable[[], Callable[[float], int | None]]", resolution: float, successes: int
) -> list[int | None]:
    """Raise a threshold in steps that double after success and halve after failure.

    Utilities are counted in whole multiples of `resolution`: a sum of floating-point steps could add a round. The
    first step is the largest power of two that is at most the goal; what fails is free.

    Args:
        open_test: opens a test, the index of a candidate whose utility exceeds a threshold, or None; one test answers
            until it names a candidate.
        resolution: least step g.
        successes: c at most, and so many tests are opened.

    Returns:
        The answer of each round, at most 2 min(c, M) + ⌊log₂ M⌋ − 1 of them; M is that of `most_successes`.
    """
    goal, reached = most_successes(resolution), 0
    step = 2 ** (goal.bit_length() - 1)
    answers: list[int | None] = []
    test = None
    while successes > 0 and reached < goal and step > 0:
        test = test or open_test()
        answers.append(test((reached + step) * resolution))
        if answers[-1] is None:
            step //= 2
        else:
            reached, step, successes, test = reached + step, 2 * step, successes - 1, None
    return answers
