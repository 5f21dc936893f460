"""Records from strangers: what passes, what does not, and that nothing else happens."""

import copy
import json
import math
import os
import random
import re
import signal
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.harness.plan_cache import engine_hash
from dphpo_bench.leaderboard import recompute, submissions
from dphpo_bench.leaderboard.requirements import RejectedError, check_risk
from dphpo_bench.leaderboard.submissions import MAX_PATH_POINTS, Run, read_submissions
from dphpo_bench.privacy.event_texts import to_json
from dphpo_bench.privacy.events import best_of, gaussian, pure_dp
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import CERTAIN, Risk, risk
from dphpo_bench.privacy.run_counts import Poisson
from dphpo_bench.records.record import Audit, Identity, RunRecord
from tests.leaderboard.submitted import DELTA, NOISE, make_record, read, submit


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of the Gaussian mechanism at sensitivity/noise = mu (Balle and Wang 2018, Theorem 8), an outside opinion."""

    if mu == 0:
        return 0.0

    def excess(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return brentq(excess, 0, 1000) if excess(0) > 0 else 0.0


def test_a_record_passes(tmp_path: Path) -> None:
    path = [{"step": step, "learning_rate": 0.1 * (step + 1), "loss_bound": 1} for step in range(500)]
    audit = Audit(lower_bound=0.3, confidence=0.95, attack="loss", canaries=100)
    submit(tmp_path, make_record(seed=3, released={"path": path}, audit=audit))
    found = read(tmp_path)
    assert found.rejected == ()
    (run,) = found.runs
    assert (run.method, run.seed, run.value, run.audited) == ("auto_clipping", 3, 0.9, 0.3)
    assert run.epsilon == pytest.approx(_gaussian_epsilon(1 / NOISE[1.0], DELTA), rel=1e-3)
    assert run.seconds == 2.5
    assert len(run.released_path) <= MAX_PATH_POINTS
    assert [point.learning_rate for point in run.released_path[:2]] == pytest.approx([0.1, 1.0])


def test_failed_runs_pass_as_failed(tmp_path: Path) -> None:
    submit(tmp_path, make_record(accuracy=None), make_record(seed=1, accuracy=None, privacy=None, cost=None))
    found = read(tmp_path)
    assert [run.value for run in found.runs] == [None, None]
    assert [refused.reason for refused in found.failed] == ["ValueError: it broke"] * 2


def _set(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(obj: dict[str, Any]) -> None:
        for key in keys[:-1]:
            obj = obj[key]
        obj[keys[-1]] = to

    return change


def _claims(epsilon: float) -> Callable[[dict[str, Any]], None]:
    """The record says this ε of itself, consistently."""

    def change(obj: dict[str, Any]) -> None:
        obj["privacy"]["epsilon"] = epsilon
        for bound in (obj["privacy"]["planned"], obj["privacy"]["recomputed"]):
            bound["epsilon"] = bound["by_accountant"]["pld"] = epsilon

    return change


def _ledger(*entries: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return _set("privacy", "ledger", "entries", to=list(entries))


def _part(event: dict[str, Any], part: str) -> dict[str, Any]:
    return {"type": "part", "partition": "p", "part": part, "event": event}


RISK = {"advantage": 0.107, "tpr_at_1pct": 0.0198, "tpr_at_01pct": 0.0024, "mu": 0.268, "mu_fit": 0.0}
"""A little above that of the ledger."""


def _failed(obj: dict[str, Any]) -> None:
    obj.update(status="failed", error="it broke", metrics={})


BAD: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "claims less than its ledger costs": (_claims(0.992), "more than the 0.992 it claims"),
    "claims less than its method plans": (_claims(0.5), "claims ε = 0.5, and auto_clipping plans for its target 1"),
    "a ledger of a part of the plan": (
        _ledger({"count": 1, "event": to_json(gaussian(8.0))}),
        "auto_clipping releases all of the 0.99608 that it plans",
    ),
    "parts that no session makes": (
        _ledger(*({"count": 1, "event": _part(to_json(gaussian(3.744)), f"part {part}")} for part in range(9))),
        "no session divides records into parts 'p', 'part 0'",
    ),
    "claims more than its target": (_claims(1.5), "claims ε = 1.5, above its target 1"),
    "ledger above target and claim": (
        _ledger({"count": 9, "event": to_json(gaussian(3.75))}),
        "its ledger costs ε = 3.38",
    ),
    "unknown event": (_ledger({"count": 1, "event": {"type": "os.system"}}), "os.system"),
    "no release although it trained": (_ledger(), "its ledger costs nothing"),
    "releases that never happened": (_ledger({"count": 0, "event": to_json(gaussian(3.75))}), "costs nothing"),
    "asked for more than planned": (_set("privacy", "ledger", "refused", to="more"), "more than its plan"),
    "unknown accountant": (_set("privacy", "recomputed", "accountant", to="guess"), "Expected an accountant in"),
    "accountant that does not support it": (
        _set("privacy", "recomputed", "accountant", to="liu_talwar"),
        "cannot be recomputed",
    ),
    "private by its own word": (
        _ledger({"count": 1, "event": {"type": "non_private"}}),
        "its ledger costs ε = inf",
    ),
    "for nobody": (
        _ledger(
            {"count": 1, "event": to_json(gaussian(3.75))},
            {"count": 1, "event": _part(_part({"type": "non_private"}, "a"), "b")},
        ),
        "within one part of a partition",
    ),
    "no accuracy": (_set("metrics", to={"loss": 0.1}), "no accuracy"),
    "accuracy above one": (_set("metrics", "accuracy", to=1.2), "no accuracy"),
    "accuracy NaN": (_set("metrics", "accuracy", to="NaN"), "no accuracy"),
    "over budget": (lambda obj: obj.update(status="over_budget", error="too much"), "status over_budget: too much"),
    "infinite cost": (_set("cost", "examples", to="Infinity"), "a cost or a time is above"),
    "endless": (_set("seconds", to={"train": 1e308, "test": 1e308}), "a cost or a time is above"),
    "no time zone": (_set("created", to="2026-01-01T00:00:00"), "created"),
    "audit that shows nothing": (
        _set("audit", to={"lower_bound": 5.0, "confidence": 0.01, "attack": "x", "canaries": 0}),
        "its audit is",
    ),
    "audit beyond measure": (
        _set("audit", to={"lower_bound": 1e300, "confidence": 0.95, "attack": "x", "canaries": 9}),
        "its audit claims",
    ),
    "audit beyond its canaries": (
        _set("audit", to={"lower_bound": 1.0, "confidence": 0.95, "attack": "x", "canaries": 9}),
        "its audit claims ε above 0.929, which 9 canaries can show",
    ),
    "failed, with more than its target": (
        lambda obj: (_failed(obj), _ledger({"count": 1000, "event": to_json(gaussian(3.75))})(obj)),
        "more than the 0.99608 it claims",
    ),
    "nothing finite is left of its losses": (  # once an IndexError of dp_accounting's
        lambda obj: (
            _set("privacy", "recomputed", "accountant", to="profile")(obj),
            _ledger(
                {"count": 2, "event": to_json(gaussian(5))},
                {"count": 1, "event": to_json(best_of(gaussian(2), Poisson(1e4)))},
            )(obj),
        ),
        "its ledger costs ε = inf",
    ),
    "a risk below that of its ledger": (
        _set("privacy", "risk", to={**RISK, "tpr_at_1pct": 0.0197}),
        "its ledger has a risk of tpr_at_1pct = 0.019735, more than the 0.0197 it claims",
    ),
    "a risk that is no probability": (_set("privacy", "risk", to={**RISK, "advantage": 2}), "risk.advantage"),
    "another schema": (_set("schema_version", to=4), "schema_version 4"),
    "an old schema": (_set("schema_version", to=1), "schema_version 1"),
    "extra field": (_set("identity", "trust_me", to=True), "identity.trust_me"),
    "other epsilon than its place says": (_set("identity", "epsilon", to=8.0), "does not lie in"),
}


def test_what_does_not_pass(tmp_path: Path) -> None:
    """All cases in one folder: their ledgers are recomputed in the same processes."""
    expected = {}
    for seed, (case, (change, reason)) in enumerate(BAD.items()):
        (path,) = submit(tmp_path, make_record(seed=seed))
        obj = json.loads(path.read_text())
        change(obj)
        path.write_text(json.dumps(obj))
        expected[path.relative_to(tmp_path).as_posix()] = case, reason
    found = read(tmp_path)
    assert [expected[run.path] for run in found.runs] == []
    reasons = {refused.path: refused.reason for refused in found.rejected}
    assert reasons.keys() == expected.keys()
    assert {case: reasons[path] for path, (case, reason) in expected.items() if reason not in reasons[path]} == {}
    assert not any(str(tmp_path) in reason for reason in reasons.values())


def test_a_library_that_fails_at_a_ledger_is_named(monkeypatch) -> None:
    def fail(*_: object) -> float:
        raise IndexError

    monkeypatch.setattr(recompute, "epsilon_by", fail)
    claim = recompute.Claim(json.dumps(Ledger().to_json()), DELTA, "pld")
    assert recompute._cost(claim) == "its ε cannot be recomputed (IndexError)"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": None}, "no seed"),
        ({"seed": 2**60}, "seed is above"),
        ({"method": "a b"}, "not a plain name"),
        ({"task": "tɑsk"}, "not a plain name"),
        ({"method": "Auto_Clipping"}, "the method 'Auto_Clipping' looks like 'auto_clipping', which is another"),
        ({"method_version": 2}, "its method auto_clipping is of version 2, above 1, the newest"),
        ({"method": "stranger", "method_version": 10_001}, "its method stranger is of version 10001, above 10000"),
        ({"task": "digits", "task_version": 2}, "its task digits is of version 2, above 1, the newest"),
        ({"facts": {"n_records": 9, "x": "y" * 4000}}, "its facts take more than 4000 characters"),
        ({"method": "grid_oracle", "private": True}, "grid_oracle is not private"),
        ({"parameters": {"text": "x" * 5000}}, "parameters take more"),
    ],
)
def test_identities_that_do_not_pass(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    submit(tmp_path, make_record(**changes))
    (refused,) = read(tmp_path).rejected
    assert reason in refused.reason


@pytest.mark.parametrize("records", [1000.0, "1000", [1000], True, None, 0])
def test_a_number_of_records_is_told(records: Any, tmp_path: Path) -> None:
    """Without it nobody knows whether δ is below 1/N."""
    submit(tmp_path, make_record(facts={"n_records": records}))
    (refused,) = read(tmp_path).rejected
    assert "its facts tell no number of records" in refused.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"delta": 0.01}, "δ of 0.01 is above"),
        ({"delta": 0.001}, "δ of 0.001 is not below 1/N, for N = 1000"),
        ({"facts": {"n_records": 10**400}}, "is not below 1/N, for N = an integer of 1329 bits"),
        ({"epsilon": 1.0000001}, "target ε of 1.0000001 has more than 4 digits"),
        ({"epsilon": 1e300}, "target ε of 1e+300 is above"),
        ({"data_fingerprint": "f f"}, "data fingerprint 'f f' is not plain"),
    ],
)
def test_settings_that_do_not_pass(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    record = make_record()
    submit(tmp_path, record.model_copy(update={"identity": record.identity.model_copy(update=change)}))
    (refused,) = read(tmp_path).rejected
    assert reason in refused.reason


def test_a_ledger_that_takes_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """167 characters that take minutes."""
    monkeypatch.setattr(recompute, "SECONDS", 5)
    endless, _ = submit(tmp_path, make_record(), make_record(seed=1))
    obj = json.loads(endless.read_text())
    obj["privacy"]["ledger"]["entries"] = [
        {"count": 1000, "event": to_json(pure_dp(5))},
        {"count": 10**9, "event": {"type": "laplace", "noise_multiplier": 1.7e308}},
    ]
    endless.write_text(json.dumps(obj))
    found = read_submissions([tmp_path])
    assert [run.seed for run in found.runs] == [1]
    assert [refused.reason for refused in found.rejected] == ["recomputing its ε takes more than 5 seconds"]


def test_who_kills_the_process_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "compute", compute_or_die)
    submit(tmp_path, *(make_record("strange", seed=seed, noise_multiplier=4.0 + seed / 10) for seed in range(4)))
    found = read_submissions([tmp_path])
    assert [run.seed for run in found.runs] != []
    assert {refused.reason for refused in found.rejected} == {"recomputing its ε killed the process"}
    assert len(found.rejected) == 1


COMPUTE = recompute.compute


def compute_or_die(claims: str) -> str:
    if "4.2" in claims:
        os.kill(os.getpid(), signal.SIGKILL)
    return COMPUTE(claims)


def test_places(tmp_path: Path) -> None:
    """A copy in a deeper folder, which would come first, does not take the place of the record."""
    (path,) = submit(tmp_path, make_record())
    copied = tmp_path / "again" / "toy" / "auto_clipping" / path.name
    copied.parent.mkdir(parents=True)
    copied.write_text(path.read_text().replace("0.9", "0.1"))
    misplaced = tmp_path / "toy" / "auto_clipping" / "other.json"
    misplaced.write_bytes(path.read_bytes())
    link = tmp_path / "toy" / "auto_clipping" / "link.json"
    link.symlink_to(path)
    found = read(tmp_path)
    assert [(run.path, run.value) for run in found.runs] == [(path.relative_to(tmp_path).as_posix(), 0.9)]
    reasons = {refused.path: refused.reason for refused in found.rejected}
    assert len(reasons) == 3
    assert "it lies deeper than" in reasons[copied.relative_to(tmp_path).as_posix()]
    assert "does not lie in toy/auto_clipping/" in reasons["toy/auto_clipping/other.json"]
    assert reasons[""] == "The record toy/auto_clipping/link.json is a symbolic link; links are not followed."
    inside = read(tmp_path / "toy" / "auto_clipping")
    assert [run.path for run in inside.runs] == [path.name]


def test_what_is_not_private_is_infinite_whatever_it_claims(tmp_path: Path) -> None:
    record = make_record("grid_oracle", private=True)
    privacy = record.privacy.model_copy(update={"end_to_end_private": False})
    submit(tmp_path, record.model_copy(update={"privacy": privacy}), make_record("nonprivate", private=False))
    shown = [(run.epsilon, run.end_to_end_private, run.risk) for run in read(tmp_path).runs]
    assert shown == [(math.inf, False, CERTAIN)] * 2


def test_a_risk_is_that_of_the_ledger_or_the_larger_one_that_is_claimed(tmp_path: Path) -> None:
    (path,) = submit(tmp_path, make_record())
    (run,) = read(tmp_path).runs
    assert run.risk == risk(gaussian(3.744), DELTA)
    obj = json.loads(path.read_text())
    _set("privacy", "risk", to=RISK)(obj)
    path.write_text(json.dumps(obj))
    (run,) = read(tmp_path).runs
    assert run.risk == Risk(**RISK)


def test_a_fit_is_checked_where_mu_is_that_of_the_ledger() -> None:
    found = Risk(0.1, 0.02, 0.003, 0.3, 0.01)
    check_risk(found, found)
    check_risk(Risk(0.1, 0.02, 0.003, 0.4, 0.0), found)
    with pytest.raises(RejectedError, match=r"mu_fit = 0\.01, more than the 0 it claims"):
        check_risk(Risk(0.1, 0.02, 0.003, 0.3, 0.0), found)


def test_a_claim_shaved_by_what_machines_may_differ_by_is_shown_above_the_ledger(tmp_path: Path) -> None:
    (path,) = submit(tmp_path, make_record())
    honest = make_record().privacy.epsilon
    obj = json.loads(path.read_text())
    _claims(honest * (1 - 5e-7))(obj)
    path.write_text(json.dumps(obj))
    (run,) = read(tmp_path).runs
    assert honest <= run.epsilon <= honest * (1 + 1e-6)


@pytest.mark.parametrize("claim", [0.9, 1 - 2e-6, 1 - 2e-7, 1.0])
def test_what_is_shown_depends_on_no_machine(claim: float, tmp_path: Path) -> None:
    """Processors find ε of one ledger that differ by up to 2e-7; the board must have the same bytes everywhere."""
    submit(tmp_path, make_record())
    (run,) = read(tmp_path).runs
    shown = {
        submissions._verified(replace(run, epsilon=claim, target=1.0), recompute.Cost(claim * factor, run.risk)).epsilon
        for factor in (1 - 2e-7, 1, 1 + 2e-7, 1 + 9e-7)
    }
    assert len(shown) == 1
    assert claim <= max(shown) <= 1
    assert max(shown) >= min(claim * (1 + 9e-7), 1)


def test_single_files_and_missing_ones(tmp_path: Path) -> None:
    (path,) = submit(tmp_path, make_record())
    assert len(read_submissions([path, path, tmp_path]).runs) == 1
    with pytest.raises(InvalidValueError, match="no such file"):
        read_submissions([tmp_path / "missing.json"])


def test_kept_epsilons_are_of_this_code_alone() -> None:
    """The key of a kept ε is a hash of two rooms; accountants import from no other."""
    package = Path(recompute.__file__).parents[1]
    files = [path for room in ("privacy", "base") for path in (package / room).rglob("*.py")]
    rooms = {found for path in files for found in re.findall(r"from dphpo_bench\.(\w+)", path.read_text())}
    assert rooms == {"privacy", "base"}
    assert engine_hash("privacy", "base") not in (engine_hash("privacy"), engine_hash())


LOW = "[0.1, 1.0, 1.0, 1.0, Infinity, 0.0]"


def test_kept_epsilons_are_used_unless_they_cannot_be(tmp_path: Path) -> None:
    submit(tmp_path / "records", make_record("strange"))
    cache = tmp_path / "cache"
    first = read_submissions([tmp_path / "records"], cache)
    (kept,) = cache.iterdir()
    whole = kept.read_text()
    assert json.loads(whole) == pytest.approx([first.runs[0].epsilon, *astuple(first.runs[0].risk)])
    for damaged in ("{", "[-5.0, 1.0, 1.0, 1.0, 1.0, 0.0]"):
        kept.write_text(damaged)
        assert read_submissions([tmp_path / "records"], cache) == first
        assert kept.read_text() == whole
    kept.write_text(LOW)  # taken for what it says, which cannot lower an ε that is claimed
    (run,) = read_submissions([tmp_path / "records"], cache).runs
    assert (run.epsilon, run.risk) == (first.runs[0].epsilon, CERTAIN)


@pytest.mark.slow
def test_many_ledgers_are_computed_in_processes_with_the_same_result(tmp_path: Path) -> None:
    noises = [3.75 + 0.05 * step for step in range(20)]
    for seed, noise in enumerate(noises):
        (path,) = submit(tmp_path, make_record("strange", seed=seed))
        obj = json.loads(path.read_text())
        obj["privacy"]["ledger"]["entries"][0]["event"]["noise_multiplier"] = noise
        path.write_text(json.dumps(obj))
    found = read_submissions([tmp_path])
    assert len(found.runs) == 20
    claimed = make_record().privacy.epsilon
    assert {run.epsilon for run in found.runs} == {claimed}  # never less than the claim


# ------------------------------------------------------------------------------------------------------ fuzzing

PAYLOADS: tuple[Any, ...] = (None, True, -1, 0, 2**70, 1e308, "NaN", "Infinity", "", "x" * 3000, [], {}, [[[]]])


def _places(obj: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ()
    return [place for key, value in inner for place in ((*prefix, key), *_places(value, (*prefix, key)))]


def _mutate(obj: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    obj = copy.deepcopy(obj)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = _places(obj)
        if not places:
            break
        *way, last = rng.choice(places)
        parent: Any = obj
        for key in way:
            parent = parent[key]
        texts = [payload for payload in PAYLOADS if isinstance(payload, str)]
        if rng.random() < 0.5 and isinstance(parent[last], str | float):  # of the right type, as a forger would
            parent[last] = rng.choice(texts) if isinstance(parent[last], str) else parent[last] * rng.uniform(0, 2)
            continue
        match rng.randrange(5):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[str(rng.choice(PAYLOADS))[:200]] = parent[last]
            case 2 if isinstance(parent[last], int | float) and not isinstance(parent[last], bool):
                parent[last] = rng.choice([2, 0.5, 0.999, 1.001, 9, 0, -1]) * parent[last]
            case 3 if isinstance(parent[last], list) and parent[last]:
                parent[last] = parent[last] * rng.choice([2, 3])
            case _:
                parent[last] = rng.choice(PAYLOADS)
    return obj


def fuzzed(folder: Path, count: int, seed: int = 0) -> dict[str, bytes]:
    """Mutated records where their mutated identities belong: their contents by their paths."""
    rng = random.Random(seed)
    kinds: list[RunRecord] = [
        make_record("hyfreedp", seed=1, released={"path": [{"step": 0, "learning_rate": 0.1, "loss_bound": 1.0}]}),
        make_record("nonprivate", private=False, parameters={"rate": 0.1, "name": "a"}),
        make_record("liu_talwar", target=3.0, accuracy=0.5),
        make_record(accuracy=None, seed=2),
    ]
    written: dict[str, bytes] = {}
    for number in range(count):
        obj = json.loads(rng.choice(kinds).to_json())
        obj["identity"]["seed"] = number
        obj = _mutate(obj, rng)
        try:
            identity = Identity.model_validate(obj["identity"])
        except (ValueError, KeyError, TypeError):
            continue
        path = folder / identity.task / identity.method / f"{identity.key}.json"
        if "/" not in identity.task + identity.method and len(identity.task + identity.method) < 200:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(obj))
            written[path.relative_to(folder).as_posix()] = path.read_bytes()
    return written


def check_run(run: Run, content: bytes) -> None:
    """What the board takes from a record is in the record, and its ε holds by an independent formula."""
    obj = json.loads(content)
    identity = obj["identity"]
    assert (run.method, run.setting.task, run.seed) == (identity["method"], identity["task"], identity["seed"])
    assert run.target == identity["epsilon"]
    if run.value is None:
        assert obj["status"] == "failed"
        if obj["privacy"] is None:
            assert run.epsilon is None
            return
    else:
        assert run.value == obj["metrics"]["accuracy"]
        assert 0 <= run.value <= 1
    if not run.end_to_end_private:
        assert run.epsilon == math.inf
        return
    assert run.epsilon >= float(obj["privacy"]["epsilon"])
    entries = obj["privacy"]["ledger"]["entries"]
    mu = math.sqrt(sum(entry["count"] / entry["event"]["noise_multiplier"] ** 2 for entry in entries))
    assert run.epsilon >= _gaussian_epsilon(mu, identity["delta"]) * (1 - 1e-6)
    assert run.epsilon <= run.target * (1 + 3e-6)


def test_mutated_records_are_refused_or_hold_what_they_say(tmp_path: Path) -> None:
    written = fuzzed(tmp_path, 400)
    found = read(tmp_path)
    shown = [run.path for run in found.runs] + [refused.path for refused in found.rejected]
    assert sorted(shown) == sorted(written)  # each once, none lost
    for run in found.runs:
        check_run(run, written[run.path])
    assert 40 < len(found.runs) < len(written) - 40  # the mutations are neither all fatal nor all harmless
    assert all(refused.reason and refused.reason.isprintable() for refused in found.rejected)
