"""The command line: run, plan, list, data, sweep, results, leaderboard, audit, check, new.

A user's mistake is one line on standard error and exit code 2. Results go to standard output, progress and
warnings to standard error, so that output can be piped. Imports wait until a command needs them.
"""

import json
import math
import os
import shutil
import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.text import one_line, shown
from dphpo_bench.cli.leaderboard import app as leaderboard_app
from dphpo_bench.cli.new import app as new_app

if TYPE_CHECKING:
    from dphpo_bench.contract.method import Method
    from dphpo_bench.contract.task import Task
    from dphpo_bench.privacy.budget import PrivacyBudget

EXIT_CODES = {"ok": 0, "failed": 1, "unverified": 1, "over_budget": 3}
INTERRUPTED = 130
MAX_COMPLAINT = 4000
MAX_SEED_DIGITS = 40

app = typer.Typer(
    name="dphpo-bench",
    help="Measure hyperparameter tuning under differential privacy, end to end.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(leaderboard_app, name="leaderboard")
app.add_typer(new_app, name="new")

MethodOption = Annotated[str, typer.Option("--method", "-m", help="A name from `dphpo-bench list`.")]
TaskOption = Annotated[str, typer.Option("--task", "-t", help="A name from `dphpo-bench list`.")]
ModelOption = Annotated[str | None, typer.Option(help="The task's model; default: its first.")]
EpsilonOption = Annotated[float, typer.Option(help="Budget ε for tuning and training together.")]
DeltaOption = Annotated[float | None, typer.Option(help="Budget δ; default: N^-1.1.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method. Repeatable."),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(help="Local mirror with <dataset>/<split>.parquet; default: $DPHPO_BENCH_DATA, else the hub."),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("run")
def run_command(
    method: MethodOption,
    task: TaskOption,
    epsilon: EpsilonOption = 3.0,
    delta: DeltaOption = None,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER|none",
            help="Repeats a run exactly, its noise included. Default: 0 if the task's data are public, else none.",
        ),
    ] = None,
    secure_noise: Annotated[
        bool, typer.Option("--secure-noise", help="Exact noise from cryptographic generators, no seed; slow.")
    ] = False,
    model: ModelOption = None,
    settings: SetOption = None,
    data_dir: DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Where the record is written.")] = Path("results"),
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Tune and train under one budget, verify what was released, test, and write a record.

    Exit code: 0 done, 1 the run failed, 2 a mistake in the call, 3 the method exceeded its plan, 130 interrupted.
    """
    from dphpo_bench.base.progress import SilentProgress
    from dphpo_bench.cli.progress import TerminalProgress
    from dphpo_bench.cli.run_tables import run_table
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.run import run
    from dphpo_bench.harness.seeds import default_seed

    made_method, made_task, budget = _resolve(method, task, model, epsilon, delta, settings)
    progress = SilentProgress() if quiet else TerminalProgress()
    result = run(
        made_method,
        made_task,
        budget,
        seed=_parse_seed(seed, None if secure_noise else default_seed(made_task)),
        source=DataSource.resolve(data_dir, progress=progress),
        results_dir=results_dir,
        device=device,
        progress=progress,
        secure_noise=secure_noise,
        check=False,
    )
    if as_json:
        sys.stdout.write(result.record.to_json())
    else:
        _print(run_table(result))
    if result.record.error:
        _complain(f"Run {result.record.status}: {result.record.error}")
    raise typer.Exit(EXIT_CODES[result.record.status])


@app.command("plan")
def plan_command(
    method: MethodOption,
    task: TaskOption,
    epsilon: EpsilonOption = 3.0,
    delta: DeltaOption = None,
    model: ModelOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would release and cost, with its ε. Reads no data."""
    from dphpo_bench.cli.run_tables import plan_json, plan_tables
    from dphpo_bench.harness.plan import plan

    checked = plan(*_resolve(method, task, model, epsilon, delta, settings))
    if as_json:
        _print_json(plan_json(checked))
    else:
        _print(*plan_tables(checked))


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List methods and tasks, and where each plug-in comes from."""
    from dphpo_bench.contract.registry import methods, tasks

    found = {
        "methods": [(name, item.cls.summary, item.origin) for name, item in methods().items()],
        "tasks": [(name, item.cls.summary, item.origin) for name, item in tasks().items()],
    }
    if as_json:
        keys = ("name", "summary", "origin")
        _print_json({kind: [dict(zip(keys, row, strict=True)) for row in rows] for kind, rows in found.items()})
        return
    for kind, rows in found.items():
        sys.stdout.write(f"{kind.capitalize()}\n")
        width = max((len(name) for name, _, _ in rows), default=0)
        for name, summary, origin in rows:
            sys.stdout.write(f"  {name:<{width}}  {summary}  [{origin}]\n")


@app.command("data")
def data_command(data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Show which datasets are here, which are missing, and how to get them."""
    from dphpo_bench.cli.listing import dataset_status
    from dphpo_bench.contract.registry import make_task, tasks
    from dphpo_bench.data.source import DataSource

    source = DataSource.resolve(data_dir)
    rows = [row for name in tasks() for row in dataset_status(make_task(name), source)]
    if as_json:
        _print_json(rows)
        return
    from rich.table import Table

    table = Table("task", "split", "rows", "state", title="Datasets")
    table.add_column("where / how to get it", overflow="fold")
    for row in rows:
        table.add_row(row["task"], row["split"], f"{row['rows']:,}", row["state"], row["where"])
    _print(table)


@app.command("results")
def results_command(
    results_dir: Annotated[Path, typer.Argument(help="A folder of run records.")] = Path("results"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Only these runs; fields: method, task, model, epsilon, seed, status. Repeatable.",
        ),
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="One row a setting: seeds, mean, range.")] = False,
    form: Annotated[
        Literal["table", "csv", "parquet", "json"] | None,
        typer.Option("--format", help="Default: what the name of the output file says, else a table."),
    ] = None,
    as_json: JsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: standard output.")] = None,
) -> None:
    """List run records, all or some, as a table or as data.

    What is not a valid record is skipped, with a line on standard error.

    In CSV, a text that a spreadsheet would take for a formula has an apostrophe in front.
    """
    from dphpo_bench.cli import tables
    from dphpo_bench.records import export, reading
    from dphpo_bench.records import tables as results

    chosen_form = _result_format(form, as_json, output)
    found, skipped = reading.read_results(results_dir)
    for line in reading.skipped_lines(skipped):
        _complain(line)
    chosen = reading.select(found, only or []) if found else []
    nothing = f"No records in {results_dir}{' match --only' if found else ''}."
    if chosen_form == "table":
        on_terminal = output is None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if on_terminal or "COLUMNS" in os.environ else None
        text = tables.to_text(chosen, summarise=summary, width=width, styled=on_terminal) if chosen else nothing + "\n"
    else:
        if not chosen:
            _complain(nothing)
        data = results.summary(chosen) if summary else results.frame(chosen)
        if chosen_form == "parquet" and output is not None:
            export.write(output, export.to_parquet(data))
            return
        text = export.to_csv(data) if chosen_form == "csv" else export.to_json(data)
    if output is None:
        sys.stdout.write(text)
    else:
        export.write(output, text)


@app.command("sweep")
def sweep_command(
    suite: Annotated[Path, typer.Argument(help="A suite: a TOML file that names methods, tasks, epsilons, seeds.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Only these cells; fields: method, task, model, epsilon, seed. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan every cell and print its ε and cost; run none.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run cells again whose failure is recorded.")
    ] = False,
    executor: Annotated[
        Literal["process", "serial", "ray"], typer.Option(help="Where cells run: here, in this process, on a cluster.")
    ] = "process",
    workers: Annotated[int | None, typer.Option(min=1, help="Cells at a time; default: as many as fit.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster that this machine is a node of: auto or HOST:PORT; default: a new Ray."),
    ] = None,
    data_dir: DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Where records are, and are written.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the dry run as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show failures and the summary only.")] = False,
) -> None:
    """Run methods × tasks × ε × seeds; run it again to go on where it ended.

    Cells with a record are skipped, also those that failed. Each cell runs in a process of its own.

    Exit code: 0 every cell is done, 1 some failed or cannot be planned, 2 a mistake in the call or a full disk,
    130 interrupted.
    """
    from dphpo_bench.cli.sweep import json_rows, make_executor, print_dry, run_dry, run_sweep
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.seeds import warn_of_seeds
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.cells import cells_of
    from dphpo_bench.sweep.suite import load_suite

    if as_json and not dry_run:
        raise InvalidValueError("Expected --json with --dry-run; records are shown by dphpo-bench results --json.")
    source = DataSource.resolve(data_dir)
    store = RecordStore(results_dir)
    cells = cells_of(load_suite(suite), source, only or [])
    for task in {cell.identity.task: cell.task for cell in cells}.values():
        warn_of_seeds(task, "the suite seeds its runs")
    with closing(make_executor(executor, workers, address, cells)) as made:
        if not dry_run:
            raise typer.Exit(run_sweep(cells, store, made, source, retry_failed=retry_failed, quiet=quiet))
        workers = made.capacity
        stock, groups = run_dry(cells, store, made, source, retry_failed=retry_failed, quiet=quiet)
    if as_json:
        _print_json([row for group in groups for row in json_rows(group)])
    else:
        print_dry(stock, groups, workers)
    raise typer.Exit(1 if any(group.error for group in groups) else 0)


@app.command("audit")
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

    made_method, made_task, budget = _resolve(method, task, model, epsilon, delta, settings)
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
        _print_json({**found.to_json(), "record": str(path)})
    else:
        _print(audit_table(found, f"Audit: {made_method.name} on {made_task.name} ({made_task.model_name})", path))
    if found.refutes:
        _complain(f"Refuted: the audit shows ε ≥ {found.bound.epsilon:.4g} where {found.claimed:.4g} is claimed.")
        raise typer.Exit(EXIT_CODES["over_budget"])


@app.command("check")
def check_command(
    plug_ins: Annotated[
        list[str],
        typer.Argument(metavar="PLUGIN...", help="A method, a task, module:Class, or an installed distribution."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Run the contract of methods and tasks on a plug-in: a line for each test, with the reason where it fails.

    Exit code: 0 all tests pass, 1 some do not, 2 a mistake in the call.
    """
    from dphpo_bench.cli.check import check

    raise typer.Exit(check(plug_ins, as_json=as_json))


def main() -> None:
    """Entry point: turns errors into one line and an exit code."""
    warnings.showwarning = _show_warning
    try:
        code = app(standalone_mode=False)
    except DphpoBenchError as error:
        _complain(str(error))
        code = error.exit_code
    except typer.TyperException as error:
        _complain(f"{getattr(error, 'format_message', error.__str__)()} Try dphpo-bench --help.")
        code = getattr(error, "exit_code", 2)
    except BrokenPipeError:
        code = 1
    if code == INTERRUPTED:  # typer turns an interrupt into this code
        _complain("Interrupted. What was not finished left no record; everything finished before is kept.")
    sys.exit(code if isinstance(code, int) else 0)


def _resolve(
    method: str,
    task: str,
    model: str | None,
    epsilon: float,
    delta: float | None,
    settings: list[str] | None,
) -> "tuple[Method, Task, PrivacyBudget]":
    from dphpo_bench.contract.registry import make_method, make_task
    from dphpo_bench.privacy.budget import PrivacyBudget

    made_task = make_task(task, model)
    budget = PrivacyBudget(epsilon, made_task.facts.default_delta if delta is None else delta)
    return make_method(method, _parse_settings(settings or [])), made_task, budget


def _parse_settings(settings: list[str]) -> dict[str, str]:
    """Turn ["gamma=1.01", ...] into a mapping."""
    parsed: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise InvalidValueError(f"Expected --set NAME=VALUE, got {shown(setting, form=repr)}.")
        if name in parsed:
            raise InvalidValueError(f"Parameter {shown(name, form=repr)} is set twice.")
        parsed[name] = value
    return parsed


def _parse_seed(text: str | None, default: int | None) -> int | None:
    if text is None:
        return default
    if text.lower() == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_SEED_DIGITS):
        raise InvalidValueError(f"Expected --seed to be an integer >= 0, or none, got {shown(text, form=repr)}.")
    return int(text)


def _result_format(form: str | None, as_json: bool, output: Path | None) -> str:
    if as_json and form not in (None, "json"):
        raise InvalidValueError(f"Expected --json or --format {form}, got both.")
    suffix = output.suffix.lower().removeprefix(".") if output else ""
    chosen = "json" if as_json else form or (suffix if suffix in ("csv", "parquet", "json") else "table")
    if chosen == "parquet" and output is None:
        raise InvalidValueError("Parquet is not text and needs a file. Add --output FILE.parquet.")
    return chosen


def _print(*renderables: Any) -> None:
    from rich.console import Console

    console = Console(markup=False)
    for renderable in renderables:
        console.print(renderable)


def _print_json(value: Any) -> None:
    def plain(item: Any) -> Any:
        if isinstance(item, float) and not math.isfinite(item):
            return "Infinity" if item > 0 else str(item)
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        return item

    sys.stdout.write(json.dumps(plain(value), indent=1) + "\n")


def _complain(message: str) -> None:
    sys.stderr.write(one_line(message, MAX_COMPLAINT) + "\n")


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        _complain(f"Warning: {message}")
