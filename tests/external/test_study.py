"""Studies: what the caller's loop sees, what it cannot do, and what is dropped."""

import copy
import functools
import logging
import os
import pickle
import random
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy
import pytest
import torch
from optuna.distributions import FloatDistribution
from rich.progress import track
from tqdm import tqdm

import dphpo_bench as bench
from dphpo_bench.base.errors import AccountError, InvalidValueError
from dphpo_bench.external.trials import StudyTrial
from dphpo_bench.search import Study, StudyResult
from tests.conftest import TinyTask
from tests.external.loops import network, seeded, tuner_of

BUDGET = bench.PrivacyBudget(2.0, 1e-5)
SPACE = {"rate": FloatDistribution(0.001, 1.0, log=True), "kind": ["a", "b"]}
SEEDS = range(6)
LONG = 3  # a seed of several trials

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:No account",
        "ignore:No model",
        "ignore:The winner's",
        "ignore:Training drew nothing from",
    ),
]


def event(noise: float) -> Any:
    return bench.events.repeat(bench.events.gaussian(noise), 10)


def study(method: Any = "papernot_steinke", *, seed: int | None = LONG, **changes: Any) -> Study:
    settings = {"held_out": 0.1, "n_scored": 1000, "results_dir": None, **changes}
    return seeded(Study(SPACE, budget=BUDGET, event=event, method=method, **settings), seed)


def finished(of: Study, score: Callable[[StudyTrial], Any], seen: list[StudyTrial] | None = None) -> StudyResult:
    for trial in of:
        if seen is not None:
            seen.append(trial)
        of.tell(trial, score(trial), {"rate": trial.params["rate"]})
    return of.result()


def test_the_best_trial_wins_by_a_noisy_score_and_losers_are_dropped() -> None:
    seen: list[StudyTrial] = []
    result = finished(study(), lambda trial: trial.params["rate"], seen)
    best = max(seen, key=lambda trial: trial.params["rate"])
    assert len(seen) > 2
    assert result.params == best.params
    assert result.model == {"rate": best.params["rate"]}
    assert result.score is not None
    assert 0 < abs(result.score - best.params["rate"]) < 0.1
    assert result.record.accounting == "declared by the caller"
    assert result.record.released == {"score": result.score, **best.params}
    assert not {"trials", "K"} & set(result.record.released)


@pytest.mark.parametrize("form", [list, numpy.array, torch.tensor])
def test_scores_of_records_are_summed_and_held_to_their_range(form: Any) -> None:
    values = [1.0, 0.5, float("nan"), 7.0, -3.0, float("inf")]
    result = finished(study(), lambda _: form(values))
    same = finished(study(), lambda _: form([1.0, 0.5, 0.0, 1.0, 0.0, 0.0]))
    assert result.score == pytest.approx(same.score)
    spread = [finished(study(seed=seed), lambda _: form(values)).score for seed in SEEDS]
    assert all(score is not None and abs(score - 2.5 / 1000) < 0.1 for score in spread)
    assert len(set(spread)) == len(spread)


def test_the_noise_on_a_score_is_that_of_the_plan() -> None:
    """Each of 6 searches of seed s: the released score less the raw one, over its deviation, is below 8 deviations."""
    of = study()
    noise = of._plan.score_noise / 1000
    assert noise > 0
    mean = finished(study(seed=0), lambda _: 0.5).score
    each = finished(study(seed=0), lambda _: [0.5] * 1000).score
    assert mean == pytest.approx(each)
    assert mean is not None
    assert 0 < abs(mean - 0.5) < 8 * noise


def test_noise_has_the_stated_deviation() -> None:
    rule = study()._rule
    draws = torch.tensor([rule.noisy(0.5, torch.Generator().manual_seed(seed)) for seed in range(400)])
    # Of 400 draws the deviation is within 7 · 1/√800 = 25 % of its own but for 1e-11.
    assert draws.std().item() == pytest.approx(rule.noise / 1000, rel=0.25)


def test_noise_on_scores_is_in_none_of_the_callers_streams() -> None:
    draws: set[float] = set()
    noise = study()._plan.score_noise / 1000

    def score(trial: StudyTrial) -> float:
        for generator in (trial.generator, torch.default_generator, torch.Generator().manual_seed(trial.seed)):
            for size in (1, 1, 50):  # torch draws few and many in different ways
                draws.update(torch.randn(size, generator=generator, dtype=torch.float64).tolist())
        return 0.5

    result = finished(study(), score)
    assert result.score is not None
    assert min(abs((result.score - 0.5) / noise - draw) for draw in draws) > 1e-9


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_a_trial_without_a_score_cannot_win(bad: Any) -> None:
    seen: list[StudyTrial] = []

    def score(trial: StudyTrial) -> Any:
        return 0.0 if len(seen) == 2 else bad

    result = finished(study(), score, seen)
    assert len(seen) > 2
    assert result.params == seen[1].params
    with pytest.warns(UserWarning, match=r"No model: .*rehearsal"):
        nobody = finished(study(), lambda _: bad)
    assert (nobody.model, nobody.params, nobody.score) == (None, None, None)
    assert nobody.record.released == {"winner": None}
    assert nobody.epsilon == result.epsilon


def test_a_model_is_kept_as_it_was_when_its_trial_was_over() -> None:
    of, shared = study(), {"rate": 0.0}
    for trial in of:
        shared["rate"] = trial.params["rate"]  # a loop that trains one module again and again
        of.tell(trial, trial.params["rate"], shared)
    result = of.result()
    assert result.params is not None
    assert result.model == {"rate": result.params["rate"]}


# ------------------------------------------------------------------------------------------------------- misuse


def first(of: Study) -> tuple[Iterator[StudyTrial], StudyTrial]:
    loop = iter(of)
    return loop, next(loop)


def test_a_trial_is_told_once_to_its_own_study() -> None:
    of, other = study(), study()
    loop, trial = first(of)
    with pytest.raises(InvalidValueError, match="to its own study"):
        other.tell(trial, 0.5)
    of.tell(trial, 0.5)
    with pytest.raises(InvalidValueError, match="each trial is told once"):
        of.tell(trial, 0.9)
    second = next(loop)
    with pytest.raises(InvalidValueError, match="each trial is told once"):
        of.tell(trial, 0.9)
    of.tell(second, 0.5)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_nothing_is_copied(duplicate: Any) -> None:
    of = study()
    _loop, trial = first(of)
    for thing in (of, trial):
        with pytest.raises(InvalidValueError, match="no copy"):
            duplicate(thing)


def test_another_thread_cannot_tell_or_go_on() -> None:
    of = study()
    loop, trial = first(of)
    errors: list[str] = []

    def meddle(action: Callable[[], Any]) -> None:
        try:
            action()
        except InvalidValueError as error:
            errors.append(str(error))

    for action in (lambda: of.tell(trial, 0.5), lambda: next(loop)):
        thread = threading.Thread(target=meddle, args=(action,))
        thread.start()
        thread.join()
    assert len(errors) == 2
    assert all("the process and the thread of the loop" in error for error in errors)


def test_a_forked_process_cannot_tell() -> None:
    of = study()
    _loop, trial = first(of)
    child = os.fork()
    if child == 0:
        try:
            of.tell(trial, 0.5)
        except InvalidValueError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    of.tell(trial, 0.5)


def test_there_is_no_result_before_the_end() -> None:
    of = study()
    with pytest.raises(InvalidValueError, match="The search is not over"):
        of.result()
    for trial in of:
        of.tell(trial, 0.9, "chosen by hand")
        with pytest.raises(InvalidValueError, match="The search is not over"):
            of.result()
        break
    with pytest.raises(InvalidValueError, match="The search is not over"):
        of.result()
    with pytest.raises(InvalidValueError, match="one loop over a study"):
        iter(of)
    with pytest.raises(InvalidValueError, match="the trial under way"):
        of.tell(trial, 0.9)
    assert finished(study(), lambda _: 0.5).score is not None  # the process is free for another


def test_one_study_is_under_way_in_a_process() -> None:
    _loop, _trial = first(study())
    with pytest.raises(InvalidValueError, match="Another study is under way"):
        next(iter(study()))


@pytest.mark.parametrize("count", [list, lambda of: [*tqdm(of)], lambda of: [*track(of)]])
def test_nobody_counts_the_trials(count: Any) -> None:
    with pytest.raises(InvalidValueError, match="their number is secret"):
        count(study())


def test_training_that_seeds_torch_is_refused() -> None:
    of = study()
    loop, trial = first(of)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # initial weights may be known
    torch.manual_seed(trial.seed)
    of.tell(trial, 0.5)
    trial = next(loop)
    torch.manual_seed(trial.seed % 2**32)
    of.tell(trial, 0.5)
    trial = next(loop)
    torch.manual_seed(42)
    with pytest.raises(
        InvalidValueError, match=r"seeded torch by a seed of its own.*or seed with trial\.seed.*fork_rng"
    ):
        of.tell(trial, 0.5)


@pytest.mark.parametrize("method", ["hyfreedp", "subsampled_tuning"])
def test_other_methods_are_refused_with_those_that_serve(method: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"Expected .*trials.*, got {method}"):
        study(method)


@pytest.mark.parametrize(
    ("strange", "message"),
    [
        (lambda _: bench.events.gaussian(3.0), "falls as the noise multiplier grows"),
        (lambda noise: bench.events.gaussian(abs(noise - 2) + 0.5), "falls as the noise multiplier grows"),
        (lambda noise: noise, "to return a privacy event"),
        (lambda noise: bench.events.held_out(event(noise), event(noise), 0.1), "training alone"),
    ],
)
def test_an_event_that_is_no_function_of_its_noise_is_refused(strange: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Study(SPACE, budget=BUDGET, event=strange, held_out=0.1, n_scored=10, results_dir=None)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"batch_size": [1, 2]}, "leave the event of a training as it is"),
        ({"epochs:sgd": FloatDistribution(1, 2)}, "leave the event of a training as it is"),
    ],
)
@pytest.mark.filterwarnings("ignore:Choices for a categorical")
def test_strange_spaces_are_refused(space: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Study(space, budget=BUDGET, event=event, held_out=0.1, n_scored=10, results_dir=None)


@pytest.mark.parametrize("score", ["0.9", [[0.5, 0.5]], object()])
def test_scores_of_another_form_are_refused(score: Any) -> None:
    of = study()
    _loop, trial = first(of)
    with pytest.raises(InvalidValueError, match="Expected the scores of the held-out records"):
        of.tell(trial, score)
    of.tell(trial, 0.5)  # a mistake in the call ends no trial


def test_a_model_that_cannot_be_written_is_refused_whoever_wins() -> None:
    of = study()
    loop, trial = first(of)
    of.tell(trial, 1.0)
    loser = next(loop)
    with pytest.raises(InvalidValueError, match=r"TypeError for a lock.*state_dict"):
        of.tell(loser, 0.0, threading.Lock())


def test_weights_that_an_earlier_trial_trained_are_refused() -> None:
    """A second trial would go on from the weights of the first."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    of = study()
    loop, trial = first(of)
    of.tell(trial, 0.5, model)
    following = next(loop)
    for shared in (model, model[0], {"net": torch.nn.Sequential(torch.nn.ReLU(), model)}):
        with pytest.raises(InvalidValueError, match="got the weights of an earlier one"):
            of.tell(following, 0.5, shared)
    with pytest.raises(InvalidValueError, match="got the weights of an earlier one"):
        of.tell(of.rehearsal(), 0.5, model)
    of.tell(following, 0.5, copy.deepcopy(model))
    loop.close()  # type: ignore[attr-defined]
    frozen = model.requires_grad_(False)
    for trial in (of := study()):
        of.tell(trial, 0.5, torch.nn.Sequential(frozen, torch.nn.Linear(2, 2)))
    assert isinstance(of.result().model, torch.nn.Sequential)


# ---------------------------------------------------------------------------------------------------- the hidden


def test_trials_print_and_log_nothing(capfd: pytest.CaptureFixture[str], caplog: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        of = study()
        for trial in of:
            print("printed")  # noqa: T201
            print("complained", file=sys.stderr)  # noqa: T201
            os.write(1, b"from C\n")
            subprocess.run([sys.executable, "-c", "print('child')"], check=True)
            warnings.warn("warned", stacklevel=1)
            logging.getLogger("training").log(99, "logged")
            of.tell(trial, 0.5)
        print("after")  # noqa: T201
    out, err = capfd.readouterr()
    assert "after" in out
    assert not [text for text in ("printed", "from C", "child", "complained") if text in out + err]
    assert not any(record.message == "logged" for record in caplog.records)
    logging.getLogger("training").error("after")
    assert caplog.records[-1].message == "after"


BUFFERED = """
import sys, warnings
warnings.simplefilter("ignore")
from tests.external.test_study import study
print("before")
of = study()
for trial in of:
    sys.__stdout__.write("secret")
    print("secret")
    of.tell(trial, 0.5, "model")
print("after")
"""


def test_nothing_of_a_trial_waits_in_a_buffer() -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", BUFFERED]
    root = Path(__file__).parents[2]
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=root)
    assert process.stdout.split() == ["before", "after"]


@pytest.mark.parametrize("leave", ["raise", "end", "close"])
def test_the_state_of_the_process_is_put_back(leave: str, capfd: pytest.CaptureFixture[str]) -> None:
    stdout, threads, level = sys.stdout, torch.get_num_threads(), logging.root.manager.disable
    torch.manual_seed(5)
    random.seed(5)
    numpy.random.seed(5)
    of = study()
    loop = iter(of)
    try:
        for trial in loop:
            torch.set_num_threads(threads + 1)
            torch.set_default_dtype(torch.float64)
            torch.rand(3), random.random(), numpy.random.rand()
            os.environ["STUDY_TEST"] = "1"
            if leave == "raise":
                raise ValueError
            of.tell(trial, 0.5)
            if leave == "close":
                break
    except ValueError:
        pass
    loop.close()  # type: ignore[attr-defined]
    assert (sys.stdout, torch.get_num_threads(), logging.root.manager.disable) == (stdout, threads, level)
    assert torch.get_default_dtype() == torch.float32
    assert "STUDY_TEST" not in os.environ
    draws = torch.rand(1).item(), random.random(), numpy.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    numpy.random.seed(5)
    assert draws == (torch.rand(1).item(), random.random(), numpy.random.rand())
    print("visible")  # noqa: T201
    assert "visible" in capfd.readouterr().out


def test_global_generators_start_anew_in_each_trial() -> None:
    draws: list[tuple[float, ...]] = []

    def score(_: StudyTrial) -> float:
        draws.append((torch.rand(1).item(), random.random(), numpy.random.rand()))
        return 0.5

    finished(study(), score)
    assert all(len(set(column)) == len(column) > 2 for column in zip(*draws, strict=True))
    again = [*draws]
    draws.clear()
    finished(study(), score)
    assert draws == again


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_generators_of_gpus_start_anew_in_each_trial() -> None:
    before = torch.cuda.get_rng_state()

    def drawn() -> list[float]:
        draws = []
        of = study()
        for trial in of:
            draws.append(torch.randn(1, device="cuda").item())
            of.tell(trial, torch.full((100,), 0.5, device="cuda"), torch.nn.Linear(2, 2).cuda())
        assert of.result().model.weight.is_cuda
        return draws

    draws = drawn()
    assert len(set(draws)) == len(draws) > 2
    assert drawn() == draws
    assert torch.equal(torch.cuda.get_rng_state(), before)
    of = study()
    _loop, trial = first(of)
    torch.cuda.manual_seed(42)
    with pytest.raises(InvalidValueError, match="seeded torch"):
        of.tell(trial, 0.5)


# ------------------------------------------------------------------------------------------ the search's own draws


def test_draws_of_trials_are_independent_and_repeatable() -> None:
    def drawn(seed: int | None) -> list[Any]:
        seen: list[Any] = []
        of = study(seed=seed)
        for trial in of:
            seen.append((trial.params, trial.seed, torch.rand(1, generator=trial.generator).item()))
            of.tell(trial, 0.5)
        return seen

    assert drawn(LONG) == drawn(LONG)
    values = [value for seed in SEEDS for value in drawn(seed)]
    assert len({seed for _, seed, _ in values}) == len({draw for _, _, draw in values}) == len(values) > 10
    assert len({params["rate"] for params, _, _ in values}) == len(values)
    unseeded = drawn(None)
    assert unseeded[0] != drawn(None)[0]


def test_a_threshold_ends_the_search_with_the_first_trial_that_reaches_it() -> None:
    method = bench.make_method("liu_talwar", {"threshold": 0.7, "mean": 20})
    seen: list[StudyTrial] = []
    result = finished(study(method, seed=1), lambda _: 0.9 if len(seen) == 2 else 0.3, seen)
    assert len(seen) == 2
    assert result.params == seen[1].params
    nobody = finished(study(method, seed=1), lambda _: 0.3)
    assert nobody.model is None


def test_a_final_run_trains_with_the_winners_hyperparameters() -> None:
    seen: list[StudyTrial] = []

    def score(trial: StudyTrial) -> Any:
        if trial.is_final:
            return -1e9  # ignored
        return [trial.params["rate"]] * 1000

    result = finished(study("dp_hyper"), score, seen)
    *trials, final = seen
    best = max(trials, key=lambda trial: trial.params["rate"])
    assert final.is_final
    assert not any(trial.is_final for trial in trials)
    assert final.params == best.params == result.params
    assert len({trial.seed for trial in seen}) == len({trial.generator.get_state().numpy().tobytes() for trial in seen})
    assert len({trial.seed for trial in seen}) == len(seen)
    assert final.noise_multiplier < trials[0].noise_multiplier
    assert result.model == {"rate": best.params["rate"]}
    assert result.score == pytest.approx(best.params["rate"], abs=0.1)


def test_a_final_run_that_fails_leaves_hyperparameters_and_no_model() -> None:
    of = study("dp_hyper")
    loop = iter(of)
    trial = next(loop)
    while not trial.is_final:
        of.tell(trial, 0.5, "model")
        trial = next(loop)
    of.tell(trial, None)
    with pytest.warns(UserWarning, match="the final run failed"):
        next(loop, None)
    assert of.result().model is None
    assert of.result().params == trial.params


# ----------------------------------------------------------------------------------------------------- rehearsals


class Unreadable:
    """Written by pickle, and never read."""

    def __reduce__(self) -> Any:
        return int.__truediv__, (1, 0)


def test_a_rehearsal_counts_nothing_and_shows_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = study(results_dir=tmp_path, seed=None)
    trial = of.rehearsal()
    assert set(trial.params) == {"rate", "kind"}
    assert trial.noise_multiplier == of._plan.noise_multiplier
    print("visible")  # noqa: T201
    for bad in (87.3, [0.5, float("nan")], -0.1):
        with pytest.raises(InvalidValueError, match=r"Expected scores from 0 to 1.*percentages"):
            of.tell(of.rehearsal(), bad)
    with pytest.raises(InvalidValueError, match="got a list of one"):
        of.tell(of.rehearsal(), [0.8])
    with pytest.raises(InvalidValueError, match="state_dict"):
        of.tell(of.rehearsal(), 0.5, threading.Lock())
    with pytest.raises(InvalidValueError, match="pickle can read again: ZeroDivisionError"):
        of.tell(of.rehearsal(), 0.5, Unreadable())
    of.tell(trial, 0.5, "model")
    with pytest.raises(InvalidValueError, match="told once"):
        of.tell(trial, 0.5, "model")
    seeded = of.rehearsal()
    with torch.random.fork_rng():
        torch.manual_seed(42)
        with pytest.raises(InvalidValueError, match="seeded torch"):
            of.tell(seeded, 0.5, "model")
    assert "visible" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert finished(of, lambda _: 0.5).path is not None


# --------------------------------------------------------------------------------------------------------- select


def selected(train: Callable[[StudyTrial], Any], **changes: Any) -> StudyResult:
    settings = {"held_out": 0.1, "n_scored": 1000, "results_dir": None, **changes}
    with patch("dphpo_bench.external.declared.secrets.randbits", lambda _: LONG):
        return bench.select(train, SPACE, budget=BUDGET, event=event, **settings)


def test_select_is_the_loop() -> None:
    result = selected(lambda trial: (trial.params, trial.params["rate"] * (trial.noise_multiplier > 0)))
    same = finished(study(), lambda trial: trial.params["rate"])
    assert result.params == same.params == result.model
    assert result.score == same.score
    assert result.event == same.event


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_trial_that_raises_has_lost_and_counts(error: Any, capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[StudyTrial] = []

    def train(trial: StudyTrial) -> tuple[str, float]:
        calls.append(trial)
        print("secret")  # noqa: T201
        if len(calls) != 2:
            raise error("secret")
        return f"model at {trial.noise_multiplier}", 0.0

    result = selected(train)
    reference: list[StudyTrial] = []
    finished(study(), lambda _: 0.5, reference)
    assert len(calls) == len(reference)
    assert result.params == calls[1].params
    assert "secret" not in "".join(capfd.readouterr())


def test_ctrl_c_ends_a_selection() -> None:
    def train(_: StudyTrial) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        selected(train)
    assert selected(lambda trial: (trial.noise_multiplier, 0.5)).score is not None


def test_training_that_has_not_asked_for_its_noise_or_returns_no_pair_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"Expected train\(trial\) to return model, score"):
        selected(lambda _: ("model", 0.5, 1))
    with pytest.raises(InvalidValueError, match=r"training with trial\.noise_multiplier, which ε is computed for"):
        selected(lambda _: (None, 0.5))


# --------------------------------------------------------------------------------------- promises of the caller's word


@pytest.mark.parametrize("train", [lambda: None, lambda _trial, _rate: None, lambda *, _trial: None])
def test_training_that_does_not_take_a_trial_alone_is_refused_and_uncounted(train: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"budget": BUDGET, "event": event, "held_out": 0.1, "n_scored": 10, "name": "mine"}
    with pytest.raises(InvalidValueError, match="Expected a function of the trial alone; called so, it raises"):
        bench.select(train, SPACE, **settings, results_dir=tmp_path)
    with pytest.raises(InvalidValueError, match="Expected a function of the trial alone; called so, it raises"):
        bench.optuna.PrivateStudy(**settings, results_dir=tmp_path).optimize(train)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_decorated_training_takes_a_trial() -> None:
    @functools.wraps(lambda _trial, _rate: None)
    def train(trial: StudyTrial) -> tuple[None, float]:
        return None, trial.params["rate"] + 0 * trial.noise_multiplier

    result = bench.select(train, SPACE, budget=BUDGET, event=event, held_out=0.1, n_scored=10)
    assert result.record.status == "ok"


def test_a_run_that_no_account_counts_ends_the_search() -> None:
    """Its release is beside the event of the search; with a folder the account refuses it."""

    class Private(TinyTask):
        name, public = "private", False

    def run(_: StudyTrial) -> Any:
        return bench.run("dp_sgd", Private(), bench.PrivacyBudget(1.0, 1e-5), results_dir=None, seed=0)

    def tune(_: StudyTrial) -> Any:
        tuner = tuner_of(network())
        tuner.backward()

    for train in (run, tune):
        with pytest.raises(AccountError, match="without runs, tuners or callbacks"):
            selected(train)


FIXED = "Training drew nothing from"


def descent(trial: StudyTrial, steps: int, noise: Callable[[torch.Tensor], Any]) -> tuple[Any, float]:
    """A network whose initial weights move torch's generator, and some steps of noise."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.Embedding(30, 7), torch.nn.Linear(2, 2))
    with torch.no_grad():
        for _ in range(steps):
            for weight in model.parameters():
                weight += trial.noise_multiplier * noise(weight)
    return model, 0.5


@pytest.mark.parametrize("network_of", [False, True])
def test_noise_of_a_fixed_seed_is_warned_of(network_of: bool) -> None:
    """Also where initial weights move torch's generator."""

    def fixed(trial: StudyTrial) -> tuple[Any, float]:
        source = torch.Generator().manual_seed(42)
        if network_of:
            return descent(trial, 3, lambda weight: torch.randn(weight.shape, generator=source))
        return torch.randn(3, generator=source) * trial.noise_multiplier, 0.5

    with pytest.warns(UserWarning, match=FIXED):
        selected(fixed)
    with pytest.warns(UserWarning, match=FIXED):
        (of := study()).tell(trial := of.rehearsal(), 0.5, fixed(trial)[0])


@pytest.mark.parametrize(
    "draw",
    [
        lambda trial: torch.randn(1, generator=trial.generator),
        lambda _: torch.randn(1),
        lambda trial: numpy.random.default_rng(trial.seed).normal(),
        lambda trial: descent(trial, 1, torch.randn_like)[0],
        lambda trial: descent(trial, 1, lambda weight: torch.randn(weight.shape, generator=trial.generator))[0],
    ],
)
def test_draws_of_a_trial_are_not_warned_of(draw: Callable[[StudyTrial], Any], recwarn: Any) -> None:
    selected(lambda trial: (draw(trial), 0.5 * bool(trial.noise_multiplier)))
    assert not [each for each in recwarn if FIXED in str(each.message)]


class Counting(torch.nn.Linear):
    """A layer with numbers that its class sets."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.temperature, self.sizes = 0.5, [1, 2]


BESIDE: dict[str, Callable[[torch.nn.Module], Any]] = {
    "a score": lambda model: setattr(model, "accuracy", 0.93),
    "scores": lambda model: setattr(model, "accuracy", {"valid": [torch.tensor(0.93)]}),
    "of a weight": lambda model: setattr(model[1].weight, "accuracy", 412),  # type: ignore[index,union-attr]
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_number_beside_the_weights_of_a_winner_is_warned_of(name: str) -> None:
    def scored(trial: StudyTrial) -> tuple[Any, float]:
        model = torch.nn.Sequential(Counting(), torch.nn.Linear(2, 2), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(2))
        BESIDE[name](model)
        return {"model": model, "rate": trial.params["rate"] * trial.noise_multiplier}, 0.5

    with pytest.warns(UserWarning, match=r"The model holds accuracy, which") as caught:
        selected(scored)
    assert len([each for each in caught if "The model holds" in str(each.message)]) == 1
    (of := study()).tell(trial := of.rehearsal(), 0.5, torch.nn.Sequential(Counting(), torch.nn.LSTM(2, 2)))
    assert trial.params


@pytest.mark.parametrize("form", ["select", "optimize"])
def test_an_error_about_a_trial_that_failed_does_not_show_why_it_failed(form: str, tmp_path: Path) -> None:
    def train(trial: Any) -> Any:
        assert trial.noise_multiplier
        torch.manual_seed(7)  # which is refused once the trial is told
        raise ValueError("record 42 says so")

    options: dict[str, Any] = {"budget": BUDGET, "event": event, "held_out": 0.1, "n_scored": 500}
    options |= {"name": "hidden", "results_dir": tmp_path}
    search = {
        "select": lambda: bench.select(train, {"lr": [1, 2]}, **options),
        "optimize": lambda: bench.optuna.PrivateStudy(**options).optimize(train),
    }
    with pytest.raises(bench.errors.DphpoBenchError, match="seed") as caught:
        search[form]()
    assert "record 42" not in "".join(traceback.format_exception(caught.value))
