"""The command `audit`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dphpo_bench.cli import options
from dphpo_bench.cli.output import complain, show, show_json

REFUTED = 3
"""The exit code if the claim is refuted."""


def audit_command(
    method: options.MethodOption,
    task: options.TaskOption = None,
    task_file: options.TaskFileOption = None,
    epsilon: options.EpsilonOption = 3.0,
    delta: options.DeltaOption = None,
    attack: Annotated[
        Literal["black_box", "white_box", "both"],
        typer.Option(help="What the attacker sees: the released model, or every released gradient too."),
    ] = "both",
    canaries: Annotated[
        int | None,
        typer.Option(
            help="Records of each run that coin flips put in or leave out. Default: 1,400 or fewer; without --runs, as "
            "many as can refute the claim."
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs for each attack; all their canaries count together. Default: 1; without --canaries, 2 for small "
            "data, or as many as can refute the claim.",
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence that the lower bound is right.")] = 0.95,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER|none",
            help="Seed of the record, and of canaries, coins and noise. Default: 0 if the data are public, else none.",
        ),
    ] = None,
    private_records: options.PrivateRecordsOption = False,
    account: options.AccountOption = None,
    model: options.ModelOption = None,
    settings: options.SetOption = None,
    data_dir: options.DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Folder of the record that gets the bound.")] = Path("results"),
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Attack a whole procedure, tuning included, for a lower bound on its ε; the run's record gets the bound.

    Coin flips put canaries among the training records or leave them out, and the attacker guesses which. If the run
    without canaries has no record yet, it is made first; without a seed, that is another run each time. A later audit
    replaces an earlier one.

    Exit code: 0 done, 1 the run failed, 2 a mistake in the call, 3 the claim is refuted, 130 interrupted.
    """
    from dphpo_bench.audit.arguments import ATTACKS, check_arguments

    audited, on, budget = options.resolve(method, task, model, epsilon, delta, settings, task_file)
    sizes: dict[str, Any] = {
        "attacks": ATTACKS if attack == "both" else (attack,),
        "canaries": canaries,
        "runs": runs,
        "confidence": confidence,
    }
    check_arguments(on, private_records=private_records, **sizes)

    from dphpo_bench.audit.attacks import audit, recorded, size_of
    from dphpo_bench.base.meter import Meter
    from dphpo_bench.base.terminal import make_progress
    from dphpo_bench.cli.run_tables import audit_table, audit_verdict
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.account import Entry
    from dphpo_bench.harness.account_report import report_of
    from dphpo_bench.harness.cache import Cache
    from dphpo_bench.harness.counting import account_of, default_seed
    from dphpo_bench.harness.plan import plan
    from dphpo_bench.records.store import RecordStore

    progress = make_progress(quiet)
    source = DataSource.resolve(data_dir, progress=progress)
    cache = Cache.of(source)  # the record's run is planned once, not twice
    store = RecordStore(results_dir)
    where: dict[str, Any] = {
        "seed": options.parse_seed(seed, default_seed(on)),
        "source": source,
        "device": device,
        "progress": progress,
    }
    with progress.track(f"Planning {audited.name} on {on.name}", 0):
        checked = plan(audited, on, budget, cache=cache)
        work = checked.plan.cost.examples
        size = size_of(audited, on, budget, cache=cache, **sizes)
    releases = len(sizes["attacks"]) * size.runs
    book = account_of(on, store, account)
    if book:
        book.check([Entry.of(checked, 0)] * (1 + releases))
    with progress.whole(Meter((1 + releases) * work, "the bound")) as meter:
        record = recorded(audited, on, budget, store, cache=cache, account=account, **where)
        meter.total = meter.done + releases * work  # there may have been a record
        sizes |= {"canaries": size.canaries, "runs": size.runs}
        outcome = audit(audited, on, budget, private_records=private_records, account=book, **sizes, **where)
    path = store.write(record.model_copy(update={"audit": outcome.to_record()}))
    if as_json:
        show_json({**outcome.to_json(), "record": str(path)})
    else:
        show(audit_table(outcome, f"Audit: {audited.name} on {on.name} ({on.model_name})", path))
    if book and not quiet:
        complain(f"Account {book.name}: {report_of(book).summary()}")
    if outcome.refutes:
        complain(audit_verdict(outcome))
        raise typer.Exit(REFUTED)
