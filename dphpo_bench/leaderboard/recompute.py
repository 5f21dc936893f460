"""Compute ε and risk of many ledgers, on all cores and each ledger once; the results stay on disk."""

import json
import logging
import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.base.progress import Progress
from dphpo_bench.harness.cache import CachedValues
from dphpo_bench.privacy.accountants.report import epsilon_by
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import Risk, risk
from dphpo_bench.sweep.executors import Answer, ProcessExecutor, Resources, answer_of

logger = logging.getLogger(__name__)

PROCESSOR_SECONDS = 60
MEMORY_GB = 4.3
"""The limits of one ledger. Those of the built-in methods take less than a second, and little memory.

A busy machine makes a ledger take longer, but no more processor time.
"""

WALL_SECONDS = 600
"""The limit of a process that waits instead of computing."""

CLAIMS_A_CALL = 8
"""So many claims share a process, and with it what accountants remember."""


@dataclass(frozen=True)
class Claim:
    """Ledger as compact JSON, δ, and the accountant whose bound the claimed ε is said to be."""

    ledger: str
    delta: float
    accountant: str

    @property
    def key(self) -> str:
        """Hash of the claim and of the code that examines it."""
        return CachedValues.key("claim", self.ledger, self.delta, self.accountant)


@dataclass(frozen=True)
class Cost:
    """Cost of a ledger: ε by the claim's accountant, and the risk to one record."""

    epsilon: float
    risk: Risk


def recompute(claims: Iterable[Claim], cache: Path | None, progress: Progress) -> Mapping[Claim, Cost | str]:
    """Return the cost of each claim, or why there is none.

    `cache` is a folder of this machine's earlier results, if there is one.
    """
    values = CachedValues(cache)
    costs: dict[Claim, Cost | str] = {}
    missing = []
    for claim in dict.fromkeys(claims):
        if known := values.find(claim.key):
            costs[claim] = Cost(known[0], Risk(*known[1:]))
        else:
            missing.append(claim)
    if missing:
        with progress.track("Recomputing ε", len(missing)) as advance:
            for claim, value in _compute_all(missing):
                costs[claim] = value
                if isinstance(value, Cost):  # a failure may be this machine's
                    values.keep(claim.key, [value.epsilon, *astuple(value.risk)])
                advance()
    return costs


def _compute_all(claims: Sequence[Claim]) -> Iterator[tuple[Claim, Cost | str]]:
    """Compute in processes with limited time and memory; claims whose process was stopped are tried alone."""
    limits = Resources(memory_gb=MEMORY_GB, time_limit_s=WALL_SECONDS)
    with closing(ProcessExecutor(len(os.sched_getaffinity(0)))) as executor:

        def answers(groups: Sequence[Sequence[Claim]]) -> Iterator[tuple[Sequence[Claim], Answer]]:
            jobs = [json.dumps([PROCESSOR_SECONDS, [asdict(claim) for claim in group]]) for group in groups]
            futures = [executor.submit(compute, job, limits) for job in jobs]
            return zip(groups, map(answer_of, futures), strict=True)

        alone: list[list[Claim]] = []
        for group, answer in answers([claims[at : at + CLAIMS_A_CALL] for at in range(0, len(claims), CLAIMS_A_CALL)]):
            if answer.text is None:
                alone += [[claim] for claim in group]
            else:
                yield from zip(group, _costs_in(answer.text), strict=True)
        for (claim,), answer in answers(alone):
            if answer.text is not None:
                yield claim, _costs_in(answer.text)[0]
            elif answer.again and "SIGXCPU" not in answer.failure:
                yield claim, "recomputing its ε killed the process"
            else:
                yield claim, f"recomputing its ε takes more than {PROCESSOR_SECONDS} seconds of processor time"


def compute(job: str) -> str:
    """Return the costs of claims, or why there are none; both as JSON, for a process of its own.

    The system kills the process once it has used the processor time of the job.
    """
    seconds, claims = json.loads(job)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))
    values = [_cost(Claim(**claim)) for claim in claims]
    return json.dumps([value if isinstance(value, str) else [value.epsilon, *astuple(value.risk)] for value in values])


def _costs_in(text: str) -> list[Cost | str]:
    return [value if isinstance(value, str) else Cost(value[0], Risk(*value[1:])) for value in json.loads(text)]


def _cost(claim: Claim) -> Cost | str:
    try:
        event = Ledger.from_json(json.loads(claim.ledger)).event
        return Cost(epsilon_by(event, claim.delta, claim.accountant), risk(event, claim.delta))
    except DphpoBenchError as error:
        return f"its ε cannot be recomputed: {error}"
    except MemoryError:
        return "recomputing its ε takes too much memory"
    except Exception as error:  # whatever libraries raise at a ledger that no method would write
        logger.debug("An ε cannot be recomputed.", exc_info=True)
        return f"its ε cannot be recomputed ({type(error).__name__})"
