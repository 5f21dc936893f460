"""Requirements of a record: names, numbers and places, and an ε that it can have."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dphpo_bench.base.text import compact_json, shown
from dphpo_bench.contract import registry
from dphpo_bench.contract.task import MAX_DELTA
from dphpo_bench.privacy.holdout import is_part
from dphpo_bench.privacy.risk import Risk
from dphpo_bench.records.measure import Measure
from dphpo_bench.records.record import Audit, Identity, Privacy
from dphpo_bench.sweep.extra_runs import REPLAY

MAX_EPSILON = 1e4
MAX_NUMBER = 1e15
MAX_METRIC = 1e9
MAX_SEED = 2**53 - 1
MAX_PARAMETERS = 4000
MAX_VERSION = 10_000
MIN_CONFIDENCE = 0.95
EPSILON_DIGITS = 4
"""The most significant digits of a target, so that different targets look different."""

SPENT = 0.99
"""The least share of the target that a method of this project plans for, and of its plan that it releases.

What they plan is calibrated, and they release all of it. Who claims less has changed the record.
"""

CALIBRATED = 20.0
"""Up to this target. Far above, least noises are reached, or bounds are too loose to spend all."""

ROUNDING = 1e-6
"""The largest relative difference between values of one ε on two machines."""

NOT_PRIVATE = frozenset({"grid_oracle", "grid_oracle_schedule", "noiseless", "nonprivate", REPLAY})
"""Methods of this project that are not private, whatever their records say."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PLAIN_HASH = re.compile(r"[A-Za-z0-9_.+:-]{1,100}")


class RejectedError(Exception):
    """A record does not pass, for the reason in the message."""


def require(condition: object, otherwise: str) -> None:
    if not condition:
        raise RejectedError(otherwise)


def check_value(measure: Measure, value: float | None) -> None:
    require(_PLAIN_NAME.fullmatch(measure.name), f"the metric {measure.name!r} is not a plain name")
    if value is not None and measure.share:
        require(0 <= value <= 1, f"it has no {measure.title} between 0 and 1")
    elif value is not None and measure.logarithmic:
        require(1 <= value <= MAX_METRIC, f"it has no {measure.title} between 1 and {MAX_METRIC:g}")
    elif value is not None:
        require(abs(value) <= MAX_METRIC, f"it has no {measure.title} of at most {MAX_METRIC:g}")


def check_audit(audit: Audit, value: float | None) -> None:
    """Reject a bound that its canaries cannot show: that of Steinke et al. 2023 if all guesses are right and δ = 0."""
    good = audit.confidence >= MIN_CONFIDENCE and audit.canaries and value is not None
    require(good, f"its audit is of a failed run, without canaries, or of a confidence below {MIN_CONFIDENCE:g}")
    right = math.log1p(-audit.confidence) / audit.canaries  # of e^ε / (1 + e^ε), the logarithm
    most = min(MAX_EPSILON, right - math.log(-math.expm1(right)))
    require(audit.lower_bound <= most, f"its audit claims ε above {most:.3g}, which {audit.canaries} canaries can show")


def check_claim(identity: Identity, privacy: Privacy) -> None:
    """Reject an ε that the method cannot have planned, or a ledger that no session can have kept."""
    name, claim, target = identity.method, privacy.epsilon, identity.epsilon
    require(name not in NOT_PRIVATE, f"{name} is not private from end to end")
    require(claim <= target * (1 + ROUNDING), f"it claims ε = {claim:.6g}, above its target {target:g}")
    require(
        claim >= SPENT * target or not is_own(name, identity.method_version, target),
        f"it claims ε = {claim:.6g}, and {name} plans for its target {target:g}",
    )
    for partition, part in _parts(privacy.ledger["entries"]):
        require(is_part(partition, part), f"no session divides records into parts {partition!r}, {part!r}")


def check_risk(claimed: Risk, ledger: Risk) -> None:
    """Reject a risk below what the ledger costs. A worse plan may fit its Gaussian better, so its fit is its own."""
    names = ["advantage", "tpr_at_1pct", "tpr_at_01pct", "mu"]
    if claimed.mu <= ledger.mu * (1 + ROUNDING):
        names.append("mu_fit")
    for name in names:
        least, claim = getattr(ledger, name), getattr(claimed, name)
        slack = ROUNDING if name == "mu_fit" else ROUNDING * claim
        require(
            least <= claim + slack,
            f"its ledger has a risk of {name} = {least:.6g}, more than the {claim:.6g} it claims",
        )


def is_own(method: str, method_version: int, target: float) -> bool:
    """Return True for a method of this project, in its present version, at an ε for which it is calibrated closely."""
    cls = built_in("method").get(method)
    return cls is not None and cls.version == method_version and target <= CALIBRATED


def _parts(event: Any) -> Iterator[tuple[str, str]]:
    for inner in event.values() if isinstance(event, dict) else event if isinstance(event, list) else ():
        yield from _parts(inner)
    if isinstance(event, dict) and "partition" in event:
        yield event["partition"], event["part"]


@cache
def built_in(kind: str) -> dict[str, Any]:
    """Return this project's methods or tasks by name. A record of a newer version would hide all others."""
    origin = f"dphpo-bench {version('dphpo-bench')}"
    plugins: registry.Plugins[Any] = registry.methods() if kind == "method" else registry.tasks()
    return {name: plug_in.cls for name, plug_in in plugins.loaded().items() if plug_in.origin == origin}


@cache
def defaults_of(method: str) -> Mapping[str, Any] | None:
    """Return the default parameters of a method of this project; None for a stranger's, whatever is installed here."""
    cls = built_in("method").get(method)
    return None if cls is None else cls().parameters


def check_identity(identity: Identity, file: Path) -> int:
    for kind in ("method", "task", "model"):
        name = getattr(identity, kind)
        require(_PLAIN_NAME.fullmatch(name), f"the {kind} {name!r} is not a plain name")
    for kind in ("model", "data"):
        text = getattr(identity, f"{kind}_fingerprint")
        require(_PLAIN_HASH.fullmatch(text), f"the {kind} fingerprint {text!r} is not plain")
    for kind in ("method", "task"):
        name, stated = getattr(identity, kind), getattr(identity, f"{kind}_version")
        similar = next((known for known in built_in(kind) if known.casefold() == name.casefold()), name)
        require(similar == name, f"the {kind} {name!r} looks like {similar!r}, which is another")
        newest = built_in(kind)[name].version if name in built_in(kind) else MAX_VERSION
        require(stated <= newest, f"its {kind} {name} is of version {stated}, above {newest}, the newest")
    place = (identity.task, identity.method, f"{identity.key}.json")
    require(file.parts[-3:] == place, f"it does not lie in {'/'.join(place)}, the place of its identity")
    target = identity.epsilon
    require(target <= MAX_EPSILON, f"its target ε of {target:g} is above {MAX_EPSILON:g}")
    require(
        float(f"{target:.{EPSILON_DIGITS}g}") == target,
        f"its target ε of {target!r} has more than {EPSILON_DIGITS} digits",
    )
    require(
        identity.delta <= MAX_DELTA, f"its δ of {identity.delta:g} is above {MAX_DELTA:g}; run it with a smaller one"
    )
    stated_records: Any = identity.facts.get("n_records")
    records = stated_records if type(stated_records) is int else 0
    require(records >= 1, "its facts tell no number of records")
    require(
        identity.delta < 1 / records,
        f"its δ of {identity.delta:g} is not below 1/N, for N = {shown(records)}; run it with a smaller one",
    )
    for what, values in (("parameters", identity.parameters), ("facts", identity.facts)):
        size = len(compact_json(values))
        require(size <= MAX_PARAMETERS, f"its {what} take more than {MAX_PARAMETERS} characters")
    if identity.seed is None:
        raise RejectedError("it has no seed, so that it can neither be repeated nor paired")
    require(identity.seed <= MAX_SEED, f"its seed is above {MAX_SEED}")
    return identity.seed
