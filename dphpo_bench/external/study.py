"""Private selection around training code of the caller: ask for a trial, train, tell its score."""

import os
import secrets
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dphpo_bench.base.checks import inside, typed
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import shown
from dphpo_bench.contract import registry
from dphpo_bench.contract.method import Method
from dphpo_bench.external.declaration import Declaration
from dphpo_bench.external.declared import DeclaredRun
from dphpo_bench.external.loop import Loop
from dphpo_bench.external.procedure import EventOf, Procedure
from dphpo_bench.external.results import StudyResult, read_back, warn_of, warn_of_training, written
from dphpo_bench.external.scores import ScoreRule
from dphpo_bench.external.spaces import checked_space, space_json
from dphpo_bench.external.trials import OneOfAKind, StudyTrial
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

_under_way = threading.Lock()  # outputs and global generators belong to the process, so one study may change them


class Study(OneOfAKind):
    """A private selection among trials that the caller trains.

        >>> study = bench.search.Study(space, budget=budget, event=event, held_out=0.1, n_scored=500)  # doctest: +SKIP
        >>> for trial in study:  # doctest: +SKIP
        ...     model = train(trial.params["lr"], trial.noise_multiplier, trial.generator)
        ...     study.tell(trial, correct_predictions(model), model)
        >>> study.result().model  # doctest: +SKIP

    The study draws the number of trials in secret before the first, and calibrates the noise of training and scores so
    that all of it costs the budget. It adds noise to each score, keeps the best trial and drops the others. It is in
    the account before the first trial begins. After a kill, the next process goes on with the same draws; the trial
    that was under way has lost.

    The caller answers for five things. Space, event and settings were chosen without a look at these records. Training
    with `trial.noise_multiplier` costs `event` of it, and starts anew in each trial. The model holds nothing else that
    was computed of records: no raw score, and no checkpoint or number of steps that raw scores chose. Each record is in
    one part, training or held-out, by a rule that looks at that record alone, such as a coin for each record tossed
    before the first trial; a shuffled split of fixed sizes (`train_test_split`) is not quite that. Nothing but what the
    study returns is published.

    Hidden while a trial runs: what it prints and logs, warnings on standard error among it. Not hidden: how long the
    whole takes, files that training writes, objects that it changes, and what it sends elsewhere; a progress bar around
    the loop, displays of a notebook, and a list of warnings (docs/pitfalls.md).

    Args:
        space: hyperparameter → Optuna distribution, or a list of choices; None: trials draw their own by `draw`.
        budget: the (ε, δ) of the whole search.
        event: of one training, as a function of its noise multiplier, such as
            `lambda noise: bench.recipes.dp_sgd_event(sample_rate, steps, noise)`.
        method: a private selection: papernot_steinke, liu_talwar, dp_hyper or subsampled_tuning, or one of them from
            `bench.make_method`, with another mean number of trials, say.
        held_out: expected share of the records that only score, and never train; None: scores may be of trained
            records, which costs both.
        n_scored: public number by which the sum of the records' scores is divided. If means are told, the number of
            scored records is never below it, and each record's score is from 0 to 1.
        score_sensitivity: sensitivity of a score of another kind, a single number, under adding or removing one record.
        name: of the study, for records and accounts. A study that was interrupted goes on under its name.
        results_dir: folder of the record, the account and the journal; None: nothing is written or counted.
        account: which account of the folder counts it; None: "main".
        seed: a secret seed; all draws follow it and the run's number, which no other run has. None: a random one.
        unit: whose presence ε is about, as `event` counts it. Units of several records have one score each.
        n_records: N, if it is public, for the record.
        repeatable: whether all randomness of training comes from the trial's draws. A trial that was under way when
            the process died then starts again.
        show_trials: whether outputs of trials stay visible, which is right for public or made-up data only.
        others: none; there is no number of trials to set.

    Raises:
        InvalidValueError: if an argument is out of range, or the method is no private selection.
        BudgetTooSmallError: if no noise within reach meets the budget.
    """

    @typed
    def __init__(
        self,
        space: "Mapping[str, Any] | None",
        *,
        budget: PrivacyBudget,
        event: EventOf,
        method: str | Method = "papernot_steinke",
        held_out: float | None = None,
        n_scored: int | None = None,
        score_sensitivity: float | None = None,
        name: str = "study",
        results_dir: Path | str | None = "results",
        account: str | None = None,
        seed: int | None = None,
        unit: str = RECORD,
        n_records: int | None = None,
        repeatable: bool = False,
        show_trials: bool = False,
        **others: Any,
    ) -> None:
        _refuse_others(others, method := registry.method_of(method))
        self._space = {} if space is None else checked_space(space)
        share = None if held_out is None else inside("held_out", held_out)
        self._plan = plan = Procedure.calibrated(method, event, budget, share)
        is_sampled = plan.selection.sample_rate < 1
        self._rule = ScoreRule(plan.score_noise, n_scored, score_sensitivity, each=is_sampled)
        parameters = {
            **plan.method.parameters,
            "space": space_json(self._space),
            "held_out": share,
            "n_scored": n_scored,
            "score_sensitivity": score_sensitivity,
        }
        self._declaration = Declaration(
            name=name,
            method=plan.method.name,
            what="selection",
            budget=budget,
            event=plan.event,
            training_event=plan.training_event,
            parameters=parameters,
            unit=unit,
            accountant=plan.method.accountant,
            n_records=n_records,
        )
        self._where: dict[str, Any] = {"results_dir": results_dir, "account": account, "seed": seed}
        self._repeatable, self._show = repeatable, show_trials
        self._loop: Loop | None = None
        self._rehearsals: list[StudyTrial] = []
        if show_trials and seed is None:
            warnings.warn(
                "show_trials shows how many trials there are, which ε does not cover: leave it out unless the records "
                "are public or made up.",
                stacklevel=3,
            )

    @property
    def event(self) -> "DpEvent":
        """The event of the whole search."""
        return self._plan.event

    @property
    def epsilon(self) -> float:
        """The ε of the whole search, at the δ of the budget."""
        return self._declaration.epsilon_of(self.event).epsilon

    def rehearsal(self) -> StudyTrial:
        """Return a trial outside of the selection, for made-up records: it counts nothing, and hides nothing.

        In the selection, training that raises is a trial that has lost, and nobody sees the error. `tell` checks a
        rehearsal's score and model, and drops both.
        """
        streams = Streams(secrets.randbits(128)).within("rehearsal")
        trial = self._new_loop().trial(streams, streams)
        trial.begin()
        self._rehearsals.append(trial)
        return trial

    def __iter__(self) -> Iterator[StudyTrial]:
        """Yield the trials, one after the other.

        Raises:
            InvalidValueError: if there was a loop over this study before, or another study is under way.
            AccountError: if the cap of the account does not cover the search; nothing was trained.
            RecordError: if the folder of results cannot be written, or this name is under way elsewhere.
        """
        if self._loop is not None:
            raise InvalidValueError(
                "Expected one loop over a study: its number of trials is drawn once. A study that was left before its "
                "end goes on in a new Study of the same name and results_dir."
            )
        self._loop, self._process = self._new_loop(), os.getpid()
        return self._trials(self._loop)

    def __len__(self) -> NoReturn:
        """Refuse to count the trials, as a progress bar around the loop would."""
        raise InvalidValueError(
            "Expected nobody to count the trials, as a progress bar or a list does: their number is secret, and is not "
            "known before the end. Write for trial in study."
        )

    def tell(self, trial: StudyTrial, score: Any, model: Any = None) -> None:
        """Report how a trial went. The study adds noise to the score, and shows neither score to anybody.

        Args:
            trial: the trial under way.
            score: larger is better. Scores of the held-out records, a list or 1-D array, each held to [0, 1], NaN and
                infinity counting 0; or their mean, if each of them is from 0 to 1; or, with `score_sensitivity`, a
                single number. None, or a single number that is not finite: the trial failed and cannot win.
            model: whatever `pickle` can write. The study keeps a copy as it is now.

        Raises:
            InvalidValueError: if another trial is under way or none, the score has another form, or the model cannot be
                copied.
        """
        if any(trial is each for each in self._rehearsals):
            self._rehearsals = [each for each in self._rehearsals if each is not trial]
            trial.check_use(model)
            if score is not None:
                trial.check_sampled()
                self._rule.check_range(score)
            warn_of_training(read_back(written(model)), has_drawn=trial.has_drawn(model))
            return
        (self._loop or self._new_loop()).tell(trial, score, model)

    def result(self) -> StudyResult:
        """Return the winner, once all trials are over.

        Raises:
            InvalidValueError: if they are not: choosing among some of them is not what ε is computed for.
        """
        if self._loop is None or self._loop.result is None:
            raise InvalidValueError(
                "The search is not over, and which of its trials wins is not yet known: go through all of them, for "
                "trial in study, and tell the score of each."
            )
        return self._loop.result

    def _new_loop(self) -> Loop:
        return Loop(self._plan, self._space, self._rule, self._repeatable, self._show)

    def _trials(self, loop: Loop) -> Iterator[StudyTrial]:
        if not _under_way.acquire(blocking=False):
            raise InvalidValueError(
                "Another study is under way in this process, and a trial asks no other account. End its loop first; or "
                "use another process."
            )
        try:
            run = DeclaredRun.open(self._declaration, **self._where)
            try:
                yield from loop.trials(run)
            finally:
                if os.getpid() == self._process:  # a copy that was forked shares the lock
                    run.release()
        finally:
            _under_way.release()
        warn_of(self.result(), lacks_model=loop.lacks_model, is_share=self._rule.sensitivity is None)
        warn_of_training(self.result().model, has_drawn=loop.has_drawn)


def _refuse_others(others: Mapping[str, Any], method: Method) -> None:
    if not others:
        return
    name = next(iter(others))
    if name in ("n_trials", "trials", "n_jobs", "timeout", "n_runs"):
        raise InvalidValueError(
            f"Expected no {name}: the number of trials is drawn in secret, and they run one after the other. Its mean "
            'is the method\'s: bench.make_method("papernot_steinke", {"mean": 8}).'
        )
    if name in ("direction", "maximize", "minimize"):
        raise InvalidValueError(f"Expected no {name}: the largest score wins. Of a loss from 0 to 1, tell 1 - loss.")
    if name in method.parameters:
        raise InvalidValueError(
            f"Expected no {name} here, since it is the method's: method=bench.make_method({method.name!r}, "
            f"{{{name!r}: {shown(others[name], form=repr)}}})."
        )
    raise InvalidValueError(f"A study has no argument {shown(name, form=repr)}; see help(bench.search.Study).")
