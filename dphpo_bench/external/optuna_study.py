"""Private selection for an existing Optuna objective."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import one_line, shown
from dphpo_bench.contract.method import Method
from dphpo_bench.external.optuna_trial import PrivateTrial
from dphpo_bench.external.procedure import EventOf
from dphpo_bench.external.study import Study, StudyResult
from dphpo_bench.external.trials import OneOfAKind, RefusedNameError, StudyTrial
from dphpo_bench.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

_SECRET = "the number of trials is drawn in secret"
_MEAN = 'Its mean is the method\'s: bench.make_method("papernot_steinke", {"mean": 8}).'
_ONLY_THE_WINNER = (
    "no ε covers trials that lost, nor their number. best_trial is the winner; to_optuna() makes a study of it."
)
_BY_HAND = "trials are drawn independently of everything, as the theorems of private selection ask."

_OF_CREATION = MappingProxyType(
    {
        "storage": "a storage keeps every raw score and their number. study.to_optuna(storage=...) stores the winner.",
        "load_if_exists": "a study that was interrupted goes on by itself, under its name.",
        "sampler": "a sampler that learns from raw scores makes every later trial a release. Trials are random.",
        "pruner": "a pruner compares raw scores, which no ε covers. Every trial trains to its end.",
        "directions": "a private selection compares one score, the larger the better.",
        "space": "an objective draws by trial.suggest_float and its kin. bench.select takes a space.",
    }
)
_OF_OPTIMIZE: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "n_trials": (None, f"{_SECRET}. {_MEAN}"),
        "timeout": (None, f"a search that stops early has another event, and {_SECRET}. {_MEAN}"),
        "n_jobs": (1, "trials run one after the other, so that none sees another."),
        "catch": ((), "a trial that raises has lost, whatever it raises."),
        "callbacks": (None, "a callback would see raw scores and count trials."),
        "show_progress_bar": (False, f"a bar would show progress, and {_SECRET}."),
    }
)
_UNSHOWN: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("trials", "get_trials", "best_trials", "trials_dataframe"), _ONLY_THE_WINNER),
        **dict.fromkeys(("enqueue_trial", "add_trial", "add_trials"), _BY_HAND),
        **dict.fromkeys(("ask", "tell"), "bench.search.Study is a study to ask and tell."),
        "stop": f"{_SECRET}. {_MEAN}",
        **dict.fromkeys(
            ("set_user_attr", "user_attrs", "set_metric_names"), "to_optuna() makes a study that has them."
        ),
    }
)


@dataclass(frozen=True)
class KeptTrial:
    """The part of a trial that a study keeps in place of a model, until another trial is better."""

    model: Any
    params: dict[str, Any]
    distributions: dict[str, BaseDistribution]
    attributes: dict[str, Any]


class PrivateStudy(OneOfAKind):
    """An Optuna study that is a private selection: an existing objective, of which the winner alone is released.

        >>> study = bench.optuna.PrivateStudy(
        ...     budget=bench.PrivacyBudget(3, 1e-5),
        ...     event=lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise),
        ...     held_out=0.1,
        ...     n_scored=500,
        ... )  # doctest: +SKIP
        >>> study.optimize(objective)  # doctest: +SKIP
        >>> study.best_params, study.best_value, study.best_model  # doctest: +SKIP

    An objective draws hyperparameters by `trial.suggest_float` and its kin, trains with `trial.noise_multiplier` and
    `trial.generator`, and returns its score, larger being better, or (score, model). See `bench.search.Study` for what
    ε covers, what is hidden, and what the caller answers for. All of that holds here; scores are as its `tell` takes
    them.

    Args:
        budget: the (ε, δ) of the whole search.
        event: of one training, as a function of its noise multiplier.
        method: a private selection, or its name.
        held_out: expected share of the records that only score; None: scores may be of trained records.
        n_scored: public number by which the sum of the records' scores is divided.
        direction: "maximize".
        settings: the others of `bench.search.Study`, such as name, results_dir, account and unit.

    Raises:
        InvalidValueError: if an argument is out of range, or is one of Optuna's that would show raw scores.
        BudgetTooSmallError: if no noise within reach meets the budget.
    """

    @typed
    def __init__(
        self,
        *,
        budget: PrivacyBudget,
        event: EventOf,
        method: str | Method = "papernot_steinke",
        held_out: float | None = None,
        n_scored: int | None = None,
        direction: Any = "maximize",
        **settings: Any,
    ) -> None:
        for name, reason in _OF_CREATION.items():
            if settings.pop(name, None):
                raise InvalidValueError(f"Expected no {name}: {reason}")
        if str(getattr(direction, "name", direction)).lower() != "maximize":
            raise InvalidValueError(
                f"Expected direction='maximize', got {shown(direction, form=repr)}: scores are held to [0, 1], and the "
                "largest wins. Return 1 - loss of a loss from 0 to 1."
            )
        if "study_name" in settings:
            raise InvalidValueError("Expected name=, under which records and accounts hold the study, got study_name=.")
        self._study = Study(
            None, budget=budget, event=event, method=method, held_out=held_out, n_scored=n_scored, **settings
        )
        self._result: StudyResult | None = None
        self._winner: KeptTrial | None = None
        self._mistake: InvalidValueError | None = None

    def optimize(
        self,
        func: Callable[[PrivateTrial], Any],
        n_trials: None = None,
        timeout: None = None,
        n_jobs: int = 1,
        catch: Any = (),
        callbacks: None = None,
        gc_after_trial: bool = False,
        show_progress_bar: bool = False,
    ) -> None:
        """Run the objective a secret number of times, and keep the best trial by a noisy score.

        A trial that raises has lost, `optuna.TrialPruned` included; only Ctrl-C ends the search.

        Args:
            func: the objective: trial → score, or (score, model).
            n_trials: for Optuna's sake, as are all others; anything but their defaults is refused.
            timeout: as above.
            n_jobs: as above.
            catch: as above.
            callbacks: as above.
            gc_after_trial: as in Optuna.
            show_progress_bar: as above.

        Raises:
            InvalidValueError: if an argument or the objective asks for what no ε covers, or this study is over.
            AccountError: if the cap of the account does not cover the search; nothing was trained.
            RecordError: if the folder of results cannot be written, or this name is under way elsewhere.
        """
        asked = {
            "n_trials": n_trials,
            "timeout": timeout,
            "n_jobs": n_jobs,
            "catch": catch,
            "callbacks": callbacks,
            "show_progress_bar": show_progress_bar,
        }
        for name, value in asked.items():
            default, reason = _OF_OPTIMIZE[name]
            if value != default and value:
                raise InvalidValueError(f"Expected no {name}: {reason}")
        if not callable(func):
            raise InvalidValueError(f"Expected an objective, a function of a trial, got {type(func).__name__}.")
        self._mistake = None
        for trial in self._study:
            outcome = _outcome(func, trial)
            if self._mistake is not None:  # of the objective, which asked the study that it is a trial of
                raise self._mistake
            self._study.tell(trial, *outcome)
            if gc_after_trial:
                gc.collect()

    def rehearse(self, func: Callable[[PrivateTrial, Any], Any], made_up: Any) -> None:
        """Run an objective once outside of the selection, on made-up records: its errors and outputs show.

        Args:
            func: (trial, records) → score, or (score, model), such as `objective(trial, records=private)`, which
                `optimize` calls without `records`.
            made_up: records of the form of the private ones.

        Raises:
            InvalidValueError: if a score is out of range, or the model cannot be copied.
        """
        trial = self._study.rehearsal()
        self._study.tell(trial, *_outcome(lambda asked: func(asked, made_up), trial, is_rehearsal=True))

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
        if self._result is None:
            try:
                end = self._study.result()
            except InvalidValueError as error:
                self._mistake = error
                raise
            if isinstance(end.model, KeptTrial):
                self._winner = end.model
                end = replace(end, model=end.model.model, params=end.model.params)
            self._result = end
        return self._result

    @property
    def best_params(self) -> dict[str, Any]:
        """Hyperparameters of the winner, as `best_trial` has them."""
        return self.best_trial.params

    @property
    def best_value(self) -> float:
        """The winner's score, with the noise that ε covers."""
        value = self.best_trial.value
        assert value is not None, "a trial that won has a score"
        return value

    @property
    def best_model(self) -> Any:
        """The model that the winner kept."""
        return self.result.model

    @property
    def best_trial(self) -> FrozenTrial:
        """The winner, number 0: its noisy score, hyperparameters and notes.

        Raises:
            InvalidValueError: if the search is not over, or no trial had a score.
        """
        end, winner = self.result, self._winner
        if winner is None or end.score is None:
            raise InvalidValueError(
                "No trial had a score. The budget is spent all the same; study.rehearse(objective, made_up_records) "
                "shows what an objective raises."
            )
        return FrozenTrial(
            number=0,
            trial_id=0,
            state=TrialState.COMPLETE,
            value=end.score,
            datetime_start=end.record.created,
            datetime_complete=end.record.created,
            params=dict(winner.params),
            distributions={name: _holding(winner.distributions[name], winner.params[name]) for name in winner.params},
            user_attrs=dict(winner.attributes),
            system_attrs={},
            intermediate_values={},
        )

    def to_optuna(self, storage: Any = None, study_name: str | None = None) -> optuna.Study:
        """Make a study of Optuna that holds the winner alone, for its dashboard, its plots and OptunaHub.

        Args:
            storage: as in `optuna.create_study`.
            study_name: name of the new study.

        Raises:
            InvalidValueError: if there is no winner yet, or Optuna refuses the storage or the name.
        """
        best, end = self.best_trial, self.result
        try:
            study = optuna.create_study(storage=storage, study_name=study_name, direction="maximize")
        except Exception as error:  # of Optuna, or of the database behind its storage
            raise InvalidValueError(
                f"Optuna makes no study here: {type(error).__name__}: {one_line(str(error), 200)}"
            ) from None
        study.add_trial(best)
        facts = {"epsilon": end.epsilon, "delta": end.record.identity.delta, "method": end.record.identity.method}
        for name, value in facts.items():
            study.set_user_attr(name, value)
        return study

    def __getattr__(self, name: str) -> Any:
        if name in _UNSHOWN:
            self._mistake = RefusedNameError(f"Expected no study.{name}: {_UNSHOWN[name]}")
            raise self._mistake
        raise AttributeError(f"A PrivateStudy has no attribute {name}.")


def _outcome(
    objective: Callable[[PrivateTrial], Any], trial: StudyTrial, *, is_rehearsal: bool = False
) -> tuple[Any, Any]:
    """Return the score, None if the trial failed, and what to keep of it.

    Raises:
        InvalidValueError: if the objective asks for what it must not have, or returns something else.
    """
    asked = PrivateTrial(trial)
    try:
        returned = objective(asked)
    except (Exception, SystemExit):  # not shown: it may tell what must stay hidden
        if asked.refusal is not None:
            raise asked.refusal from None
        if is_rehearsal:
            raise
        return None, None
    if asked.refusal is not None:
        raise asked.refusal from None
    if returned is not None:
        trial.check_noised()
    score = returned
    if isinstance(returned, tuple):
        if len(returned) != 2 or isinstance(returned[1], Real):
            raise InvalidValueError(
                f"Expected an objective that returns its score, or (score, model), got {len(returned)} values: a "
                "private selection compares one score."
            )
        score, asked.model = returned
    if score is None and not trial.is_final:
        return None, None
    trial.check_use()
    return score, KeptTrial(asked.model, asked.params, asked.distributions, asked.user_attrs)


def _holding(distribution: BaseDistribution, value: Any) -> BaseDistribution:
    """Return a distribution that holds a value: a final run may train with an extrapolated one."""
    low, high = getattr(distribution, "low", None), getattr(distribution, "high", None)
    if low is None or high is None or low <= value <= high:
        return distribution
    return FloatDistribution(min(low, value), max(high, value), log=distribution.log)  # type: ignore[attr-defined]
