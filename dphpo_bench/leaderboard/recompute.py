"""ε and risk of many ledgers, on all cores, each different one once; the results are kept on disk."""

import hashlib
import json
import logging
import multiprocessing
import os
import resource
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, dataclass
from pathlib import Path

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.base.progress import Progress
from dphpo_bench.harness.plan_cache import engine_hash
from dphpo_bench.privacy.accountants.report import epsilon_by
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import Risk, risk
from dphpo_bench.sweep.processes import no_main_module

logger = logging.getLogger(__name__)

CPU_SECONDS = 60
MEMORY_BYTES = 4 * 2**30
"""The limits of one ledger. Those of the built-in methods take less than a second, and little memory."""

MAX_KEPT_BYTES = 400


@dataclass(frozen=True)
class Claim:
    """A ledger as compact JSON, δ, and the accountant whose bound the claimed ε is said to be."""

    ledger: str
    delta: float
    accountant: str

    @property
    def key(self) -> str:
        """A hash of the claim and of the code that examines it."""
        text = json.dumps([engine_hash("privacy", "base"), self.ledger, self.delta, self.accountant])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Cost:
    """Cost of a ledger: ε by the claim's accountant, and the risk to one record."""

    epsilon: float
    risk: Risk


def recompute(claims: Iterable[Claim], cache: Path | None, progress: Progress) -> Mapping[Claim, Cost | str]:
    """Return the cost of each claim, or why there is none.

    `cache` is a folder of this machine's earlier results, if there is one.
    """
    found: dict[Claim, Cost | str] = {}
    missing = []
    for claim in dict.fromkeys(claims):
        kept = _read(cache, claim)
        if kept is None:
            missing.append(claim)
        else:
            found[claim] = kept
    if missing:
        with progress.track("Recomputing ε", len(missing)) as advance:
            for claim, value in _compute_all(missing):
                found[claim] = value
                _keep(cache, claim, value)
                advance()
    return found


def _compute_all(claims: Sequence[Claim]) -> Iterator[tuple[Claim, Cost | str]]:
    """Compute in processes with limited time and memory. Claims that may have killed their process are tried alone."""
    killed = []
    with _pool(min(len(os.sched_getaffinity(0)), len(claims))) as pool:
        with no_main_module():  # processes start here, and would run a script again
            futures = [(claim, pool.submit(_compute, claim)) for claim in claims]
        for claim, future in futures:
            try:
                yield claim, future.result()
            except BrokenProcessPool:
                killed.append(claim)
    for claim in killed:
        with _pool(1) as pool:
            try:
                with no_main_module():
                    future = pool.submit(_compute, claim)
                value: Cost | str = future.result()
            except BrokenProcessPool:
                value = "recomputing its ε killed the process"
        yield claim, value


def _pool(workers: int) -> ProcessPoolExecutor:
    # New processes rather than forks: they have none of this one's threads, and only a sweep has a fork server.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_limit_memory)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class _TooLongError(Exception):
    """The processor time is used up."""


def _compute(claim: Claim) -> Cost | str:
    def stop(*_: object) -> None:
        raise _TooLongError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        event = Ledger.from_json(json.loads(claim.ledger)).event
        return Cost(epsilon_by(event, claim.delta, claim.accountant), risk(event, claim.delta))
    except _TooLongError:
        return f"recomputing its ε takes more than {CPU_SECONDS} seconds"
    except DphpoBenchError as error:
        return f"its ε cannot be recomputed: {error}"
    except MemoryError:
        return "recomputing its ε takes too much memory"
    except Exception as error:  # whatever libraries raise at a ledger that no method would write
        logger.debug("An ε cannot be recomputed.", exc_info=True)
        return f"its ε cannot be recomputed ({type(error).__name__})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _read(cache: Path | None, claim: Claim) -> Cost | None:
    if cache is None:
        return None
    try:
        epsilon, *bounds = json.loads(read_whole(cache / f"{claim.key}.json", MAX_KEPT_BYTES))
        kept = Cost(epsilon, Risk(*bounds))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return kept if all(isinstance(one, float) and one >= 0 for one in (epsilon, *bounds)) else None


def _keep(cache: Path | None, claim: Claim, value: Cost | str) -> None:
    """Keep a cost, but not a failure, which may be this machine's."""
    if cache is None or isinstance(value, str):
        return
    try:
        write_whole(cache / f"{claim.key}.json", json.dumps([value.epsilon, *astuple(value.risk)]))
    except OSError as error:
        logger.warning("Cannot keep a recomputed ε: %s", error)
