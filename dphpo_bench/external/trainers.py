"""The part that callbacks of Trainers share: the steps that a budget covers, counted before the first."""

from pathlib import Path
from typing import Any, NoReturn

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import InvalidValueError, OverBudgetError
from dphpo_bench.external.declared import DeclaredRun, Finished, steps_within
from dphpo_bench.external.opacus import (
    accountant_of,
    draw_secretly,
    forget_records,
    poisson_sampler,
    refuse_other_releases,
    refuse_several_processes,
)
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import dp_sgd_event

ACCUMULATION = (
    "Expected one Poisson batch for each step, got {}: a record may be in several of the batches that are added up, "
    "and adds more than one clipped gradient. Raise the batch size, and split batches in memory with Opacus' "
    "BatchMemoryManager."
)
HALF_PRECISION = (
    "Expected gradients of their true size, got {}: losses are scaled up before Opacus clips, so the clipping norm "
    "would be thousands of times smaller. Use {}."
)
CHOICE = (
    "{} choose by raw scores, and the evaluation records may be private: that is tuning which nobody pays for. Leave "
    "them out; or tune with bench.select, whose ε covers the choice; or say public_evaluation=True if the records are "
    "public."
)
RAW = (
    "The Trainer computes losses of private records, and scores of evaluations, without noise. ε does not cover them: "
    "set {}, or keep logs and scores as secret as the records."
)


class StepBudget:
    """The steps of one training of Opacus that a budget covers: counted before the first, recorded after the last.

    Args:
        budget: the (ε, δ) of the training.
        name: of this training. A training that was killed stays counted; to train again is a second release, under a
            new name.
        results_dir: folder of the record and the account. None: nothing is written or counted, with a warning.
        public_evaluation: whether the records of evaluations are public. Without it the training may not choose by
            them: raw scores of private records are releases that nobody pays for.
        declared: account, unit and n_records, as of `bench.declared`; each unit adds one clipped gradient to a step.

    Attributes:
        steps: how many steps are planned: as many as the budget covers, or fewer if the Trainer wants fewer.
        taken: how many steps were taken.
        finished: record, path and account of the training once it has ended.

    Noise and batches of Opacus get generators with seeds of the operating system, unless they have some: trainers seed
    torch's generator with public numbers.

    Raises:
        InvalidValueError: if a value is out of range.
    """

    @typed
    def __init__(
        self,
        budget: PrivacyBudget,
        *,
        name: str,
        results_dir: Path | str | None = None,
        public_evaluation: bool = False,
        **declared: Any,
    ) -> None:
        self._budget, self.public_evaluation = budget, public_evaluation
        self._declared: dict[str, Any] = {"name": name, "results_dir": results_dir, **declared}
        self._model: Any = None
        self._optimizer: Any = None
        self._run: DeclaredRun | None = None
        self.finished: Finished | None = None
        self.steps = self.taken = 0

    def begin(self, model: Any, optimizer: Any, loader: Any, most: float, done: int) -> None:
        """Fix the steps of the training, and count them in the account.

        Args:
            optimizer: of the Trainer, a DPOptimizer of Opacus in whatever wrappers.
            most: how many steps the Trainer would take; infinite or -1: as many as it can.
            done: steps of its checkpoint.

        Raises:
            InvalidValueError: if the training is not private, or not the first of this callback and this optimizer.
            BudgetTooSmallError: if no step fits the budget.
            AccountError: if the account does not cover the training.
            RecordError: if a training of this name is under way, or was interrupted.
        """
        refuse_several_processes()
        private = _private(optimizer)
        has_stepped = "pre_step" in vars(private) or getattr(accountant_of(private), "history", None)
        if self._model is not None or done or has_stepped:
            raise InvalidValueError(
                f"Expected a training that begins with {self._declared['name']}, got one that goes on, or a second one "
                "of this callback or optimizer: that is another release. Begin with a new model, optimizer and "
                "callback, under a name of its own."
            )
        rate, self._noise = float(poisson_sampler(loader).sample_rate), float(private.noise_multiplier)
        covered = steps_within(self._budget, rate, self._noise)
        self.steps = covered if most < 0 else int(min(covered, most))
        parameters = {"sample_rate": rate, "steps": self.steps, "noise_multiplier": self._noise}
        event = dp_sgd_event(rate, self.steps, self._noise)
        run = self._run = DeclaredRun(event, self._budget, parameters=parameters, goes_on=False, **self._declared)
        run.open()
        self._model, self._optimizer, self._rate = model, private, rate
        # Hooks of trainers miss steps, as of an optimizer without Lightning's wrapper; all noise comes through here.
        self._pre_step, private.pre_step = private.pre_step, self._counted
        self.check_loader(loader)

    def check_loader(self, loader: Any) -> None:
        """End the training if batches are not drawn as declared, as of a loader that a later epoch has made anew."""
        try:
            sampler = poisson_sampler(loader)
        except InvalidValueError as error:
            self._fail(str(error))
        if sampler.sample_rate != self._rate:
            self._fail(f"The rate of batches became {sampler.sample_rate:g}, and {self._rate:g} is declared.")
        draw_secretly(self._optimizer, sampler)

    def _counted(self, *closure: Any) -> Any:
        """Take one step of the optimizer, unless it is not as declared.

        Raises:
            OverBudgetError: if it is not; the record of the training is written.
        """
        self._check_step()
        return self._pre_step(*closure)

    def _check_step(self) -> None:
        if vars(self._optimizer)["_step_skip_queue"][:1] == [True]:
            return  # this call adds up a part of a batch, which BatchMemoryManager splits
        if not self.has_next:
            self._fail(f"The Trainer goes on after {self.taken} steps, and no more were planned.")
        if self._optimizer.accumulated_iterations > 1:
            self._fail(ACCUMULATION.format("several backward passes"))
        if self._optimizer.noise_multiplier < self._noise:
            self._fail(
                f"The noise of step {self.taken + 1} fell to {self._optimizer.noise_multiplier:g}, and {self._noise:g} "
                "is declared. Leave the scheduler of the noise out."
            )
        self.taken += 1

    @property
    def has_next(self) -> bool:
        """Return whether another step is planned."""
        return self.finished is None and self.taken < self.steps

    def end(self, **how: Any) -> None:
        """Write the record, and remove gradients and inputs of records from the model."""
        forget_records(self._model)
        if self._run is not None and self.finished is None:
            self.finished = self._run.finish(released={"steps": self.taken}, **how)

    def _fail(self, why: str) -> NoReturn:
        self.end(status="failed", error=why)
        raise OverBudgetError(f"{why} The training ends here; it stays counted.")


def _private(optimizer: Any) -> Any:
    """Return the DPOptimizer of Opacus inside the wrappers of a Trainer."""
    inner = optimizer
    while inner is not None and not hasattr(inner, "noise_multiplier"):
        inner = getattr(inner, "optimizer", None)
    if inner is None:
        kind = type(getattr(optimizer, "optimizer", optimizer)).__name__
        raise InvalidValueError(
            f"This trainer is not private: its optimizer ({kind}) clips no gradients and adds no noise. Make it with "
            "Opacus' PrivacyEngine.make_private."
        )
    refuse_other_releases(inner)
    return inner
