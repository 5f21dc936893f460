"""Seeds are for public data: whoever knows the seed of a run can subtract its noise."""

import secrets
import warnings

from dphpo_bench.contract.task import Task
from dphpo_bench.harness.journal import Journal
from dphpo_bench.records.record import Identity


def default_seed(task: Task) -> int | None:
    """Return the seed of a run that names none: 0 if the data are public, else no seed."""
    return 0 if task.public else None


def warn_of_seeds(task: Task, seeds: str) -> None:
    """Warn if runs on private data have seeds, which the warning calls `seeds`, such as "seed=3"."""
    if not task.public:
        warnings.warn(
            f"Task {task.name} has private data, and {seeds}: whoever learns a seed can subtract the noise. Leave the "
            "seed out, or keep it and the records secret.",
            stacklevel=3,
        )


def told_apart(identity: Identity, journal: Journal) -> Identity:
    """Return the identity, with a random number, kept in the journal, for a run without a seed: all such runs differ."""
    if identity.seed is not None:
        return identity
    number = journal.once("run", lambda: secrets.randbits(64))  # says nothing about the seed
    return identity.model_copy(update={"run": f"{number:016x}"})
