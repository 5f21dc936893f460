"""The only door to private data: sampling, clipping, noise and accounting are one object.

Every query charges the ledger before it computes, in the call that adds the noise, so the four cannot drift
apart. Opening a batch fixes the queries that it may answer (docs/accounting.md).

This module imports nothing slow, because plug-ins name its class in their signatures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import short_text
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import Progress
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Candidate, Proposals, Space
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.session.interfaces import Unique

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent
    from torch import nn

    from dphpo_bench.data.encoding import Columns
    from dphpo_bench.privacy.ledger import Ledger
    from dphpo_bench.privacy.run_counts import RunCount
    from dphpo_bench.session.access import Access
    from dphpo_bench.session.batch import Batch
    from dphpo_bench.session.raw import RawRecords
    from dphpo_bench.session.sealed import SealedUtilities
    from dphpo_bench.session.selection import TrialFunction
    from dphpo_bench.training.losses import Objective
    from dphpo_bench.training.randomness import Streams
    from dphpo_bench.training.values import Values


def open_session(
    raw: "RawRecords",
    ledger: "Ledger",
    streams: "Streams",
    *,
    model_streams: "Streams | None" = None,
    sibling: "Session | None" = None,
    **options: Any,
) -> "Session":
    """Open the session of a run, on all of its records.

    Args:
        raw: the private records, and models that meet them.
        ledger: the account that pays for all releases.
        model_streams: streams of the initial weights and of the split into parts, which methods compared at one seed
            share; None: those of the run.
        sibling: session on the records of the task's public sibling, if the method tunes on it.
        options: progress, meter, observer, order, checkpoints and releases; see `Access`.
    """
    from dphpo_bench.session.access import Access

    of_sibling = None if sibling is None else sibling._access
    number = float(raw.facts.n_records)
    return Session(Access(raw, ledger, streams, model_streams or streams, number, sibling=of_sibling, **options))


def session_on_made_up(session: "Session", records: Records) -> "Session":
    """Return a session on records that a method drew from what was released to it; no account pays for it.

    It has the task's model, losses and scores. Whatever it answers is post-processing. Its random streams are of its
    own, also those of initial weights and parts: it must not repeat the coins of private records. Attacks of audits
    and checkpoints see nothing of it.
    """
    from dphpo_bench.privacy.ledger import Ledger

    access = session._access
    streams = access.numbered("made up")
    return Session(
        replace(
            access,
            raw=access.raw.on(records),
            ledger=Ledger(),
            streams=streams,
            model_streams=streams,
            expected_records=float(len(records)),
            observer=None,
            checkpoints=None,
            releases=None,
            rows=None,
            scope=(),
            within=(),
            parts={},
            sibling=None,
        )
    )


class Session(Unique):
    """The interface of a method to private data.

    A session may stand for some of the records only (see `holdout` and `subsample`). Its releases are then charged
    as releases from those. Where units hold several records (`TaskFacts.unit`), read "unit" for "record": all records
    of a unit are in a batch or part, or none, and its gradient, loss or score is the mean of theirs.

    Ask one question at a time, in the process and the thread that the method runs in; anything else raises
    `InvalidValueError`, as two questions at once could get the same noise.
    """

    __slots__ = ("_access", "_candidate")

    def __init__(self, access: "Access", candidate: Candidate | None = None) -> None:
        self._access = access
        self._candidate = candidate

    @property
    def facts(self) -> TaskFacts:
        """The task's public facts."""
        return self._access.raw.facts

    @property
    def columns(self) -> "Columns | None":
        """The public encoding of a table as the task's inputs, `Task.columns`; None: the task declares none."""
        return self._access.raw.columns

    @property
    def objective(self) -> "Objective":
        """The task's losses and scores, as functions of outputs and targets; for what trains on raw records.

        Raises:
            InvalidValueError: before `nonprivate` has given out the records.
        """
        return self._access.raw.public_objective

    @property
    def device(self) -> "torch.device":
        """The device of models and batches."""
        return self._access.raw.device

    @property
    def progress(self) -> Progress:
        """The display of the progress of long work."""
        return self._access.progress

    @property
    def expected_records(self) -> float:
        """Expected number of records of this session: public, unlike the number itself."""
        return self._access.expected_records

    @property
    def sibling(self) -> "Session":
        """A session on the task's public sibling: what it answers costs no ε; see `Method.needs_sibling`."""
        if self._access.sibling is None:
            raise InvalidValueError("Expected a method that declares needs_sibling = True, to use the public sibling.")
        return Session(self._access.sibling)

    def build_model(self) -> "nn.Module":
        """Return the task's model at its initial weights, which are the same for every method at one seed."""
        facts, access = self.facts, self._access
        return access.raw.build_model(access.model_streams.derive("initial weights", facts.task, facts.model))

    def candidate(self, space: Space | None = None) -> Candidate:
        """Return hyperparameters drawn from the task's search space, independently in every trial of a selection.

        Each call on one session gives the same candidate. In an adaptive search, it is the search's proposal.

        Args:
            space: the hyperparameters to search; None: the task's search space as it is.
        """
        return self._candidate or search.draw(self.facts.searched(space), self._access.streams.derive("candidate"))

    def uniform(self, purpose: str) -> float:
        """Return a uniform number in [0, 1) from the stream `purpose`, for choices that do not depend on data."""
        from dphpo_bench.session.access import draw_uniform

        return draw_uniform(self._access.generator("uniform", short_text("purpose", purpose)))

    def steps(self, total: int, state: Sequence[Any] | None = None) -> Iterator[int]:
        """Yield the steps of a training loop, 0, ..., total − 1; after a kill, those after the last checkpoint.

        Args:
            total: number of steps.
            state: everything that the loop changes: weights, optimisers, lists, generators. Checkpoints need it.
        """
        return self._access.steps(total, state)

    def fork(self, name: str) -> "Session":
        """Return a session on the same records and account, with random streams of its own.

        Args:
            name: names the streams; 1 to 64 printable characters.
        """
        streams = self._access.streams.within("fork", short_text("name", name))
        return Session(replace(self._access, streams=streams))

    def holdout(self, fraction: float) -> "tuple[Session, Session]":
        """Return sessions on two parts of the records, to train on and to validate on.

        A coin puts each record into a part, and a record pays only for queries of its part (docs/accounting.md, parts).
        The parts are the same in every trial, and for every method at one seed.

        Args:
            fraction: expected share of the records in the second part, in (0, 1).
        """
        training, validation = self._access.holdout(fraction)
        return Session(training), Session(validation)

    def subsample(self, kind: "DpEvent") -> "Session":
        """Return a session on a secret Poisson sample of the records.

        The call fixes and charges all queries of that session: composed first and sampled once. The session answers
        selections and scores only. Train on the sample in the trials of a selection.

        Args:
            kind: `poisson_sampled(rate, what may be asked)`, as the plan has it, with a rate in (0, 1).

        Raises:
            InvalidValueError: if the kind is another event, or its rate is out of range.
            OverBudgetError: if the plan does not cover it.
        """
        return Session(self._access.subsample(kind))

    def one_of(self, choice: "DpEvent", index: int | None = None) -> "tuple[int, Session]":
        """Return the index of one of several planned events, and a session whose account covers that event alone.

        Args:
            choice: `one_of(events, weights)`, as the plan has it; charged as a whole.
            index: of the event to take. With weights, the session draws it, and none must be given.

        Raises:
            InvalidValueError, OverBudgetError: if the choice is another event or not planned, or the index is wrong.
        """
        index, access = self._access.one_of(choice, index)
        return index, Session(access, self._candidate)

    def sample(self, kind: "DpEvent", purpose: str = "training") -> "Batch":
        """Draw a Poisson batch, bound to the queries that it may answer.

        The call charges the whole batch, whether it is asked or not (docs/accounting.md, kinds of batches).

        Args:
            kind: `poisson_sampled(rate, what may be asked)`, as the plan has it: each record is in the batch
                independently with probability `rate`. At 1 the batch holds every record.
            purpose: names the random stream, which no other purpose moves; 1 to 64 printable characters.

        Raises:
            InvalidValueError: if the kind is another event, or its rate is not in (0, 1].
            OverBudgetError: if the plan does not cover it.
        """
        from dphpo_bench.session.batch import Batch

        return Batch(self._access, *self._access.opened_batch(kind, short_text("purpose", purpose)))

    def release(
        self, model: "nn.Module", values: "Values", bound: float, noise_multiplier: float, **options: Any
    ) -> list[float]:
        """Return noisy means of bounded values of all records of this session; see `Batch.release`, also for options.

        Raises ModelFailedError if the model raised an exception on the records, which ends the run or the trial.
        """
        from dphpo_bench.session.batch import Batch

        everybody = Batch(self._access, self._access.rows, 1.0, self._access)
        return everybody.release(model, values, bound, noise_multiplier, **options)

    def nonprivate(self) -> Records:
        """Lend the raw private records, for references that are not private: from here on ε is infinite.

        The session empties the tensors when the run ends. A plan that does not say so raises an OverBudgetError.
        """
        return self._access.lend()

    def close(self) -> None:
        """End the run: the session releases nothing any more, and takes back the raw records that it lent."""
        self._access.ledger.close()
        self._access.raw.take_back()

    def best_of(
        self, trial: "TrialFunction", runs: "RunCount", base_event: "DpEvent", *, proposals: Proposals | None = None
    ) -> Any:
        """Return the outcome of the best of a secret random number of trials.

        The session draws the number before the first trial (Liu and Talwar 2019; Papernot and Steinke 2022). Each trial
        gets a session with its own random streams and its own ledger, which is bound to the base event. No other
        account may be charged while trials run. A trial that raises, or whose score is NaN, has the worst score.

        Each trial calls a copy of the function, with all that the function holds; prints and logs are off. Whatever it
        stores there, such as a list of scores, disappears with the copy. What it writes to files, classes or modules
        remains, and must not reach what you release: `dphpo-bench check` compares runs for that.

        Args:
            trial: runs one trial, with hyperparameters from its own session. Pickle must be able to write the function
                and the outcome.
            runs: distribution of the number of trials.
            base_event: worst-case event of one trial, score included.
            proposals: for a search that learns from its trials; None draws every candidate from the prior.

        Returns:
            The winner's `outcome`; None if there was no trial, or if all failed.

        Raises:
            OverBudgetError: if the plan does not cover the selection, or the base event a trial's queries, or if a
                trial charged another account.
            InvalidValueError: if the function cannot be copied.
        """
        from dphpo_bench.session.selection import best_of

        return best_of(self, trial, runs, base_event, proposals)

    def threshold_search(
        self, trial: "TrialFunction", threshold: float, stop_probability: float, base_event: "DpEvent"
    ) -> Any:
        """Return the outcome of the first trial whose score reaches a threshold (Liu and Talwar 2019, Algorithm 1).

        After each trial below the threshold, a coin may end the search without a result. See `best_of` for the rest.

        Args:
            trial, base_event: as in `best_of`.
            threshold: fixed in advance, from public information.
            stop_probability: probability γ that the coin ends the search, in (0, 1]; at 1 there is one trial.

        Returns:
            The `outcome` of that trial, or None.
        """
        from dphpo_bench.session.selection import threshold_search

        return threshold_search(self, trial, threshold, stop_probability, base_event)

    def sealed_utilities(self, runs: Sequence[Any], partitions: int, validation: float) -> "SealedUtilities":
        """Evaluate each candidate on disjoint parts of the records; nobody can read the results, its utilities.

        A share of the records validates. Coins split the others into parts. The session trains every candidate on
        every part without noise. A utility is the share of validation records classified correctly, averaged over the
        parts. One record changes the models of one part, or its own validation, so every utility changes by at most
        max(1/partitions, 1/expected number of validation records).

        Args:
            runs: the candidates, each of type `DpSgd`.
            partitions: number of parts.
            validation: expected share of the records that validate.

        Raises:
            InvalidValueError: if a candidate is of another type, or a number is out of range.
            ModelFailedError: if a model raised an exception on the records, which ends the run.
        """
        from dphpo_bench.session.sealed import sealed_utilities

        return sealed_utilities(self, runs, partitions, validation)
