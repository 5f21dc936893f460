"""ε of many ledgers: each different one once, on all cores, kept on disk for the next time."""

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dphpo_bench.errors import DphpoBenchError
from dphpo_bench.files import write_whole
from dphpo_bench.plans import engine_hash
from dphpo_bench.privacy.accountants import epsilon_by
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.progress import Progress

logger = logging.getLogger(__name__)

MAX_LEDGER_CHARACTERS = 20_000
"""A ledger of this length takes seconds, and is twenty times as long as any of the built-in methods."""

FEW = 8
"""So many are computed sooner than another process starts."""


@dataclass(frozen=True)
class Claim:
    """What an ε is claimed of.

    Attributes:
        ledger: its JSON text, compact.
        delta: δ.
        accountant: whose bound it is said to be.
    """

    ledger: str
    delta: float
    accountant: str

    @property
    def key(self) -> str:
        """Of the claim and of the code that examines it."""
        text = json.dumps([engine_hash("privacy"), self.ledger, self.delta, self.accountant])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def recompute(claims: Iterable[Claim], cache: Path | None, progress: Progress) -> Mapping[Claim, float | str]:
    """ε of each claim, or why there is none.

    Args:
        claims: in any order, repeated or not.
        cache: a folder of earlier results of this very code, on this machine; None computes all.
        progress: told while it computes.
    """
    found: dict[Claim, float | str] = {}
    missing = []
    for claim in dict.fromkeys(claims):
        kept = _read(cache, claim)
        if kept is None:
            missing.append(claim)
        else:
            found[claim] = kept
    if missing:
        with progress.track("Recomputing ε", len(missing)) as advance:
            for claim, value in zip(missing, _compute_all(missing), strict=True):
                found[claim] = value
                _keep(cache, claim, value)
                advance()
    return found


def _compute_all(claims: list[Claim]) -> Iterable[float | str]:
    workers = min(len(os.sched_getaffinity(0)), len(claims) // FEW)
    if workers < 2:
        yield from map(_compute, claims)
        return
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(_compute, claims, chunksize=2)


def _compute(claim: Claim) -> float | str:
    if len(claim.ledger) > MAX_LEDGER_CHARACTERS:
        return f"its ledger has {len(claim.ledger):,} characters of compact JSON, more than {MAX_LEDGER_CHARACTERS:,}"
    try:
        return epsilon_by(Ledger.from_json(json.loads(claim.ledger)).event, claim.delta, claim.accountant)
    except (DphpoBenchError, ArithmeticError, MemoryError, RecursionError) as error:
        return f"its ε cannot be recomputed: {error}"


def _read(cache: Path | None, claim: Claim) -> float | str | None:
    if cache is None:
        return None
    try:
        kept = json.loads((cache / f"{claim.key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, float | str) else None


def _keep(cache: Path | None, claim: Claim, value: float | str) -> None:
    if cache is None:
        return
    try:
        write_whole(cache / f"{claim.key}.json", json.dumps(value))
    except OSError as error:
        logger.warning("Cannot keep a recomputed ε: %s", error)
