"""The command `check`: contract tests of plug-ins."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dphpo_bench.base.errors import UnknownNameError
from dphpo_bench.base.text import unknown_name_message
from dphpo_bench.cli.output import say, show_json

if TYPE_CHECKING:
    from dphpo_bench.testing.check import Checked


def check_command(
    plug_ins: Annotated[
        list[str],
        typer.Argument(
            metavar="PLUGIN...", help="A method, a task, MODULE:CLASS, FILE.py:CLASS, or an installed distribution."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Check tasks with this model only; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Run the contract tests on a plug-in: a line for each test, with the reason if it fails.

    Exit code: 0 all tests pass, 1 some do not, 2 a mistake in the call.
    """
    from dphpo_bench.testing.check import run_contract, subjects

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
        rows.append(
            {
                "kind": subject.kind,
                "name": getattr(subject.cls, "name", None),
                "model": subject.model,
                "class": f"{subject.cls.__module__}:{subject.cls.__qualname__}",
                "origin": subject.origin,
                "tests": tests,
            }
        )
    if as_json:
        show_json({"failed": failed, "plug_ins": rows})
    else:
        outcome = f"{failed} of {count} tests fail" if failed else f"All {count - unchecked} tests pass"
        if unchecked:
            outcome += f", {unchecked} could not tell"
        what = f"{len(chosen)} plug-ins" if len(chosen) > 1 else "1 plug-in"
        say(f"{outcome} ({what}, {time.perf_counter() - start:.0f} seconds).")
    raise typer.Exit(1 if failed else 0)


def _show(checked: "Checked") -> None:
    mark = "✗" if checked.reason is not None else "?" if checked.unchecked is not None else "✓"
    say(f"  {mark} {checked.description}")
    if checked.reason is not None:
        say(f"    {checked.name}: {checked.reason}")
    if checked.unchecked is not None:
        say(f"    not checked: {checked.unchecked}")
