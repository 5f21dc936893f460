"""Folders of records as strangers would submit them."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from dphpo_bench.privacy.accountants import epsilon_by
from dphpo_bench.privacy.events import compose, gaussian, non_private
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records import CostRecord, Epsilon, Identity, Privacy, RecordStore, RunRecord

DELTA = 1e-5
NOISE = {1.0: 3.75, 3.0: 1.45, 8.0: 0.65}  # ε a little below the target, at δ = 1e-5


@cache
def _spent(noise_multiplier: float | None) -> tuple[float, dict[str, Any]]:
    """ε and ledger of one Gaussian release, or of one that is not private."""
    ledger = Ledger()
    event = non_private() if noise_multiplier is None else compose(gaussian(noise_multiplier))
    ledger.charge(event)
    return epsilon_by(ledger.event, DELTA, "pld"), ledger.to_json()


def make_record(
    method: str = "auto_clipping",
    task: str = "toy",
    *,
    seed: int | None = 0,
    target: float = 1.0,
    accuracy: float | None = 0.9,
    private: bool = True,
    parameters: dict[str, Any] | None = None,
    code_version: str = "0.1.0+aaaa",
    created: datetime = datetime(2026, 1, 2, tzinfo=UTC),
    examples: float = 1000.0,
    runs: int = 1,
    released: dict[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """A valid record with the ledger of one Gaussian; a failed run if there is no accuracy."""
    epsilon, ledger = _spent(NOISE[target] if private else None)
    bound = Epsilon(epsilon=epsilon, accountant="pld", by_accountant={"pld": epsilon})
    record = RunRecord(
        identity=Identity(
            method=method,
            parameters=parameters or {},
            task=task,
            model="linear",
            data_fingerprint="f" * 64,
            epsilon=target,
            delta=DELTA,
            seed=seed,
            code_version=code_version,
        ),
        status="ok" if accuracy is not None else "failed",
        error=None if accuracy is not None else "ValueError: it broke",
        metrics={} if accuracy is None else {"accuracy": accuracy},
        privacy=Privacy(
            planned=bound,
            recomputed=bound,
            epsilon=epsilon,
            tuning_share=0.25,
            end_to_end_private=private,
            ledger=ledger,
        ),
        released=released or {},
        cost=CostRecord(runs=runs, steps=10, examples=examples),
        seconds={"train": 2.0, "test": 0.5},
        peak_memory_bytes=None,
        environment={},
        created=created,
    )
    return record.model_copy(update=changes)


def submit(folder: Path, *records: RunRecord) -> list[Path]:
    """Write records where they belong."""
    store = RecordStore(folder)
    return [store.write(record) for record in records]
