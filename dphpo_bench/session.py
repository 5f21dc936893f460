"""The only door to private data: sampling, clipping, noise and accounting are one object.

Every query charges the ledger before it computes, in the call that adds the noise, so the four cannot drift
apart. What is asked of one batch is composed first and subsampled once (docs/accounting.md).
"""

import hashlib
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch

from dphpo_bench import search
from dphpo_bench.errors import InvalidValueError, OverBudgetError
from dphpo_bench.parts import TRAINING, VALIDATION, holdout_name
from dphpo_bench.privacy import run_counts
from dphpo_bench.privacy.events import best_of, first_above, gaussian, no_op, non_private, pure, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import geometric
from dphpo_bench.progress import Progress, SilentProgress
from dphpo_bench.randomness import Streams
from dphpo_bench.task import Split, Task, TaskFacts
from dphpo_bench.training.clipping import SMALLEST_FACTOR, Abadi, AutoS, AutoV
from dphpo_bench.training.gradients import GradientEngine, gradient_engine
from dphpo_bench.training.model_checks import refuse_hooks, refuse_mixing
from dphpo_bench.training.modes import evaluating
from dphpo_bench.training.noise import AboveThreshold, add_gaussian_noise
from dphpo_bench.training.sampling import poisson_sample, uniform
from dphpo_bench.training.stacked import StackedLinear, can_stack

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from dphpo_bench.dp_sgd import DpSgd
    from dphpo_bench.privacy.ledger import Account, Scope
    from dphpo_bench.privacy.ledger import Batch as BatchCharges
    from dphpo_bench.privacy.run_counts import RunCount
    from dphpo_bench.training.clipping import Clipping
    from dphpo_bench.training.secure_noise import AnyGenerator


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


@dataclass
class _Losers:
    """What the trials that lost have made: nothing of it may be released.

    Attributes:
        models: their models, as long as somebody holds them.
        weights: how many trials had a model of these weights, by digest, for copies. What two trials have is
            nothing that noise has touched, such as initial weights.
        scores: their scores.
    """

    models: "WeakSet[nn.Module]" = field(default_factory=WeakSet)
    weights: Counter[bytes] = field(default_factory=Counter)
    scores: set[float] = field(default_factory=set)


@dataclass(frozen=True)
class _Tried:
    """One trial: its index, its result (None if it failed), the models it built, and who looked on."""

    index: int
    scored: Scored | None
    models: "WeakSet[nn.Module]"
    weights: frozenset[bytes]
    observer: Observer | None

    def beats(self, other: "_Tried | None") -> bool:
        """Whether it wins; of equals the first, in whatever order they ran."""
        if self.scored is None or other is None or other.scored is None:
            return self.scored is not None
        return (self.scored.score, -self.index) > (other.scored.score, -other.index)


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

    Attributes:
        facts: the task's public facts.
        expected_records: expected number of records of this session: public, unlike the number itself.
    """

    def __init__(
        self,
        task: Task,
        train: Split,
        ledger: "Account",
        streams: Streams,
        *,
        model_streams: Streams | None = None,
        device: "torch.device | str" = "cpu",
        progress: Progress | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.facts: TaskFacts = task.facts
        self.device = torch.device(device)
        self.progress: Progress = progress or SilentProgress()
        self._ledger = ledger
        self._observer = observer
        self.expected_records = float(self.facts.n_records)
        self._task = task
        self._train = train
        self._streams = streams
        self._model_streams = model_streams or streams
        self._rows: Tensor | None = None  # of this session's records; None: all
        self._scope: Scope = ()  # of what is charged
        self._within: Scope = ()  # all parts that these records are the common records of
        self._parts: dict[Scope, Tensor] = {}  # rows of parts, kept so that trials share them
        # Shared with all sessions made from this one, by the full name of a stream: were one to start a stream
        # that another has begun, its noise would repeat. The same for names that are numbered.
        self._generators: dict[tuple[str, ...], AnyGenerator] = {}
        self._current: GradientEngine | None = None
        self._stack: StackedLinear | None = None
        self._stacked_models: list[nn.Module] = []
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._losers = _Losers()
        self._built: list[nn.Module] | None = None  # models of one trial while it runs; None: in no trial
        self._lent: list[Split] = []  # raw records, to be taken back
        # Models that treat each record alone, in these modes.
        self._checked: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()

    # ------------------------------------------------------------------------------------- what is public

    def build_model(self) -> "nn.Module":
        """The task's model at its initial weights, the same for every method at one seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._model_streams.derive("initial weights", self.facts.task, self.facts.model))
            model = self._task.build_model().to(self.device)
        if self._built is not None:
            self._built.append(model)
        return model

    def candidate(self) -> search.Candidate:
        """Hyperparameters drawn from the task's search space, independently in every trial of a selection.

        The same at each call: a session stands for one trial.
        """
        return search.draw(self.facts.search_space(), self._streams.derive("candidate"))

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
        if not 0 < fraction < 1:
            raise InvalidValueError(f"Expected 0 < fraction < 1, got fraction={fraction}.")
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
        child.expected_records = self.expected_records * (end - start)
        return child

    def subsample(self, rate: float) -> "Session":
        """A session on a secret Poisson sample of the records.

        All that is charged to it is composed first and sampled once. Selections and scores only: what trains
        on the sample does so in the trials of a selection.

        Args:
            rate: probability of each record, in (0, 1).
        """
        if not 0 < rate < 1:
            raise InvalidValueError(f"Expected 0 < rate < 1, got rate={rate}.")
        drawn = poisson_sample(self._n_rows, rate, self._generator("sample", "subsample", "cpu"))
        streams = self._streams.within("subsample", self._next("subsample"))
        child = self._child(self._ledger.open_batch(rate, self._scope), streams)
        child._rows = drawn if self._rows is None else self._rows[drawn]
        child._parts = {}
        child._scope = ()  # the batch as a whole is charged to it
        child.expected_records = self.expected_records * rate
        return child

    def _child(self, ledger: "Account", streams: Streams) -> "Session":
        """The same records under another account and other streams."""
        child = Session(
            self._task,
            self._train,
            ledger,
            streams,
            model_streams=self._model_streams,
            device=self.device,
            progress=self.progress,
            observer=self._observer,
        )
        child._rows, child._parts = self._rows, self._parts
        child._scope, child._within = self._scope, self._within
        child._generators, child._counts = self._generators, self._counts
        child._losers, child._built, child._lent = self._losers, self._built, self._lent
        child._checked = self._checked
        child.expected_records = self.expected_records
        return child

    @property
    def _n_rows(self) -> int:
        return len(self._train) if self._rows is None else len(self._rows)

    # ------------------------------------------------------------------------------------------- releases

    def sample(self, rate: float, purpose: str = "training") -> "Batch":
        """A Poisson batch: each record is in it independently with probability `rate`.

        Args:
            rate: in (0, 1]; at 1 the batch holds every record.
            purpose: names the random stream, so that batches for one purpose do not depend on how many
                were drawn for another.
        """
        if not 0 < rate <= 1:
            raise InvalidValueError(f"Expected 0 < rate <= 1, got rate={rate}.")
        if rate == 1:
            indices = self._rows
        else:
            indices = poisson_sample(self._n_rows, rate, self._generator("sample", purpose, device="cpu"))
            indices = indices if self._rows is None else self._rows[indices]
        return Batch(self, indices, rate, self._ledger.open_batch(rate, self._scope))

    def score(self, model: "nn.Module", noise_multiplier: float) -> float:
        """The share of records that the model classifies correctly: a noisy count over the expected number.

        Args:
            model: a classifier.
            noise_multiplier: standard deviation of the noise on the count, whose sensitivity is 1.

        Raises:
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        self._ledger.charge(gaussian(noise_multiplier), self._scope)
        count = torch.tensor([self._n_correct(model)], dtype=torch.float64)
        (noisy,) = add_gaussian_noise([count], noise_multiplier, 1.0, self._generator("noise", "score", "cpu"))
        return noisy.item() / self.expected_records

    def _n_correct(self, model: "nn.Module") -> int:
        """How many records are classified correctly; private. A prediction of NaN is wrong."""
        self._check(model)
        correct = 0
        with evaluating(model):
            for start in range(0, self._n_rows, 1024):
                rows: Any = slice(start, start + 1024)
                rows = rows if self._rows is None else self._rows[rows]
                outputs = model(self._train.inputs[rows].to(self.device).float())
                labels = self._train.targets[rows].to(self.device)
                if outputs.ndim != 2 or len(outputs) != len(labels):  # pairs would be counted, not records
                    raise InvalidValueError(
                        f"Expected model outputs of shape (n, classes), got {('n', *outputs.shape[1:])}."
                    )
                correct += int(((outputs.argmax(dim=1) == labels) & outputs.isfinite().all(dim=1)).sum())
        return correct

    def nonprivate(self) -> Split:
        """The raw private records, for references that are not private: ε becomes ∞ and stays it.

        They are lent for this run only: these tensors are empty once it is over.
        """
        self._ledger.charge(non_private(), self._scope)
        rows: Any = slice(None) if self._rows is None else self._rows
        self._lent.append(Split(self._train.inputs[rows], self._train.targets[rows]))
        return self._lent[-1]

    def close(self) -> None:
        """End the run: nothing is released any more, and raw records that were lent are taken back."""
        assert isinstance(self._ledger, Ledger)
        self._ledger.close()
        for split in self._lent:
            for tensor in (split.inputs, split.targets):
                tensor.data = tensor.new_empty(0)

    def refuse_losers(self, model: "nn.Module", released: dict[str, Any]) -> None:
        """Refuse what a trial that lost has made: only the winner of a selection may be released.

        Args:
            model: what the run returns.
            released: what it says besides, as JSON values.

        Raises:
            OverBudgetError: if the model was built in such a trial or has the weights of one that was, or if its
                score is among the values.
        """
        what = None
        weights = self._losers.weights
        if model in self._losers.models:
            what = "the model"
        elif weights and weights[_digest(model)] == 1 and _digest(model) != _digest(self.build_model()):
            what = "the weights"  # the initial ones are public
        elif not self._losers.scores.isdisjoint(_numbers(released)):
            what = "the score"
        if what:
            message = f"The run releases {what} of a trial that lost; only the winner of a selection may be released."
            self._ledger.refuse(message)
            raise OverBudgetError(message)

    # ------------------------------------------------------------------------------------ private selection

    def best_of(
        self,
        trials: "Callable[[list[Session]], list[Scored]]",
        runs: "RunCount",
        base_event: "DpEvent",
        *,
        low: float = 1.0,
        high: float = 1.0,
        together: int = 1,
    ) -> Any:
        """The outcome of the best of a secret random number of trials (Liu and Talwar 2019; Papernot and Steinke 2022).

        The number is drawn before the first trial, from a stream that depends on the run's seed alone, and the
        harness keeps the seed until the run is recorded (see `journal`): nothing that trials do can change it.
        The trials are independent: each gets a session with its own random streams and its own ledger, bound to
        the base event. A trial that raises, or has no number for a score, has the worst score. Scores, losers
        and the number of trials stay here: nothing of them may be kept, logged or stored by `trials`.

        Args:
            trials: runs one trial on each of the sessions it is given, and returns their results in order. The
                hyperparameters of a trial are drawn in it, from its own session.
            runs: distribution of the number of trials.
            base_event: worst-case event of one trial, score included.
            low: c ≤ 1 and
            high: C ≥ 1 bound the density of a trial's hyperparameters, given the earlier trials, relative to a
                prior that is fixed. 1 and 1: all are drawn from the prior.
            together: how many trials `trials` is given at once, at most.

        Returns:
            The winner's `outcome`. None if there was no trial or none that did not fail: the caller
            releases something that does not depend on the data then.

        Raises:
            OverBudgetError: if the plan does not cover the selection, or a trial asked for more than the base
                event.
        """
        if type(runs) is not type(run_counts.from_json(runs.to_json())):
            raise InvalidValueError(
                f"Expected a distribution of dphpo_bench, which draws what it says, got a {type(runs).__name__}."
            )
        self._ledger.charge(best_of(base_event, runs, low, high), self._scope)
        selection = self._streams.within("selection", self._next("selection"))
        count = runs.sample(_uniform(selection.source("number of runs")))
        if selection.secure:
            together = 1  # trials of a stack that raises run again; secure noise cannot be drawn again
        best: _Tried | None = None
        order = self._order(count) if low == high == 1 else list(range(count))
        with self.progress.track("Trials", count) as advance:
            for start in range(0, len(order), together):
                for tried in self._run_trials(trials, selection, order[start : start + together], base_event):
                    # The first of equals: a fixed order of independent trials is as good as a fresh coin.
                    best, lost = (tried, best) if tried.beats(best) else (best, tried)
                    self._lost(lost)
                    advance()
        return self._won(best)

    @staticmethod
    def _order(count: int) -> list[int]:
        """The order in which independent trials run, which changes nothing."""
        return list(range(count))

    def _lost(self, tried: _Tried | None) -> None:
        if tried is not None:
            self._losers.models |= tried.models
            self._losers.weights.update(tried.weights)
            if tried.scored is not None:
                self._losers.scores.add(float(tried.scored.score))

    def _won(self, best: _Tried | None) -> Any:
        """What is released of the winner."""
        if best is None or best.scored is None:
            return None
        self._losers.scores.discard(float(best.scored.score))
        self._losers.weights.update(best.weights)  # more than one trial, or the winner's
        for digest in best.weights:
            self._losers.weights[digest] += 1
        if self._built is not None:
            self._built += best.models
        if self._observer and best.observer:
            self._observer.won(best.observer)
        return best.scored.outcome

    def first_above(
        self,
        trials: "Callable[[list[Session]], list[Scored]]",
        threshold: float,
        stop_probability: float,
        base_event: "DpEvent",
    ) -> Any:
        """The outcome of the first trial whose score reaches a threshold (Liu and Talwar 2019, Algorithm 1).

        After each trial below it, a coin ends the search with nothing. See `best_of` for the rest.

        Args:
            trials: as in `best_of`.
            threshold: fixed in advance, from public information.
            stop_probability: γ of the coin, in (0, 1).
            base_event: as in `best_of`.

        Returns:
            The `outcome` of that trial, or None.

        Raises:
            OverBudgetError: as in `best_of`.
        """
        runs = geometric(1 / stop_probability)  # how many trials the coins allow; they are tossed in advance
        self._ledger.charge(first_above(base_event, stop_probability), self._scope)
        selection = self._streams.within("selection", self._next("selection"))
        longest = runs.sample(_uniform(selection.source("number of runs")))
        with self.progress.track("Trials", longest) as advance:
            for index in range(longest):
                (tried,) = self._run_trials(trials, selection, [index], base_event)
                advance()
                if tried.scored is not None and tried.scored.score >= threshold:
                    return self._won(tried)
                self._lost(tried)
        return None

    def _next(self, kind: str) -> str:
        """1, 2, ... for what happens several times on one stream, so that no two share their names."""
        key = (*self._streams.axes, kind)
        self._counts[key] += 1
        return str(self._counts[key])

    def _run_trials(
        self,
        trials: "Callable[[list[Session]], list[Scored]]",
        selection: Streams,
        indices: list[int],
        base_event: "DpEvent",
    ) -> list[_Tried]:
        """These trials, in this order."""

        def session(index: int) -> Session:
            child = self._child(Ledger(allowance=base_event), selection.within("trial", str(index)))
            child._scope = ()  # the selection as a whole is charged to it
            child._built = []
            child._observer = self._observer and self._observer.trial()
            return child

        def attempt(indices: list[int]) -> list[_Tried]:
            """The trials; nothing if an exception ended several at once."""
            sessions = [session(index) for index in indices]
            results: list[Scored | None] | None
            try:
                scored = trials(list(sessions))  # of its own: a method may take sessions off it
                found = [Scored(result.outcome, float(result.score)) for result in scored]
                results = [None if math.isnan(result.score) else result for result in found]
                if len(results) != len(sessions):
                    raise ValueError(f"Expected one result for each of {len(sessions)} trials, got {len(results)}.")
            except (Exception, SystemExit):
                results = None
            for child in sessions:
                assert isinstance(child._ledger, Ledger)
                child._ledger.close()  # a trial is over when it has its score
                if child._ledger.refused:  # a mistake in the method, not in the data
                    self._ledger.refuse(child._ledger.refused)
                    raise OverBudgetError(child._ledger.refused)
            if results is None and len(sessions) > 1:
                return []
            return [
                _tried(index, scored, child)
                for index, scored, child in zip(indices, results or [None], sessions, strict=True)
            ]

        tried = attempt(indices)
        if not tried:
            # Trials are independent: one that raises must not take the others with it. Each runs again by itself,
            # on the very numbers that it had: fresh ones would be a second chance.
            for index in indices:
                self._rewind(selection.within("trial", str(index)))
                tried += attempt([index])
        return tried

    def _rewind(self, streams: Streams) -> None:
        """Start these streams anew. Only for what is computed again because nothing came of it."""
        for known in (self._generators, self._counts):
            for key in [key for key in known if key[: len(streams.axes)] == streams.axes]:
                del known[key]

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
        from dphpo_bench.dp_sgd import DpSgd

        if partitions < 2:
            raise InvalidValueError(f"Expected partitions >= 2, got {partitions}.")
        if not all(type(run) is DpSgd and isinstance(run.optimizer, str) for run in runs):
            # One of a plug-in's own would see gradients without noise.
            raise InvalidValueError("Expected candidates of type DpSgd, with optimisers that are given by name.")
        training, validating = self.holdout(validation)
        totals = [0.0] * len(runs)
        silent = [run.with_noise(0.0) for run in runs]
        with self.progress.track("Candidates on parts of the data", partitions) as advance:
            for index in range(partitions):
                part = training._on_part(
                    f"{partitions} parts", str(index), index / partitions, (index + 1) / partitions
                )
                # The ledger of this is thrown away: what is computed here stays sealed until `open_test`.
                streams = self._streams.within("part", str(index))
                sessions = [part._child(Ledger(), streams.within(str(i))) for i in range(len(runs))]
                for session in sessions:
                    session.progress, session._observer, session._built = SilentProgress(), None, None
                for i, model in enumerate(DpSgd.train_together(sessions, silent)):
                    share = validating._n_correct(model) / validating.expected_records
                    totals[i] += min(share, 1.0) / partitions
                advance()
        sensitivity = max(1 / partitions, 1 / validating.expected_records)
        return SealedUtilities(self, totals, sensitivity)

    # ------------------------------------------------------------------------------------------- internals

    def _engine(self, model: "nn.Module") -> GradientEngine:
        """The engine of the model in use; engines remember what they measured of a model and of the data."""
        if self._current is None or self._current.model is not model:
            self._current = gradient_engine(model)
        self._check(model)
        return self._current

    def _check(self, model: "nn.Module") -> None:
        """Refuse a model that is unfit for private records; remember it among those of this trial."""
        refuse_hooks(model)
        modes = [module.training for module in model.modules()]
        if self._checked.get(model) != modes:
            refuse_mixing(model, self._train.inputs)
            self._checked[model] = modes
        if self._built is not None and all(known is not model for known in self._built):
            self._built.append(model)

    def _stacked(self, models: "Sequence[nn.Module]") -> StackedLinear | None:
        """The same for several linear models at once; None if they cannot be stacked."""
        for model in models:
            self._check(model)
        if len(self._stacked_models) != len(models) or any(map(operator.is_not, self._stacked_models, models)):
            self._stacked_models = list(models)
            self._stack = StackedLinear(models) if can_stack(models) else None
        return self._stack

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
        found = torch.as_tensor(rule.factors(norms.clone()), dtype=norms.dtype).detach().cpu().expand_as(norms)
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
        self.sensitivity = rule.sensitivity
        if not (math.isfinite(self.sensitivity) and self.sensitivity > 0):
            raise InvalidValueError(f"Expected a finite sensitivity > 0, got {self.sensitivity}.")
        own = type(rule) in (Abadi, AutoS, AutoV, _Counting)
        self._rule = rule if own else _Table(rule, self.sensitivity)

    def factors(self, norms: "Tensor") -> "Tensor":
        """The rule's factors, but none that lets a gradient exceed the sensitivity; 0 where it is no number."""
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

    def __init__(self, session: Session, indices: "Tensor | None", rate: float, charges: "BatchCharges") -> None:
        self._session = session
        self._indices = indices  # None: every record of the task
        self._is_full = rate == 1
        self._charges = charges
        self._expected_size = session.expected_records * rate

    def gradient(self, model: "nn.Module", clipping: "Clipping", noise_multiplier: float) -> "list[Tensor]":
        """The mean clipped gradient with Gaussian noise.

        Args:
            model: at the weights where the gradient is wanted.
            clipping: bounds one record's contribution to `clipping.sensitivity`. A rule that is not of dphpo_bench
                is asked about norms in general, before the batch is looked at, so that it sees no records.
            noise_multiplier: noise standard deviation / sensitivity of the sum.

        Returns:
            One tensor for each trainable parameter of the model, in their order.

        Raises:
            InvalidValueError: if the sensitivity is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """
        session = self._session
        held = self._charge_gradient(clipping, noise_multiplier)
        train = session._train
        total = session._engine(model).clipped_sum(train.inputs, train.targets, held, indices=self._indices)
        return self._noisy_mean(model, total.gradients, held, noise_multiplier)

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
        rule = _Counting(max_grad_norm)
        held = self._charge_gradient(rule, noise_multiplier)
        self._charges.charge(gaussian(2 * count_noise))
        train = session._train
        total = session._engine(model).clipped_sum(train.inputs, train.targets, held, indices=self._indices)
        centred = torch.tensor([rule.unclipped - rule.seen / 2], dtype=torch.float64)
        (noisy,) = add_gaussian_noise([centred], 2 * count_noise, 0.5, session._generator("noise", "count", "cpu"))
        share = 0.5 + noisy.item() / self._expected_size
        return self._noisy_mean(model, total.gradients, held, noise_multiplier), share

    def _charge_gradient(self, clipping: "Clipping", noise_multiplier: float) -> "_Held":
        held = _Held(clipping)
        self._charges.charge(gaussian(noise_multiplier))
        return held

    def _noisy_mean(
        self, model: "nn.Module", total: "Sequence[Tensor]", held: "_Held", noise_multiplier: float
    ) -> "list[Tensor]":
        session = self._session
        generator = session._generator("noise", "gradient", device=session.device)
        noisy = add_gaussian_noise(total, noise_multiplier, held.sensitivity, generator)
        mean = [gradient / self._expected_size for gradient in noisy]
        if session._observer:
            share = held.sensitivity / self._expected_size
            session._observer.gradient(model, mean, share, noise_multiplier * share)
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
        losses = self._losses_along(model, direction, steps, bound, noise_multiplier, len(steps))
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
        losses = self._losses_along(model, direction, (0.0, *steps), bound, noise_multiplier, len(steps))
        changes = losses[1:] - losses[0]
        clipped = torch.nan_to_num(changes, nan=bound, posinf=bound, neginf=-bound).clamp_(-bound, bound)
        return self._noisy_means(clipped, bound, noise_multiplier)

    def _losses_along(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
        releases: int,
    ) -> "Tensor":
        """Charge the releases, then compute raw losses, float64 of shape (len(steps), drawn size)."""
        if not (math.isfinite(bound) and bound > 0):
            raise InvalidValueError(f"Expected a finite loss bound > 0, got bound={bound}.")
        session = self._session
        self._charges.charge(repeat(gaussian(noise_multiplier), releases))
        train = session._train
        engine = session._engine(model)
        return engine.losses_along(train.inputs, train.targets, list(direction), steps, indices=self._indices).double()

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
    first = batches[0]
    same = all(
        b._is_full and b._session._train is first._session._train and b._indices is first._indices for b in batches
    )
    stack = first._session._stacked(models) if same and len(batches) > 1 else None
    if stack is None:
        arguments = zip(batches, models, clippings, noise_multipliers, strict=True)
        return [batch.gradient(model, clipping, noise) for batch, model, clipping, noise in arguments]
    held = [
        batch._charge_gradient(clipping, noise)
        for batch, clipping, noise in zip(batches, clippings, noise_multipliers, strict=True)
    ]
    train = first._session._train
    sums = stack.clipped_sums(train.inputs, train.targets, held, indices=first._indices)
    return [
        batch._noisy_mean(model, total, rule, noise)
        for batch, model, total, rule, noise in zip(batches, models, sums, held, noise_multipliers, strict=True)
    ]


def _uniform(generator: "AnyGenerator") -> float:
    return uniform(1, generator).item()


def _tried(index: int, scored: Scored | None, session: Session) -> _Tried:
    """A trial that is over. Its models are held no longer, but known by their weights."""
    models = session._built or []
    tried = _Tried(index, scored, WeakSet(models), frozenset(map(_digest, models)), session._observer)
    models.clear()
    return tried


def _digest(model: "nn.Module") -> bytes:
    """Of the values of all parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _numbers(values: Any) -> Iterator[float]:
    """All numbers among JSON values that have more than six digits: a short one may be equal by chance."""
    if isinstance(values, float) and float(f"{values:.6g}") != values:
        yield values
    elif isinstance(values, list):
        for value in values:
            yield from _numbers(value)
    elif isinstance(values, dict):
        yield from _numbers(list(values.values()))
