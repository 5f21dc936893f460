"""The command `statement`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dphpo_bench.cli import options
from dphpo_bench.cli.output import say, show_json

if TYPE_CHECKING:
    from dphpo_bench.records.record import RunRecord


def statement_command(
    record: Annotated[
        Path,
        typer.Argument(metavar="RECORD", help="A record, such as `run` writes; or a folder of results: its account."),
    ],
    account: options.AccountOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """State what a run guarantees, for a paper or a data protection officer: one page of text.

    Unit and neighbours, ε, δ, μ and risk; what is protected and what is not; accounting, sampling, noise, tuning. A run
    that is not private, or failed, is stated as such. Of a folder of results: what all runs on the same private records
    guarantee together.
    """
    if record.is_dir():
        _state_account(record, account, as_json)
        return
    from dphpo_bench.cli.risk_text import record_risk
    from dphpo_bench.records.statement import lines, sections, title
    from dphpo_bench.records.store import read_record

    run = read_record(record)
    risk, others = record_risk(run), account_of(record, run)
    if not as_json:
        for line in lines(run, risk, others):
            say(line)
        return
    privacy = run.privacy
    show_json(
        {
            "title": title(run),
            "epsilon": privacy.epsilon if privacy and privacy.end_to_end_private else None,
            "delta": run.identity.delta,
            "risk": asdict(risk) if risk else None,
            "sections": dict(sections(run, risk, others)),
        }
    )


def account_of(path: Path, record: "RunRecord") -> str | None:
    """Return what the account that counts a record says, if there is one."""
    folders = path.absolute().parents
    if len(folders) < 3 or not (folders[2] / ".accounts").is_dir():
        return None
    from dphpo_bench.harness.account import accounts_in
    from dphpo_bench.harness.account_report import report_of

    for book in accounts_in(folders[2]):
        if any(entry.record == record.identity.key for entry in book.read()[1]):
            return f"The account {book.name} counts this run. By now: {report_of(book).summary()}"
    return None


def _state_account(folder: Path, name: str | None, as_json: bool) -> None:
    from dphpo_bench.harness.account import DEFAULT
    from dphpo_bench.harness.account_report import account, account_sections, account_title
    from dphpo_bench.records.statement import page

    report = account(folder, DEFAULT if name is None else name)
    title, sections = account_title(report), account_sections(report)
    if as_json:
        show_json({"title": title, "account": report.to_json(), "sections": [list(section) for section in sections]})
        return
    for line in page(title, sections):
        say(line)
