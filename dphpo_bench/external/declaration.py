"""Declarations of procedures that run in the code of a caller."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import check_file_name, short_text, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import RECORD
from dphpo_bench.base.text import shown
from dphpo_bench.contract import registry
from dphpo_bench.harness.account import OPEN, Entry
from dphpo_bench.privacy import event_texts
from dphpo_bench.privacy.accountants.report import EpsilonReport, epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.records.record import DECLARED, Identity


@dataclass(frozen=True)
class Declaration:
    """One procedure on private records in the caller's own code, as the caller declares it.

    Attributes:
        name: of the study or the training: at most 64 letters, digits, _ . and -. Records and accounts show it in place
            of a task.
        method: name of the method, such as "papernot_steinke" or "dp_sgd".
        what: "selection" or "training".
        budget: the (ε, δ) of the whole procedure.
        event: of the whole procedure.
        training_event: of plain training, for the share of ε that tuning takes; None: the event.
        parameters: of the method, and whatever else tells two procedures of one name apart; JSON values.
        unit: whose presence ε is about.
        accountant: whose ε is quoted; None: the tightest.
        n_records: N, if it is public.

    Raises:
        InvalidValueError: if the name is no file's name, or the budget or the event is none.
    """

    name: str
    method: str
    what: str
    budget: PrivacyBudget
    event: DpEvent
    training_event: DpEvent | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    unit: str = RECORD
    accountant: str | None = None
    n_records: int | None = None

    def __post_init__(self) -> None:
        check_file_name("a name", self.name)
        if not isinstance(self.budget, PrivacyBudget):
            raise InvalidValueError(f"Expected a PrivacyBudget(epsilon, delta), got {shown(self.budget, form=repr)}.")
        short_text("unit", self.unit)
        if self.n_records is not None:
            whole("n_records", self.n_records, low=1, high=10**12)

    @property
    def identity(self) -> Identity:
        """The identity of its record, but for the seed."""
        known = registry.methods().working(self.method)
        facts = {
            "accounting": DECLARED,
            "event": hashlib.sha256(self._text.encode()).hexdigest()[:16],
            "public": False,
            **({} if self.unit == RECORD else {"unit": self.unit}),
            **({} if self.n_records is None else {"n_records": self.n_records}),
        }
        return Identity.of(
            method=self.method,
            method_version=known.cls.version if known else 1,
            parameters=dict(self.parameters),
            task=self.name,
            task_version=1,
            facts=facts,
            model="declared",
            model_fingerprint="declared",
            data_fingerprint="declared",
            epsilon=float(self.budget.epsilon),
            delta=float(self.budget.delta),
            seed=None,
        )

    @property
    def _text(self) -> str:
        return json.dumps(event_texts.to_json(self.event), sort_keys=True)

    def epsilon_of(self, event: DpEvent) -> EpsilonReport:
        """Return ε of an event at the budget's δ by every accountant; the declared one is quoted if it supports it.

        Raises:
            UnsupportedEventError: if no accountant bounds the event.
        """
        report = epsilon(event, self.budget.delta)
        if self.accountant is not None and self.accountant in report.by_accountant:
            return replace(report, epsilon=report.by_accountant[self.accountant], quoted=self.accountant)
        return report

    def entry(self, number: int, planned: EpsilonReport, record: str) -> Entry:
        """Return the line of an account that counts it."""
        return Entry(
            number=f"{number:016x}",
            what=self.what,
            method=self.method,
            task=self.name,
            model="declared",
            unit=self.unit,
            epsilon=float(planned.epsilon),
            delta=float(self.budget.delta),
            event=self._text,
            date=datetime.now(UTC).date().isoformat(),
            record=record,
            status=OPEN,
        )
