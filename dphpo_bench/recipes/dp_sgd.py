"""One DP-SGD run as a value: its privacy event, its cost, and the training itself.

Methods differ in how they choose a run's hyperparameters, not in how a run is done, so all of them train here.
`BandedSgd` is a run whose noise is correlated between steps, `FederatedSgd` one of clients that take their own steps.
`Training` is a run in pieces, for searches that give up on some of their trials. What it may cost is fixed in the plan,
as for any run: the steps of all trials, composed, whichever of them are taken. Continuing one trial rather than another
is then a choice made from what was released before, which composition allows (docs/accounting.md, kinds of batches).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import WeakKeyDictionary

from annotated_types import Interval

from dphpo_bench.base.checks import check_fields
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.method import Cost, Plan, Release
from dphpo_bench.contract.parameters import Decay, Name, Positive
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.contract.task import MAX_STEPS, TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.session.session import Session
from dphpo_bench.training.clipping import parse_clipping

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from dphpo_bench.training.optimizers import UpdateRule


ClippingRule = Annotated[str, parse_clipping]
"""A clipping rule's name, as in `parse_clipping`."""

Schedule = Literal["constant", "cosine", "linear"]

TRAINED_BY: "WeakKeyDictionary[nn.Module, tuple[DpSgd, float]]" = WeakKeyDictionary()
"""The runs that trained models, each with its expected number of records, as long as these live."""

HYPERPARAMETERS = frozenset(
    {"learning_rate", "optimizer", "clipping", "weight_decay", "momentum", "schedule", "averaging"}
)
"""Fields of a run that do not change its privacy."""


@dataclass(frozen=True)
class DpSgd:
    """T steps of DP-SGD (Abadi et al. 2016, Algorithm 1) with any optimiser.

    Attributes:
        sample_rate: rate q of the Poisson batches; 1 takes every record in every step.
        steps: T.
        noise_multiplier: σ, noise standard deviation / clipping sensitivity.
        learning_rate: η, or its start for a schedule that falls.
        optimizer: a `torch.optim` name.
        clipping: as in `parse_clipping`.
        schedule: "constant"; or η falls to zero, "cosine": along half a cosine (Loshchilov and Hutter 2017), "linear":
            along a line.
        averaging: decay of the exponential average of weights that is returned; 0 returns the last ones.
        weight_decay: of the optimiser; None: its default.
        momentum: of the optimiser, if it has one; None: the default of `UpdateRule`.
        free_step: take the last step twice, which releases nothing; with momentum that is a step along its buffer.

    Raises:
        InvalidValueError: if a value is out of range.
        UnknownNameError: if there is no such clipping rule.
    """

    sample_rate: Annotated[float, Interval(ge=0, le=1)]
    steps: Annotated[int, Interval(ge=1, le=MAX_STEPS)]
    noise_multiplier: Annotated[float, Interval(ge=0)]
    learning_rate: Positive
    optimizer: Name = "SGD"
    clipping: ClippingRule = "auto_s"
    schedule: Schedule = "constant"
    averaging: Decay = 0.99
    weight_decay: Annotated[float, Interval(ge=0)] | None = None
    momentum: Decay | None = None
    free_step: bool = False

    def __post_init__(self) -> None:
        # Exact types: what only looks like a number or a text could look at gradients without noise.
        check_fields(self)

    @classmethod
    def of(
        cls,
        facts: TaskFacts,
        *,
        learning_rate: float | None = None,
        optimizer: str | None = None,
        clipping: str = "auto_s",
        schedule: Schedule = "constant",
        averaging: float = 0.99,
    ) -> "DpSgd":
        """Return a run on the schedule of a task, not yet calibrated; None takes the task's default."""
        return cls(
            facts.sample_rate,
            facts.steps,
            0.0,
            learning_rate or facts.learning_rate,
            optimizer=optimizer or facts.optimizer,
            clipping=clipping,
            schedule=schedule,
            averaging=averaging,
        )

    @property
    def step(self) -> "DpEvent":
        """Poisson(q; Gaussian σ), the kind of its batches."""
        from dphpo_bench.privacy.events import gaussian, poisson_sampled

        return poisson_sampled(self.sample_rate, gaussian(self.noise_multiplier))

    @property
    def event(self) -> "DpEvent":
        """T × Poisson(q; Gaussian σ)."""
        return dp_sgd_event(self.sample_rate, self.steps, self.noise_multiplier)

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases of the run."""
        return (Release("clipped gradient sum", self.steps, self.noise_multiplier, self.sample_rate),)

    @property
    def optimizer_options(self) -> dict[str, object]:
        """The optimiser's options besides the learning rate."""
        options = {"weight_decay": self.weight_decay, "momentum": self.momentum}
        return {name: value for name, value in options.items() if value is not None}

    def update_rule(self, model: "nn.Module") -> "UpdateRule":
        """Return the optimiser of a model's trained weights, in its first state."""
        from dphpo_bench.training.optimizers import UpdateRule

        return UpdateRule(self.optimizer, trainable(model), self.optimizer_options)

    def cost(self, n_records: float) -> Cost:
        """Return the expected cost of the run on this many records."""
        return Cost(runs=1, steps=self.steps, examples=self.steps * self.sample_rate * n_records)

    def as_plan(self, facts: TaskFacts, budget: PrivacyBudget) -> "Plan[Any]":
        """Return the plan of a method that does this one run."""
        return Plan(budget, self.event, self.event, self, self.releases, self.cost(facts.n_records))

    def having(self, hyperparameters: Mapping[str, Any]) -> "DpSgd":
        """Return the run with some hyperparameters replaced.

        Raises:
            InvalidValueError: if one is not a hyperparameter of a run, or would change its privacy.
        """
        unknown = sorted(hyperparameters.keys() - HYPERPARAMETERS)
        if unknown:
            raise InvalidValueError(f"Expected hyperparameters among {sorted(HYPERPARAMETERS)}, got {unknown[0]!r}.")
        return replace(self, **hyperparameters)

    def with_noise(self, noise_multiplier: float) -> "DpSgd":
        """Return the run with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)

    def calibrated(self, budget: PrivacyBudget, accountant: str | None = None) -> "DpSgd":
        """Return the run with the least noise that keeps it, alone, within the budget.

        Args:
            budget: the (ε, δ) to stay within.
            accountant: whose ε counts; None: the tightest.

        Raises:
            BudgetTooSmallError: if no noise within reach does.
        """
        from dphpo_bench.privacy.calibration import calibrate

        return self.with_noise(calibrate(lambda noise: self.with_noise(noise).event, budget, accountant=accountant))

    def rate_at(self, step: int) -> float:
        """Return η of a step, 0 ≤ step < T."""
        done = step / self.steps
        falls = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        times = 2 if self.free_step and step == self.steps - 1 else 1
        return times * self.learning_rate * falls[self.schedule]

    def opened(self, session: Session, candidate: Candidate) -> "tuple[DpSgd, Session, Candidate]":
        """Return the run of a candidate, the session that is charged for it, and the candidate."""
        return self.having(candidate), session, candidate

    def trained(self, session: Session, candidate: Candidate, label: str = "Training") -> "nn.Module":
        """Train the model of a candidate on the session's records."""
        return self.having(candidate).train(session, label)

    def train(self, session: Session, label: str = "Training") -> "nn.Module":
        """Train the task's model on the session's records.

        Args:
            session: where the records are; is charged `event`.
            label: of the progress display.
        """
        return self.train_together([session], [self], label)[0]

    def gradients(self, session: Session, model: "nn.Module", label: str = "Training") -> "Iterator[list[Tensor]]":
        """One noisy mean gradient for each step, at the model's weights of that time.

        For optimisers of their own kind: whoever iterates moves the weights in between. At the end, the model has
        the average of the weights.

        Args:
            session: where the records are; is charged `event`.
            model: whose gradients are wanted.
            label: of the progress display.
        """
        for _ in training_steps(session, self.steps, [model], [self.averaging], label):
            yield self.gradient(session, model)

    def gradient(self, session: Session, model: "nn.Module") -> "list[Tensor]":
        """Return the noisy mean gradient of one step, at the model's weights."""
        return session.sample(self.step).gradient(model, parse_clipping(self.clipping), self.noise_multiplier)

    @staticmethod
    def train_together(sessions: list[Session], runs: "Sequence[DpSgd]", label: str = "Training") -> "list[nn.Module]":
        """Train one model for each session, step by step in turn.

        Full batches of the same records share their matrix products where the models are linear; every run
        has its own noise, and is charged to its own session.

        Args:
            sessions: one for each run.
            runs: the runs; all of the same number of steps.
            label: of the progress display.

        Raises:
            InvalidValueError: if the runs differ in their number of steps.
        """
        from dphpo_bench.session.batch import gradients_together

        if len({run.steps for run in runs}) != 1:
            raise InvalidValueError("Expected runs of the same number of steps.")
        models = [session.build_model() for session in sessions]
        updates = [run.update_rule(model) for run, model in zip(runs, models, strict=True)]
        clippings = [parse_clipping(run.clipping) for run in runs]
        noise = [run.noise_multiplier for run in runs]
        kinds = [run.step for run in runs]
        decays = [run.averaging for run in runs]
        are_plain = all(type(run).gradient is DpSgd.gradient for run in runs)
        for step in training_steps(sessions[0], runs[0].steps, models, decays, label, updates):
            if are_plain:
                batches = [session.sample(kind) for session, kind in zip(sessions, kinds, strict=True)]
                gradients = gradients_together(batches, models, clippings, noise)
            else:
                parts = zip(runs, sessions, models, strict=True)
                gradients = [run.gradient(session, model) for run, session, model in parts]
            for run, update, gradient in zip(runs, updates, gradients, strict=True):
                update.apply(update.direction(gradient), run.rate_at(step))
        for session, run, model in zip(sessions, runs, models, strict=True):
            if type(run) is DpSgd:
                TRAINED_BY[model] = run, session.expected_records
        return models


def training_steps(
    session: Session,
    steps: int,
    models: "Sequence[nn.Module]",
    decays: Sequence[float],
    label: str = "Training",
    state: Sequence[Any] | None = None,
) -> Iterator[int]:
    """Yield the steps 0, ..., T − 1 of a training; the caller moves the weights.

    After each step the weights join their exponential average, which the models have at the end. A run that goes on
    after its process died begins with the step after its last checkpoint.

    Args:
        session: shows the progress.
        steps: T.
        models: what is trained.
        decays: of each model's average; 0 leaves the last weights.
        label: of the progress display.
        state: what else changes while the loop lasts, such as optimisers, lists and dictionaries; see `Session.steps`.
            None: the run has no checkpoints.
    """
    from dphpo_bench.training.optimizers import WeightAverage

    weights = [trainable(model) for model in models]
    averages = [WeightAverage(trained, decay) for trained, decay in zip(weights, decays, strict=True)]
    whole = None if state is None else [weights, [[*model.buffers()] for model in models], averages, *state]
    with session.progress.track(label, steps) as advance:
        taken = 0
        for step in session.steps(steps, whole):
            if step > taken:  # those before the checkpoint
                advance(step - taken)
            taken = step + 1
            yield step
            for average in averages:
                average.update()
            advance()
    for trained, average in zip(weights, averages, strict=True):
        average.copy_to(trained)


def dp_sgd_event(sample_rate: float, steps: int, noise_multiplier: float) -> "DpEvent":
    """T × Poisson(q; Gaussian σ), the event of T steps of DP-SGD."""
    from dphpo_bench.privacy.events import gaussian, poisson_sampled, repeat

    return repeat(poisson_sampled(sample_rate, gaussian(noise_multiplier)), steps)


def trainable(model: "nn.Module") -> "list[Tensor]":
    """Return the parameters that training moves, in the order of a session's gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class BandedSgd(DpSgd):
    """T steps of DP-SGD by a banded matrix mechanism (docs/accounting.md, correlated noise).

    Coins divide the records into as many groups as there are bands. Step t samples group t mod b at `sample_rate`, b
    times the rate of DP-SGD with batches of the same size. The other attributes are those of `DpSgd`.

    Attributes:
        coefficients: of the bands, from a positive number falling; (1,) is DP-SGD.
    """

    coefficients: tuple[float, ...] = (1.0,)

    @property
    def event(self) -> "DpEvent":
        """Up to ⌈T / b⌉ × Poisson(q; Gaussian σ), on each group of records."""
        from dphpo_bench.privacy.holdout import cyclic

        return cyclic(self.step, len(self.coefficients), self.steps)

    def cost(self, n_records: float) -> Cost:
        """Return the expected cost of the run on this many records."""
        cost = super().cost(n_records)
        return replace(cost, examples=cost.examples / len(self.coefficients))

    def train(self, session: Session, label: str = "Training") -> "nn.Module":
        """Train the task's model on the session's records; see `DpSgd.train`."""
        from dphpo_bench.session.banded import BandedGradients

        model = session.build_model()
        update, clipping = self.update_rule(model), parse_clipping(self.clipping)
        gradients = BandedGradients(session, self.step, self.coefficients, self.steps, clipping)
        for step in training_steps(session, self.steps, [model], [self.averaging], label, [update, gradients.noise]):
            update.apply(update.direction(gradients.next(model)), self.rate_at(step))
        return model


@dataclass(frozen=True)
class FederatedSgd(DpSgd):
    """T rounds of DP-SGD on updates of clients (docs/accounting.md, local steps).

    The unit of the task is the client. Its gradient is the mean of those along its own local steps. The other
    attributes are those of `DpSgd`, for the server: at the rate `local_steps` · `local_rate`, SGD without momentum
    averages the clients' models.

    Attributes:
        local_steps: of gradient descent that each client takes in a round.
        local_rate: of these.
    """

    local_steps: Annotated[int, Interval(ge=1, le=MAX_STEPS)] = 1
    local_rate: Positive = 0.1

    def cost(self, n_records: float) -> Cost:
        """Return the expected cost of the run on this many records."""
        cost = super().cost(n_records)
        return replace(cost, examples=self.local_steps * cost.examples)

    def gradient(self, session: Session, model: "nn.Module") -> "list[Tensor]":
        """Return the noisy mean update of one round, at the model's weights."""
        return session.sample(self.step).gradient(
            model,
            parse_clipping(self.clipping),
            self.noise_multiplier,
            local_steps=self.local_steps,
            local_rate=self.local_rate,
        )


class Training:
    """One run of DP-SGD, taken in pieces; at the end it is the run that `DpSgd.train` does in one.

    Args:
        session: where the records are; is charged for each step that is taken. Trials that run side by side need a
            fork each.
        run: what is trained, with all of its steps.

    Attributes:
        run: what is trained.
        steps: number of steps taken.
    """

    def __init__(self, session: Session, run: DpSgd) -> None:
        from dphpo_bench.training.optimizers import WeightAverage

        self.run, self.steps = run, 0
        self._session, self._model = session, session.build_model()
        self._update = run.update_rule(self._model)
        self._average = WeightAverage(trainable(self._model), run.averaging)

    def advance(self, steps: int, noise_multiplier: float | None = None) -> None:
        """Take some more steps.

        Args:
            steps: how many.
            noise_multiplier: σ of these; default: that of the run.

        Raises:
            InvalidValueError: if the run has fewer left.
            OverBudgetError: if the plan does not cover them.
        """
        if not 0 <= steps <= self.run.steps - self.steps:
            raise InvalidValueError(f"Expected 0 <= steps <= {self.run.steps - self.steps}, what is left, got {steps}.")
        run = self.run if noise_multiplier is None else self.run.with_noise(noise_multiplier)
        for _ in range(steps):
            direction = self._update.direction(run.gradient(self._session, self._model))
            self._update.apply(direction, run.rate_at(self.steps))
            self._average.update()
            self.steps += 1

    def model(self) -> "nn.Module":
        """Return a copy of the model with the average of the weights so far."""
        from dphpo_bench.training.functional import copied

        model = copied(self._model)
        self._average.copy_to(trainable(model))
        return model
