"""The contract of a session: what a method may ask of private data, and what it gets.

Whatever a session or a batch releases is noisy, and is charged to the ledger before it is computed. A release that the
plan does not cover is refused.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.progress import Progress
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.sealed import SealedUtilities
from dphpo_bench.contract.search_space import Candidate, Proposals, Space
from dphpo_bench.contract.task import TaskFacts

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from dphpo_bench.privacy.run_counts import RunCount
    from dphpo_bench.training.clipping import Clipping
    from dphpo_bench.training.losses import Objective

TOGETHER = 16
"""How many models are trained at once where that saves time; more would save little and need more memory."""


@dataclass(frozen=True)
class Scored:
    """The result of one trial of a private selection.

    Attributes:
        outcome: what is released if the trial wins: the model, its hyperparameters.
        score: higher is better; a number that the trial released, never a raw one. NaN counts as the worst.
    """

    outcome: Any
    score: float


class Session(ABC):
    """What a method can do with private data, and nothing else.

    A session may stand for some of the records only (see `holdout` and `subsample`). What it releases is then charged
    as a release from those. Where units hold several records (`TaskFacts.unit`), read "unit" for "record": all records
    of a unit are in a batch or part, or none, and its gradient, loss or score is the mean of theirs.

    It is asked one question at a time, in the process and the thread that the method runs in; anything else raises
    `InvalidValueError`, as two questions at once could get the same noise.
    """

    # ------------------------------------------------------------------------------------- what is public

    @property
    @abstractmethod
    def facts(self) -> TaskFacts:
        """The task's public facts."""

    @property
    @abstractmethod
    def objective(self) -> "Objective":
        """The task's losses and scores, as functions of outputs and targets; for what trains on raw records.

        Private records meet these very functions, so a method that has a way to them could see what they see.

        Raises:
            InvalidValueError: before `nonprivate` has given out the records.
        """

    @property
    @abstractmethod
    def device(self) -> "torch.device":
        """Where models and batches live."""

    @property
    @abstractmethod
    def progress(self) -> Progress:
        """Shows the progress of long work."""

    @property
    @abstractmethod
    def expected_records(self) -> float:
        """Expected number of records of this session: public, unlike the number itself."""

    @abstractmethod
    def build_model(self) -> "nn.Module":
        """The task's model at its initial weights, which are the same for every method at one seed."""

    @abstractmethod
    def candidate(self, space: Space | None = None) -> Candidate:
        """Hyperparameters drawn from the task's search space, independently in every trial of a selection.

        Each call on one session gives the same candidate. In an adaptive search, it is the one proposed for the trial.

        Args:
            space: what is searched; None: the task's search space as it is.
        """

    @abstractmethod
    def uniform(self, purpose: str) -> float:
        """A uniform number in [0, 1), for choices that do not depend on data.

        Args:
            purpose: names the random stream.
        """

    @abstractmethod
    def steps(self, total: int, state: Sequence[Any] | None = None) -> Iterator[int]:
        """Yield the steps of a training loop, 0, ..., total − 1; after a kill, those behind the last checkpoint.

        The state is all that the loop changes: weights, optimisers, lists, generators. Checkpoints need it.
        """

    # ------------------------------------------------------------------------------------- other sessions

    @abstractmethod
    def fork(self, name: str) -> "Session":
        """A session on the same records and the same account, with random streams of its own.

        Args:
            name: names the streams; a text of 1 to 64 printable characters.
        """

    @abstractmethod
    def holdout(self, fraction: float) -> "tuple[Session, Session]":
        """Sessions on two parts of the records, to train on and to validate on.

        A coin decides for each record which part it falls into, so a record pays only for what is asked of its part
        (docs/accounting.md, parts). The parts are the same in every trial, and for every method at one seed.

        Args:
            fraction: expected share of the records in the second part, in (0, 1).

        Raises:
            InvalidValueError: if the fraction is out of range.
        """

    @abstractmethod
    def subsample(self, kind: "DpEvent") -> "Session":
        """A session on a secret Poisson sample of the records.

        All that it may be asked is fixed now, and charged as a whole: composed first and sampled once. It answers
        selections and scores only. To train on the sample, do so in the trials of a selection.

        Args:
            kind: `poisson_sampled(rate, what may be asked)`, as the plan has it, with a rate in (0, 1).

        Raises:
            InvalidValueError: if the kind is another event, or its rate is out of range.
            OverBudgetError: if the plan does not cover it.
        """

    @abstractmethod
    def one_of(self, choice: "DpEvent", index: int | None = None) -> "tuple[int, Session]":
        """The index of one of several planned events, and a session whose account covers that event alone.

        Args:
            choice: `one_of(events, weights)`, as the plan has it; charged as a whole.
            index: of the event to take. With weights, the session draws it, and none must be given.

        Raises:
            InvalidValueError: if the choice is another event, or the index is wrong.
            OverBudgetError: if the plan does not cover the choice.
        """

    # ------------------------------------------------------------------------------------------- releases

    @abstractmethod
    def sample(self, kind: "DpEvent", purpose: str = "training") -> "Batch":
        """A Poisson batch, bound to what may be asked of it.

        The whole batch is charged now, whether it is asked or not. A batch that could grow once its answers are known
        would let a method ask more of the batches that seem to hold a certain record (docs/accounting.md, kinds of
        batches).

        Args:
            kind: `poisson_sampled(rate, what may be asked)`, as the plan has it: each record is in the batch
                independently with probability `rate`. At 1 the batch holds every record.
            purpose: names the random stream, so that batches for one purpose do not depend on how many
                were drawn for another; a text of 1 to 64 printable characters.

        Raises:
            InvalidValueError: if the kind is another event, or its rate is not in (0, 1].
            OverBudgetError: if the plan does not cover it.
        """

    @abstractmethod
    def score(self, model: "nn.Module", noise_multiplier: float) -> float:
        """The mean score of the records: a noisy sum over the expected number.

        Args:
            model: to be scored by the task's `scores`, by default the share classified correctly. Each record's score
                is held to [0, 1]; NaN counts as 0.
            noise_multiplier: standard deviation of the noise on the sum, whose sensitivity is 1.

        Raises:
            OverBudgetError: if the plan does not cover the release; nothing is released then.
            ModelFailedError: if the model raised an exception on the records, which ends the run or the trial.
        """

    @abstractmethod
    def nonprivate(self) -> Records:
        """The raw private records, for references that are not private: from here on ε is infinite.

        They are lent for this run only: the tensors are emptied when it ends.

        Raises:
            OverBudgetError: if the plan does not say so.
        """

    # ------------------------------------------------------------------------------------ private selection

    @abstractmethod
    def best_of(
        self,
        trial: "TrialFunction",
        runs: "RunCount",
        base_event: "DpEvent",
        *,
        proposals: Proposals | None = None,
    ) -> Any:
        """The outcome of the best of a secret random number of trials (Liu and Talwar 2019; Papernot and Steinke 2022).

        The number is drawn before the first trial, from a stream that depends on the run's seed alone; the harness
        keeps the seed until the run is recorded. Nothing that trials do can change it.

        Each trial is independent: it gets a session with its own random streams and its own ledger, which is bound to
        the base event. No other account may be charged while trials run. A trial that raises, or whose score is not a
        number, has the worst score.

        Nothing is left of the trials but the winner's outcome. This package runs a `Trial` itself. A function of your
        own is called in a new copy of the process for each trial; what it keeps, counts or prints ends with the copy.

        Args:
            trial: runs one trial on its session and returns the result, whose outcome pickle must be able to write.
                It draws its hyperparameters from its own session.
            runs: distribution of the number of trials.
            base_event: worst-case event of one trial, score included.
            proposals: for a search that learns from its trials; None draws every candidate from the prior.

        Returns:
            The winner's `outcome`. None if there was no trial, or if all failed: release something that does not
            depend on the data then.

        Raises:
            OverBudgetError: if the plan does not cover the selection, or if a trial asked for more than the base
                event, or charged another account.
            InvalidValueError: if a function of your own cannot run in a copy: without os.fork, or not on a CPU.
        """

    @abstractmethod
    def first_above(
        self,
        trial: "TrialFunction",
        threshold: float,
        stop_probability: float,
        base_event: "DpEvent",
    ) -> Any:
        """The outcome of the first trial whose score reaches a threshold (Liu and Talwar 2019, Algorithm 1).

        After each trial below the threshold, a coin may end the search without a result. See `best_of` for the rest.

        Args:
            trial: as in `best_of`.
            threshold: fixed in advance, from public information.
            stop_probability: probability γ that the coin ends the search, in (0, 1]; at 1 there is one trial.
            base_event: as in `best_of`.

        Returns:
            The `outcome` of that trial, or None.
        """

    @abstractmethod
    def sealed_utilities(self, runs: Sequence[Any], partitions: int, validation: float) -> SealedUtilities:
        """How well each candidate does, averaged over disjoint parts of the records; nobody can read it.

        A share of the records validates. The others are split into parts, by a coin for each record. Every candidate
        is trained on every part without noise. Its utility is the share of validation records classified correctly,
        averaged over the parts. One record changes the models of one part, or its own validation, so a utility changes
        by at most max(1/partitions, 1/expected number of validation records).

        Args:
            runs: the candidates, each of type `DpSgd`.
            partitions: number of parts k.
            validation: expected share of the records that validate.

        Raises:
            InvalidValueError: if a candidate is of another type, or a number is out of range.
            ModelFailedError: if a model raised an exception on the records, which ends the run.
        """


class Batch(ABC):
    """One Poisson batch. Its records cannot be read; what is released about them is noisy and charged.

    Means divide by the expected batch size N · rate: the drawn size is private.
    """

    @abstractmethod
    def gradient(self, model: "nn.Module", clipping: "Clipping", noise_multiplier: float) -> "list[Tensor]":
        """The mean clipped gradient with Gaussian noise.

        Args:
            model: at the weights where the gradient is wanted.
            clipping: bounds one record's contribution to `clipping.sensitivity`. A rule of your own never sees the
                norms of the batch: it is asked about a grid of norms in advance.
            noise_multiplier: noise standard deviation / sensitivity of the sum.

        Returns:
            One tensor for each trainable parameter of the model, in their order, of its shape and dtype.

        Raises:
            InvalidValueError: if the sensitivity is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """

    @abstractmethod
    def gradient_and_quantile(
        self, model: "nn.Module", max_grad_norm: float, noise_multiplier: float, count_noise: float
    ) -> "tuple[list[Tensor], float]":
        """A noisy clipped gradient, and the noisy share of gradients that are no longer than the threshold.

        Released are the clipped sum and Σ (bᵢ − 1/2), where bᵢ says whether record i's gradient is no longer
        than the threshold (Andrew et al. 2021, Algorithm 1). The centred sum has sensitivity 1/2, so it is a
        Gaussian of multiplier 2 · count_noise.

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

    @abstractmethod
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
            bound: clipping bound R of one record's loss, in [1e-30, 1e30]; the sensitivity of each sum.
            noise_multiplier: noise standard deviation / bound, of each of the k sums.

        Returns:
            k noisy means; the noise of each has standard deviation noise_multiplier · bound / (N · rate).

        Raises:
            InvalidValueError: if the bound is not positive and finite.
            OverBudgetError: if the plan does not cover the release; nothing is released then.
        """

    @abstractmethod
    def loss_changes(
        self,
        model: "nn.Module",
        direction: "Sequence[Tensor]",
        steps: Sequence[float],
        bound: float,
        noise_multiplier: float,
    ) -> list[float]:
        """Mean changes of the loss along a line, each clipped per record to [-bound, bound], with noise.

        Along a step a record's loss changes by far less than the loss itself, so a small bound, and little noise, is
        enough. All else is as in `losses`.

        Args:
            model: as in `losses`.
            direction: as in `losses`.
            steps: h₁, ..., h_k; change j is the loss at w − h_j · G minus the loss at w.
            bound: clipping bound C of one record's change, in [1e-30, 1e30]; the sensitivity of each sum.
            noise_multiplier: as in `losses`.
        """


TrialFunction = Callable[[Session], Scored]
"""One trial of a private selection."""
