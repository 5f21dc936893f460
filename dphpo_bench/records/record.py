"""Run records: JSON that holds released values only. Nothing in it is ever executed or imported.

Records may come from strangers. Reading one checks its types, ranges and size, and rebuilds the ledger from a
whitelist of event types.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import finite_json, rounded_up, shown
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records.measure import measure_named, shown_measure

if TYPE_CHECKING:
    from dphpo_bench.privacy.risk import Risk

SCHEMA_VERSION: Final = 3
"""The version of new records. Records of version 2 have no risk; they can be read, too."""

IDENTITY_VERSION: Final = 2
"""Part of every key, hence of every published record's name."""

DECLARED: Final = "declared by the caller"
"""Accounting of a procedure in the caller's own code, which the harness did not see."""

MAX_RECORD_BYTES = 4 * 2**20
MAX_WHY = 2000  # characters of reasons
ROUNDING = 0.0005  # what is shown as .500 is no better than 1/2

Status = Literal["ok", "failed", "over_budget", "unverified"]
Name = Annotated[str, Field(min_length=1, max_length=100)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Version = Annotated[int, Field(ge=1, strict=True)]


def _finite(value: Any) -> Any:
    if finite_json(value) != value:
        raise ValueError("NaN and infinities are no parameters")
    return value


def moment(*, day_only: bool) -> datetime:
    """Return the time for a record: to the second, or the day alone where more would tell how long a run took."""
    now = datetime.now(UTC).replace(microsecond=0)
    return now.replace(hour=0, minute=0, second=0) if day_only else now


def bounds_text(by_accountant: Mapping[str, float], quoted: str) -> str:
    """Return such as "2.99985 (pld, quoted), 3.35733 (rdp)"."""
    names = sorted(by_accountant, key=lambda name: (name != quoted, name))
    return ", ".join(f"{by_accountant[name]:.6g} ({name}{', quoted' if name == quoted else ''})" for name in names)


def unit_rows(unit: str, number: object) -> list[tuple[str, str]]:
    """Return the row of a protected unit that is no single record."""
    return [] if unit == RECORD else [("protected unit", f"{unit}, N = {number:,}, each with all its records")]


def risk_rows(risk: "Risk | ProvenRisk | None", unit: str) -> list[tuple[str, str]]:
    """Return labels and texts of a risk, with bounds rounded up; `unit` is whose presence ε is about."""
    if risk is None:
        return []
    if risk.mu == math.inf:
        return [("proven risk", "unbounded: an attack may be certain")]
    hits, rare, advantage = (
        f"{rounded_up(100 * share, 3)} %" for share in (risk.tpr_at_1pct, risk.tpr_at_01pct, risk.advantage)
    )
    who = "records" if unit == RECORD else "units"
    return [
        ("proven risk, at most", f"{hits} of {who} found at 1 % false alarms"),
        ("", f"{rare} at 0.1 %; advantage {advantage}"),
        ("as Gaussian DP", f"μ = {rounded_up(risk.mu, 4)}, off by {rounded_up(risk.mu_fit, 2)}"),
    ]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    newer: ClassVar[frozenset[str]] = frozenset()
    """Names that older versions do not know: not written where they say nothing, so that these can read a record."""

    @model_serializer(mode="wrap")
    def _as_written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        silent = {name for name in self.newer if (value := values.get(name)) is None or value is False or value == {}}
        return {name: value for name, value in values.items() if name not in silent}


class Identity(_Part):
    """The identity of a run: names and values, no times, no places, no source text."""

    newer = frozenset({"sibling"})

    method: Name
    method_version: Version  # as the method's author declares it
    parameters: Annotated[dict[str, JsonValue], AfterValidator(_finite)]
    task: Name
    task_version: Version  # as the task's author declares it
    # All public facts of the task, as in `TaskFacts.to_json`, and its metrics.
    facts: Annotated[dict[str, JsonValue], AfterValidator(finite_json)]
    model: Name
    model_fingerprint: str  # hash of the model's structure, and of the weights it starts from if the task gives them
    data_fingerprint: str  # hash of the records, as the task states it
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    seed: Count | None  # None for a run without a seed
    # A random number that tells runs apart that have no seed, or are on private records; 16 hexadecimal digits.
    run: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None
    # Hash of the public task on which the method tuned; None of methods that tune on none.
    sibling: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None

    @property
    def unit(self) -> str:
        """The protected unit: "record", unless the task's facts name another one."""
        return str(self.facts.get("unit", RECORD))

    @property
    def is_public(self) -> bool:
        """False for private records, whose noise whoever sees the seed can subtract."""
        return bool(self.facts.get("public", True))

    @property
    def seed_text(self) -> str:
        """The seed for people: "none" without one, and not that of a run on private records."""
        return "none" if self.seed is None else str(self.seed) if self.is_public else "secret"

    @property
    def key(self) -> str:
        """A versioned hash of names and values, 16 hexadecimal digits."""
        values = self.model_dump(exclude={"run"} if self.run is None else None)  # nor a sibling where there is none
        text = json.dumps({"identity_version": IDENTITY_VERSION, **values}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def of(cls, **values: Any) -> "Identity":
        """Return the identity of these values, before anything runs."""
        try:
            identity = cls(**values)
            if (size := len(identity.model_dump_json().encode())) > MAX_RECORD_BYTES:
                raise ValueError(f"they take {size} bytes, more than {MAX_RECORD_BYTES}")
        except ValueError as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
            raise InvalidValueError(
                f"Expected names and values that a record can hold: {shown(reason, 300)}."
            ) from None
        return identity


class Epsilon(_Part):
    """ε of an event at the budget's δ: the quoted bound, its accountant, and the bounds of all accountants."""

    epsilon: NonNegative
    accountant: Name
    by_accountant: dict[str, NonNegative]

    def text(self) -> str:
        """Return the bounds of all accountants, the quoted one first."""
        return bounds_text(self.by_accountant, self.accountant)


class ProvenRisk(_Part):
    """Upper bounds on the success of an attack on one record; see `privacy.risk.Risk`."""

    advantage: Annotated[float, Field(ge=0, le=1)]
    tpr_at_1pct: Annotated[float, Field(ge=0, le=1)]
    tpr_at_01pct: Annotated[float, Field(ge=0, le=1)]
    mu: NonNegative
    mu_fit: Annotated[float, Field(ge=0, le=1)]


class Privacy(_Part):
    """The privacy of the whole procedure."""

    newer = frozenset({"risk"})

    planned: Epsilon  # ε of the plan's event
    recomputed: Epsilon | None  # ε of the ledger, by the harness; None if it could not be recomputed
    # The ε to quote: the larger of the two. A run that stops early because of what it released is as private as its
    # plan, not as its ledger.
    epsilon: NonNegative
    tuning_share: Annotated[float, Field(ge=0, le=1)]  # 1 − ε(training releases alone) / ε(all releases)
    end_to_end_private: bool  # whether ε covers tuning
    ledger: dict[str, Any]  # everything that was released
    # What an attack on one record can achieve, the worse of plan and ledger; None in records of version 2.
    risk: ProvenRisk | None = None

    @field_validator("ledger")
    @classmethod
    def _known_events_only(cls, value: dict[str, Any]) -> dict[str, Any]:
        _check_ledger(json.dumps(value, sort_keys=True))
        return value


@lru_cache(maxsize=32)  # runs that differ in their seeds have the same
def _check_ledger(text: str) -> None:
    Ledger.from_json(json.loads(text))


class CostRecord(_Part):
    """The work of the procedure, in expectation."""

    runs: Count
    steps: Count
    examples: NonNegative


class Audit(_Part):
    """A lower bound on ε that an attack on the whole procedure has shown."""

    newer = frozenset({"ceiling", "refuted"})

    lower_bound: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    confidence: Annotated[float, Field(gt=0, lt=1)]  # that the bound is right
    attack: Name  # its name
    canaries: Count  # number of records that were put in or left out by coin flips
    # The largest bound that the audit could have shown; None in records of audits that did not say.
    ceiling: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    refuted: bool = False  # whether it refuted the claim: ε or its whole curve


class ConstantGuess(_Part):
    """The best constant guess on the test records, of a run that is no better."""

    value: Annotated[float, Field(allow_inf_nan=False)]  # the first metric of that guess
    why: Annotated[str, Field(max_length=MAX_WHY)]  # usual reasons why a run learned nothing


class OutputNoise(_Part):
    """Noise of a whole run on the outputs, ν = η M J (docs/hyfreedp.md), and what therefore limits the run."""

    nu: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # ν; of a regression in standard deviations of the targets
    limit: Literal["rate", "noise", "both"]  # "rate" below what good rates have, "noise" above, else "both"

    def __str__(self) -> str:
        """Return the line."""
        return f"{LIMITS[self.limit]} (ν = {self.nu:.2g})"


LIMITS = {
    "rate": "rate-bound: a larger learning rate would likely have helped",
    "noise": "noise-bound: a larger learning rate would not have helped; a smaller one, more ε or records might",
    "both": "rate and noise are at a usual balance: more ε or more records would help most",
}


class FurtherMetrics(_Part):
    """The metrics of a further test; see `contract.metrics.FurtherTest`.

    Attributes:
        about: what was measured. Values are comparable only where it is the same.
    """

    about: Annotated[str, Field(min_length=1, max_length=MAX_WHY)]
    metrics: dict[str, float]


class RunRecord(Displayed, _Part):
    """One run of one method on one task.

    A private selection without a seed keeps its number of trials secret. Its record has neither the time of training
    nor the peak memory, which would reveal it.

    Attributes:
        privacy: None for a run that failed before its privacy was known, for example because its process was killed.
        cost: None if there was no plan.
        audit: None if nobody attacked the run.
        constant_guess: of a run whose first metric is no better than that of the best constant guess; None of others,
            and of older records, which do not say.
        output_noise: whether the learning rate or the noise limits the run; None of others than `DpSgd` runs at a
            constant rate, and of older records.
        further: the further tests of the model, by name; empty of older records, and of most tasks.
        accounting: `DECLARED` where the caller's own code trained, so that ε is that of an event which nobody checked;
            None of a run of the harness.
    """

    newer = frozenset({"constant_guess", "output_noise", "further", "accounting"})

    schema_version: Literal[2, 3] = SCHEMA_VERSION
    identity: Identity
    status: Status
    error: str | None = None
    metrics: dict[str, float] = {}
    privacy: Privacy | None
    released: Annotated[dict[str, JsonValue], AfterValidator(finite_json)] = {}
    cost: CostRecord | None
    seconds: dict[str, NonNegative]
    peak_memory_bytes: Count | None = None
    audit: Audit | None = None
    constant_guess: ConstantGuess | None = None
    output_noise: OutputNoise | None = None
    further: dict[Name, FurtherMetrics] = {}
    environment: dict[str, str]
    accounting: Literal["declared by the caller"] | None = None
    created: AwareDatetime

    @model_validator(mode="after")
    def _consistent(self) -> "RunRecord":
        if self.status == "ok":
            if self.privacy is None or self.privacy.recomputed is None or (self.cost is None and not self.accounting):
                raise ValueError("a run of status 'ok' has a recomputed epsilon and a cost")
            recomputed = self.privacy.recomputed
            if self.privacy.epsilon < max(recomputed.epsilon, self.privacy.planned.epsilon):
                raise ValueError("the quoted epsilon is not smaller than the planned and the recomputed one")
        elif not self.error:
            raise ValueError(f"a run of status {self.status!r} says why in 'error'")
        return self

    @property
    def asked_nothing(self) -> bool:
        """True if the run is not known to have asked anything of the records."""
        return self.privacy is None or Ledger.from_json(self.privacy.ledger).untouched

    def metric_texts(self) -> dict[str, str]:
        """Return the texts of all metrics by theirs and their test's name, such as "test accuracy"."""
        tests = {"test": self.metrics, **{name: test.metrics for name, test in self.further.items()}}
        texts = {}
        for test, metrics in tests.items():
            for name, value in metrics.items():
                measure = measure_named(name, self.identity.facts)
                texts[f"{test} {measure.title}"] = measure.text(value)
        return texts

    def guess_line(self) -> str | None:
        """Return a line if the run is no better than a constant guess, by its first metric or balanced accuracy."""
        guess, measure = self.constant_guess, shown_measure(self.identity.facts, self.metrics)
        value = self.metrics.get(measure.name)
        if guess and value is not None and not measure.is_better(value, guess.value):
            compared = f"test {measure.title} {measure.text(value)}, the best constant guess has"
            return f"No better than a constant guess: {compared} {measure.text(guess.value)}. {guess.why}"
        balanced, classes = self.metrics.get("balanced_accuracy"), self.identity.facts.get("n_classes") or 2
        if balanced is None or not isinstance(classes, int) or not 1 < classes < 2**31:  # a stranger's facts
            return None
        if not balanced < 1 / classes + ROUNDING:
            return None
        return (
            f"No better than a constant guess: test balanced accuracy {balanced:.2%}, any constant guess has "
            f"{1 / classes:.2%}. Of rare classes, class_shares with class_weights='balanced', or another threshold, "
            "help."
        )

    def display(self, **more: object) -> Display:
        """Return a title and rows of what the record holds; `more` are further rows, of which None is left out."""
        who, privacy = self.identity, self.privacy
        rows: list[tuple[str, object]] = [*self.metric_texts().items(), ("error", self.error)]
        if guess := self.constant_guess:
            text = shown_measure(who.facts, self.metrics).text(guess.value)
            rows.append(("best constant guess", f"{text}: this run is no better"))
        if self.released.get("winner", self) is None:
            rows.append(("trials", "none finished, so that nothing was trained: these are the initial weights"))
        rows.append(("limited by", self.output_noise))
        rows += [
            *unit_rows(who.unit, who.facts.get("n_records")),
            ("accounting", self.accounting and f"{self.accounting}; nobody checked it"),
        ]
        rows.append(("ε target", f"{who.epsilon:g} at δ = {who.delta:.3g}"))
        if privacy:
            rows.append(("ε planned", privacy.planned.text()))
            rows.append(("ε recomputed from the ledger", privacy.recomputed and privacy.recomputed.text()))
            rows.append(("ε to quote", f"{privacy.epsilon:.6g}"))
            share = (
                f"{privacy.tuning_share:.2%}" if privacy.end_to_end_private else "not counted: the true ε is infinite"
            )
            rows.append(("share spent on tuning", share))
            rows += risk_rows(privacy.risk, who.unit)
        rows.append(("steps", self.cost and f"{self.cost.steps:,}"))
        rows.append(("seconds", ", ".join(f"{phase} {value:.1f}" for phase, value in self.seconds.items()) or None))
        peak = self.peak_memory_bytes
        rows += [("peak memory", None if peak is None else f"{peak / 2**30:.2f} GiB"), *more.items()]
        title = f"{who.method} on {who.task} ({who.model}), seed {who.seed_text}: {self.status}"
        return title, [(label, str(text)) for label, text in rows if text is not None]

    def to_json(self) -> str:
        """Return the record as text, the same for the same record."""
        return self.model_dump_json(indent=1) + "\n"
