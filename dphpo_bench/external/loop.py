"""The loop of a study: trials in order, each hidden, told once, and kept only if it is the best."""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import nn

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.declared import DeclaredRun
from dphpo_bench.external.hiding import hidden
from dphpo_bench.external.procedure import Procedure
from dphpo_bench.external.results import StudyResult, ended, written
from dphpo_bench.external.scores import ScoreRule
from dphpo_bench.external.standing import FINAL, Best, Standing
from dphpo_bench.external.trials import StudyTrial
from dphpo_bench.harness.account import accounts_closed
from dphpo_bench.session.access import draw_uniform
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass
class Loop:
    """The trials of one study, in the process and the thread that began it.

    Attributes:
        plan: the selection and its noise.
        space: of hyperparameters.
        rule: of scores.
        repeatable: whether a trial that was interrupted starts again.
        show: whether outputs of trials stay visible.
        result: None until all trials are over.
        lacks_model: whether no trial had a score, or the final run failed.
        has_drawn: whether the winner's training drew from generators that its trial started; also without a winner.
    """

    plan: Procedure
    space: "dict[str, BaseDistribution]"
    rule: ScoreRule
    repeatable: bool = False
    show: bool = False
    result: StudyResult | None = None
    lacks_model: bool = False
    has_drawn: bool = True
    _place: tuple[int, int] = field(default_factory=lambda: (os.getpid(), threading.get_ident()))
    _open: StudyTrial | None = None
    _outcome: Best | bytes | None = None
    _refusals: Sequence[DphpoBenchError] = ()  # of the trial under way
    _older: list[ref[nn.Module]] = field(default_factory=list)  # networks of trials that are over

    def trials(self, run: DeclaredRun) -> Iterator[StudyTrial]:
        """Yield the trials; the result is there when they are over."""
        standing = Standing(run)
        try:
            yield from self._search(run.streams.within("selection"), standing)
            best = standing.best
            if self.plan.final_noise is None:
                params, model = (None, None) if best is None else (best.params, best.model)
            else:
                streams = run.streams.within("final run")
                params = self._final_params(best, streams)
                yield from self._final(params, self.plan.final_noise, streams, standing)
                model = standing.final
        finally:
            self._open = self._outcome = None
        self.lacks_model, self.has_drawn = model is None, best is None or best.has_drawn
        self.result = ended(run, best, params, model)

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
        if not self._is_here():
            raise InvalidValueError(
                "Expected tell in the process and the thread of the loop: trials run one after the other. Train in "
                "workers if you like, and tell from the loop."
            )
        if self._open is None or trial is not self._open:
            raise InvalidValueError(
                "Expected the trial under way, which has not been told yet, got another one: each trial is told once, "
                "to its own study, before the next begins."
            )
        if self._refusals:
            raise self._refusals[0]
        trial.check_use(model)
        outcome: Best | bytes | None = None
        if trial.is_final:
            outcome = None if score is None and model is None else written(model)
        elif score is not None:
            trial.check_sampled()
            copy = written(model)  # of losers too: that one could not be copied must not tell which won
            noisy = self.rule.noisy(score, self._streams.generator("score"))
            outcome = None if noisy is None else Best("", noisy, trial.params, copy, trial.has_drawn(model))
        self._outcome, self._open = outcome, None

    def _search(self, streams: Streams, standing: Standing) -> Iterator[StudyTrial]:
        selection = self.plan.selection
        count = selection.runs.sample(draw_uniform(streams.source("number of runs")))
        for index in range(count):
            if selection.threshold is not None and standing.best:
                break
            key = str(index)
            if not standing.begins(key, repeatable=self.repeatable):
                continue
            of_trial = streams.within("trial", key)
            yield from self._shown(self.trial(of_trial, streams), of_trial)
            outcome = self._outcome
            if isinstance(outcome, Best) and (selection.threshold is None or outcome.score >= selection.threshold):
                standing.offer(replace(outcome, key=key))
            standing.end(key)

    def _final(self, params: Candidate, noise: float, streams: Streams, standing: Standing) -> Iterator[StudyTrial]:
        if not standing.begins(FINAL, repeatable=self.repeatable):
            return
        yield from self._shown(StudyTrial(params, noise, streams, is_final=True), streams)
        if isinstance(self._outcome, bytes):
            standing.keep_final(self._outcome)
        standing.end(FINAL)

    def _final_params(self, best: Best | None, streams: Streams) -> Candidate:
        """Return the winner's hyperparameters as the final run trains with them; without a winner, a blind draw."""
        if best is None:
            return search.draw(self.space, streams.derive("candidate"))
        return self.plan.method.extrapolated(best.params, str(best.params.get("optimizer", "")))

    def _shown(self, trial: StudyTrial, streams: Streams) -> Iterator[StudyTrial]:
        """Yield a trial, hidden from everybody but the caller's code."""
        self._outcome, self._open, self._streams = None, trial, streams
        with hidden(streams, self.show), accounts_closed() as self._refusals:
            trial.begin(self._older)
            yield trial
        self._older += trial.networks
        if self._open is not None or not self._is_here():
            raise InvalidValueError(
                "Expected study.tell before the next trial, in the process and the thread of the loop; "
                "study.tell(trial, None) for a trial that failed. Trials run one after the other."
            )

    def _is_here(self) -> bool:
        return self._place == (os.getpid(), threading.get_ident())
