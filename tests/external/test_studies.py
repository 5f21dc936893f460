"""Optuna's studies as histories: real studies in SQLite files, and in memory."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

import dphpo_bench as bench
from dphpo_bench.privacy import events
from tests.external.test_price import by_dp_accounting

DELTA = 1e-5
RATE = {"sample_rate": 0.01, "noise_multiplier": 1.1, "steps": 300}


def sgd(rate: float, noise: float, steps: int) -> Any:
    return events.repeat(events.poisson_sampled(rate, events.gaussian(noise)), steps)


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def forty(trial: optuna.Trial) -> float:
    """Trials of two noises; one is pruned after it recorded its steps, one without that; one fails."""
    rate = trial.suggest_float("lr", 1e-3, 1, log=True)
    trial.set_user_attr("q", 0.01)
    trial.set_user_attr("sigma", 1.1 if trial.number % 2 else 1.5)
    if trial.number == 5:
        trial.set_user_attr("T", 100)
        raise optuna.TrialPruned
    if trial.number == 6:
        raise optuna.TrialPruned
    if trial.number == 7:
        trial.set_user_attr("T", 10)
        raise ArithmeticError
    trial.set_user_attr("T", 300)
    return 1 - abs(rate - 0.1)


NAMES = {"sample_rate": "q", "noise_multiplier": "sigma", "steps": "T"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("storage") / "tuning #1?%{x}.db"
    creator = {"creator": lambda: sqlite3.connect(path, check_same_thread=False)}
    made = optuna.storages.RDBStorage("sqlite://", engine_kwargs=creator)
    study = optuna.create_study(
        study_name="tuning", storage=made, direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.enqueue_trial({"lr": 0.1})
    study.optimize(forty, n_trials=40, catch=(ArithmeticError,))
    study.enqueue_trial({"lr": 0.2})  # waits for ever: it has read nothing
    return path


def test_a_study_of_forty_trials(storage: Path, main_here: Any) -> None:
    before = storage.read_bytes(), sorted(storage.parent.iterdir())
    answer = bench.price(storage, delta=DELTA, **NAMES)
    assert (storage.read_bytes(), sorted(storage.parent.iterdir())) == before
    assert answer.runs == 40
    assert dict(answer.counts) == {sgd(0.01, 1.5, 300): 20, sgd(0.01, 1.1, 300): 19, sgd(0.01, 1.1, 100): 1}
    assert answer.winner == answer.least == pytest.approx(by_dp_accounting((0.01, 1.5, 300, 1)), rel=2e-3)
    expected = by_dp_accounting((0.01, 1.5, 300, 20), (0.01, 1.1, 300, 19), (0.01, 1.1, 100, 1))
    assert answer.total.together == pytest.approx(expected, rel=2e-3)
    assert answer.by_results
    assert answer.costliest == sgd(0.01, 1.1, 300)
    text = " ".join(str(answer).split())
    assert "40 trials began, 2 PRUNED, 1 FAIL among them" in text
    assert "the second number is the one about this history" in text
    code, out, err = main_here(
        "price", str(storage), "--delta", "1e-5", "--sample-rate", "q", "--noise-multiplier", "sigma", "--steps", "T"
    )
    assert (code, out, err) == (0, f"{answer}\n", "")


def test_a_study_in_memory_and_its_url_are_the_same(storage: Path, tmp_path: Path) -> None:
    answer = bench.price(storage, delta=DELTA, **NAMES)
    plain = shutil.copy(storage, tmp_path / "plain.db")
    assert bench.price(f"sqlite:///{plain}", delta=DELTA, **NAMES) == answer
    study = optuna.load_study(study_name="tuning", storage=f"sqlite:///{plain}")
    assert bench.price(study, delta=DELTA, **NAMES) == answer
    assert bench.price(study, delta=DELTA, count=2, **NAMES).runs == 80


def study_of(*trials: tuple[str, dict[str, Any], dict[str, Any]]) -> optuna.Study:
    """A study of trials, each by state, parameters and user attributes."""
    study = optuna.create_study()
    for state, params, attributes in trials:
        study.add_trial(
            create_trial(
                state=TrialState[state],
                value=1.0 if state == "COMPLETE" else None,
                params=params,
                distributions={
                    name: optuna.distributions.CategoricalDistribution([value]) for name, value in params.items()
                },
                user_attrs=attributes,
            )
        )
    return study


@pytest.mark.parametrize(
    ("trials", "options", "events_of"),
    [
        ([("COMPLETE", RATE, {})], {}, [(0.01, 1.1, 300)]),
        ([("COMPLETE", {}, RATE)], {}, [(0.01, 1.1, 300)]),
        ([("COMPLETE", {}, {**RATE, "steps": 300.0})], {}, [(0.01, 1.1, 300)]),
        ([("COMPLETE", {}, {})], RATE, [(0.01, 1.1, 300)]),
        ([("COMPLETE", {"bs": 64}, {})], {"batch_size": "bs", "records": 1000, "epochs": 3, "noise_multiplier": 2},
         [(0.064, 2, 48)]),
        ([("COMPLETE", {"batch_size": 64, "epochs": 2.5}, {})], {"records": 1000, "noise_multiplier": 2},
         [(0.064, 2, 40)]),
        # A pruned trial that recorded nothing: what it planned, else as long as the longest that ended.
        ([("COMPLETE", {}, RATE), ("PRUNED", {"steps": 500}, {})], {"sample_rate": 0.01, "noise_multiplier": 1.1},
         [(0.01, 1.1, 300), (0.01, 1.1, 500)]),
        ([("COMPLETE", {}, RATE), ("PRUNED", {}, {})], {"sample_rate": 0.01, "noise_multiplier": 1.1},
         [(0.01, 1.1, 300), (0.01, 1.1, 300)]),
        ([("COMPLETE", {}, RATE), ("PRUNED", {"steps": 500}, {"steps": 40})],
         {"sample_rate": 0.01, "noise_multiplier": 1}, [(0.01, 1, 300), (0.01, 1, 40)]),
        # One that failed or still runs may have gone on after it recorded its steps.
        ([("COMPLETE", {}, RATE), ("FAIL", {}, {"steps": 40}), ("RUNNING", {}, {"steps": 400})],
         {"sample_rate": 0.01, "noise_multiplier": 1}, [(0.01, 1, 300), (0.01, 1, 300), (0.01, 1, 400)]),
        # Epochs that are stated count, whatever an attribute named steps may be.
        ([("COMPLETE", {}, {**RATE, "steps": 7})], {"epochs": 3}, [(0.01, 1.1, 300)]),
        ([("PRUNED", {}, {**RATE, "steps": 7})], {"epochs": 3}, [(0.01, 1.1, 7)]),
        ([("RUNNING", {}, {})], RATE, [(0.01, 1.1, 300)]),
        ([("COMPLETE", {}, {}), ("WAITING", {}, {})], RATE, [(0.01, 1.1, 300)]),
    ],
)  # fmt: skip
def test_where_a_trial_has_its_numbers(trials: Any, options: Any, events_of: Any) -> None:
    answer = bench.price(study_of(*trials), delta=DELTA, **options)
    expected = bench.price([("dp-sgd", *event) for event in events_of], delta=DELTA)
    assert answer.counts == expected.counts


@pytest.mark.parametrize(
    ("trials", "options", "message"),
    [
        ([], {}, "no trial that began"),
        ([("WAITING", {}, {})], RATE, "no trial that began"),
        ([("COMPLETE", {}, {})], {}, r"Trial 0 \(COMPLETE\): .*steps"),
        ([("COMPLETE", {}, {"steps": 3})], {}, "noise_multiplier"),
        ([("COMPLETE", {}, {"steps": 3})], {"noise_multiplier": 1}, "sample_rate.*batch_size with records"),
        ([("COMPLETE", {}, RATE), ("FAIL", {}, {})], {}, r"Trial 1 \(FAIL\): .* a list of the others"),
        ([("COMPLETE", {}, RATE)], {"noise_multiplier": "sigma"}, "'sigma'"),
        ([("COMPLETE", {}, RATE)], {"steps": "T"}, "'T'"),
        ([("PRUNED", {}, {})], {"sample_rate": 0.1, "noise_multiplier": 1}, r"Trial 0 \(PRUNED\): .*steps"),
        ([("COMPLETE", {"sample_rate": 0.1}, {**RATE})], {}, "parameter 'sample_rate' is 0.1, .* 0.01"),
        ([("COMPLETE", {}, {**RATE, "steps": 2.5})], {}, "steps=2.5"),
        ([("COMPLETE", {}, {**RATE, "steps": "many"})], {}, "steps='many'"),
        ([("COMPLETE", {}, {**RATE, "steps": 0})], {}, "steps=0"),
        ([("COMPLETE", {}, {**RATE, "sample_rate": "big"})], {}, "sample_rate='big'"),
        ([("COMPLETE", {}, {**RATE, "noise_multiplier": -1})], {}, "noise_multiplier=-1"),
        ([("COMPLETE", {}, {"steps": 3})], {"batch_size": 64, "records": 0, "noise_multiplier": 1}, "records=0"),
        ([("COMPLETE", {}, {"steps": 3})], {"batch_size": 64, "records": 32, "noise_multiplier": 1}, "sample_rate=2.0"),
        ([("COMPLETE", {}, {})], {"sample_rate": 0.1, "noise_multiplier": 1, "epochs": 0}, "steps=0"),
        ([("COMPLETE", {}, {})], {**RATE, "steps": 0}, "steps=0"),
        ([("COMPLETE", {}, RATE)], {"study": "x"}, "a study already"),
    ],
)  # fmt: skip
def test_a_trial_that_lacks_something_is_named(trials: Any, options: Any, message: str) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match=message) as error:
        bench.price(study_of(*trials), delta=DELTA, **options)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).count("Trial ") <= 1


def test_a_study_of_several_objectives_has_no_single_winner() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    study.optimize(lambda trial: (1.0, trial.suggest_float("noise_multiplier", 1, 2)), n_trials=3)
    answer = bench.price(study, delta=DELTA, sample_rate=0.01, steps=10)
    assert answer.least < answer.winner


def test_scores_during_training_count() -> None:
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())

    def reporting(trial: optuna.Trial) -> float:
        for step in range(4):
            trial.report(1.0, step)
        return 1.0

    study.optimize(reporting, n_trials=3)
    answer = bench.price(study, delta=DELTA, score_noise=9, **RATE)
    assert answer.held_out is not None
    assert answer.held_out.releases == 15
    assert answer.held_out.together == pytest.approx(by_dp_accounting((1.0, 9.0, 1, 15)), rel=2e-3)


def several(path: Path) -> None:
    for name in ("first", "second"):
        optuna.create_study(study_name=name, storage=f"sqlite:///{path}").optimize(lambda _: 1.0, n_trials=2)


def older(path: Path) -> None:
    several(path)
    with sqlite3.connect(path) as connection:
        connection.execute("update alembic_version set version_num = 'v2.6.0.a'")


def unstamped(path: Path) -> None:
    """A storage into which Optuna would write its version when it opens it."""
    several(path)
    with sqlite3.connect(path) as connection:
        connection.execute("delete from alembic_version")


def other(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table runs (id integer)")


def empty(path: Path) -> None:
    optuna.storages.RDBStorage(f"sqlite:///{path}")


@pytest.mark.parametrize(
    ("make", "study", "message"),
    [
        (several, None, "has 2 studies: .*first, second"),
        (several, "frist", "Unknown study 'frist'. Did you mean 'first'"),
        (older, "first", "optuna storage upgrade"),
        (unstamped, "first", "has no studies that this version of Optuna .*readonly"),
        (other, None, "has no studies that this version of Optuna"),
        (empty, None, "has no study"),
    ],
)
def test_storages_that_do_not_answer(
    tmp_path: Path, make: Callable[[Path], None], study: str | None, message: str, main_here: Any
) -> None:
    make(tmp_path / "x.db")
    before = (tmp_path / "x.db").read_bytes()
    with pytest.raises(bench.errors.DphpoBenchError, match=message):
        bench.price(tmp_path / "x.db", delta=DELTA, study=study, **RATE)
    code, out, err = main_here("price", "x.db", "--delta", "1e-5", *(["--study", study] if study else []))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert (tmp_path / "x.db").read_bytes() == before


def test_a_url_of_no_file_is_one_line_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="there is no such file"):
        bench.price(f"sqlite:///{tmp_path / 'none.db'}", delta=DELTA)
    assert not list(tmp_path.iterdir())


def test_one_of_several_studies(tmp_path: Path) -> None:
    several(tmp_path / "x.db")
    assert bench.price(str(tmp_path / "x.db"), delta=DELTA, study="second", **RATE).runs == 2


def test_a_file_with_a_log_of_writes_is_read_and_left(tmp_path: Path) -> None:
    """SQLite leaves an empty log beside such a file; the file does not change, and the study can go on."""
    path = tmp_path / "x.db"
    several(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    connection.close()
    before = path.read_bytes()
    assert bench.price(path, delta=DELTA, study="first", **RATE).runs == 2
    assert path.read_bytes() == before
    optuna.load_study(study_name="first", storage=f"sqlite:///{path}").optimize(lambda _: 1.0, n_trials=1)
    assert bench.price(path, delta=DELTA, study="first", **RATE).runs == 3
