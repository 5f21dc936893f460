"""Run records: what is kept of a run, validated whenever it is read, written whole or not at all.

A record holds released values only. It is JSON with a schema version; nothing in it is ever executed or
imported. Records may come from strangers, so reading one checks types, ranges and size, and rebuilds the
ledger from a whitelist of event types.
"""

import hashlib
import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from dphpo_bench.base.text import shown
from dphpo_bench.privacy.ledger import Ledger

SCHEMA_VERSION: Final = 2
MAX_RECORD_BYTES = 4 * 2**20
MAX_KEPT_LEDGER = 2**16
"""Ledgers of more characters are checked each time they occur, rather than kept in memory."""

Status = Literal["ok", "failed", "over_budget", "unverified"]
Name = Annotated[str, Field(min_length=1, max_length=100)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Version = Annotated[int, Field(ge=1, strict=True)]


def _as_written(value: Any) -> Any:
    """The value with NaN and infinities as the texts that they are written as, so that it is read as it was."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _as_written(one) for name, one in value.items()}
    return [_as_written(one) for one in value] if isinstance(value, list) else value


def _finite(value: Any) -> Any:
    if _as_written(value) != value:
        raise ValueError("NaN and infinities are no parameters")
    return value


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Identity(_Part):
    """What makes two runs the same run: names and values, no times, no places, no source text.

    Attributes:
        method: its name.
        method_version: as its author declares it.
        parameters: of the method.
        task: its name.
        task_version: as its author declares it.
        facts: all of the task's public facts, as in `TaskFacts.to_json`, and its metrics.
        model: the name of the task's model.
        model_fingerprint: hash of the model's structure, and of the weights that it starts from where they are given.
        data_fingerprint: of the records, as the task states it.
        epsilon: of the budget.
        delta: of the budget.
        seed: of the run; None: it has none.
        run: of a run without a seed, a random number that tells it from others; 16 hexadecimal digits.
    """

    method: Name
    method_version: Version
    parameters: Annotated[dict[str, JsonValue], AfterValidator(_finite)]
    task: Name
    task_version: Version
    facts: Annotated[dict[str, JsonValue], AfterValidator(_as_written)]
    model: Name
    model_fingerprint: str
    data_fingerprint: str
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    seed: Count | None
    run: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "Identity":
        if self.seed is not None and self.run is not None:
            raise ValueError("a run with a seed has no number of its own")
        return self

    @property
    def key(self) -> str:
        """A versioned hash of names and values, 16 hexadecimal digits."""
        values = self.model_dump(exclude={"run"} if self.run is None else None)
        text = json.dumps({"identity_version": SCHEMA_VERSION, **values}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Epsilon(_Part):
    """ε of one event at the budget's δ.

    Attributes:
        epsilon: the quoted bound.
        accountant: whose bound it is.
        by_accountant: the bounds of all accountants that support the event.
    """

    epsilon: NonNegative
    accountant: Name
    by_accountant: dict[str, NonNegative]


class Privacy(_Part):
    """The privacy of the whole procedure.

    Attributes:
        planned: ε of the plan's event.
        recomputed: ε of the ledger, by the harness; None where nothing could be recomputed.
        epsilon: the ε to quote: the larger of the two. A run that stops early because of what it released
            is as private as its plan, not as its ledger.
        tuning_share: 1 − ε(training releases alone) / ε(all releases).
        end_to_end_private: whether tuning is covered.
        ledger: what was released.
    """

    planned: Epsilon
    recomputed: Epsilon | None
    epsilon: NonNegative
    tuning_share: Annotated[float, Field(ge=0, le=1)]
    end_to_end_private: bool
    ledger: dict[str, Any]

    @field_validator("ledger")
    @classmethod
    def _known_events_only(cls, value: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(value, sort_keys=True)
        if len(text) <= MAX_KEPT_LEDGER:
            _check_ledger(text)
        else:
            Ledger.from_json(json.loads(text))
        return value


@lru_cache(maxsize=256)  # all seeds of a setting have the same
def _check_ledger(text: str) -> None:
    Ledger.from_json(json.loads(text))


class CostRecord(_Part):
    """What the procedure computed, in expectation."""

    runs: Count
    steps: Count
    examples: NonNegative


class Audit(_Part):
    """What an attack on the whole procedure has shown.

    Attributes:
        lower_bound: ε is at least this,
        confidence: with this confidence.
        attack: what was tried.
        canaries: number of records that were put in or left out by coin flips.
    """

    lower_bound: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    attack: Name
    canaries: Count


class RunRecord(_Part):
    """One run of one method on one task.

    Of a private selection without a seed, the time of training and the peak memory are left out: they tell how
    many trials there were, which is a secret.

    Attributes:
        privacy: None for a run that failed before it could say, such as one whose process was killed.
        cost: None where there was no plan.
        audit: None for a run that nobody attacked.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    identity: Identity
    status: Status
    error: str | None = None
    metrics: dict[str, float] = {}
    privacy: Privacy | None
    released: Annotated[dict[str, JsonValue], AfterValidator(_as_written)] = {}
    cost: CostRecord | None
    seconds: dict[str, NonNegative]
    peak_memory_bytes: Count | None
    audit: Audit | None = None
    environment: dict[str, str]
    created: AwareDatetime

    @model_validator(mode="after")
    def _consistent(self) -> "RunRecord":
        if self.status == "ok":
            if self.privacy is None or self.privacy.recomputed is None or self.cost is None:
                raise ValueError("a run of status 'ok' has a recomputed epsilon and a cost")
            recomputed = self.privacy.recomputed
            if self.privacy.epsilon < max(recomputed.epsilon, self.privacy.planned.epsilon):
                raise ValueError("the quoted epsilon is not smaller than the planned and the recomputed one")
        elif not self.error:
            raise ValueError(f"a run of status {self.status!r} says why in 'error'")
        return self

    def to_json(self) -> str:
        """The record as text, the same for the same record."""
        return self.model_dump_json(indent=1) + "\n"


def other_schema_message(path: Path, schema: Any) -> str:
    """Why a record of another schema cannot be read, and the way out."""
    if schema == 1:
        return (
            f"{path} is a record of schema_version 1, whose identity does not say all of what ran; this is "
            f"{SCHEMA_VERSION}. Run it again, and remove the file."
        )
    return f"{path} has schema_version {shown(schema)}, and this is {SCHEMA_VERSION}. Update dphpo-bench to read it."
