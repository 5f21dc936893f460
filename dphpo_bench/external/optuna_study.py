"""Private selection for an existing Optuna objective."""

from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.study import Study, StudyResult
from dphpo_bench.external.trials import OneOfAKind, StudyTrial

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


class PrivateStudy(OneOfAKind):
    """A private selection around an Optuna objective, of which the winner alone is released.

        >>> study = bench.optuna.PrivateStudy(
        ...     budget=bench.PrivacyBudget(3, 1e-5),
        ...     event=lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise),
        ...     held_out=0.1,
        ...     n_scored=500,
        ... )  # doctest: +SKIP
        >>> study.optimize(objective)  # doctest: +SKIP
        >>> study.best_params, study.best_value, study.best_model  # doctest: +SKIP

    The objective draws hyperparameters by `trial.suggest_float`, `suggest_int` and `suggest_categorical`, trains with
    `trial.noise_multiplier` and `trial.generator`, and returns its score, larger being better, or (score, model).
    Nothing else of Optuna is here: samplers, pruners and callbacks read raw scores, and a storage keeps them.

    Args:
        settings: those of `bench.search.Study`, which says what ε covers, what is hidden, and what the caller answers
            for; all but `space`.

    Raises:
        InvalidValueError: if a setting is out of range.
        TypeError: if a setting is unknown, such as Optuna's storage, sampler or direction.
        BudgetTooSmallError: if no noise within reach meets the budget.
    """

    def __init__(self, **settings: Any) -> None:
        self._study = Study(None, **settings)

    def optimize(self, objective: Callable[[StudyTrial], Any]) -> None:
        """Run the objective a secret number of times, and keep the best trial by a noisy score.

        A trial that raises has lost, `optuna.TrialPruned` included; only Ctrl-C ends the search.

        Args:
            objective: trial → score, or (score, model).

        Raises:
            InvalidValueError: if the objective asks its trial for what it has not, or this study is over.
            AccountError: if the cap of the account does not cover the search; nothing was trained.
            RecordError: if the folder of results cannot be written, or this name is under way elsewhere.
        """
        for trial in self._study:
            try:
                returned = objective(trial)
            except (Exception, SystemExit):  # not shown: it may tell what must stay hidden
                returned = None
            self._study.tell(trial, *_outcome(returned, trial))

    def rehearse(self, objective: Callable[[StudyTrial, Any], Any], made_up: Any) -> None:
        """Run an objective once outside of the selection, on made-up records: its errors and outputs show.

        Args:
            objective: (trial, records) → score, or (score, model), such as `objective(trial, records=private)`, which
                `optimize` calls without `records`.
            made_up: records of the form of the private ones.

        Raises:
            InvalidValueError: if a score is out of range, or the model cannot be copied.
        """
        trial = self._study.rehearsal()
        self._study.tell(trial, *_outcome(objective(trial, made_up), trial))

    @property
    def event(self) -> "DpEvent":
        """The event of the whole search."""
        return self._study.event

    @property
    def epsilon(self) -> float:
        """The ε of the whole search, at the δ of the budget."""
        return self._study.epsilon

    @property
    def result(self) -> StudyResult:
        """The end of the search.

        Raises:
            InvalidValueError: if it is not over.
        """
        return self._study.result()

    @property
    def best_params(self) -> Candidate | None:
        """Hyperparameters of the winner; None if no trial had a score."""
        return self.result.params

    @property
    def best_value(self) -> float | None:
        """The winner's score, with the noise that ε covers; None if no trial had one."""
        return self.result.score

    @property
    def best_model(self) -> Any:
        """The model that the winner returned."""
        return self.result.model


def _outcome(returned: Any, trial: StudyTrial) -> tuple[Any, Any]:
    """Return the score, None if the trial failed, and the model.

    Raises:
        InvalidValueError: if the training has not asked for its noise, or several scores were returned: the second
            would be released as the model.
    """
    if returned is None:
        return None, None
    trial.check_noised()
    if not isinstance(returned, tuple):
        return returned, None
    if len(returned) != 2 or isinstance(returned[1], Real):
        raise InvalidValueError(
            f"Expected an objective that returns its score, or (score, model), got {len(returned)} values: a private "
            "selection compares one score."
        )
    return returned
