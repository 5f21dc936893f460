"""What `check` prints: one line for each test of each plug-in, or JSON."""

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dphpo_bench.testing.check import Checked, Subject, run_contract, subjects


def check(plug_ins: Iterable[str], *, as_json: bool) -> int:
    """Check plug-ins and print what came of it.

    Args:
        plug_ins: names as in `subjects`.
        as_json: print one JSON object at the end rather than lines as they come.

    Returns:
        The exit code: 0 if all tests pass, 1 if not.

    Raises:
        DphpoBenchError: if a name stands for nothing.
    """
    chosen = list(dict.fromkeys(subject for plug_in in plug_ins for subject in subjects(plug_in)))

    def say(line: str) -> None:
        if not as_json:
            _write(line)

    start = time.perf_counter()
    results: list[tuple[Subject, list[Checked]]] = []
    for subject in chosen:
        say(subject.title)
        results.append((subject, []))
        for checked in run_contract(subject):
            results[-1][1].append(checked)
            say(f"  ✓ {checked.description}" if checked.reason is None else f"  ✗ {checked.description}")
            if checked.reason is not None:
                say(f"    {checked.name}: {checked.reason}")
    every = [checked for _, tests in results for checked in tests]
    failed = [checked for checked in every if checked.reason is not None]
    if as_json:
        _write(json.dumps(_as_json(results, len(failed)), indent=1))
    else:
        outcome = f"{len(failed)} of {len(every)} tests fail" if failed else f"All {len(every)} tests pass"
        what = f"{len(chosen)} plug-ins" if len(chosen) > 1 else "1 plug-in"
        say(f"{outcome} ({what}, {time.perf_counter() - start:.0f} seconds).")
    return 1 if failed else 0


def _as_json(results: list[tuple[Subject, list[Checked]]], failed: int) -> dict[str, Any]:
    rows = [
        {
            "kind": subject.kind,
            "name": getattr(subject.cls, "name", None),
            "model": subject.model,
            "class": f"{subject.cls.__module__}:{subject.cls.__qualname__}",
            "origin": subject.origin,
            "tests": [{**asdict(test), "passed": test.reason is None} for test in tests],
        }
        for subject, tests in results
    ]
    return {"failed": failed, "plug_ins": rows}


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
