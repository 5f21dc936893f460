"""The command `check`: contract tests of plug-ins."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dphpo_bench.base.errors import UnknownNameError
from dphpo_bench.base.text import unknown_name_message
from dphpo_bench.cli.output import say, show_json
from dphpo_bench.testing.check import Checked, Subject, run_contract, subjects


def check(plug_ins: Iterable[str], model: str | None = None, *, as_json: bool) -> int:
    """Check plug-ins, print a line for each test, or JSON at the end, and return the exit code.

    Args:
        plug_ins: see `subjects`.
        model: of tasks, this model alone; None: all.
        as_json: whether to print JSON.

    Raises:
        DphpoBenchError: if there is no such plug-in, see `subjects`; or no such model.
    """
    chosen = list(dict.fromkeys(subject for plug_in in plug_ins for subject in subjects(plug_in)))
    if model is not None:
        known = {subject.model for subject in chosen if subject.model is not None}
        if model not in known:
            raise UnknownNameError(unknown_name_message("model", model, known))
        chosen = [subject for subject in chosen if subject.model in (model, None)]

    start = time.perf_counter()
    rows = []
    failed = unchecked = count = 0
    for subject in chosen:
        if not as_json:
            say(subject.title)
        tests = []
        for checked in run_contract(subject):
            tests.append({**asdict(checked), "passed": checked.reason is None and checked.unchecked is None})
            count += 1
            failed += checked.reason is not None
            unchecked += checked.unchecked is not None
            if not as_json:
                _show(checked)
        rows.append(_row(subject, tests))
    if as_json:
        show_json({"failed": failed, "plug_ins": rows})
    else:
        outcome = f"{failed} of {count} tests fail" if failed else f"All {count - unchecked} tests pass"
        if unchecked:
            outcome += f", {unchecked} could not tell"
        what = f"{len(chosen)} plug-ins" if len(chosen) > 1 else "1 plug-in"
        say(f"{outcome} ({what}, {time.perf_counter() - start:.0f} seconds).")
    return 1 if failed else 0


def _show(checked: Checked) -> None:
    mark = "✗" if checked.reason is not None else "?" if checked.unchecked is not None else "✓"
    say(f"  {mark} {checked.description}")
    if checked.reason is not None:
        say(f"    {checked.name}: {checked.reason}")
    if checked.unchecked is not None:
        say(f"    not checked: {checked.unchecked}")


def _row(subject: Subject, tests: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": subject.kind,
        "name": getattr(subject.cls, "name", None),
        "model": subject.model,
        "class": f"{subject.cls.__module__}:{subject.cls.__qualname__}",
        "origin": subject.origin,
        "tests": tests,
    }
