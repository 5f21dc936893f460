"""An Optuna objective under a private selection: the draws of its hyperparameters, and what it must not show."""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import scipy.stats
from optuna.distributions import FloatDistribution

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.external.trials import StudyTrial
from dphpo_bench.training.randomness import Streams

pytestmark = [
    pytest.mark.filterwarnings("ignore:No account counts", "ignore:The winner's noisy score"),
    pytest.mark.filterwarnings("ignore:Training drew nothing from"),
    pytest.mark.usefixtures("one_number"),
]

BUDGET = bench.PrivacyBudget(3.0, 1e-5)
SPACE = {"lr": FloatDistribution(1e-3, 1.0, log=True)}


def event(noise: float) -> Any:
    return bench.events.gaussian(noise)


def study(**changes: Any) -> Any:
    declared = {"budget": BUDGET, "event": event, "held_out": 0.1, "n_scored": 500, "results_dir": None}
    return bench.optuna.PrivateStudy(**{**declared, **changes})


def optimize(over: Any, func: Callable[[Any], Any], **options: Any) -> None:
    """Optimise an objective that asks for its noise, as training does."""

    def noised(trial: Any) -> Any:
        assert trial.noise_multiplier > 0
        return func(trial)

    over.optimize(noised, **options)


def objective(trial: Any) -> tuple[float, Any]:
    rate = trial.suggest_float("lr", 1e-3, 1.0, log=True)
    return 0.5, {"rate": rate, "noise": trial.noise_multiplier}


def trials(count: int) -> list[StudyTrial]:
    return [StudyTrial({}, 1.0, Streams(7).within("trial", str(index))) for index in range(count)]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(InvalidValueError) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# The draws


def test_draws_follow_the_declared_distributions() -> None:
    """By Kolmogorov-Smirnov and χ² at 1e-7 each, five of them: a false alarm has a probability below 1e-6."""
    drawn = trials(1000)
    rates = [trial.suggest_float("lr", 1e-4, 10.0, log=True) for trial in drawn]
    shares = [trial.suggest_float("share", -1.0, 3.0) for trial in drawn]
    logarithms = (np.log(rates) - math.log(1e-4)) / math.log(1e5)
    assert scipy.stats.kstest(logarithms, "uniform").pvalue > 1e-7
    assert scipy.stats.kstest((np.array(shares) + 1) / 4, "uniform").pvalue > 1e-7
    counted: list[tuple[list[Any], list[Any]]] = [
        ([trial.suggest_int("layers", 1, 4) for trial in drawn], [1, 2, 3, 4]),
        ([trial.suggest_categorical("norm", ["layer", "group", None]) for trial in drawn], ["layer", "group", None]),
        ([trial.suggest_float("drop", 0.0, 0.5, step=0.25) for trial in drawn], [0.0, 0.25, 0.5]),
    ]
    for values, possible in counted:
        assert scipy.stats.chisquare([values.count(value) for value in possible]).pvalue > 1e-7


def test_draws_are_independent_of_one_another() -> None:
    """Ranks of two names, and of one name in the next trial, correlate as chance has it: |ρ|√n < 5.5 twice."""
    drawn = trials(1000)
    first = np.array([trial.suggest_float("a", 0, 1) for trial in drawn])
    second = np.array([trial.suggest_float("b", 0, 1) for trial in drawn])
    for pair in ((first, second), (first[1:], first[:-1])):
        assert abs(scipy.stats.spearmanr(*pair).statistic) * math.sqrt(1000) < 5.5


def test_draws_depend_on_no_score_and_on_no_order() -> None:
    listed: list[list[dict[str, Any]]] = []
    for score in (lambda _: 0.1, lambda rate: rate, lambda rate: 1 - rate, lambda _: math.nan):
        seen: list[dict[str, Any]] = []

        def scored(trial: Any, score: Any = score, seen: Any = seen) -> float:
            names = ["x", "y"] if len(listed) % 2 else ["y", "x"]
            for name in names:
                trial.suggest_float(name, 0.0, 1.0)
            seen.append(dict(sorted(trial.params.items())))
            return float(score(trial.params["x"]))

        if len(listed) == 3:
            with pytest.warns(UserWarning, match="No model: no trial had a score"):
                optimize(study(), scored)
        else:
            optimize(study(), scored)
        listed.append(seen)
    assert len(listed[0]) > 1
    assert all(seen == listed[0] for seen in listed)
    assert len({params["x"] for params in listed[0]}) == len(listed[0])


def test_a_space_may_depend_on_what_was_drawn() -> None:
    def conditional(trial: Any) -> float:
        if trial.suggest_categorical("optimizer", ["SGD", "Adam"]) == "SGD":
            trial.suggest_float("momentum", 0.0, 0.9)
        else:
            trial.suggest_float("beta", 0.9, 0.999)
        return 0.5

    over = study()
    optimize(over, conditional)
    name = {"SGD": "momentum", "Adam": "beta"}[over.best_params["optimizer"]]
    assert set(over.best_params) == {"optimizer", name}


def test_a_name_has_one_distribution_in_a_trial() -> None:
    (trial,) = trials(1)
    value = trial.suggest_float("lr", 0.1, 1.0)
    assert trial.suggest_float("lr", 0.1, 1.0) == value
    assert trial.params == {"lr": value}
    assert "'lr' to be drawn from one distribution in a trial" in refused(lambda: trial.suggest_float("lr", 0.1, 2.0))


def test_a_final_run_gets_what_the_winner_drew() -> None:
    final: list[float] = []

    def trained(trial: Any) -> tuple[float, Any]:
        rate = trial.suggest_float("learning_rate", 0.1, 1.0)
        if trial.is_final:
            final.append(rate)
        return rate, {"rate": rate}

    over = study(method="dp_hyper", budget=bench.PrivacyBudget(8, 1e-5))
    optimize(over, trained)
    assert final == [over.best_model["rate"]] == [over.best_params["learning_rate"]]


def test_the_winner_is_released_and_nothing_else(tmp_path: Path) -> None:
    over = study(results_dir=tmp_path, name="digits")
    scores: list[float] = []

    def scored(trial: Any) -> tuple[float, Any]:
        rate = trial.suggest_float("lr", 0.0, 1.0)
        trial.params["lr"] = 7.0  # a copy
        scores.append(rate)
        return rate, {"rate": rate}

    optimize(over, scored)
    assert over.best_model == {"rate": over.best_params["lr"]}
    assert over.best_value not in scores  # but with noise
    assert abs(over.best_value - over.best_params["lr"]) < 0.5
    assert over.result().params == over.best_params
    (path,) = tmp_path.glob("digits/**/*.json")
    record = bench.read_record(path)
    assert record.accounting == "declared by the caller"
    assert record.released == {"score": over.best_value, **over.best_params}
    assert not [name for name in vars(over.result()) if "trial" in name]


def test_trials_that_fail_or_are_pruned_lose() -> None:
    states = iter([optuna.TrialPruned(), ValueError("secret"), SystemExit(), None])

    def failing(trial: Any) -> float:
        trial.suggest_float("lr", 0.0, 1.0)
        error = next(states, ...)
        if isinstance(error, BaseException):
            raise error
        return None if error is None else 0.5  # type: ignore[return-value]

    over = study()
    optimize(over, failing)
    assert next(states, ...) is ...
    assert over.best_value > 0

    def pruned(trial: Any) -> Any:
        trial.report(0.1, step=1)
        assert not trial.should_prune()
        return objective(trial)

    reported = study()
    optimize(reported, pruned)
    assert reported.best_model is not None

    def broken(trial: Any) -> float:
        raise ValueError

    never = study()
    with pytest.warns(UserWarning, match="No model"):
        optimize(never, broken)
    assert (never.best_params, never.best_value, never.best_model) == (None, None, None)


ASKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "attributes": (lambda trial: trial.set_user_attr("a", 1), "A trial of a study has no set_user_attr"),
    "another range": (
        lambda trial: (trial.suggest_int("n", 1, 3), trial.suggest_int("n", 1, 4)),
        "'n' to be drawn from one distribution in a trial, IntDistribution.*high=3.*, got IntDistribution.*high=4",
    ),
    "batch size": (lambda trial: trial.suggest_int("batch_size", 8, 64), "sample rate, steps and noise are the same"),
    "a name of the record": (lambda trial: trial.suggest_int("score", 8, 64), "of another name than score"),
    "no range": (lambda trial: trial.suggest_float("lr", 0.0, 1.0, log=True), "Cannot draw 'lr': "),
    "nothing": (lambda trial: trial.suggest_categorical("f", []), "Cannot draw 'f': "),
    "objects": (lambda trial: trial.suggest_categorical("f", [len]), "Search over a name, and look the value up"),
}


@pytest.mark.parametrize("name", ASKS)
def test_an_objective_that_asks_for_what_a_trial_has_not_ends_the_search(name: str) -> None:
    """As failed trials, all would spend the budget unseen."""
    ask, message = ASKS[name]
    assert re.search(message, refused(partial(optimize, study(), ask)))


@pytest.mark.parametrize("returned", [(0.5, 0.7), (0.5, 0.7, 0.1), "good"])
def test_an_objective_has_one_score(returned: Any) -> None:
    """A second score would be released as the model."""
    assert re.search("got [23] values|got a str", refused(partial(optimize, study(), lambda _: returned)))


@pytest.mark.parametrize(
    "option", [{"storage": "sqlite:///a.db"}, {"sampler": 3}, {"direction": "minimize"}, {"n_trials": 3}]
)
def test_arguments_of_optuna_are_none_of_this_study(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        study(**option)
    with pytest.raises(TypeError):
        study().optimize(objective, **option)


def test_an_objective_that_does_not_ask_for_its_noise_ends_the_search() -> None:
    """It trains without privacy, as it did before: the ε of the study would be wrong."""

    def unchanged(trial: Any) -> Any:
        return float(trial.suggest_float("lr", 0.0, 1.0))

    for call in (study().optimize, lambda func: study().rehearse(lambda trial, _: func(trial), None)):
        assert "training with trial.noise_multiplier, which ε is computed for" in refused(partial(call, unchanged))


def test_before_the_end_there_is_no_winner() -> None:
    over = study()
    for name in ("best_params", "best_value", "best_model"):
        assert "The search is not over" in refused(partial(getattr, over, name))


def test_a_rehearsal_shows_errors_and_counts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(trial: Any, records: Any) -> float:
        print(records)  # noqa: T201
        raise KeyError("lr")

    over = study()
    with pytest.raises(KeyError):
        over.rehearse(failing, "of made-up records")
    assert capsys.readouterr().out == "of made-up records\n"
    assert "Divide percentages by 100" in refused(
        lambda: over.rehearse(lambda trial, records: records * bool(trial.noise_multiplier), 93.0)
    )
    over.rehearse(lambda trial, _: objective(trial), None)
    optimize(over, objective)


def test_a_rehearsal_never_reads_the_records() -> None:
    """An objective has them as an argument, so the one that is optimised cannot be rehearsed on them by mistake."""
    read: list[str] = []

    def trained(trial: Any, records: str = "private") -> float:
        read.append(records)
        return 0.5 * bool(trial.noise_multiplier)

    over = study()
    over.rehearse(trained, "made up")
    with pytest.raises(TypeError):
        over.rehearse(trained)
    assert read == ["made up"]
    over.optimize(trained)
    assert {*read[1:]} == {"private"}
