"""What a seeded run of each method comes to, kept in `pinned_runs.json` beside this, with the method's version.

    python -m tests.pinned_runs [--same-versions]

A method whose results changed gets a new version, else its old records would be taken for new ones. The command pins
new methods and new versions. Results that changed under a pinned version are refused, unless the option says that no
record of that version was published.
"""

import argparse
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import dphpo_bench as bench
from dphpo_bench.contract import registry
from dphpo_bench.testing.runs import DELTA, EPSILON, threads
from dphpo_bench.testing.small_tasks import blobs_for

PINS = Path(__file__).with_suffix(".json")
SEED = 3

# Rounding moves a run of a few steps by 2e-6 at most between sets of instructions and numbers of threads; another
# stream of noise, or another rule, moves it by 1e-2 and more.
TOLERANCES = {"epsilon": 1e-6, "cross_entropy": 5e-4, "learning_rate": 5e-4}
ACCURACY_TOLERANCE = 0.01
"""Three of three hundred test records, which may lie on a boundary between two classes."""


def result_of(name: str) -> dict[str, Any]:
    """The version of a method, and what its run on blobs comes to."""
    with warnings.catch_warnings(), threads(1):
        warnings.simplefilter("ignore")
        record = bench.run(
            name,
            blobs_for(bench.make_method(name)),
            bench.PrivacyBudget(EPSILON, DELTA),
            seed=SEED,
            execution=bench.ExecutionOptions(device="cpu"),
        ).record
    assert record.privacy is not None
    rate = record.released.get("learning_rate")
    return {
        "version": record.identity.method_version,
        "epsilon": "Infinity" if math.isinf(record.privacy.epsilon) else round(record.privacy.epsilon, 9),
        "accuracy": round(record.metrics["accuracy"], 4),
        "cross_entropy": float(f"{record.metrics['cross_entropy']:.6g}"),
        **({"learning_rate": float(f"{rate:.6g}")} if isinstance(rate, float) else {}),
    }


def differences(pinned: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What of a run differs by more than rounding, in words; its version aside."""
    names = sorted({*pinned, *found} - {"version"})
    return [
        f"{name} is {found.get(name)}, was {pinned.get(name)}"
        for name in names
        if not _same(name, pinned.get(name), found.get(name))
    ]


def _same(name: str, one: Any, other: Any) -> bool:
    if not (isinstance(one, float) and isinstance(other, float)):
        return bool(one == other)
    if name == "accuracy":
        return abs(one - other) <= ACCURACY_TOLERANCE
    return math.isclose(one, other, rel_tol=TOLERANCES[name])


def read() -> dict[str, dict[str, Any]]:
    """The pins by method."""
    return dict(json.loads(PINS.read_text())) if PINS.exists() else {}


def main() -> None:
    """Make the pins again."""
    parser = argparse.ArgumentParser(prog="python -m tests.pinned_runs", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--same-versions", action="store_true", help="Also pin changed results of versions that were pinned before."
    )
    arguments = parser.parse_args()
    pins, refused = read(), []
    made = {}
    for name in registry.methods():
        found, pinned = result_of(name), pins.get(name)
        changes = differences(pinned, found) if pinned else ["new"]
        if pinned and changes and pinned["version"] == found["version"] and not arguments.same_versions:
            refused.append(f"{name}: {'; '.join(changes)}. Raise its version, then run this again.")
            found = pinned
        elif pinned and not changes:  # rounding of this machine is not news
            found = {**pinned, "version": found["version"]}
        if found != pinned:
            sys.stdout.write(f"{name}, version {found['version']}: {'; '.join(changes) or 'as before'}\n")
        made[name] = found
    PINS.write_text(json.dumps(made, indent=1) + "\n")
    sys.stdout.write("".join(f"Not pinned: {line}\n" for line in refused))
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
