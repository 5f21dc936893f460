"""A training in the caller's own loop that ends before the step that its budget does not cover.

The steps that the budget allows are fixed and counted in the account before the first one, so no ε is computed while
the training lasts: a step is covered if it has at least the noise, and at most the sample rate, of the step planned in
its place. Then its privacy curve lies below the planned step's, alone and composed with whatever the account counts.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from annotated_types import Interval

from dphpo_bench.base.checks import ranged, typed
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, OverBudgetError
from dphpo_bench.base.text import count
from dphpo_bench.external.declaration import Declaration
from dphpo_bench.external.declared import DeclaredRun, Finished
from dphpo_bench.external.opacus_parts import StepSource, accountant_of, forget_records, unlike_rows
from dphpo_bench.external.processes import in_first_process
from dphpo_bench.external.reserved_steps import ReservedSteps
from dphpo_bench.external.step_plan import MAX_LEVELS, MOST_STEPS, Counts, NoiseSchedule, event_of, most_steps
from dphpo_bench.external.trainer_rules import ACCUMULATION
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.risks import risk_of
from dphpo_bench.records.statement import lines


@dataclass(frozen=True)
class Planned:
    """The steps of a training, the same in all of its processes."""

    steps: int  # which the budget covers or the trainer wants
    taken: int  # of them by earlier processes, at most


class TrainingRecord:
    """The record of a training, once it has ended."""

    _finished: Finished | None = None

    @property
    def record(self) -> RunRecord:
        """The record of the training, when it has ended; in the first process, where there are several."""
        return self._ended.record

    @property
    def path(self) -> Path | None:
        """The file of the record; None without a folder of results."""
        return self._ended.path

    def statement(self) -> str:
        """Return the privacy statement of the training, as `dphpo-bench statement` prints it."""
        record, account = self._ended.record, self._ended.account
        risk = risk_of(record.privacy, record.identity.delta) if record.privacy else None
        others = f"The account {account.name} counts this run. By now: {account.summary()}" if account else None
        return "\n".join(lines(record, risk, others))

    @property
    def _ended(self) -> Finished:
        if self._finished is None:
            raise InvalidValueError(
                "There is no record of this training: it has not ended, took no step, or another process has it."
            )
        return self._finished


class StepBudget(TrainingRecord):
    """The steps of one training that a budget covers: counted before the first, recorded after the last.

    Args:
        budget: the (ε, δ) of the whole training. Earlier trainings on these records are not in it, but in the account,
            if that was counted.
        name: of this training: at most 64 letters, digits, _ . and -. After a kill the same name goes on with it.
        accountant: Opacus' accountant, or its PrivacyEngine, whose history is read after each step. None: the one that
            the engine attached to the optimizer. Steps that it holds already count against the budget.
        sample_rate: q of the Poisson batches. None: as the engine attached it.
        noise_multiplier: the least σ of all steps, or a function of the step, from 0, if a scheduler changes it. None:
            that of the optimizer before the first step.
        results_dir: folder of the record and the account. None: nothing is written or counted, with a warning.
        account: which account of the folder; None: "main".
        unit: whose presence ε is about; each adds one clipped gradient to a step.
        n_records: N, if it is public.
        public_evaluation: whether the records of evaluations are public. Without it the training may not choose by
            them: raw scores of private records are releases that nobody pays for.

    Noise and batches of Opacus get generators of their own, with seeds of the operating system, unless they have some:
    trainers seed torch's generator with public numbers. Hand a `noise_generator` to make_private to repeat a training
    on public records.

    Raises:
        InvalidValueError: if a value is out of range.
    """

    _source: StepSource
    _schedule: NoiseSchedule
    _earlier: Counts
    _counted: Counts
    _uncovered: Counts

    @typed
    def __init__(
        self,
        budget: PrivacyBudget,
        *,
        name: str,
        accountant: Any = None,
        sample_rate: float | None = None,
        noise_multiplier: float | Callable[[int], float] | None = None,
        results_dir: Path | str | None = None,
        account: str | None = None,
        unit: str = "record",
        n_records: int | None = None,
        public_evaluation: bool = False,
    ) -> None:
        if sample_rate is not None:
            ranged("sample_rate", sample_rate, float, Interval(gt=0, le=1))
        if noise_multiplier is not None and not callable(noise_multiplier):
            NoiseSchedule(noise_multiplier, 1)
        self._engine = None if accountant is None else accountant_of(accountant)
        self._rate, self._noise = sample_rate, noise_multiplier
        self._declared: dict[str, Any] = {"name": name, "budget": budget, "unit": unit, "n_records": n_records}
        self._declare(Counter(), {})  # checks the values
        self._places: dict[str, Any] = {"results_dir": results_dir, "account": account}
        self.public_evaluation = public_evaluation
        self.planned: Planned | None = None
        self._model: Any = None
        self._run: DeclaredRun | None = None
        self._reserved: ReservedSteps | None = None
        self._has_ended = self._is_awaited = False
        self.taken = 0

    def _declare(self, steps: Counts, parameters: dict[str, Any]) -> Declaration:
        event = event_of(steps)
        return Declaration(event=event, method="dp_sgd", what="training", parameters=parameters, **self._declared)

    def begin(self, model: Any, optimizer: Any, loader: Any, most: int, done: int) -> None:
        """Fix the steps of the training and count them, before the first.

        Args:
            model: tells this training from another one.
            optimizer: of the trainer.
            loader: of the training records; None if it is unknown.
            most: the steps that the trainer would take in all; -1: as many as it can.
            done: steps of this training before, as its checkpoint says.

        Raises:
            InvalidValueError: if the training is not private, or not as declared, or the callback has had a training.
            BudgetTooSmallError: if no step fits the budget.
            AccountError: if the account does not cover the training.
            RecordError: if another process runs this name, or what it has spent is not known.
            OverBudgetError: if earlier processes took all steps; the record is written.
        """
        name = self._declared["name"]
        if self._has_ended:
            raise InvalidValueError(
                f"The training {name} has ended, and its record is written. Make a new callback with a name of its own "
                "for another training, which is another release."
            )
        if self._model is not None:
            if self._model is not model:
                raise InvalidValueError(
                    f"This callback has the training {name} of another model under way. Make a callback for each "
                    "training: each is a release of its own."
                )
            self._read()  # the trainer was interrupted in this process, and goes on
        source = StepSource.find(optimizer, loader, self._engine, self._rate, self._noise)
        if self._model is not None:
            if source.rate > self._source.rate:
                self._fail("The training goes on with larger batches than it began with.")
            self._source = source
            return
        most = MOST_STEPS if most < 0 else most
        schedule = NoiseSchedule(source.noise, most)
        if source.optimizer is not None and source.optimizer.noise_multiplier < schedule.at(done):
            raise InvalidValueError(
                f"Expected a noise multiplier of at least the declared {schedule.at(done):g}, and the optimizer has "
                f"{source.optimizer.noise_multiplier:g}. Declare the least noise of all steps."
            )
        earlier, restored = source.history(schedule, done)
        self._source, self._schedule, self._earlier, self._uncovered = source, schedule, earlier, Counter()
        self.planned = in_first_process(lambda: self._open(earlier, most, restored, done))
        self._counted = earlier + restored + self._first(self.planned.taken) - self._first(restored.total())
        self.taken = self.planned.taken
        self._model = model
        if not self.has_next():
            self._finish()
            raise OverBudgetError(
                f"Earlier processes took all {self.planned.steps:,} steps of {name}; its record is written."
            )

    def _first(self, steps: int) -> Counts:
        return self._schedule.first(steps, self._source.rate)

    def _open(self, earlier: Counts, most: int, restored: Counts, done: int) -> Planned:
        steps = most_steps(lambda new: event_of(earlier + self._first(new)), self._declared["budget"], max(most, 1))
        noise = {} if callable(self._source.noise) else {"noise_multiplier": float(self._source.noise)}
        declaration = self._declare(
            earlier + self._first(steps), {"sample_rate": self._source.rate, "steps": steps, **noise}
        )
        self._run = run = DeclaredRun.open(declaration, **self._places)
        try:
            self._reserved = ReservedSteps(run, restored.total(), done)
            return Planned(steps, self._reserved.steps)
        except DphpoBenchError:
            run.cancel()
            raise

    @property
    def has_opacus(self) -> bool:
        """Return whether Opacus' optimizer takes the steps of the training under way."""
        return self.planned is not None and self._source.optimizer is not None

    def clear_gradients(self) -> None:
        """Clear what Opacus' optimizer has summed up; a trainer that clears the model's gradients leaves it."""
        if self.has_opacus:
            self._source.optimizer.zero_grad()

    def has_next(self) -> bool:
        """Return whether the budget covers another step."""
        return self.planned is not None and self.taken < self.planned.steps

    def before_step(self) -> None:
        """Stop a step that the budget does not cover, before it is taken.

        Raises:
            OverBudgetError: if it does not; the record of the training is written.
        """
        if self.planned is not None and (why := unlike_rows(getattr(self._source.optimizer, "params", ()))):
            self._fail(why)
        if self.planned is None or self._source.skips_next:
            return
        self._read()
        if not self.has_next():
            self._fail(f"The trainer goes on after {count(self.taken, 'step')}, and no more were planned.")
        if self._source.adds_up_batches:
            self._fail(ACCUMULATION.format("several backward passes"))
        least, optimizer = self._schedule.at(self.taken), self._source.optimizer
        if optimizer is not None and optimizer.noise_multiplier < least:
            self._fail(
                f"The noise of step {self.taken + 1} fell to {optimizer.noise_multiplier:g}, and at least {least:g} is "
                "declared. Declare the least noise of all steps, or a function of the step, as noise_multiplier."
            )
        if self._reserved is not None:
            self._reserved.cover(self.taken, self.planned.steps)
        if optimizer is None:  # nothing else would tell of it
            self._add(self._source.rate, least, 1)
        self._is_awaited = optimizer is not None

    def after_step(self) -> bool:
        """Count what the accountant has seen, and return whether the training has to end.

        Raises:
            OverBudgetError: if a step was not as declared, or no accountant saw it; the record is written.
        """
        if self.planned is None:
            return False
        self._read()
        if self._is_awaited:
            self._add(self._source.rate, self._schedule.at(self.taken), 1)
            self._fail("The accountant recorded no step although the optimizer took one: nobody counts its noise.")
        return not self.has_next()

    def _read(self) -> None:
        """Count the accountant's new steps."""
        assert self.planned is not None
        new = self._source.reader.new() if self._source.reader else {}
        for (rate, noise), times in new.items():
            least = max(map(self._schedule.at, {self.taken, self.taken + times - 1}))
            self._add(rate, noise, times)
            if not self._source.covers(rate, noise, least):
                self._uncovered = Counter({(rate, noise): times})
                self._fail(
                    f"A step of sample rate {rate:g} and noise multiplier {noise:g} was recorded, which the declared "
                    f"{self._source.rate:g} and {least:g} do not cover."
                )
        if self.taken > self.planned.steps:
            self._fail(f"The optimizer took {count(self.taken, 'step')}, and {self.planned.steps:,} were planned.")

    def _add(self, rate: float, noise: float, times: int) -> None:
        self._counted[rate, noise] += times
        self.taken += times
        self._is_awaited = False

    def end(self) -> None:
        """Write the record; take the entry back if no step was taken."""
        if self.planned is None or self._has_ended:
            return
        self._read()
        if self.taken:
            self._finish()
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._run is not None:
            self._run.cancel()
        self._model = self._run = self.planned = None

    def _finish(self, **how: Any) -> None:
        self._has_ended = True
        forget_records(self._model)
        if self._run is not None:
            assert self.planned is not None
            spent = self._counted
            if self._uncovered:  # with the plan, since neither bounds the other
                spent = self._earlier + self._first(self.planned.steps) + self._uncovered
            elif len(spent) > MAX_LEVELS:  # the accountants would take long; those planned in their places bound them
                spent = self._earlier + self._first(self.taken)
            self._finished = self._run.finish(spent=event_of(spent), released={"steps": self.taken}, **how)

    def _fail(self, why: str) -> NoReturn:
        if self.taken:
            self._finish(status="failed", error=why)
            raise OverBudgetError(f"{why} The training ends here, and its record says what was spent.")
        self._cancel()
        raise OverBudgetError(f"{why} No step was taken, and nothing was counted.")
