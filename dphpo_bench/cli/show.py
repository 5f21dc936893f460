"""The command `show`: one record, for people."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dphpo_bench.cli import options
from dphpo_bench.cli.output import complain, say, show_json

if TYPE_CHECKING:
    from dphpo_bench.records.record import RunRecord


def show_command(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="A record, such as `run` writes.")],
    as_json: options.JsonOption = False,
) -> None:
    """Show one run: what it chose, its path, where ε went, the oracle's choice beside it, the command that repeats it.

    The oracle's run is looked for in the same folder of results. Nothing is computed again, and no data are read.
    """
    from dphpo_bench.cli.show_tables import record_json, record_lines
    from dphpo_bench.harness.repeating import command_of_record
    from dphpo_bench.records.store import read_record

    found = read_record(record)
    oracle = _oracle_of(found, record)
    again = command_of_record(found)
    if as_json:
        show_json(record_json(found, oracle, again))
        return
    for line in record_lines(found, oracle, again):
        say(line)


def _oracle_of(record: "RunRecord", path: Path) -> "RunRecord | None":
    """The oracle's run beside this one, if this is not it; files there that are no records are named and left out."""
    from dphpo_bench.base.errors import RecordError
    from dphpo_bench.leaderboard.questions import oracle_beside
    from dphpo_bench.leaderboard.standard import Standard
    from dphpo_bench.records.store import read_record

    name = Standard.builtin().oracle[0]
    if record.identity.method == name:
        return None
    found = []
    for file in sorted((path.absolute().parents[1] / name).glob("*.json")):
        try:
            found.append(read_record(file))
        except RecordError as error:
            complain(f"Skipped: {error}")
    return oracle_beside(record.identity, found)
