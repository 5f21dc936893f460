"""The command `show`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dphpo_bench.base.text import shown
from dphpo_bench.cli import options
from dphpo_bench.cli.output import complain, say, show_json

if TYPE_CHECKING:
    from dphpo_bench.leaderboard.questions import Oracles


def show_command(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="A record, such as `run` writes.")],
    task_file: options.TaskFileOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show one run: what it chose, its path, where ε went, the oracle's choice beside it, the command that repeats it.

    The oracle's run is looked for in the same folder of results. No run is repeated. --task-file says where a
    task of your own lies, which the command needs that repeats the run.
    """
    from dphpo_bench.cli.show_tables import record_json, record_lines
    from dphpo_bench.harness.recording import command_of_record
    from dphpo_bench.leaderboard.standard import Standard
    from dphpo_bench.records.store import read_record

    run = read_record(record)
    declared = run.accounting is not None
    is_oracle = run.identity.method == Standard.builtin().oracle[0]
    oracle = None if is_oracle or declared else read_oracles([record.absolute().parents[1]]).beside(run.identity)
    again = None if declared else command_of_record(run, _place(run.identity.task, task_file))
    if as_json:
        show_json(record_json(run, oracle, again))
        return
    for line in record_lines(run, oracle, again):
        say(line)


def _place(task: str, task_file: str | None) -> str | None:
    from dphpo_bench.contract.registry import tasks
    from dphpo_bench.contract.task_files import TaskFiles

    if task_file is not None:
        TaskFiles.of([task_file]).make(task)
    elif task not in tasks():
        complain(f"The task {shown(task)} is not installed here: give --task-file for a command that repeats the run.")
    return task_file


def read_oracles(tasks: "Iterable[Path]") -> "Oracles":
    from dphpo_bench.base.errors import RecordError
    from dphpo_bench.leaderboard.questions import Oracles
    from dphpo_bench.leaderboard.standard import Standard
    from dphpo_bench.records.store import read_record

    runs, oracle = [], Standard.builtin().oracle[0]
    for file in sorted(file for folder in tasks for file in (folder / oracle).glob("*.json")):
        try:
            runs.append(read_record(file))
        except RecordError as error:
            complain(f"Skipped: {error}")
    return Oracles(runs)
