"""The command `audit`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dphpo_bench.cli.options import (
    DataDirOption,
    DeltaOption,
    DeviceOption,
    EpsilonOption,
    JsonOption,
    MethodOption,
    ModelOption,
    QuietOption,
    SetOption,
    TaskOption,
    resolve,
)
from dphpo_bench.cli.output import complain, show, show_json

REFUTED = 3
"""Exit code: the bound is above the claimed ε."""


def audit_command(
    method: MethodOption,
    task: TaskOption,
    epsilon: EpsilonOption = 3.0,
    delta: DeltaOption = None,
    attack: Annotated[
        Literal["black_box", "white_box", "both"],
        typer.Option(help="What the attacker sees: the released model, or every released gradient too."),
    ] = "both",
    canaries: Annotated[
        int | None, typer.Option(help="Records of each run that are in or out by a coin; default: 300 or fewer.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs for each attack; all their canaries count together.")] = 1,
    confidence: Annotated[float, typer.Option(help="That the lower bound is right.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the record, and of canaries, coins and noise.")] = 0,
    model: ModelOption = None,
    settings: SetOption = None,
    data_dir: DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Where the record is that gets the bound.")] = Path("results"),
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Attack a whole procedure, tuning included, for a lower bound on its ε; the run's record gets the bound.

    Canaries are put among the training records or left out, by coin flips; the attacker guesses which. If there is
    no record of the run without canaries yet, it is made first. A later audit replaces an earlier one.

    Exit code: 0 done, 1 the run failed, 2 a mistake in the call, 3 the bound is above the claimed ε, 130 interrupted.
    """
    from dphpo_bench.audit.attacks import ATTACKS, audit, checked_canaries, recorded
    from dphpo_bench.base.progress import SilentProgress
    from dphpo_bench.cli.progress import TerminalProgress
    from dphpo_bench.cli.run_tables import audit_table
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.records.store import RecordStore

    made_method, made_task, budget = resolve(method, task, model, epsilon, delta, settings)
    progress = SilentProgress() if quiet else TerminalProgress()
    source = DataSource.resolve(data_dir, progress=progress)
    store = RecordStore(results_dir)
    attacks = ATTACKS if attack == "both" else (attack,)
    canaries = checked_canaries(made_task, canaries, attacks=attacks, runs=runs, confidence=confidence)
    record = recorded(made_method, made_task, budget, store, seed=seed, source=source, device=device, progress=progress)
    found = audit(
        made_method,
        made_task,
        budget,
        attacks=attacks,
        canaries=canaries,
        runs=runs,
        confidence=confidence,
        seed=seed,
        source=source,
        device=device,
        progress=progress,
    )
    path = store.write(record.model_copy(update={"audit": found.to_record()}))
    if as_json:
        show_json({**found.to_json(), "record": str(path)})
    else:
        show(audit_table(found, f"Audit: {made_method.name} on {made_task.name} ({made_task.model_name})", path))
    if found.refutes:
        complain(f"Refuted: the audit shows ε ≥ {found.bound.epsilon:.4g} where {found.claimed:.4g} is claimed.")
        raise typer.Exit(REFUTED)
