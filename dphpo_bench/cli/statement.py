"""The command `statement`: the privacy of one run, as a page of text."""

from pathlib import Path
from typing import Annotated

import typer

from dphpo_bench.cli import options
from dphpo_bench.cli.output import say, show_json


def statement_command(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="A record, such as `run` writes.")],
    as_json: options.JsonOption = False,
) -> None:
    """State what a run guarantees, for a paper or a data protection officer: one page of text.

    Unit and neighbours, ε, δ, μ and risk; what is protected and what is not; accounting, sampling, noise, tuning. A run
    that is not private, or failed, is stated as such.
    """
    from dphpo_bench.cli.risk_text import record_risk, risk_json
    from dphpo_bench.records.statement import lines, sections, title
    from dphpo_bench.records.store import read_record

    found = read_record(record)
    risk = record_risk(found)
    if not as_json:
        for line in lines(found, risk):
            say(line)
        return
    privacy = found.privacy
    show_json(
        {
            "title": title(found),
            "epsilon": privacy.epsilon if privacy and privacy.end_to_end_private else None,
            "delta": found.identity.delta,
            "risk": risk_json(risk),
            "sections": dict(sections(found, risk)),
        }
    )
