"""Records from strangers: what passes, what does not, and that nothing else happens."""

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import engine_hash
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.leaderboard import recompute, submissions
from dphpo_bench.leaderboard.submissions import MAX_PATH_POINTS, RejectedError, check_risk, read_submissions
from dphpo_bench.privacy.event_trees import to_json
from dphpo_bench.privacy.events import best_of, compose, gaussian, poisson_sampled
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import CERTAIN, Risk, risk
from dphpo_bench.privacy.run_counts import Poisson
from dphpo_bench.records.record import Audit
from tests.fuzz.test_events import gaussian_epsilon
from tests.leaderboard import mortal
from tests.leaderboard.submitted import DELTA, NOISE, make_record, read, submit


def gaussian_ledger(noise_multiplier: float) -> Ledger:
    ledger = Ledger()
    ledger.charge(compose(gaussian(noise_multiplier)))
    return ledger


def test_a_record_passes(tmp_path: Path) -> None:
    path = [{"step": step, "learning_rate": 0.1 * (step + 1), "loss_bound": 1} for step in range(500)]
    audit = Audit(lower_bound=0.3, confidence=0.95, attack="loss", canaries=100)
    submit(tmp_path, make_record(seed=3, released={"path": path}, audit=audit))
    found = read(tmp_path)
    assert found.rejected == ()
    (run,) = found.runs
    assert (run.method, run.seed, run.value, run.audited) == ("auto_clipping", 3, 0.9, 0.3)
    assert run.epsilon == pytest.approx(gaussian_epsilon(1 / NOISE[1.0], DELTA), rel=1e-3)
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
    "for nobody": (
        _ledger(
            {"count": 1, "event": to_json(gaussian(3.75))},
            {"count": 1, "event": _part(_part({"type": "non_private"}, "a"), "b")},
        ),
        "within one part of a partition",
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
    "private by its own word": (_ledger({"count": 1, "event": {"type": "non_private"}}), "its ledger costs ε = inf"),
    "no accuracy": (_set("metrics", to={"loss": 0.1}), "no accuracy"),
    "accuracy above one": (_set("metrics", "accuracy", to=1.2), "no accuracy"),
    "over budget": (lambda obj: obj.update(status="over_budget", error="too much"), "status over_budget: too much"),
    "infinite cost": (_set("cost", "examples", to="Infinity"), "a cost or a time is above"),
    "audit that shows nothing": (
        _set("audit", to={"lower_bound": 5.0, "confidence": 0.01, "attack": "x", "canaries": 0}),
        "its audit is",
    ),
    "audit beyond its canaries": (
        _set("audit", to={"lower_bound": 1.0, "confidence": 0.95, "attack": "x", "canaries": 9}),
        "its audit claims ε above 0.929, which 9 canaries can show",
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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": None}, "no seed"),
        ({"method": "a b"}, "not a plain name"),
        ({"task": "tɑsk"}, "not a plain name"),
        ({"method": "Auto_Clipping"}, "the method 'Auto_Clipping' looks like 'auto_clipping', which is another"),
        ({"method_version": 2}, "its method auto_clipping is of version 2, above 1, the newest"),
        ({"facts": {"n_records": "1000"}}, "its facts tell no number of records"),  # δ may be above 1/N
        ({"facts": {"n_records": 10**5}}, "δ of 1e-05 is not below 1/N, for N = 100000"),
        ({"method": "grid_oracle", "private": True}, "grid_oracle is not private"),
        ({"parameters": {"text": "x" * 5000}}, "parameters take more"),
    ],
)
def test_identities_that_do_not_pass(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    submit(tmp_path, make_record(**changes))
    (refused,) = read(tmp_path).rejected
    assert reason in refused.reason


def recomputed(*ledgers: Ledger) -> list[recompute.Cost | str]:
    claims = [recompute.Claim(json.dumps(ledger.to_json()), DELTA, "pld") for ledger in ledgers]
    costs = recompute.recompute(claims, None, NullProgress())
    return [costs[claim] for claim in claims]


def test_a_ledger_is_given_up_by_processor_time_and_not_by_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The honest ledger's process waits for longer than the limit, as on a machine that has other things to do."""
    long = Ledger()
    for step in range(250):  # each has a distribution of its own
        long.charge(poisson_sampled(0.01, gaussian(1 + step / 1000)))
    monkeypatch.setattr(recompute, "PROCESSOR_SECONDS", 1)
    monkeypatch.setattr(recompute, "compute", mortal.compute_slowly)
    endless, honest = recomputed(long, gaussian_ledger(4.0))
    assert endless == "recomputing its ε takes more than 1 seconds of processor time"
    assert isinstance(honest, recompute.Cost)


def test_who_kills_the_process_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "compute", mortal.compute_or_die)
    costs = recomputed(*(gaussian_ledger(noise) for noise in (4.0, mortal.DEADLY, 4.1)))
    assert costs[1] == "recomputing its ε killed the process"
    assert isinstance(costs[0], recompute.Cost)
    assert isinstance(costs[2], recompute.Cost)


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
    assert reasons[""] == "toy/auto_clipping/link.json is a symbolic link; links are not followed."
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
    assert json.loads(whole[64:]) == pytest.approx([first.runs[0].epsilon, *astuple(first.runs[0].risk)])
    for damaged in ("{", whole[:-1], whole[:64] + LOW, LOW):
        kept.write_text(damaged)
        assert read_submissions([tmp_path / "records"], cache) == first
        assert kept.read_text() == whole


def test_forged_numbers_are_refused_or_hold_by_an_independent_formula(tmp_path: Path) -> None:
    rng = random.Random(0)
    written = {}
    for seed in range(80):
        (path,) = submit(tmp_path, make_record("hyfreedp", seed=seed))
        obj = json.loads(path.read_text())
        privacy = obj["privacy"]
        entry = privacy["ledger"]["entries"][0]
        targets = [(privacy, "epsilon"), (privacy["recomputed"], "epsilon"), (entry, "count"),
                   (entry["event"], "noise_multiplier"), (obj["metrics"], "accuracy")]  # fmt: skip
        for parent, key in rng.sample(targets, rng.choice([1, 2])):
            parent[key] = type(parent[key])(parent[key] * rng.choice([0, 0.5, 0.999, 1.001, 1.1, 2]))
        path.write_text(json.dumps(obj))
        written[path.relative_to(tmp_path).as_posix()] = obj
    found = read(tmp_path)
    assert sorted([run.path for run in found.runs] + [one.path for one in found.rejected]) == sorted(written)
    assert 8 < len(found.runs) < 72
    for run in found.runs:
        obj = written[run.path]
        (entry,) = obj["privacy"]["ledger"]["entries"]
        mu = math.sqrt(entry["count"]) / entry["event"]["noise_multiplier"]
        assert run.value == obj["metrics"]["accuracy"] <= 1
        assert obj["privacy"]["epsilon"] <= run.epsilon <= run.target * (1 + 3e-6)
        assert run.epsilon >= gaussian_epsilon(mu, DELTA) * (1 - 1e-6)
