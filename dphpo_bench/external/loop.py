"""The loop of a study: trials in order, each hidden, told once, and kept only if it is the best; it outlives a kill."""

import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any
from weakref import ref

import cloudpickle
from torch import Tensor, nn

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, RecordError
from dphpo_bench.base.files import write_whole
from dphpo_bench.base.text import shown
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.declared import DeclaredRun
from dphpo_bench.external.opacus import CAPTURED, GRADIENTS
from dphpo_bench.external.procedure import Procedure, ScoreRule
from dphpo_bench.external.trials import StudyTrial, hidden, networks_in
from dphpo_bench.harness.account import accounts_closed
from dphpo_bench.session.access import draw_uniform
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_FINAL = "final"
"""Key of the final run."""


@dataclass(frozen=True)
class Best:
    """The best trial so far.

    Attributes:
        key: of the trial.
        score: with its noise.
        params: hyperparameters.
        model: the caller's, as `pickle` writes it.
        has_drawn: whether training drew from generators that its trial started.
    """

    key: str
    score: float
    params: Candidate
    model: bytes
    has_drawn: bool = True


@dataclass(frozen=True)
class _State:
    """The part of a search that outlives a kill, in a file that is its owner's alone and gone with the journal."""

    best: Best | None = None
    final: bytes | None = None  # the model of the final run


@dataclass
class Loop:
    """The trials of one study, in the process and the thread that began it.

    Attributes:
        plan: the selection and its noise.
        space: of hyperparameters.
        rule: of scores.
        repeatable: whether a trial that was interrupted starts again.
        best: the best trial so far; None: none has a score.
        params: hyperparameters of the model.
        model: as `written` wrote it, once all trials are over; None: there is none.
    """

    plan: Procedure
    space: "dict[str, BaseDistribution]"
    rule: ScoreRule
    repeatable: bool = False
    params: Candidate | None = None
    model: bytes | None = None
    _state: _State = field(default_factory=_State)
    _open: StudyTrial | None = None
    _outcome: Best | bytes | None = None
    _refusals: Sequence[DphpoBenchError] = ()  # of the trial under way
    _trained: dict[int, ref[Tensor]] = field(default_factory=dict)  # weights of trials that are over

    @property
    def best(self) -> Best | None:
        """See above."""
        return self._state.best

    def trials(self, run: DeclaredRun) -> Iterator[StudyTrial]:
        """Yield the trials."""
        self._place, self._run = _place(), run
        if run.state_path is not None and "state" in run.journal.values:
            self._state = _read(run)
        else:
            self._save()
            run.journal.once("state", lambda: 1)
        try:
            yield from self._search(run.streams.within("selection"))
            if self.plan.final_noise is None:
                self.params, self.model = (None, None) if self.best is None else (self.best.params, self.best.model)
            else:
                yield from self._final(self.plan.final_noise, run.streams.within("final run"))
                self.model = self._state.final
        finally:
            self._open = self._outcome = None

    def trial(self, streams: Streams, of_search: Streams) -> StudyTrial:
        """Return a trial of the search.

        Args:
            streams: of the trial.
            of_search: streams that all trials share.
        """
        rate = self.plan.selection.sample_rate
        sampling = None if rate == 1 else (rate, of_search)
        params = search.draw(self.space, streams.derive("candidate"))
        return StudyTrial(params, self.plan.noise_multiplier, streams, sampling=sampling)

    def tell(self, trial: StudyTrial, score: Any, model: Any) -> None:
        """See `Study.tell`."""
        if self._open is None or trial is not self._open or self._place != _place():
            raise InvalidValueError(
                "Expected the trial under way, in the process and the thread of the loop: each trial is told once, to "
                "its own study, before the next begins."
            )
        if self._refusals:
            raise self._refusals[0]
        trial.check_use()
        self.refuse_trained(model)
        outcome: Best | bytes | None = None
        if trial.is_final:
            outcome = None if score is None and model is None else written(model)
        elif score is not None:
            trial.check_sampled()
            copy = written(model)  # of losers too: that one could not be copied must not tell which won
            noisy = self.rule.noisy(score, self._streams.generator("score"))
            outcome = None if noisy is None else Best("", noisy, trial.params, copy, trial.has_drawn(model))
        self._outcome, self._open = outcome, None

    def refuse_trained(self, model: Any) -> None:
        """Reject a model whose weights an earlier trial trained."""
        weights = [weight for part in networks_in(model) for weight in part.parameters() if weight.requires_grad]
        if any(id(weight) in self._trained and self._trained[id(weight)]() is weight for weight in weights):
            raise InvalidValueError(
                "Expected a model that was made in its trial, got the weights of an earlier one: a trial would go on "
                "from weights that others trained, and ε covers independent trials. Build the model in the trial, or "
                "train copy.deepcopy(model)."
            )
        self._trained.update((id(weight), ref(weight)) for weight in weights)

    def _search(self, streams: Streams) -> Iterator[StudyTrial]:
        selection = self.plan.selection
        count = selection.runs.sample(draw_uniform(streams.source("number of runs")))
        for index in range(count):
            if selection.threshold is not None and self.best:
                break
            key = str(index)
            if not self._begins(key):
                continue
            of_trial = streams.within("trial", key)
            yield from self._shown(self.trial(of_trial, streams), of_trial)
            if isinstance(offer := self._outcome, Best):
                is_best = self.best is None or offer.score > self.best.score  # of equal scores the first stays
                if is_best and (selection.threshold is None or offer.score >= selection.threshold):
                    self._save(best=replace(offer, key=key))
            self._end(key)

    def _final(self, noise: float, streams: Streams) -> Iterator[StudyTrial]:
        """Yield the final run, with the winner's hyperparameters; without a winner, with a blind draw."""
        if self.best is None:
            self.params = search.draw(self.space, streams.derive("candidate"))
        else:
            optimizer = str(self.best.params.get("optimizer", ""))
            self.params = self.plan.method.extrapolated(self.best.params, optimizer)
        if not self._begins(_FINAL):
            return
        yield from self._shown(StudyTrial(self.params, noise, streams, is_final=True), streams)
        if isinstance(self._outcome, bytes):
            self._save(final=self._outcome)
        self._end(_FINAL)

    def _begins(self, key: str) -> bool:
        """Return whether a trial is to run now; note that it begins.

        One that was under way when an earlier process died has lost, since another start would be another draw. A
        repeatable one starts again on the same draws.
        """
        journal = self._run.journal
        if f"over {key}" in journal.values:
            return False
        is_saved = (self.best and self.best.key == key) or (key == _FINAL and self._state.final is not None)
        if f"begun {key}" in journal.values and (not self.repeatable or is_saved):
            self._end(key)
            return False
        journal.once(f"begun {key}", lambda: 1)
        return True

    def _end(self, key: str) -> None:
        self._run.journal.once(f"over {key}", lambda: 1)

    def _save(self, **changes: Any) -> None:
        """Change the state, and write it before the journal says that a trial is over."""
        self._state = replace(self._state, **changes)
        if (path := self._run.state_path) is not None:
            try:
                write_whole(path, pickle.dumps(self._state), mode=0o600)
            except OSError as error:
                raise RecordError(f"Cannot write {path}: {error.strerror}.") from None

    def _shown(self, trial: StudyTrial, streams: Streams) -> Iterator[StudyTrial]:
        """Yield a trial, hidden from everybody but the caller's code."""
        self._outcome, self._open, self._streams = None, trial, streams
        with hidden(streams), accounts_closed() as self._refusals:
            trial.begin()
            yield trial
        if self._open is not None or self._place != _place():
            raise InvalidValueError(
                "Expected study.tell before the next trial, in the process and the thread of the loop; "
                "study.tell(trial, None) for a trial that failed. Trials run one after the other."
            )


def _place() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def _read(run: DeclaredRun) -> _State:
    path = run.state_path
    assert path is not None
    with suppress(Exception):  # of a missing file, and whatever pickle raises
        state = pickle.loads(path.read_bytes())
        if isinstance(state, _State):
            return state
    raise RecordError(
        f"{path}, which holds the best model of an interrupted study, is missing or damaged. Restore it from a backup; "
        f"or remove it and {path.with_suffix('.jsonl')} to start anew, which is a second release."
    )


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes weights and layers without the inputs and gradients of records that Opacus leaves on them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, nn.Module | Tensor):
            reduced: Any = obj.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
            function, arguments, *rest = reduced
            return function, tuple(map(_without_records, arguments)), *map(_without_records, rest)
        return super().reducer_override(obj)


def _without_records(state: Any) -> Any:
    if type(state) is not dict:
        return state
    return {name: None if name in GRADIENTS else value for name, value in state.items() if name not in CAPTURED}


def written(model: Any) -> bytes:
    """Return a model as `pickle` writes it, without the inputs and gradients of records that Opacus leaves on it.

    Raises:
        InvalidValueError: if it cannot be written.
    """
    try:
        _Writer(file := BytesIO(), protocol=pickle.DEFAULT_PROTOCOL).dump(model)
        return file.getvalue()
    except Exception as error:
        raise InvalidValueError(
            f"Expected a model that pickle can write, since the study keeps a copy of the best: {type(error).__name__} "
            f"for a {type(model).__name__}. Hand over model.state_dict(), or the module inside of a wrapper."
        ) from None


def read_back(content: bytes) -> Any:
    """Return a model that `written` wrote.

    Raises:
        InvalidValueError: if its class cannot read it.
    """
    try:
        return pickle.loads(content)
    except Exception as error:
        raise InvalidValueError(
            f"Expected a model that pickle can read again: {type(error).__name__}: {shown(error, 200)}. Hand over "
            "model.state_dict() instead. A study that has a folder of results keeps it: mend this, and run it again."
        ) from None
