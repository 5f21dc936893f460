"""The command `export registry`."""

from pathlib import Path
from typing import Annotated

import typer

from dphpo_bench.cli.options import JsonOption
from dphpo_bench.cli.output import say, show_json
from dphpo_bench.cli.records import account_of

app = typer.Typer(help="Write a run in the form of another project.", no_args_is_help=True)


@app.callback()
def options_of_all() -> None:
    """Write a run in the form of another project."""


@app.command("registry")
def registry_command(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Records, such as `run` writes.")],
    as_json: JsonOption = False,
) -> None:
    """Draft an entry of OpenDP's registry of deployments of differential privacy, in YAML, for each record.

    It says what a record knows: variant, unit, ε and δ, risk, accounting, tuning, mechanisms, trust. What only you know
    is marked TO BE FILLED IN; the registry's own check refuses an entry whose curator or date is still marked. Metrics
    and seeds are left out. The entries of several records are separated by ---; the registry takes a file for each.

    Exit code: 0 done, 2 a mistake in the call, or a run that failed or is not private.
    """
    from dphpo_bench.records.registry import registry_entry, to_yaml
    from dphpo_bench.records.risks import record_risk
    from dphpo_bench.records.store import read_record

    runs = [(read_record(path), path) for path in records]
    entries = [registry_entry(run, record_risk(run), account_of(path, run)) for run, path in runs]
    if as_json:
        show_json(entries)
        return
    for number, entry in enumerate(entries):
        say("---\n" * (number > 0) + to_yaml(entry).rstrip())
