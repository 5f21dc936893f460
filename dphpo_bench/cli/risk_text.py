"""Risk in words, the same in every command."""

import math

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.base.text import rounded_up
from dphpo_bench.privacy.risk import Risk
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.risks import risk_of

NOT_WHAT_LEAKS = "Risk is what no attack can exceed; what leaks may be far less."


def record_risk(record: RunRecord) -> Risk | None:
    try:
        return risk_of(record.privacy, record.identity.delta) if record.privacy else None
    except DphpoBenchError:
        return None


def risk_rows(risk: Risk | None, unit: str) -> list[tuple[str, list[str]]]:
    """Return labels, each with one or two short texts; bounds are rounded up. `unit` is whose presence ε is about."""
    if risk is None:
        return []
    if risk.mu == math.inf:
        return [("proven risk", ["unbounded: an attack may be certain"])]
    hits, rare, advantage = (
        f"{rounded_up(100 * share, 3)} %" for share in (risk.tpr_at_1pct, risk.tpr_at_01pct, risk.advantage)
    )
    who = "records" if unit == "record" else "units"
    return [
        (
            "proven risk, at most",
            [f"{hits} of {who} found at 1 % false alarms", f"{rare} at 0.1 %; advantage {advantage}"],
        ),
        ("as Gaussian DP", [f"μ = {rounded_up(risk.mu, 4)}, off by {rounded_up(risk.mu_fit, 2)}"]),
    ]
