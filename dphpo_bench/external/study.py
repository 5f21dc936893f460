"""Private selection around training code of the caller: ask for a trial, train, tell its score."""

import inspect
import json
import math
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from numbers import Number, Real
from pathlib import Path
from typing import Any, NoReturn
from weakref import ref

import numpy
from dp_accounting.dp_event import DpEvent
from optuna.distributions import distribution_to_json
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dphpo_bench.base.checks import inside, typed, whole
from dphpo_bench.base.displays import Display
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import shown
from dphpo_bench.contract import registry
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.declared import DeclaredRun, Finished
from dphpo_bench.external.memory import Memory, Offer, read_back, refuse_trained, written
from dphpo_bench.external.procedure import EventOf, Procedure, ScoreRule
from dphpo_bench.external.trials import MisuseError, OneOfAKind, StudyTrial, checked_space, hidden, networks_in
from dphpo_bench.harness.account import accounts_closed
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.session.access import draw_uniform
from dphpo_bench.training.randomness import Streams

_under_way = threading.Lock()


@dataclass(frozen=True, repr=False)
class StudyResult(Finished):
    """The end of a study: all that may be published of it; record, path and account as those of declared work.

    Attributes:
        model: of the trial that won, or of the final run; None if there is none.
        params: hyperparameters of that model; None without a winner.
        score: noisy score of the trial that won; ε covers it. None without a winner.
        epsilon: of the whole search, at the δ of the budget.
        event: of the whole search.
    """

    model: Any
    params: Candidate | None
    score: float | None
    epsilon: float
    event: DpEvent

    def display(self) -> Display:
        """Return the record in short, with the winner."""
        winner = {"score": self.score, "hyperparameters": self.params}
        return self.record.display(**winner, record=self.path, account=self.account)


class Study(OneOfAKind):
    """A private selection among trials that the caller trains.

        >>> study = bench.search.Study(space, budget=budget, event=event, held_out=0.1, n_scored=500)  # doctest: +SKIP
        >>> for trial in study:  # doctest: +SKIP
        ...     model = train(trial.params["lr"], trial.noise_multiplier, trial.generator)
        ...     study.tell(trial, correct_predictions(model), model)
        >>> study.result().model  # doctest: +SKIP

    The study draws the number of trials in secret, and calibrates the noise of training and scores so that all of it
    costs the budget. It is in the account before the first trial. After a kill, the next process goes on with the same
    draws; the trial that was under way has lost.

    The caller answers for five things. Space, event and options were chosen without these records. Training with
    `trial.noise_multiplier` costs `event` of it, and starts anew in each trial. The model holds nothing else that was
    computed of records, such as a raw score or a number of steps that raw scores chose. Each record is in one part,
    training or held-out, by a rule that reads that record alone, such as a coin tossed before the first trial. Nothing
    but what the study returns is published.

    Hidden while a trial runs: what it prints and logs. Not hidden: how long the whole takes, files, objects that
    training changes, what it sends elsewhere, a progress bar around the loop, displays of a notebook.

    Args:
        space: hyperparameter → Optuna distribution, or a list of choices; None: trials draw their own by `draw`.
        budget: the (ε, δ) of the whole search.
        event: of one training, as a function of its noise multiplier, such as
            `lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise)`.
        method: papernot_steinke, liu_talwar or dp_hyper, by name or from `bench.make_method`.
        held_out: expected share of the records that only score, and never train; None: scores may be of trained
            records, which costs both.
        n_scored: public number by which the sum of the records' scores is divided. If single numbers are reported,
            such as means, 1 / `n_scored` bounds how far one record moves them.
        name: of the study, for records and accounts. A study that was interrupted goes on under its name.
        results_dir: folder of the record, the account and the journal; None: nothing is written or counted.
        account: which account of the folder counts it; None: "main".
        unit: whose presence ε is about, as `event` counts it. Units of several records have one score each.

    Raises:
        InvalidValueError: if an argument is out of range, or the method is no private selection.
        BudgetTooSmallError: if no noise within reach meets the budget.
    """

    @typed
    def __init__(
        self,
        space: Mapping[str, Any] | None,
        *,
        budget: PrivacyBudget,
        event: EventOf,
        method: str | Method = "papernot_steinke",
        held_out: float | None = None,
        n_scored: int,
        name: str = "study",
        results_dir: Path | str | None = "results",
        account: str | None = None,
        unit: str = RECORD,
    ) -> None:
        self._space = {} if space is None else checked_space(space)
        n_scored = whole("n_scored", n_scored, low=1, high=10**12)
        share = None if held_out is None else inside("held_out", held_out)
        self._plan = plan = Procedure.calibrated(registry.method_of(method), event, budget, share)
        self._rule = ScoreRule(plan.score_noise, n_scored)
        self._run = DeclaredRun(
            plan.event,
            budget,
            name=name,
            results_dir=results_dir,
            account=account,
            unit=unit,
            method=plan.method.name,
            what="selection",
            parameters={
                **plan.method.parameters,
                "space": {name: json.loads(distribution_to_json(values)) for name, values in self._space.items()},
                "held_out": share,
                "n_scored": n_scored,
            },
            training_event=plan.training_event,
            accountant=plan.method.accountant,
            goes_on=True,
        )
        self._rehearsals: list[StudyTrial] = []
        self._place: tuple[int, int] | None = None  # process and thread of the loop
        self._open: StudyTrial | None = None  # the trial under way
        self._streams = Streams(0)  # of that trial
        self._refusals: Sequence[DphpoBenchError] = ()  # in that trial
        self._offer: Offer | None = None  # of the latest trial that was told
        self._trained: dict[int, ref[Tensor]] = {}  # weights of trials that are over
        self._result: StudyResult | None = None

    @property
    def event(self) -> DpEvent:
        """The event of the whole search."""
        return self._run.event

    @property
    def epsilon(self) -> float:
        """The ε of the whole search, at the δ of the budget."""
        return self._run.epsilon.epsilon

    def rehearsal(self) -> StudyTrial:
        """Return a trial outside of the selection, for made-up records: it counts nothing, and hides nothing.

        In the selection, training that raises is a trial that has lost, and nobody sees the error. `tell` checks a
        rehearsal's score and model, and drops both.
        """
        streams = Streams(secrets.randbits(128)).within("rehearsal")
        trial = self._trial(streams)
        trial.begin()
        self._rehearsals.append(trial)
        return trial

    def _trial(self, streams: Streams) -> StudyTrial:
        params = search.draw(self._space, streams.derive("candidate"))
        return StudyTrial(params, self._plan.noise_multiplier, streams)

    def __iter__(self) -> Iterator[StudyTrial]:
        """Yield the trials, one after the other.

        Raises:
            InvalidValueError: if there was a loop over this study before, or another study is under way.
            AccountError: if the cap of the account does not cover the search; nothing was trained.
            RecordError: if the folder of results cannot be written, or this name is under way elsewhere.
        """
        if self._place is not None:
            raise InvalidValueError(
                "Expected one loop over a study. One that was left goes on in a new Study of its name and results_dir."
            )
        self._place = _place()
        return self._trials()

    def __len__(self) -> NoReturn:
        """Refuse to count the trials, as a progress bar around the loop would."""
        raise InvalidValueError(
            "Expected nobody to count the trials, as a progress bar or a list does: their number is secret. Write for "
            "trial in study."
        )

    def tell(self, trial: StudyTrial, score: Any, model: Any = None) -> None:
        """Report how a trial went. The study adds noise to the score, and shows neither score to anybody.

        Args:
            trial: the trial under way.
            score: larger is better. Scores of the held-out records, a list or 1-D array, each held to [0, 1], NaN and
                infinity counting 0; or a single number from 0 to 1, such as their mean. None, or a single number that
                is not finite: the trial failed and cannot win.
            model: whatever `pickle` can write. The study keeps a copy as it is now.

        Raises:
            InvalidValueError: if this trial is not under way, or score or model have another form.
        """
        is_rehearsal = trial in self._rehearsals
        if not is_rehearsal and (trial is not self._open or self._place != _place()):
            raise InvalidValueError(
                "Expected the trial under way, in the process and the thread of the loop: each trial is told once, to "
                "its own study, before the next begins."
            )
        if not is_rehearsal and self._refusals:
            raise self._refusals[0]
        trial.check_use()
        refuse_trained(model, self._trained)
        if is_rehearsal:
            self._rehearsals.remove(trial)
            if score is not None:
                self._rule.check_range(score)
            _warn_of_training(read_back(written(model)), has_drawn=trial.has_drawn(model))
            return
        self._offer = None
        if score is not None or (trial.is_final and model is not None):
            copy = written(model)  # of losers too: that one could not be copied must not tell which won
            noisy = 0.0 if trial.is_final else self._rule.noisy(score, self._streams.generator("score"))
            self._offer = None if noisy is None else Offer(noisy, trial.params, copy, trial.has_drawn(model))
        self._open = None

    def result(self) -> StudyResult:
        """Return the winner, once all trials are over.

        Raises:
            InvalidValueError: if they are not: choosing among some of them is not what ε is computed for.
        """
        if self._result is None:
            raise InvalidValueError(
                "The search is not over. Go through all of its trials, for trial in study, and tell the score of each."
            )
        return self._result

    def _trials(self) -> Iterator[StudyTrial]:
        with _one_at_a_time(), self._run as run:
            memory = Memory(run)
            yield from self._search(memory, run.streams.within("selection"))
            best = memory.best
            params, content = (best.params, best.model) if best else (None, None)
            if self._plan.final_noise is not None:
                params = yield from self._final(memory, self._plan.final_noise)
                content = memory.final
            model = None if content is None else read_back(content)  # before anything is removed
            score = None if best is None else best.score
            released: dict[str, Any] = {"winner": None} if score is None else {"score": score}
            end = run.finish(released={**released, **(params or {})})
        self._result = StudyResult(
            **vars(end), model=model, params=params, score=score, epsilon=self.epsilon, event=self.event
        )
        _warn_of_end(self._result, has_model=content is not None)
        _warn_of_training(model, has_drawn=best is None or best.has_drawn)

    def _search(self, memory: Memory, streams: Streams) -> Iterator[StudyTrial]:
        selection = self._plan.selection
        least = -math.inf if selection.threshold is None else selection.threshold
        for index in range(selection.runs.sample(draw_uniform(streams.source("number of runs")))):
            if selection.threshold is not None and memory.best:
                break
            of_trial = streams.within("trial", str(index))
            yield from self._shown(str(index), self._trial(of_trial), of_trial, memory)
            if self._offer and self._offer.score >= least:
                memory.offer(self._offer)
            memory.end(str(index))

    def _final(self, memory: Memory, noise: float) -> Generator[StudyTrial, None, Candidate]:
        """Yield the final run, with the winner's hyperparameters; without a winner, with a blind draw."""
        streams, best = self._run.streams.within("final run"), memory.best
        params = search.draw(self._space, streams.derive("candidate")) if best is None else best.params
        yield from self._shown("final", StudyTrial(params, noise, streams, is_final=True), streams, memory)
        if self._offer:
            memory.final = self._offer.model
            memory.save()
        memory.end("final")
        return params

    def _shown(self, key: str, trial: StudyTrial, streams: Streams, memory: Memory) -> Iterator[StudyTrial]:
        """Yield a trial, hidden from everybody but the caller's code, unless an earlier process began it."""
        self._offer = None
        if not memory.begins(key):
            return
        self._open, self._streams = trial, streams
        try:
            with hidden(streams), accounts_closed() as self._refusals:
                trial.begin()
                yield trial
            if self._open is not None or self._place != _place():
                raise InvalidValueError(
                    "Expected study.tell before the next trial, in the process and the thread of the loop; "
                    "study.tell(trial, None) for a trial that failed. Trials run one after the other."
                )
        finally:
            self._open = None


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold the process: outputs and global generators are its own, so one study at a time may change them."""
    if not _under_way.acquire(blocking=False):
        raise InvalidValueError(
            "Another study is under way in this process, and a trial asks no other account. End its loop first; or use "
            "another process."
        )
    try:
        yield
    finally:
        _under_way.release()


def _place() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def _warn_of_end(result: StudyResult, *, has_model: bool) -> None:
    if not has_model:
        warnings.warn(
            "No model: no trial had a score, or the final run failed. The budget is spent all the same. Before "
            "another study, see with study.rehearsal() and made-up records what training raises.",
            stacklevel=3,
        )
    elif result.score is not None and not 0 < result.score < 1:
        warnings.warn(
            f"The winner's noisy score is {result.score:.4g}. Scores are held to [0, 1], and sums divided by n_scored: "
            "if yours are percentages or losses, all trials count the same. study.rehearsal() and made-up records "
            "show it.",
            stacklevel=3,
        )


def _warn_of_training(model: Any, *, has_drawn: bool) -> None:
    """Warn of training whose noise may be known, and of numbers beside the weights of its model.

    Args:
        model: of the winner, or of a rehearsal.
        has_drawn: whether training drew from generators that its trial started.
    """
    if not has_drawn:
        warnings.warn(
            "Training drew nothing from trial.generator, and from global generators no more than initial weights need. "
            "Noise from a seed of your own is the same in every trial, and whoever knows the seed can subtract it. "
            "Draw batches and noise from trial.generator.",
            stacklevel=3,
        )
    if names := sorted({*_numbers_beside(model)}):
        warnings.warn(
            f"The model holds {shown(', '.join(names))}, which no code of its class mentions. If that was measured on "
            "private records, it is a release that no ε covers: remove it before anybody sees the model.",
            stacklevel=3,
        )


def _numbers_beside(model: Any) -> Iterator[str]:
    """Yield names of numbers on networks that code outside of their class has set; names with _ are a library's."""
    for network in networks_in(model):
        for part in (*network.modules(), *network.parameters()):
            kind: Any = type(part)
            for name in vars(part).keys() - _mentioned(kind):
                is_measured = any(
                    isinstance(value, Number | numpy.ndarray | Tensor) and not isinstance(value, bool)
                    for value in tree_leaves(vars(part)[name])
                )
                if is_measured and not name.startswith("_"):
                    yield name


@cache
def _mentioned(kind: type) -> frozenset[str]:
    """Return the names that the code of a class mentions, those that its code sets among them."""
    functions = (inspect.unwrap(getattr(each, "fget", each)) for base in kind.__mro__ for each in vars(base).values())
    return frozenset(name for each in functions if inspect.isfunction(each) for name in each.__code__.co_names)


@typed
def select(
    train: Callable[[StudyTrial], tuple[Any, Any]],
    space: Mapping[str, Any],
    *,
    budget: PrivacyBudget,
    event: EventOf,
    method: str | Method = "papernot_steinke",
    held_out: float | None = None,
    n_scored: int,
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
    for trial, outcome in _attempts(study, train):
        if not (isinstance(outcome, tuple) and len(outcome) == 2):
            raise InvalidValueError(f"Expected train(trial) to return model, score; got a {type(outcome).__name__}.")
        trial.check_noised()
        model, score = outcome
        study.tell(trial, score, model)
    return study.result()


def _attempts(study: Study, train: Callable[[StudyTrial], Any]) -> Iterator[tuple[StudyTrial, Any]]:
    """Yield each trial with what training returned; one that raises has lost, and only a misuse of the trial shows.

    Raises:
        InvalidValueError: if training does not take a trial alone: each of them would have lost.
    """
    try:
        inspect.signature(train, follow_wrapped=False).bind(study)
    except TypeError as error:
        raise InvalidValueError(f"Expected a function of the trial alone; called so, it raises: {error}.") from None
    except ValueError:  # it has no signature
        pass
    for trial in study:
        has_failed = False
        try:
            returned = train(trial)
        except MisuseError:
            raise
        except (Exception, SystemExit):  # not shown, nor what an error of `tell` arose from: it may tell what is hidden
            has_failed = True
        if has_failed:
            study.tell(trial, None)
        else:
            yield trial, returned


class PrivateStudy(Study):
    """A private selection around an Optuna objective, of which the winner alone is released.

        >>> study = bench.optuna.PrivateStudy(
        ...     budget=bench.PrivacyBudget(3, 1e-5),
        ...     event=lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise),
        ...     held_out=0.1,
        ...     n_scored=500,
        ... )  # doctest: +SKIP
        >>> study.optimize(objective)  # doctest: +SKIP
        >>> study.best_params, study.best_value, study.best_model, study.epsilon  # doctest: +SKIP

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
        super().__init__(None, **settings)

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
        for trial, returned in _attempts(self, objective):
            self.tell(trial, *_outcome(returned, trial))

    def rehearse(self, objective: Callable[[StudyTrial, Any], Any], made_up: Any) -> None:
        """Run an objective once outside of the selection, on made-up records: its errors and outputs show.

        Args:
            objective: (trial, records) → score, or (score, model), such as `objective(trial, records=private)`, which
                `optimize` calls without `records`.
            made_up: records of the form of the private ones.

        Raises:
            InvalidValueError: if a score is out of range, or the model cannot be copied.
        """
        trial = self.rehearsal()
        self.tell(trial, *_outcome(objective(trial, made_up), trial))

    @property
    def best_params(self) -> Candidate | None:
        """Hyperparameters of the winner; None if no trial had a score."""
        return self.result().params

    @property
    def best_value(self) -> float | None:
        """The winner's score, with the noise that ε covers; None if no trial had one."""
        return self.result().score

    @property
    def best_model(self) -> Any:
        """The model that the winner returned."""
        return self.result().model


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
