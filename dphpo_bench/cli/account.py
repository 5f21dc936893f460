"""The command `account`: what has been released from private records, across runs."""

from pathlib import Path
from typing import Annotated

import typer

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.cli import options
from dphpo_bench.cli.output import Columns, say, show, show_json, table


def account_command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder of results of the runs.")],
    account: options.AccountOption = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the account with a cap on all runs together: --epsilon, --delta.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="ε of the cap.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the cap.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what has been released from private records across runs, and ε of all of it together.

    Every run on private records is counted before it reads them, also one that is killed. Two numbers: ε if all
    settings were fixed in advance, and ε if later ones were chosen after looking at earlier results. Without a cap, the
    second holds only if the total was planned beforehand. With a cap, a run that does not fit is refused.

    Exit code: 0 done, 2 a mistake in the call, or an account that is damaged or cannot be written.
    """
    from dphpo_bench.harness.account import DEFAULT
    from dphpo_bench.harness.account_report import account as report_of
    from dphpo_bench.harness.account_report import bound_text, open_account

    if len({open_, epsilon is not None, delta is not None}) > 1:
        raise InvalidValueError("Expected --open with --epsilon and --delta, or none of the three.")
    name = DEFAULT if account is None else account
    if open_ and epsilon is not None and delta is not None:
        open_account(results, epsilon, delta, name)
    report = report_of(results, name)
    if as_json:
        show_json(report.to_json())
        return
    columns: Columns = [
        (">run", lambda row: str(row[0])),
        ("date", lambda row: row[1].date),
        ("what", lambda row: row[1].what),
        ("method", lambda row: row[1].method),
        ("task", lambda row: f"{row[1].task} ({row[1].model})"),
        (">ε", lambda row: bound_text(row[1].epsilon, 4)),
        (">δ", lambda row: f"{row[1].delta:.3g}"),
        ("per", lambda row: row[1].unit),
        ("ended", lambda row: row[1].status),
    ]
    if report.releases:
        show(table(columns, enumerate(report.releases, start=1), plain=True, title=f"Account {report.name}"))
    for path in report.uncounted:
        say(f"Not counted when it ran, added here: {path}")
    if report.cap:
        say(f"Cap: ε = {report.cap[0]:g} at δ = {report.cap[1]:g} for all runs together, whatever they are chosen by.")
    say(f"Account {report.name}: {report.summary()}")
