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
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import cloudpickle
import torch

from dphpo_bench import search
from dphpo_bench.apart import call_apart
from dphpo_bench.dp_sgd import DpSgd
from dphpo_bench.errors import InvalidValueError, ModelFailedError, OverBudgetError
from dphpo_bench.parts import TRAINING, VALIDATION, holdout_name
from dphpo_bench.privacy import events
from dphpo_bench.privacy.checks import inside, number, positive, whole
from dphpo_bench.privacy.events import best_of, first_above, gaussian, no_op, non_private, pure, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import geometric
from dphpo_bench.progress import Progress, SilentProgress
from dphpo_bench.randomness import Streams
from dphpo_bench.search import Proposals
from dphpo_bench.task import Split, Task, TaskFacts
from dphpo_bench.training.clipping import SMALLEST_FACTOR, Abadi, AutoS, AutoV
from dphpo_bench.training.linear import linear_layer
from dphpo_bench.training.modes import evaluating
from dphpo_bench.training.noise import AboveThreshold, add_gaussian_noise
from dphpo_bench.training.own_model import OwnModel, check_classes, plain
from dphpo_bench.training.sampling import poisson_sample, uniform
from dphpo_bench.training.stacked import StackedLinear, can_stack
from dphpo_bench.trial import TOGETHER, Trial

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from dphpo_bench.privacy.ledger import Scope
    from dphpo_bench.privacy.run_counts import RunCount
    from dphpo_bench.training.clipping import Clipping
    from dphpo_bench.training.gradients import GradientEngine
    from dphpo_bench.training.secure_noise import AnyGenerator

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PARTITIONS = 10**6


@dataclass(frozen=True)
class Scored:
    """What one trial of a private selection comes to.

    Attributes:
        outcome: what is released if the trial wins: the model, its hyperparameters.
        score: higher is better; a number that the trial released, never a raw one. NaN counts as the worst.
    """

    outcome: Any
    score: float


class Observer(Protocol):
    """Who looks at what is released, as an attacker may; see `audit`."""

    def gradient(self, model: "nn.Module", released: "Sequence[Tensor]", share: float, noise: float) -> None:
        """A noisy mean gradient was released.

        Args:
            model: at the weights that it was computed at.
            released: one tensor for each trainable parameter.
            share: L2 norm of the most that one record can have added.
            noise: standard deviation of the noise on each coordinate.
        """

    def trial(self) -> "Observer":
        """An observer for one trial of a selection, whose releases stay secret unless it wins."""

    def won(self, trial: "Observer") -> None:
        """This trial won: all that it released is out."""


@dataclass(frozen=True)
class _Tried:
    """One trial that is over.

    Attributes:
        index: its number.
        score: None if it failed.
        unpack: gives its outcome and who looked on. Only the winner's is unpacked: code of a method may run then.
        known: the same as pickle has written it, if it has.
    """

    index: int
    score: float | None
    unpack: "Callable[[], tuple[Any, Observer | None]]"
    known: bytes = b""

    def packed(self) -> bytes:
        """What `unpack` gives, as pickle writes it."""
        return self.known or cloudpickle.dumps(self.unpack())

    def beats(self, other: "_Tried | None") -> bool:
        """Whether it wins. Of trials with equal scores the first wins, in whatever order they ran."""
        if self.score is None or other is None or other.score is None:
            return self.score is not None
        return (self.score, -self.index) > (other.score, -other.index)


TrialFunction = Callable[["Session"], Scored]


class _Unique:
    """What must not be copied: a copy would release again, with the same noise, and charge somebody else."""

    def __copy__(self) -> NoReturn:
        raise InvalidValueError(
            f"Expected one {type(self).__name__} and no copy of it: its noise would repeat, and its releases would "
            "be charged to nobody. Use Session.fork for other random streams."
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


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
        train: Split,
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
        self._lent: list[Split] = []  # raw records, to be taken back
        self._own_models: list[OwnModel] = []
        self._stacks: dict[tuple[tuple[bool, ...], ...], StackedLinear | None] = {}

    @property
    def facts(self) -> TaskFacts:
        """The task's public facts."""
        return self._facts

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
        rate, contents = events.opened(kind)
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
        rate, contents = events.opened(kind)
        account = self._ledger.open_batch(rate, contents, self._scope)
        if rate == 1:
            indices = self._rows
        else:
            indices = poisson_sample(self._n_rows, rate, self._generator("sample", purpose, device="cpu"))
            indices = indices if self._rows is None else self._rows[indices]
        return Batch(self, indices, rate, account)

    def score(self, model: "nn.Module", noise_multiplier: float) -> float:
        """The share of records that the model classifies correctly: a noisy count over the expected number.

        Args:
            model: a classifier.
            noise_multiplier: standard deviation of the noise on the count, whose sensitivity is 1.

        Raises:
            OverBudgetError: if the plan does not cover the release; nothing is released then.
            ModelFailedError: if the model raised an exception on the records, which ends the run or the trial.
        """
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        own = self._own(0).classifier(model)
        self._ledger.charge(gaussian(noise_multiplier), self._scope)
        count = torch.tensor([self._n_correct(own)], dtype=torch.float64)
        (noisy,) = add_gaussian_noise([count], noise_multiplier, 1.0, self._generator("noise", "score", "cpu"))
        return noisy.item() / self.expected_records

    def _n_correct(self, own: "nn.Module") -> int:
        """How many records one of our own models classifies correctly; private. A prediction of NaN is wrong."""
        return self._compute(partial(self._count_correct, own))

    def _count_correct(self, own: "nn.Module") -> int:
        correct = 0
        with evaluating(own):
            for start in range(0, self._n_rows, 1024):
                rows: Any = slice(start, start + 1024)
                rows = rows if self._rows is None else self._rows[rows]
                outputs = own(self._train.inputs[rows].to(self.device).float())
                labels = self._train.targets[rows].to(self.device)
                check_classes(outputs, len(labels))
                correct += int(((outputs.argmax(dim=1) == labels) & outputs.isfinite().all(dim=1)).sum())
        return correct

    def nonprivate(self) -> Split:
        """The raw private records, for references that are not private: from here on ε is ∞.

        They are lent for this run only: these tensors are empty once it is over.
        """
        self._ledger.charge(non_private(), self._scope)
        rows: Any = slice(None) if self._rows is None else self._rows
        self._lent.append(Split(self._train.inputs[rows], self._train.targets[rows]))
        return self._lent[-1]

    def close(self) -> None:
        """End the run: nothing is released any more, and raw records that were lent are taken back."""
        self._ledger.close()
        for split in self._lent:
            for tensor in (split.inputs, split.targets):
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
        trial, base_event = _exact(trial), events.frozen(base_event)
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
        trial, base_event, threshold = _exact(trial), events.frozen(base_event), float(threshold)
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
        stacks = trial.training.sample_rate == 1 and linear_layer(self._own(0).model) is not None
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
                    share = validating._n_correct(self._own(0).classifier(model)) / validating.expected_records
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
            self._own_models.append(OwnModel(build, self._train))
        return self._own_models[number]

    def _stacked(self, models: "Sequence[nn.Module]") -> StackedLinear | None:
        """Several linear models at these weights as one; None if they cannot be stacked."""
        own = [self._own(index).like(model) for index, model in enumerate(models)]
        trained = tuple(tuple(parameter.requires_grad for parameter in model.parameters()) for model in own)
        if trained not in self._stacks:
            self._stacks[trained] = StackedLinear(own) if can_stack(own) else None
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


class SealedUtilities(_Unique):
    """Utilities of candidates that can be compared with thresholds, privately, and not read."""

    def __init__(self, session: Session, values: list[float], sensitivity: float) -> None:
        self._session = session
        self.__sealed = (tuple(values), float(sensitivity))

    @property
    def _sensitivity(self) -> float:
        """Of each utility; read-only, as noise is drawn for it after it was charged."""
        return self.__sealed[1]

    def open_test(self, epsilon: float) -> "UtilityTest":
        """One AboveThreshold over these utilities, charged here and now (Dwork and Roth 2014, Theorem 3.23).

        The smaller noise for monotone queries does not apply: a record can raise the utility of one candidate and
        lower that of another.

        Args:
            epsilon: ε of all that this test answers.

        Raises:
            InvalidValueError: if ε is not positive and finite.
            OverBudgetError: if the plan does not cover the test; there is none then.
        """
        if not 0 < epsilon < math.inf:
            raise InvalidValueError(f"Expected epsilon > 0, got {epsilon}.")
        session = self._session
        event = pure(epsilon)
        session._ledger.charge(event, session._scope)
        values, sensitivity = self.__sealed
        generator = session._generator("noise", "above threshold", "cpu")
        return UtilityTest(session, AboveThreshold(sensitivity, event.epsilon, generator), values)


class UtilityTest(_Unique):
    """One AboveThreshold over sealed utilities, open until it names a candidate; see `SealedUtilities.open_test`."""

    def __init__(self, session: Session, mechanism: AboveThreshold, values: tuple[float, ...]) -> None:
        self.__session, self.__mechanism, self.__values = session, mechanism, values

    def first(self, threshold: float) -> int | None:
        """The first candidate whose noisy utility reaches the noisy threshold; its index ends the test.

        Args:
            threshold: public; it may depend on earlier answers.

        Returns:
            The candidate's index, or None if there is none, which costs nothing.

        Raises:
            InvalidValueError: if an index was given before, or the threshold is not finite.
            OverBudgetError: if the account that paid for the test answers no more.
        """
        self.__session._ledger.charge(no_op(), self.__session._scope)
        return self.__mechanism.first(self.__values, float(threshold))


class _Table:
    """A rule of a plug-in, asked about norms in general instead of those of a batch.

    It learns nothing about the records, and the factor of one does not depend on the others. Between the norms that
    it was asked about, 1.4 % apart, its factors are interpolated.
    """

    def __init__(self, rule: "Clipping", sensitivity: float) -> None:
        norms = torch.logspace(-12, 12, 4097)
        found = plain(torch.as_tensor(rule.factors(norms.clone()), dtype=norms.dtype)).detach().cpu().expand_as(norms)
        self._factors = torch.minimum(found.nan_to_num(nan=0.0), sensitivity / norms).clamp(min=0.0)

    def factors(self, norms: "Tensor") -> "Tensor":
        """The factor of each norm."""
        last = len(self._factors) - 1
        at = ((norms.log10() + 12) * (last / 24)).nan_to_num(nan=0.0).clamp(0, last)
        below = at.long().clamp(max=last - 1)
        factors = self._factors.to(norms)
        return torch.lerp(factors[below], factors[below + 1], at - below)


class _Held:
    """A clipping rule held to the sensitivity it states, for rules come from plug-ins too."""

    def __init__(self, rule: "Clipping") -> None:
        self.sensitivity = positive("sensitivity", rule.sensitivity)
        self._rule: Clipping | _Table
        if isinstance(rule, _Counting):
            self._rule = rule
        elif isinstance(rule, Abadi | AutoS | AutoV) and type(rule) in (Abadi, AutoS, AutoV):
            self._rule = replace(rule)  # made anew: somebody may have hung a function of their own on that one
        else:
            self._rule = _Table(rule, self.sensitivity)

    def factors(self, norms: "Tensor") -> "Tensor":
        """The rule's factors, reduced where a gradient would exceed the sensitivity; 0 where it is no number."""
        largest = torch.where(norms.isfinite(), self.sensitivity / norms, 0.0)
        factors = torch.minimum(self._rule.factors(norms).nan_to_num(nan=0.0), largest).clamp_(min=0.0)
        return torch.where(factors >= SMALLEST_FACTOR, factors, 0.0)


class _Counting:
    """Clipping to a threshold that counts how many gradients it leaves as they are; every record comes by once."""

    def __init__(self, max_grad_norm: float) -> None:
        self._rule = Abadi(max_grad_norm)
        self.sensitivity = max_grad_norm
        self.seen = 0
        self.unclipped = 0

    def factors(self, norms: "Tensor") -> "Tensor":
        """min(1, C / norm)."""
        self.seen += len(norms)
        self.unclipped += int((norms <= self.sensitivity).sum())
        return self._rule.factors(norms)


class Batch(_Unique):
    """One Poisson batch. Its records cannot be read; what is released about them is noisy and charged.

    Means divide by the expected batch size N · rate: the drawn size is private.
    """

    def __init__(self, session: Session, indices: "Tensor | None", rate: float, account: Ledger) -> None:
        self._session = session
        self._indices = indices  # None: every record of the task
        self._is_full = rate == 1
        self._account = account
        self._expected_size = session.expected_records * rate

    def gradient(self, model: "nn.Module", clipping: "Clipping", noise_multiplier: float) -> "list[Tensor]":
        """The mean clipped gradient with Gaussian noise.

        Args:
            model: at the weights where the gradient is wanted.
            clipping: bounds one record's contribution to `clipping.sensitivity`. A rule that is not of dphpo_bench
                is asked about norms in general, before the batch is looked at, so that it sees no records.
            noise_multiplier: noise standard deviation / sensitivity of the sum.

        Returns:
            One tensor for each trainable parameter of the model, in their order, of its shape and dtype.

        Raises:
            InvalidValueError: if the sensitivity is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        held = _Held(clipping)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        engine = self._session._own(0).engine(model)
        self._account.charge(gaussian(noise_multiplier))
        return self._noisy_mean(engine.model, self._clipped_sum(engine, held), held, noise_multiplier)

    def gradient_and_quantile(
        self, model: "nn.Module", max_grad_norm: float, noise_multiplier: float, count_noise: float
    ) -> "tuple[list[Tensor], float]":
        """A noisy clipped gradient, and the noisy share of gradients that clipping left as they were.

        Released are the clipped sum and Σ (bᵢ − 1/2), where bᵢ says whether record i's gradient is no longer
        than the threshold (Andrew et al. 2021, Algorithm 1). The centred sum has sensitivity 1/2, so it is a
        Gaussian of multiplier 2 · count_noise. It is divided by the expected batch size, never by the drawn one.

        Args:
            model: as in `gradient`.
            max_grad_norm: clipping threshold C.
            noise_multiplier: noise standard deviation / C, of the gradient sum.
            count_noise: noise standard deviation of the count.

        Returns:
            The gradient as in `gradient`, and the share; the latter may lie outside [0, 1].

        Raises:
            OverBudgetError: if the plan does not cover the releases; nothing is released then.
        """
        session = self._session
        rule = _Counting(positive("max_grad_norm", max_grad_norm))
        held = _Held(rule)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        count_noise = number("count_noise", count_noise, low=0)
        engine = session._own(0).engine(model)
        self._account.charge(events.compose(gaussian(noise_multiplier), gaussian(2 * count_noise)))
        total = self._clipped_sum(engine, held)
        centred = torch.tensor([rule.unclipped - rule.seen / 2], dtype=torch.float64)
        (noisy,) = add_gaussian_noise([centred], 2 * count_noise, 0.5, session._generator("noise", "count", "cpu"))
        share = 0.5 + noisy.item() / self._expected_size
        return self._noisy_mean(engine.model, total, held, noise_multiplier), share

    def _clipped_sum(self, engine: "GradientEngine", held: "_Held") -> "list[Tensor]":
        train = self._session._train
        return self._session._compute(
            lambda: engine.clipped_sum(train.inputs, train.targets, held, indices=self._indices).gradients
        )

    def _noisy_mean(
        self, own: "nn.Module", total: "Sequence[Tensor]", held: "_Held", noise_multiplier: float
    ) -> "list[Tensor]":
        session = self._session
        generator = session._generator("noise", "gradient", device=session.device)
        noisy = add_gaussian_noise(total, noise_multiplier, held.sensitivity, generator)
        dtypes = [parameter.dtype for parameter in own.parameters() if parameter.requires_grad]
        mean = [(part / self._expected_size).to(dtype) for part, dtype in zip(noisy, dtypes, strict=True)]
        if session._observer:
            share = held.sensitivity / self._expected_size
            session._observer.gradient(own, mean, share, noise_multiplier * share)
        return mean

    def losses(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
    ) -> list[float]:
        """Mean losses along a line, each clipped per record to [0, bound], with Gaussian noise.

        Args:
            model: at weights w.
            direction: G, one tensor for each trainable parameter.
            steps: h₁, ..., h_k; loss j is taken at w − h_j · G.
            bound: clipping bound R > 0 of one record's loss; the sensitivity of each sum.
            noise_multiplier: noise standard deviation / bound, of each of the k sums.

        Returns:
            k noisy means; the noise of each has standard deviation noise_multiplier · bound / (N · rate).

        Raises:
            InvalidValueError: if the bound is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        steps, bound = tuple(map(float, steps)), positive("loss bound", bound)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        losses = self._losses_along(model, direction, steps, noise_multiplier, len(steps))
        # A diverged record counts as the worst one: NaN and infinities become the bound, a function of
        # that record alone.
        clipped = torch.nan_to_num(losses, nan=bound, posinf=bound).clamp_(0.0, bound)
        return self._noisy_means(clipped, bound, noise_multiplier)

    def loss_changes(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
    ) -> list[float]:
        """Mean changes of the loss along a line, each clipped per record to [-bound, bound], with noise.

        A record's loss changes far less along a step than the loss itself is large, so a small bound, and
        with it little noise, is enough. The sensitivity of each sum is the bound: the change is a function of
        one record.

        Args:
            model: at weights w.
            direction: G, one tensor for each trainable parameter.
            steps: h₁, ..., h_k; change j is the loss at w − h_j · G minus the loss at w.
            bound: clipping bound C > 0 of one record's change.
            noise_multiplier: noise standard deviation / bound, of each of the k sums.

        Returns:
            k noisy means; the noise of each has standard deviation noise_multiplier · bound / (N · rate).

        Raises:
            InvalidValueError: if the bound is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        steps, bound = tuple(map(float, steps)), positive("loss bound", bound)
        noise_multiplier = number("noise_multiplier", noise_multiplier, low=0)
        losses = self._losses_along(model, direction, (0.0, *steps), noise_multiplier, len(steps))
        changes = losses[1:] - losses[0]
        clipped = torch.nan_to_num(changes, nan=bound, posinf=bound, neginf=-bound).clamp_(-bound, bound)
        return self._noisy_means(clipped, bound, noise_multiplier)

    def _losses_along(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        noise_multiplier: float,
        releases: int,
    ) -> "Tensor":
        """Charge the releases, then compute raw losses, float64 of shape (len(steps), drawn size)."""
        session = self._session
        along = [plain(tensor) for tensor in direction]
        engine = session._own(0).engine(model)
        engine.check_direction(along)
        self._account.charge(repeat(gaussian(noise_multiplier), releases))
        train = session._train
        return session._compute(
            lambda: engine.losses_along(train.inputs, train.targets, along, steps, indices=self._indices)
        ).double()

    def _noisy_means(self, clipped: "Tensor", bound: float, noise_multiplier: float) -> list[float]:
        session = self._session
        generator = session._generator("noise", "losses", device=session.device)
        (sums,) = add_gaussian_noise([clipped.sum(dim=1)], noise_multiplier, bound, generator)
        return (sums / self._expected_size).tolist()


def gradients_together(
    batches: Sequence[Batch],
    models: "Sequence[nn.Module]",
    clippings: "Sequence[Clipping]",
    noise_multipliers: Sequence[float],
) -> "list[list[Tensor]]":
    """`Batch.gradient` of several batches, one model each, in one matrix product where that is possible.

    That is so for full batches of the same records and linear models of one shape. Each batch is charged to
    its own ledger and has its own noise.

    Args:
        batches: one for each model.
        models: see `Batch.gradient`.
        clippings: see `Batch.gradient`.
        noise_multipliers: see `Batch.gradient`.

    Raises:
        OverBudgetError: if the plan of one does not cover its release.
    """
    batches, models, clippings = list(batches), list(models), list(clippings)
    noise = [number("noise_multiplier", one, low=0) for one in noise_multipliers]
    if any(type(batch) is not Batch for batch in batches):
        raise InvalidValueError("Expected batches of a session.")
    if not len(batches) == len(models) == len(clippings) == len(noise) > 0:
        raise InvalidValueError("Expected one model, one clipping rule and one noise multiplier for each batch.")
    first = batches[0]
    same = all(
        b._is_full and b._session._train is first._session._train and b._indices is first._indices for b in batches
    )
    stack = first._session._stacked(models) if same and len(batches) > 1 else None
    if stack is None:
        arguments = zip(batches, models, clippings, noise, strict=True)
        return [batch.gradient(model, clipping, sigma) for batch, model, clipping, sigma in arguments]
    held = [_Held(clipping) for clipping in clippings]
    for batch, sigma in zip(batches, noise, strict=True):
        batch._account.charge(gaussian(sigma))
    train = first._session._train
    sums = first._session._compute(
        lambda: stack.clipped_sums(train.inputs, train.targets, held, indices=first._indices)
    )
    return [
        batch._noisy_mean(own, total, rule, sigma)
        for batch, own, total, rule, sigma in zip(batches, stack.models, sums, held, noise, strict=True)
    ]


def _exact(trial: TrialFunction | Trial) -> TrialFunction | Trial:
    """A trial in which no code of a method runs, made anew from its numbers; a function of a method's own as it is."""
    if type(trial) is Trial and type(trial.training) is DpSgd:
        return replace(trial, training=replace(trial.training))
    return trial if not isinstance(trial, Trial) else trial.__call__


def _as_it_is(scored: Scored | None, observer: Observer | None) -> tuple[Any, Observer | None]:
    return scored and scored.outcome, observer


def _valid(scored: Scored) -> Scored | None:
    """A result whose score is a number; None if it is none."""
    score = float(scored.score)
    return None if math.isnan(score) else Scored(scored.outcome, score)


def _uniform(generator: "AnyGenerator") -> float:
    return uniform(1, generator).item()
