"""Private selection around a function that trains."""

from collections.abc import Callable, Mapping
from typing import Any

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.method import Method
from dphpo_bench.external.procedure import EventOf
from dphpo_bench.external.study import Study, StudyResult
from dphpo_bench.external.trials import StudyTrial
from dphpo_bench.privacy.budget import PrivacyBudget


@typed
def select(
    train: Callable[[StudyTrial], tuple[Any, Any]],
    space: Mapping[str, Any],
    *,
    budget: PrivacyBudget,
    event: EventOf,
    method: str | Method = "papernot_steinke",
    held_out: float | None = None,
    n_scored: int | None = None,
    **settings: Any,
) -> StudyResult:
    """Train with hyperparameters of a space, a secret number of times, and return the best by a noisy score.

        >>> result = bench.select(
        ...     train,
        ...     {"lr": optuna.distributions.FloatDistribution(1e-2, 1e1, log=True)},
        ...     budget=bench.PrivacyBudget(3, 1e-5),
        ...     event=lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise),
        ...     held_out=0.1,
        ...     n_scored=500,
        ... )  # doctest: +SKIP

    ε covers the model, its hyperparameters and the noisy score. What is hidden, what the caller answers for, and what
    happens after a kill: see `bench.search.Study`, which does the same in a loop of the caller.

    Args:
        train: trains one model, with `trial.params`, `trial.noise_multiplier` and `trial.generator`, and returns it
            with its score; see `Study.tell`. If it raises, the trial has lost; only Ctrl-C ends the search. Try
            `train(Study(...).rehearsal())` first, on made-up records.
        space: hyperparameter → Optuna distribution, or a list of choices.
        budget: the (ε, δ) of the whole search.
        event: of one training, as a function of its noise multiplier.
        method: a private selection, or its name.
        held_out: expected share of the records that only score; None: scores may be of trained records.
        n_scored: public number by which the sum of the records' scores is divided.
        settings: the others of `Study`, such as name, results_dir, account and unit.

    Raises:
        InvalidValueError: if an argument is out of range, or `train` returns no pair, or has not asked for its noise.
        BudgetTooSmallError: if no noise within reach meets the budget.
        AccountError: if the cap of the account does not cover the search; nothing was trained.
        RecordError: if the folder of results cannot be written, or this name is under way elsewhere.
    """
    study = Study(space, budget=budget, event=event, method=method, held_out=held_out, n_scored=n_scored, **settings)
    for trial in study:
        study.tell(trial, *_outcome(train, trial))
    return study.result()


def _outcome(train: Callable[[StudyTrial], Any], trial: StudyTrial) -> tuple[Any, Any]:
    """Return score and model; None for the score of a trial that raised."""
    try:
        outcome = train(trial)
    except (Exception, SystemExit):  # not shown: it may tell what must stay hidden
        return None, None
    if not (isinstance(outcome, tuple) and len(outcome) == 2):
        raise InvalidValueError(f"Expected train(trial) to return model, score; got a {type(outcome).__name__}.")
    trial.check_noised()
    return outcome[1], outcome[0]
