"""The risk of a recorded run, also for records of version 2, which do not state it."""

from dataclasses import asdict

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import CERTAIN, Risk, risk, risk_of_point, worst
from dphpo_bench.records.record import Privacy, ProvenRisk, RunRecord

_ROUNDING = 1e-9
"""Rounding of two evaluations of one event, far below the resolution of any accountant."""


def recorded(risk: Risk) -> ProvenRisk:
    return ProvenRisk(**asdict(risk))


def stated(privacy: Privacy, delta: float) -> Risk | None:
    """Return what a record says of its risk beyond its ledger; None if nothing.

    The plan counts as well, since a run that stops early is as private as its plan. Where a record states no risk, and
    its ledger costs less than its plan, nothing is known of the plan but its ε at δ.
    """
    if privacy.risk:
        return Risk(**privacy.risk.model_dump())
    if privacy.recomputed and privacy.planned.epsilon > privacy.recomputed.epsilon + _ROUNDING:
        return risk_of_point(privacy.planned.epsilon, delta)
    return None


def risk_of(privacy: Privacy, delta: float) -> Risk:
    """Return the worse of what a record states and what its ledger costs.

    Raises:
        UnsupportedEventError: if no accountant bounds the ledger.
    """
    if not privacy.end_to_end_private or privacy.recomputed is None:
        return CERTAIN
    of_ledger, of_record = risk(Ledger.from_json(privacy.ledger).event, delta), stated(privacy, delta)
    return worst([of_ledger, of_record]) if of_record else of_ledger


def record_risk(record: RunRecord) -> Risk | None:
    """Return the risk of a recorded run; None if nothing bounds it, or the run failed before it was known."""
    try:
        return risk_of(record.privacy, record.identity.delta) if record.privacy else None
    except DphpoBenchError:
        return None
