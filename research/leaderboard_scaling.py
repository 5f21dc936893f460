"""What building the leaderboard costs: from 10,000 and 100,000 records.

    python -m research.leaderboard_scaling [RECORDS ...] [--templates FOLDER]

Records are copies of real ones, by default those of leaderboard/results, with new seeds and accuracies: as large, and
with as many different ledgers. "cold" recomputes ε of each ledger, "warm" finds them kept.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dphpo_bench.records.record import Identity, RunRecord
from dphpo_bench.records.store import read_record

RESULTS = Path(__file__).parents[1] / "leaderboard" / "results"
BUILD = (
    "import sys; sys.argv[:] = ['dphpo-bench', 'leaderboard', 'build', '-q']; "
    "from dphpo_bench.cli.commands import main; main()"
)
MEASURED = f"""
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-c", {BUILD!r}], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def settings_of(folder: Path) -> list[RunRecord]:
    """One record of each setting: method, parameters, task, ε."""
    found: dict[str, RunRecord] = {}
    for path in sorted(folder.rglob("*.json")):
        record = read_record(path)
        if record.status == "ok":
            found.setdefault(repr(record.identity.model_copy(update={"seed": 0})), record)
    return list(found.values())


def fill(folder: Path, templates: Sequence[RunRecord], count: int) -> None:
    rng = random.Random(0)
    for number in range(count):
        template = templates[number % len(templates)]
        obj = json.loads(template.to_json())
        obj["identity"]["seed"] = number // len(templates)
        obj["metrics"]["accuracy"] = min(1.0, max(0.0, obj["metrics"]["accuracy"] + rng.gauss(0, 0.01)))
        identity = Identity.model_validate(obj["identity"])
        path = folder / identity.task / identity.method / f"{identity.key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(obj, indent=1))


def measure(count: int, templates: Sequence[RunRecord]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        fill(root / "leaderboard" / "results", templates, count)
        sys.stdout.write(f"{count:,} records of {len(templates)} settings:")
        for state in ("cold", "warm"):
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", MEASURED],
                cwd=root,
                env={**os.environ, "DPHPO_BENCH_CACHE": str(root / "cache")},
                capture_output=True,
                text=True,
                check=True,
            )
            seconds = time.perf_counter() - start
            code, kilobytes = done.stdout.split()
            assert code == "0", done.stderr
            sys.stdout.write(f" {state} {seconds:.1f} s, {int(kilobytes) / 1e3:.0f} MB;")
            sys.stdout.flush()
        size = sum(path.stat().st_size for path in root.rglob("*.json")) / 1e6
        sys.stdout.write(f" {size:.0f} MB of records\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--templates", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    templates = settings_of(arguments.templates)
    for count in arguments.records:
        measure(count, templates)


if __name__ == "__main__":
    main()
