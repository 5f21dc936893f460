"""The only door to private data: sampling, clipping, noise and accounting are one object.

Every query charges the ledger before it computes, in the call that adds the noise, so the four cannot drift
apart. What may be asked of a batch is fixed when it is opened, and sampled as a whole (docs/accounting.md).
"""

import logging
import math
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import torch

from dphpo_bench.base.errors import InvalidValueError, ModelFailedError, OverBudgetError
from dphpo_bench.base.progress import Progress, SilentProgress
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Proposals
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.data.records import Records
from dphpo_bench.privacy import event_rules
from dphpo_bench.privacy.checks import inside, number, whole
from dphpo_bench.privacy.events import best_of, first_above, gaussian, non_private
from dphpo_bench.privacy.holdout import TRAINING, VALIDATION, holdout_name
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import geometric
from dphpo_bench.recipes.dp_sgd import DpSgd
from dphpo_bench.recipes.trial import TOGETHER, Trial
from dphpo_bench.session.apart import call_apart
from dphpo_bench.training.evaluation import total_score
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.noise import add_gaussian_noise
from dphpo_bench.training.own_model import OwnModel
from dphpo_bench.training.randomness import Streams
from dphpo_bench.training.sampling import poisson_sample, uniform
from dphpo_bench.training.stacked import StackedLinear, can_stack

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from dphpo_bench.privacy.ledger import Scope
    from dphpo_bench.privacy.run_counts import RunCount
    from dphpo_bench.training.secure_noise import AnyGenerator

from dphpo_bench.session.batch import Batch, _Unique
from dphpo_bench.session.observer import Observer
from dphpo_bench.session.sealed import SealedUtilities
from dphpo_bench.session.selection import Scored, TrialFunction, _as_it_is, _exact, _Tried, _valid

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PARTITIONS = 10**6


class Session(_Unique):
    """What a method can do with private data, and nothing else.

    A session may stand for some of the records only (see `holdout` and `subsample`); it then charges what it
    releases as a release from those.

    Args:
        task: where models come from.
        train: the private records.
        ledger: what is released is charged here.
        streams: random streams of this run; the model's initial weights and the split into parts come from
            `model_streams`, which methods compared at one seed share.
        model_streams: see `streams`.
        device: where models and batches live.
        progress: where long work reports to.
        observer: is told what is released; None: nobody is.
    """

    def __init__(
        self,
        task: Task,
        train: Records,
        ledger: Ledger,
        streams: Streams,
        *,
        model_streams: Streams | None = None,
        device: "torch.device | str" = "cpu",
        progress: Progress | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._facts = task.facts
        self._device = torch.device(device)
        self._progress: Progress = progress or SilentProgress()
        self._ledger = ledger
        self._observer = observer
        self._expected_records = float(self._facts.n_records)
        self._task = task
        self._train = train
        self._streams = streams
        self._model_streams = model_streams or streams
        self._rows: Tensor | None = None  # of this session's records; None: all
        self._scope: Scope = ()  # of what is charged
        self._within: Scope = ()  # all parts that these records are the common records of
        self._candidate: search.Candidate | None = None  # of an adaptive search
        self._parts: dict[Scope, Tensor] = {}  # rows of parts, kept so that trials share them
        # Shared with all sessions made from this one, by the full name of a stream: were one to start a stream
        # that another has begun, its noise would repeat. The same for names that are numbered.
        self._generators: dict[tuple[str, ...], AnyGenerator] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._lent: list[Records] = []  # raw records, to be taken back
        self._own_models: list[OwnModel] = []
        self._stacks: dict[tuple[tuple[bool, ...], ...], StackedLinear | None] = {}

    @property
    def facts(self) -> TaskFacts:
        """The task's public facts."""
        return self._facts

    @property
    def objective(self) -> Objective:
        """The task's losses and scores, as functions of outputs and targets."""
        return self._task.objective()

    @property
    def device(self) -> torch.device:
        """Where models and batches live."""
        return self._device

    @property
    def progress(self) -> Progress:
        """Where long work reports to."""
        return self._progress

    @property
    def expected_records(self) -> float:
        """Expected number of records of this session: public, unlike the number itself."""
        return self._expected_records

    # ------------------------------------------------------------------------------------- what is public

    def build_model(self) -> "nn.Module":
        """The task's model at its initial weights, the same for every method at one seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._model_streams.derive("initial weights", self.facts.task, self.facts.model))
            return self._task.build_model().to(self.device)

    def candidate(self) -> search.Candidate:
        """Hyperparameters drawn from the task's search space, independently in every trial of a selection.

        The same at each call: a session stands for one trial. In an adaptive search, what was proposed for it.
        """
        return self._candidate or search.draw(self.facts.search_space(), self._streams.derive("candidate"))

    def uniform(self, purpose: str) -> float:
        """A uniform number in [0, 1) from the stream of this name: for choices that look at no data."""
        return _uniform(self._generator("uniform", purpose, "cpu"))

    def fork(self, name: str) -> "Session":
        """A session on the same records and the same account, with random streams of its own.

        Args:
            name: of the streams.
        """
        return self._child(self._ledger, self._streams.within("fork", name))

    # ------------------------------------------------------------------------------------ some of the records

    def holdout(self, fraction: float) -> "tuple[Session, Session]":
        """Sessions on two parts of the records, to train on and to validate on.

        Each record falls into one part by a coin of its own, so a record pays for what is asked of its part
        only (docs/accounting.md, parts). The parts are the same in every trial, and for every method at one
        seed.

        Args:
            fraction: expected share of the records in the second part, in (0, 1).
        """
        fraction = inside("fraction", fraction)
        return (
            self._on_part(holdout_name(fraction), TRAINING, 0, 1 - fraction),
            self._on_part(holdout_name(fraction), VALIDATION, 1 - fraction, 1),
        )

    def _on_part(self, partition: str, part: str, start: float, end: float) -> "Session":
        if self._within:
            # A rule of its own, with coins of its own: those of the outer partition have been tossed already.
            partition += " of " + "/".join(name for pair in self._within for name in pair)
        within = (*self._within, (partition, part))
        if within not in self._parts:
            coins = uniform(len(self._train), self._model_streams.source("partition", partition))
            inside = (start <= coins) & (coins < end)
            rows = inside.nonzero().squeeze(1) if self._rows is None else self._rows[inside[self._rows]]
            self._parts[within] = rows
        child = self._child(self._ledger, self._streams.within(partition, part))
        child._scope, child._within = (*self._scope, (partition, part)), within
        child._rows = self._parts[within]
        child._expected_records = self.expected_records * (end - start)
        return child

    def subsample(self, kind: "DpEvent") -> "Session":
        """A session on a secret Poisson sample of the records.

        All that it may be asked is fixed now, and charged as a whole: composed first and sampled once. Selections and
        scores only: what trains on the sample does so in the trials of a selection.

        Args:
            kind: `poisson_sampled(rate, what may be asked)`, as the plan has it, with a rate in (0, 1).

        Raises:
            OverBudgetError: if the plan does not cover it.
        """
        rate, contents = event_rules.opened(kind)
        inside("rate", rate)
        account = self._ledger.open_batch(rate, contents, self._scope)
        drawn = poisson_sample(self._n_rows, rate, self._generator("sample", "subsample", "cpu"))
        streams = self._streams.within("subsample", self._next("subsample"))
        child = self._child(account, streams)
        child._rows = drawn if self._rows is None else self._rows[drawn]
        child._parts = {}
        child._scope = ()  # the batch as a whole is charged to it
        child._expected_records = self.expected_records * rate
        return child

    def _child(self, ledger: Ledger, streams: Streams) -> "Session":
        """The same records under another account and other streams."""
        child = Session(
            self._task,
            self._train,
            ledger,
            streams,
            model_streams=self._model_streams,
            device=self.device,
            progress=self._progress,
            observer=self._observer,
        )
        child._rows, child._parts = self._rows, self._parts
        child._scope, child._within = self._scope, self._within
        child._generators, child._counts = self._generators, self._counts
        child._lent, child._own_models, child._stacks = self._lent, self._own_models, self._stacks
        child._expected_records = self.expected_records
        return child

    @property
    def _n_rows(self) -> int:
        return len(self._train) if self._rows is None else len(self._rows)

    # ------------------------------------------------------------------------------------------- releases

    def sample(self, kind: "DpEvent", purpose: str = "training") -> "Batch":
        """A Poisson batch, bound to what may be asked of it.

        The batch is charged as a whole, asked or not: were it to grow when its answers are known, those that seem to
        hold a record could be asked more than the others (docs/accounting.md, kinds of batches).

        Args:
            kind: `poisson_sampled(rate, what may be asked)`, as the plan has it: each record is in the batch
                independently with probability `rate`. At 1 the batch holds every record.
            purpose: names the random stream, so that batches for one purpose do not depend on how many
                were drawn for another.

        Raises:
            InvalidValueError: if the kind is another event, or its rate is not in (0, 1].
            OverBudgetError: if the plan does not cover it.
        """
        rate, contents = event_rules.opened(kind)
        account = self._ledger.open_batch(rate, contents, self._scope)
        if rate == 1:
            indices = self._rows
        else:
            indices = poisson_sample(self._n_rows, rate, self._generator("sample", purpose, device="cpu"))
            indices = indices if self._rows is None else self._rows[indices]
        return Batch(self, indices, rate, account)

    def score(self, model: "nn.Module", noise_multiplier: float) -> float:
        """The mean score of the records: a noisy sum over the expected number.

        Args:
            model: to be scored by the task's `scores`; by default, the share classified correctly.
            noise_multiplier: standard deviation of the noise on the sum, whose sensitivity is 1.

        Raises:
            OverBudgetError: if the plan does not cover the release; nothing is released then.
            ModelFailedError: if the model raised an exception on the records, which ends the run or the trial.
        """
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        own = self._own(0).scored(model)
        self._ledger.charge(gaussian(noise_multiplier), self._scope)
        total = torch.tensor([self._total_score(own)], dtype=torch.float64)
        (noisy,) = add_gaussian_noise([total], noise_multiplier, 1.0, self._generator("noise", "score", "cpu"))
        return noisy.item() / self.expected_records

    def _total_score(self, own: "nn.Module") -> float:
        """The sum of the records' scores under one of our own models; private."""
        return self._compute(lambda: total_score(own, self.objective.scores, self._train, self._rows))

    def nonprivate(self) -> Records:
        """The raw private records, for references that are not private: from here on ε is ∞.

        They are lent for this run only: these tensors are empty once it is over.
        """
        self._ledger.charge(non_private(), self._scope)
        self._lent.append(self._train.rows(slice(None) if self._rows is None else self._rows))
        return self._lent[-1]

    def close(self) -> None:
        """End the run: nothing is released any more, and raw records that were lent are taken back."""
        self._ledger.close()
        for split in self._lent:
            for tensor in split.named().values():
                tensor.data = tensor.new_empty(0)

    # ------------------------------------------------------------------------------------ private selection

    def best_of(
        self,
        trial: TrialFunction | Trial,
        runs: "RunCount",
        base_event: "DpEvent",
        *,
        proposals: Proposals | None = None,
    ) -> Any:
        """The outcome of the best of a secret random number of trials (Liu and Talwar 2019; Papernot and Steinke 2022).

        The number is drawn before the first trial, from a stream that depends on the run's seed alone, and the
        harness keeps the seed until the run is recorded (see `journal`): nothing that trials do can change it.
        The trials are independent: each gets a session with its own random streams and its own ledger, bound to
        the base event, and no other account may be charged while they run. A trial that raises, or has no number for
        a score, has the worst score.

        Nothing of a trial is left but the winner's outcome. A `Trial` is run by this package. A function of your own is
        called in a copy of this process for each trial, so that what it keeps, counts or prints goes with the copy.

        Args:
            trial: runs one trial on its session and returns the result, whose outcome pickle can write. The
                hyperparameters of a trial are drawn in it, from its own session.
            runs: distribution of the number of trials.
            base_event: worst-case event of one trial, score included.
            proposals: for a search that learns from its trials; None: all candidates are drawn from the prior.

        Returns:
            The winner's `outcome`. None if there was no trial or none that did not fail: the caller
            releases something that does not depend on the data then.

        Raises:
            OverBudgetError: if the plan does not cover the selection, or a trial asked for more than the base
                event or of another account.
            InvalidValueError: if a function of your own cannot be run apart: without os.fork, or not on a CPU.
        """
        trial, base_event = _exact(trial), event_rules.frozen(base_event)
        if proposals is not None:  # made anew, like `trial`: what was hung on the other is not there
            proposals = Proposals(proposals.prior, proposals.weights, proposals.low, proposals.high)
        bounds = (1.0, 1.0) if proposals is None else (proposals.low, proposals.high)
        event = best_of(base_event, runs, *bounds)
        self._ledger.charge(event, self._scope)
        selection = self._streams.within("selection", self._next("selection"))
        count = event.runs.sample(_uniform(selection.source("number of runs")))
        order = self._order(count)
        at_once = None if isinstance(trial, Trial) else torch.get_num_threads()

        def select() -> _Tried | None:
            if proposals is None:
                trials = self._trials(trial, selection, order, base_event, at_once=at_once)
            else:
                trials = self._adaptive_trials(trial, selection, count, base_event, proposals)
            best: _Tried | None = None
            with closing(trials), self._progress.track("Trials", count) as advance:
                for tried in trials:
                    best = tried if tried.beats(best) else best
                    advance()
            return best

        return self._selected(select, trial, proposals)

    def _selected(self, select: "Callable[[], _Tried | None]", trial: Any, proposals: Proposals | None = None) -> Any:
        """What is released of the trial that `select` returns, while all other accounts are locked.

        Where a method's code runs in trials, the whole selection runs in a copy of this process: how many copies it
        makes of itself, or how they end, shows in the copy only.
        """
        with self._ledger.locked():
            if isinstance(trial, Trial) and (proposals is None or self.device.type != "cpu"):
                best = select()
                found = best.unpack() if best is not None and best.score is not None else None
            else:
                found = self._select_apart(select)
        if found is None:
            return None
        outcome, observer = found
        if self._observer and observer:
            self._observer.won(observer)
        return outcome

    def _select_apart(self, select: "Callable[[], _Tried | None]") -> "tuple[Any, Observer | None] | None":
        self._check_apart()

        def run() -> tuple[str | None, str | None, bytes]:
            self._progress = SilentProgress()
            try:
                best = select()
            except OverBudgetError as error:
                return str(error), None, b""
            except ModelFailedError as error:
                return None, str(error), b""
            return None, None, best.packed() if best is not None and best.score is not None else b""

        with self._progress.track("Selection", 1) as advance:
            (answer,) = call_apart([run])
            advance()
        refused, failed, packed = answer or (None, "The process of a selection ended without an answer.", b"")
        self._refuse(refused)
        self._fail(failed)
        return pickle.loads(packed) if packed else None

    def _check_apart(self) -> None:
        if self.device.type != "cpu":
            raise InvalidValueError(
                f"Expected trials of type Trial on {self.device}: a function of your own runs in a copy of this "
                "process, which cannot use that device. Use --device cpu."
            )
        import optuna  # noqa: F401  (once, not in each copy)

    @staticmethod
    def _order(count: int) -> list[int]:
        """The order in which independent trials run, which changes nothing."""
        return list(range(count))

    def first_above(
        self,
        trial: TrialFunction | Trial,
        threshold: float,
        stop_probability: float,
        base_event: "DpEvent",
    ) -> Any:
        """The outcome of the first trial whose score reaches a threshold (Liu and Talwar 2019, Algorithm 1).

        After each trial below it, a coin ends the search with nothing. See `best_of` for the rest.

        Args:
            trial: as in `best_of`.
            threshold: fixed in advance, from public information.
            stop_probability: γ of the coin, in (0, 1).
            base_event: as in `best_of`.

        Returns:
            The `outcome` of that trial, or None.

        Raises:
            InvalidValueError: as in `best_of`.
            OverBudgetError: as in `best_of`.
        """
        trial, base_event, threshold = _exact(trial), event_rules.frozen(base_event), float(threshold)
        stop_probability = number("stop_probability", stop_probability, low=1e-9, high=1)
        runs = geometric(1 / stop_probability)  # how many trials the coins allow; they are tossed in advance
        self._ledger.charge(first_above(base_event, stop_probability), self._scope)
        selection = self._streams.within("selection", self._next("selection"))
        longest = runs.sample(_uniform(selection.source("number of runs")))

        def select() -> _Tried | None:
            trials = self._trials(trial, selection, list(range(longest)), base_event, at_once=1)
            with closing(trials), self._progress.track("Trials", longest) as advance:
                for tried in trials:
                    advance()
                    if tried.score is not None and tried.score >= threshold:
                        return tried
            return None

        return self._selected(select, trial)

    def _next(self, kind: str) -> str:
        """1, 2, ... for what happens several times on one stream, so that no two share their names."""
        key = (*self._streams.axes, kind)
        self._counts[key] += 1
        return str(self._counts[key])

    def _trials(
        self,
        trial: TrialFunction | Trial,
        selection: Streams,
        indices: list[int],
        base_event: "DpEvent",
        *,
        candidate: search.Candidate | None = None,
        at_once: int | None = None,
    ) -> "Generator[_Tried]":
        """Independent trials, in this order; all of one candidate if it is given."""

        def session(index: int) -> Session:
            child = self._child(Ledger(base_event), selection.within("trial", str(index)))
            child._scope = ()  # the selection as a whole is charged to it
            child._observer = self._observer and self._observer.trial()
            child._candidate = candidate
            return child

        if not isinstance(trial, Trial):
            yield from self._trials_apart(trial, indices, session, at_once or 1)
            return
        # Full batches of linear models share a matrix product.
        stacks = trial.training.sample_rate == 1 and self._own(0).has_closed_form
        together = min(at_once or TOGETHER, TOGETHER) if stacks else 1
        for start in range(0, len(indices), together):
            some = indices[start : start + together]
            found = self._our_trials(trial, some, [session(index) for index in some])
            if found is None:
                # One that raises must not take the others with it. Each runs alone, on fresh random numbers: from
                # the same ones, another query could be subtracted.
                again = selection.within("alone")
                found = (one for index in some for one in self._trials(trial, again, [index], base_event, at_once=1))
            yield from found

    def _our_trials(self, trial: Trial, indices: list[int], sessions: "list[Session]") -> Iterable[_Tried] | None:
        """Trials of this package's own kind, in which no code of a method runs; None if one of several raised."""
        results: list[Scored | None]
        try:
            results = [_valid(scored) for scored in trial.run(sessions)]
        except (Exception, SystemExit):  # not logged here, where a method could listen
            if len(sessions) > 1 and not any(one._ledger.refused or one._ledger.failed for one in sessions):
                return None
            results = [None] * len(sessions)
        tried = []
        for index, session, scored in zip(indices, sessions, results, strict=True):
            session._ledger.close()
            self._refuse(session._ledger.refused)
            self._fail(session._ledger.failed)
            score = None if scored is None else scored.score
            tried.append(_Tried(index, score, partial(_as_it_is, scored, session._observer)))
        return tried

    def _trials_apart(
        self, trial: TrialFunction, indices: list[int], make_session: "Callable[[int], Session]", at_once: int
    ) -> "Generator[_Tried]":
        """Trials that a method runs, each in a copy of the process."""
        outer = self._ledger.root
        before = outer.refused

        def run(index: int) -> tuple[float | None, str | None, str | None, bytes]:
            session = make_session(index)
            ledger = session._ledger
            try:
                scored = _valid(trial(session))
            except (Exception, SystemExit):
                logger.debug("A trial failed.", exc_info=True)
                scored = None
            refused = ledger.refused or (outer.refused if outer.refused != before else None)
            if scored is None or ledger.failed or refused:
                return None, refused, ledger.failed, b""
            try:
                return scored.score, None, None, cloudpickle.dumps((scored.outcome, session._observer))
            except Exception:
                kind = type(scored.outcome).__name__
                return None, f"Expected a trial's outcome that pickle can write, got a {kind}.", None, b""

        with closing(call_apart([partial(run, index) for index in indices], at_once)) as answers:
            for index, answer in zip(indices, answers, strict=True):
                score, refused, failed, packed = answer or (None, None, None, b"")
                self._refuse(refused)
                self._fail(failed)
                yield _Tried(index, score, partial(pickle.loads, packed), packed)

    def _adaptive_trials(
        self,
        trial: TrialFunction | Trial,
        selection: Streams,
        count: int,
        base_event: "DpEvent",
        proposals: Proposals,
    ) -> "Generator[_Tried]":
        """Trials one after the other, each of a candidate whose density the earlier ones have shaped."""
        tried: list[int] = []
        scores: list[float] = []
        for index in range(count):
            (found,) = call_apart([partial(search.promise, proposals, tried, scores)])  # a method's code, too
            weights = found or [1.0] * len(proposals.prior)  # it failed: the prior
            densities = search.bounded(weights, proposals.low, proposals.high)
            tried.append(search.choose(densities, _uniform(selection.source("proposal", str(index)))))
            (one,) = self._trials(trial, selection, [index], base_event, candidate=proposals.prior[tried[-1]])
            scores.append(math.nan if one.score is None else one.score)
            yield one

    def _refuse(self, message: str | None) -> None:
        """Refuse what a trial should not have asked: a mistake in the method, not in the data."""
        if message:
            self._ledger.refuse(message)
            raise OverBudgetError(message)

    def _fail(self, message: str | None) -> None:
        """End the run with a trial whose model raised an exception: whether it does is a release without noise."""
        if message:
            self._ledger.fail(message)
            raise ModelFailedError(message)

    # -------------------------------------------------------------------------------- sample and aggregate

    def sealed_utilities(self, runs: "Sequence[DpSgd]", partitions: int, validation: float) -> "SealedUtilities":
        """How well each candidate does, averaged over disjoint parts of the records; nobody can read it.

        A share of the records validates; the others are split into parts by a coin for each record. Every
        candidate is trained on every part without noise (its noise multiplier is ignored), and its utility is
        the mean over the parts of the share of validation records classified correctly. One record changes
        one part's models, or its own validation, so all utilities together change by at most
        max(1/partitions, 1/expected number of validation records).

        Args:
            runs: the candidates.
            partitions: number of parts k.
            validation: expected share of the records that validate.
        """
        partitions = whole("partitions", partitions, low=2, high=MAX_PARTITIONS)
        runs = list(runs)
        if not all(type(run) is DpSgd for run in runs):
            # One of a plug-in's own would see gradients without noise.
            raise InvalidValueError("Expected candidates of type DpSgd, with optimisers that are given by name.")
        training, validating = self.holdout(validation)
        totals = [0.0] * len(runs)
        silent = [run.with_noise(0.0) for run in runs]  # made anew, of exact types
        with self._progress.track("Candidates on parts of the data", partitions) as advance:
            for index in range(partitions):
                part = training._on_part(
                    f"{partitions} parts", str(index), index / partitions, (index + 1) / partitions
                )
                # The ledger of this is thrown away: what is computed here stays sealed until `open_test`.
                streams = self._streams.within("part", str(index))
                sessions = [part._child(Ledger(), streams.within(str(i))) for i in range(len(runs))]
                for session in sessions:
                    session._progress, session._observer = SilentProgress(), None
                try:
                    models = DpSgd.train_together(sessions, silent)
                except ModelFailedError as error:
                    self._fail(str(error))
                    raise
                for i, model in enumerate(models):
                    share = validating._total_score(self._own(0).scored(model)) / validating.expected_records
                    totals[i] += min(share, 1.0) / partitions
                advance()
        sensitivity = max(1 / partitions, 1 / validating.expected_records)
        return SealedUtilities(self, totals, sensitivity)

    # ------------------------------------------------------------------------------------------- internals

    def _own(self, number: int) -> OwnModel:
        """The engine's own models, the first of which serves one query at a time and all of them a stack."""

        def build() -> "nn.Module":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return self._task.build_model().to(self.device)

        while len(self._own_models) <= number:
            self._own_models.append(OwnModel(build, self._train, self.objective))
        return self._own_models[number]

    def _stacked(self, models: "Sequence[nn.Module]") -> StackedLinear | None:
        """Several linear models at these weights as one; None if they cannot be stacked."""
        own = [self._own(index).like(model) for index, model in enumerate(models)]
        trained = tuple(tuple(parameter.requires_grad for parameter in model.parameters()) for model in own)
        if trained not in self._stacks:
            self._stacks[trained] = StackedLinear(own) if self._own(0).has_closed_form and can_stack(own) else None
        return self._stacks[trained]

    def _compute(self, computation: Callable[[], T]) -> T:
        """Compute on private records. An exception is a release without noise, so that it is the last one.

        Raises:
            ModelFailedError: if there was one. It names the type and nothing else.
        """
        # Masks of dropout and the like are drawn from a stream of the session: the global generator is no secret, and
        # its state would tell how many records were drawn.
        secret = int(_uniform(self._generator("noise", "layers", "cpu")) * 2**53)
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), torch.autograd.set_detect_anomaly(False):
                torch.manual_seed(secret)
                return computation()
        except Exception as error:  # not logged: a method could listen, and its frames hold the records
            kind = type(error).__name__
        # Not raised above: an error's context leads to the frames, and these to the records.
        message = f"The model raised {kind} on private records; its text may quote them and is not shown."
        self._ledger.fail(message)
        raise ModelFailedError(message)

    def _generator(self, kind: str, purpose: str, device: "torch.device | str") -> "AnyGenerator":
        key = (*self._streams.axes, kind, purpose)
        if key not in self._generators:
            self._generators[key] = self._streams.source(kind, purpose, device=device)
        return self._generators[key]


def _uniform(generator: "AnyGenerator") -> float:
    return uniform(1, generator).item()
