"""A trial of a study, as the caller's training code sees it."""

from typing import TYPE_CHECKING, NoReturn

from dphpo_bench.base.checks import whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.hiding import global_seeds
from dphpo_bench.training.randomness import Streams
from dphpo_bench.training.sampling import poisson_sample

if TYPE_CHECKING:
    import torch

MAX_RECORDS = 10**12


class OneOfAKind:
    """An object of which there must be no copy."""

    def __reduce__(self) -> NoReturn:
        raise InvalidValueError(
            f"Expected no copy of a {type(self).__name__}, in this process or another: its draws would repeat. Train "
            "in the process of the loop, and hand its params, noise_multiplier and seed on to workers."
        )


class StudyTrial(OneOfAKind):
    """One training, to be done by the caller.

    Its draws are secrets: whoever knows them can subtract the noise. Draw Poisson batches and noise from `generator`,
    or from the global generators of torch, NumPy and Python, which each trial starts anew.

    Attributes:
        params: hyperparameters, drawn independently of everything.
        noise_multiplier: σ of this training: standard deviation of the noise / sensitivity.
        is_final: whether this is the final run of dp_hyper or subsampled_tuning: on all records, with the
            hyperparameters of the trial that won. Its score is ignored.
        generator: a torch generator on the CPU.
        seed: an integer below 2^63, for generators elsewhere: `torch.Generator("cuda").manual_seed(trial.seed)`. On a
            CPU, torch takes 32 bits of a seed, too few for noise: use `generator`.
    """

    def __init__(
        self,
        params: Candidate,
        noise_multiplier: float,
        streams: Streams,
        *,
        is_final: bool = False,
        sampling: tuple[float, Streams] | None = None,  # rate of the sample, and streams that all trials share
    ) -> None:
        self.params = dict(params)
        self.noise_multiplier = noise_multiplier
        self.is_final = is_final
        self.seed = streams.derive("seed")
        self.generator: torch.Generator = streams.generator("trial")
        self._sampling = sampling or (1.0, streams)
        self._lacks_sample = sampling is not None

    def sample(self, n_records: int) -> "torch.Tensor":
        """Return the records that this trial may see.

        In the search of subsampled_tuning they are a secret Poisson sample, equal for all of its trials: train on the
        sampled records of the training part, and score on those of the held-out part. Other trials may see all.

        Args:
            n_records: number of all records, or of units where these hold several records.

        Returns:
            Indices, ascending, int64.
        """
        rate, streams = self._sampling
        self._lacks_sample = False
        return poisson_sample(whole("n_records", n_records, low=0, high=MAX_RECORDS), rate, streams.generator("sample"))

    def begin(self) -> None:
        """Note the state of torch's global generators, before training."""
        self._seeds = global_seeds()

    def check_seeds(self) -> None:
        """Reject training that has seeded torch: noise and batches that it drew then, anybody can draw again.

        Raises:
            InvalidValueError: if it has.
        """
        shorter = {self.seed % 2**bits for bits in (63, 32, 31)}  # as other libraries take them
        if not global_seeds() <= self._seeds | shorter:
            raise InvalidValueError(
                "Training seeded torch by a seed of its own: noise and batches that it drew after that are known. "
                "Leave the seed out, since each trial starts torch's generator anew; or seed with trial.seed, or "
                "trial.seed % 2**32; or put what may be known, such as initial weights, inside of "
                "torch.random.fork_rng()."
            )

    def check_sampled(self) -> None:
        """Reject a trial of a search on a sample that has not asked for it.

        Raises:
            InvalidValueError: if it has not.
        """
        if self._lacks_sample:
            raise InvalidValueError(
                "Expected training on trial.sample(n_records), the secret sample that ε is computed for; this trial "
                "has not asked for it."
            )

    def __repr__(self) -> str:
        return (
            f"StudyTrial(params={self.params}, noise_multiplier={self.noise_multiplier:.4g}, is_final={self.is_final})"
        )
