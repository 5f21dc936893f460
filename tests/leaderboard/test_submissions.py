"""Records from strangers: what passes, what does not, and that nothing else happens."""

import copy
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dphpo_bench.errors import InvalidValueError
from dphpo_bench.leaderboard.recompute import MAX_LEDGER_CHARACTERS
from dphpo_bench.leaderboard.submissions import MAX_PATH_POINTS, Run, read_submissions
from dphpo_bench.privacy.events import gaussian, poisson_sampled, to_json
from dphpo_bench.records import Audit, Identity, RunRecord
from tests.leaderboard.submitted import DELTA, NOISE, make_record, submit


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
    found = read_submissions([tmp_path])
    assert found.rejected == ()
    (run,) = found.runs
    assert (run.method, run.seed, run.accuracy, run.audited) == ("auto_clipping", 3, 0.9, 0.3)
    assert run.epsilon == pytest.approx(_gaussian_epsilon(1 / NOISE[1.0], DELTA), rel=1e-3)
    assert run.seconds == 2.5
    assert len(run.released_path) <= MAX_PATH_POINTS
    assert [point.learning_rate for point in run.released_path[:2]] == pytest.approx([0.1, 1.0])


def test_failed_runs_pass_as_failed(tmp_path: Path) -> None:
    submit(tmp_path, make_record(accuracy=None), make_record(seed=1, accuracy=None, privacy=None, cost=None))
    found = read_submissions([tmp_path])
    assert [run.accuracy for run in found.runs] == [None, None]
    assert [refused.reason for refused in found.failed] == ["ValueError: it broke"] * 2


def test_references_pass_with_infinite_epsilon(tmp_path: Path) -> None:
    submit(tmp_path, make_record("nonprivate", private=False))
    (run,) = read_submissions([tmp_path]).runs
    assert (run.epsilon, run.end_to_end_private) == (math.inf, False)


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


BAD: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "claims less than its ledger costs": (_claims(0.5), "more than the 0.5 it claims"),
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
    "no accuracy": (_set("metrics", to={"loss": 0.1}), "no accuracy"),
    "accuracy above one": (_set("metrics", "accuracy", to=1.2), "no accuracy"),
    "accuracy NaN": (_set("metrics", "accuracy", to="NaN"), "no accuracy"),
    "over budget": (lambda obj: obj.update(status="over_budget", error="too much"), "status over_budget: too much"),
    "infinite cost": (_set("cost", "examples", to="Infinity"), "a cost is above"),
    "another schema": (_set("schema_version", to=2), "schema_version"),
    "extra field": (_set("identity", "trust_me", to=True), "identity.trust_me"),
    "other epsilon than its place says": (_set("identity", "epsilon", to=8.0), "does not lie in"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_pass(case: str, tmp_path: Path) -> None:
    change, reason = BAD[case]
    (path,) = submit(tmp_path, make_record())
    obj = json.loads(path.read_text())
    change(obj)
    path.write_text(json.dumps(obj))
    found = read_submissions([tmp_path])
    assert found.runs == ()
    (refused,) = found.rejected
    assert refused.path == path.relative_to(tmp_path).as_posix()
    assert reason in refused.reason
    assert str(tmp_path) not in refused.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": None}, "no seed"),
        ({"seed": 2**60}, "seed is above"),
        ({"method": "a b"}, "not a plain name"),
        ({"task": "tɑsk"}, "not a plain name"),
        ({"parameters": {"text": "x" * 5000}}, "parameters take more"),
    ],
)
def test_identities_that_do_not_pass(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    submit(tmp_path, make_record(**changes))
    (refused,) = read_submissions([tmp_path]).rejected
    assert reason in refused.reason


def test_large_delta(tmp_path: Path) -> None:
    record = make_record()
    submit(tmp_path, record.model_copy(update={"identity": record.identity.model_copy(update={"delta": 0.01})}))
    (refused,) = read_submissions([tmp_path]).rejected
    assert "δ of 0.01 is above" in refused.reason


def test_a_ledger_that_takes_for_ever_is_not_computed(tmp_path: Path) -> None:
    (path,) = submit(tmp_path, make_record())
    obj = json.loads(path.read_text())
    events = [to_json(poisson_sampled(0.01 + step * 1e-6, gaussian(1.0 + step * 1e-3))) for step in range(300)]
    obj["privacy"]["ledger"]["entries"] = [{"count": 1, "event": event} for event in events]
    path.write_text(json.dumps(obj))
    (refused,) = read_submissions([tmp_path]).rejected
    assert f"more than {MAX_LEDGER_CHARACTERS:,}" in refused.reason


def test_places(tmp_path: Path) -> None:
    (path,) = submit(tmp_path, make_record())
    copied = tmp_path / "again" / "toy" / "auto_clipping" / path.name
    copied.parent.mkdir(parents=True)
    copied.write_bytes(path.read_bytes())
    misplaced = tmp_path / "toy" / "auto_clipping" / "other.json"
    misplaced.write_bytes(path.read_bytes())
    link = tmp_path / "toy" / "auto_clipping" / "link.json"
    link.symlink_to(path)
    found = read_submissions([tmp_path])
    assert len(found.runs) == 1
    reasons = sorted(refused.reason for refused in found.rejected)
    assert len(reasons) == 3
    assert "does not lie in toy/auto_clipping/" in reasons[0] + reasons[1]
    assert any(reason.startswith("the same run as again/toy/") for reason in reasons)
    assert any("symbolic link" in reason for reason in reasons)


def test_single_files_and_missing_ones(tmp_path: Path) -> None:
    (path,) = submit(tmp_path, make_record())
    assert len(read_submissions([path, path, tmp_path]).runs) == 1
    with pytest.raises(InvalidValueError, match="no such file"):
        read_submissions([tmp_path / "missing.json"])


def test_kept_epsilons_are_used_and_bad_ones_are_not_believed_to_be_numbers(tmp_path: Path) -> None:
    submit(tmp_path / "records", make_record())
    cache = tmp_path / "cache"
    first = read_submissions([tmp_path / "records"], cache)
    (kept,) = cache.iterdir()
    assert read_submissions([tmp_path / "records"], cache) == first
    for damaged in ("", "[1]", "null", "{"):
        kept.write_text(damaged)
        assert read_submissions([tmp_path / "records"], cache) == first
    assert json.loads(kept.read_text()) == pytest.approx(first.runs[0].epsilon)


def test_many_ledgers_are_computed_in_processes_with_the_same_result(tmp_path: Path) -> None:
    noises = [3.75 + 0.05 * step for step in range(20)]
    for seed, noise in enumerate(noises):
        (path,) = submit(tmp_path, make_record(seed=seed))
        obj = json.loads(path.read_text())
        obj["privacy"]["ledger"]["entries"][0]["event"]["noise_multiplier"] = noise
        path.write_text(json.dumps(obj))
    found = read_submissions([tmp_path])
    assert len(found.runs) == 20
    claimed = make_record().privacy.epsilon
    assert {run.epsilon for run in found.runs} == {claimed}  # never less than the claim


# ------------------------------------------------------------------------------------------------------ fuzzing

PAYLOADS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    -1e-300,
    "NaN",
    "Infinity",
    "",
    "x" * 3000,
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "=cmd|' /C calc'!A0",
    "| a | [x](javascript:alert(1)) `",
    "\x00\u202e\u2028\ud7ff",
    [],
    {},
    [[[[[[]]]]]],
    {"a": {"b": {"c": None}}},
)


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


def _mutated_bytes(text: bytes, rng: random.Random) -> bytes:
    broken = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(broken))
        match rng.randrange(3):
            case 0:
                broken[place] = rng.randrange(256)
            case 1:
                del broken[place : place + rng.randrange(1, 50)]
            case _:
                broken[place:place] = rng.randbytes(rng.randrange(1, 20))
    return bytes(broken)


def _own_place(obj: dict[str, Any], folder: Path) -> Path | None:
    """Where a mutated record belongs by its own, mutated, identity; None if that is no file's name."""
    try:
        identity = Identity.model_validate(obj["identity"])
        path = folder / identity.task / identity.method / f"{identity.key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, KeyError, TypeError, OSError):
        return None
    return path if path.resolve().is_relative_to(folder.resolve()) else None


def fuzzed(folder: Path, count: int, seed: int = 0) -> dict[str, bytes]:
    """Mutated records, written to a folder: their contents by their paths."""
    rng = random.Random(seed)
    kinds: list[RunRecord] = [
        make_record("hyfreedp", seed=1, released={"path": [{"step": 0, "learning_rate": 0.1, "loss_bound": 1.0}]}),
        make_record("nonprivate", private=False, parameters={"rate": 0.1, "name": "a"}),
        make_record(
            "liu_talwar",
            target=3.0,
            accuracy=0.5,
            audit=Audit(lower_bound=0.5, confidence=0.95, attack="loss", canaries=10),
        ),
        make_record(accuracy=None, seed=2),
    ]
    written: dict[str, bytes] = {}
    for number in range(count):
        record = rng.choice(kinds)
        obj = json.loads(record.to_json())
        obj["identity"]["seed"] = number
        if rng.random() < 0.15:
            content = _mutated_bytes(json.dumps(obj).encode(), rng)
            place = _own_place(obj, folder)
        else:
            obj = _mutate(obj, rng)
            content = json.dumps(obj).encode("utf-8", "surrogatepass")
            place = _own_place(obj, folder) if rng.random() < 0.8 else None
        if place is None:
            place = folder / "odd" / f"{rng.choice(['<b>', '|', '@you', '=1+1', 'é'])}{number}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        written[place.relative_to(folder).as_posix()] = content
    return written


def check_run(run: Run, content: bytes) -> None:
    """What the board takes from a record is in the record, and its ε holds by an independent formula."""
    obj = json.loads(content)
    identity = obj["identity"]
    assert (run.method, run.setting.task, run.seed) == (identity["method"], identity["task"], identity["seed"])
    assert run.target == identity["epsilon"]
    if run.accuracy is None:
        assert obj["status"] == "failed"
        return
    assert run.accuracy == obj["metrics"]["accuracy"]
    assert 0 <= run.accuracy <= 1
    assert run.epsilon >= float(obj["privacy"]["epsilon"])
    entries = obj["privacy"]["ledger"]["entries"]
    if any(entry["event"]["type"] != "gaussian" for entry in entries):
        assert run.epsilon == math.inf
        assert not run.end_to_end_private
        return
    mu = math.sqrt(sum(entry["count"] / entry["event"]["noise_multiplier"] ** 2 for entry in entries))
    assert run.epsilon >= _gaussian_epsilon(mu, identity["delta"]) * (1 - 1e-6)
    assert run.epsilon <= run.target * (1 + 1e-6) or not run.end_to_end_private


def test_a_thousand_mutated_records(tmp_path: Path) -> None:
    written = fuzzed(tmp_path, 1000)
    found = read_submissions([tmp_path])
    shown = [run.path for run in found.runs] + [refused.path for refused in found.rejected]
    assert sorted(shown) == sorted(written)  # each once, none lost
    for run in found.runs:
        check_run(run, written[run.path])
    assert 100 < len(found.runs) < 500  # the mutations are neither all fatal nor all harmless
    assert all(refused.reason and refused.reason.isprintable() for refused in found.rejected)
