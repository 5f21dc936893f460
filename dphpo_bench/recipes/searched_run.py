"""A DP-SGD run whose batch size or number of epochs is searched: one run for each combination, with its own noise."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import number
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.method import Cost, Plan, Release
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import HYPERPARAMETERS, DpSgd
from dphpo_bench.session.session import Session
from dphpo_bench.training.optimizer_names import check_optimizer

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from optuna.distributions import BaseDistribution
    from torch import nn


@dataclass(frozen=True)
class Combination:
    """One batch size and number of epochs, and the run they make.

    Attributes:
        run: with a noise multiplier of its own.
        batch_size: what the search space says; None if it leaves it alone.
        epochs: what the search space says; None if it leaves them alone.
    """

    run: DpSgd
    batch_size: int | None
    epochs: float | None

    @property
    def schedule(self) -> Candidate:
        """The search space's values, by name."""
        named = {"batch_size": self.batch_size, "epochs": self.epochs}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class SearchedRun:
    """One of several DP-SGD runs, of which one is trained.

    Attributes:
        combinations: the runs.
        drawn: whether the session draws one, each with the same probability, which costs the average of their curves;
            else a candidate names one, and the largest is charged (docs/accounting.md, one of several events).

    Raises:
        InvalidValueError: if a run is of another type.
    """

    combinations: tuple[Combination, ...]
    drawn: bool

    def __post_init__(self) -> None:
        if not all(type(item) is Combination and type(item.run) is DpSgd for item in self.combinations):
            raise InvalidValueError("Expected combinations with runs of type DpSgd.")

    @property
    def runs(self) -> tuple[DpSgd, ...]:
        """The runs."""
        return tuple(combination.run for combination in self.combinations)

    @property
    def event(self) -> "DpEvent":
        """One of the events of the runs."""
        from dphpo_bench.privacy.events import one_of

        return one_of([run.event for run in self.runs], [1.0] * len(self.runs) if self.drawn else None)

    @property
    def noise_multiplier(self) -> float:
        """σ of the first run; the others keep their ratios to it."""
        return self.runs[0].noise_multiplier

    @property
    def steps(self) -> float:
        """The mean number of steps."""
        return sum(run.steps for run in self.runs) / len(self.runs)

    @property
    def sample_rate(self) -> float:
        """The mean share of the records that a step takes."""
        return sum(run.steps * run.sample_rate for run in self.runs) / sum(run.steps for run in self.runs)

    @property
    def optimizer(self) -> str:
        """A `torch.optim` name."""
        return self.runs[0].optimizer

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases of all runs, of which only one happens."""
        return tuple(release for run in self.runs for release in run.releases)

    def cost(self, n_records: float) -> Cost:
        """Return the expected cost of the mean run on this many records."""
        return Cost(runs=1, steps=round(self.steps), examples=self.steps * self.sample_rate * n_records)

    def with_noise(self, noise_multiplier: float) -> "SearchedRun":
        """Return the runs with this noise in the first, and in the others in proportion."""
        factor = noise_multiplier / self.noise_multiplier
        scaled = [
            replace(each, run=each.run.with_noise(factor * each.run.noise_multiplier)) for each in self.combinations
        ]
        return replace(self, combinations=tuple(scaled))

    def calibrated(self, budget: PrivacyBudget, accountant: str | None = None) -> "SearchedRun":
        """Return the runs with the least noise that keeps them within the budget; see `DpSgd.calibrated`."""
        from dphpo_bench.privacy.calibration import calibrate

        return self.with_noise(calibrate(lambda noise: self.with_noise(noise).event, budget, accountant=accountant))

    def as_plan(self, facts: TaskFacts, budget: PrivacyBudget) -> "Plan[Any]":
        """Return the plan of a method that does this one run."""
        return Plan(budget, self.event, self.event, self, self.releases, self.cost(facts.n_records))

    def having(self, hyperparameters: Candidate) -> "SearchedRun":
        """Replace some hyperparameters in every run; batch size and epochs are left to `opened`."""
        free = {name: value for name, value in hyperparameters.items() if name not in search.SCHEDULE}
        return replace(self, combinations=tuple(replace(each, run=each.run.having(free)) for each in self.combinations))

    def planned(self, candidate: Candidate) -> DpSgd:
        """Return the run of a candidate; the first combination's if it names neither batch size nor epochs.

        Raises:
            InvalidValueError: if there is no such combination.
        """
        return self.having(candidate).runs[self._index(candidate)]

    def opened(self, session: Session, candidate: Candidate) -> tuple[DpSgd, Session, Candidate]:
        """Return the run of a candidate, the session that is charged for it, and the candidate as it is trained.

        Args:
            session: is charged `event`.
            candidate: hyperparameters. Of a drawn run, the session's own draw replaces batch size and epochs. Else,
                the first combination serves if the candidate says nothing.

        Raises:
            InvalidValueError: if there is no such combination.
        """
        index = None if self.drawn else self._index(candidate)
        index, inner = session.one_of(self.event, index)
        chosen = self.combinations[index]
        return self.having(candidate).runs[index], inner, {**candidate, **chosen.schedule}

    def _index(self, candidate: Candidate) -> int:
        asked = {name: value for name, value in candidate.items() if name in search.SCHEDULE}
        if not asked:
            return 0
        schedules = [combination.schedule for combination in self.combinations]
        if asked not in schedules:
            raise InvalidValueError(f"Expected one of the planned combinations {schedules}, got {asked}.")
        return schedules.index(asked)

    def trained(self, session: Session, candidate: Candidate, label: str = "Training") -> "nn.Module":
        """Train the model of a candidate; see `opened`."""
        run, inner, _ = self.opened(session, candidate)
        return run.train(inner, label)


DpSgdRun = DpSgd | SearchedRun
"""A run, or several of which one is trained."""


def searched_run(
    training: DpSgd, facts: TaskFacts, budget: PrivacyBudget, *, drawn: bool, space: search.Space | None = None
) -> DpSgdRun:
    """Return the run of a search, or a run for each batch size and number of epochs of the search space.

    The noise of each of several runs is such that all cost about the same alone: in the joint space by a rough
    calibration of each, else in the limit of many steps. `calibrated` and `Trial.calibrated` then scale all of it.

    Args:
        training: the run but for what is searched, and its noise.
        facts: of the task, with the batch size and the epochs of the method.
        budget: at which the runs cost the same.
        drawn: whether the session may draw batch size and epochs.
        space: what is searched; None: the task's search space as it is.

    Raises:
        InvalidValueError: if the space holds what is no hyperparameter of a run.
    """
    from dphpo_bench.privacy.calibration import calibrate_roughly

    distributions = facts.searched(space)
    unknown = sorted({search.hyperparameter(name) for name in distributions} - HYPERPARAMETERS - search.SCHEDULE)
    if unknown:
        known = sorted(HYPERPARAMETERS | search.SCHEDULE)
        raise InvalidValueError(f"Expected a search space of hyperparameters among {known}, got {unknown[0]!r}.")
    schedules = search.grid(
        {name: values for name, values in distributions.items() if name in search.SCHEDULE}, search.MOST_VALUES
    )
    if schedules == [{}]:
        return training

    def rough(run: DpSgd) -> float:
        return calibrate_roughly(lambda noise: run.with_noise(noise).event, budget)

    # Steps of the joint space differ by a factor up to 256. At ε = 8 the limit below is then off by a quarter of μ.
    is_joint = space is not None and space.extent == "joint"
    budgeted = 0.0 if is_joint else training.sample_rate**2 * training.steps * math.expm1(rough(training) ** -2)

    def combination(batch_size: int | None = None, epochs: float | None = None) -> Combination:
        other = facts.with_schedule(batch_size, epochs)
        run = replace(training, sample_rate=other.sample_rate, steps=other.steps)
        # Runs of one μ² = q² T (exp(σ⁻²) − 1) cost the same in the limit of many steps. Only the ratios of noise
        # rest on that: what all of it costs is computed from the events.
        noise = rough(run) if is_joint else math.log1p(budgeted / (other.sample_rate**2 * other.steps)) ** -0.5
        return Combination(run.with_noise(noise), batch_size, epochs)

    return SearchedRun(tuple(combination(**schedule) for schedule in schedules), drawn)


def check_values(facts: TaskFacts, space: "Mapping[str, BaseDistribution]") -> None:
    """Refuse a search space with a value that no run takes: of every category, and both ends of every range.

    Every search asks this in its plan, so that nothing is counted before.

    Args:
        space: what is searched, of which names that no run has are left to `refuse_search_space`.
    """
    run = DpSgd.of(facts)
    for entry, distribution in space.items():
        name, _, optimizer = entry.partition(":")
        if optimizer:
            check_optimizer(optimizer)
        for candidate in search.grid({name: distribution}, 2):
            if name in search.SCHEDULE:
                number(name, candidate[name], low=0)
                facts.with_schedule(**candidate)
            elif name in HYPERPARAMETERS:
                check_optimizer(run.having(candidate).optimizer)


def refuse_search_space(facts: TaskFacts, names: Collection[str], why: str, space: search.Space | None = None) -> None:
    """Refuse a search space that holds what a method cannot search.

    Args:
        facts: of the task.
        names: of the hyperparameters that it can.
        why: it cannot search others, for the message.
        space: what is searched; None: the task's search space as it is.

    Raises:
        InvalidValueError: if the space has another.
    """
    others = sorted({search.hyperparameter(name) for name in facts.searched(space)} - set(names))
    if others:
        raise InvalidValueError(f"Expected a search space among {sorted(names)}, got {others[0]!r}: {why}.")
