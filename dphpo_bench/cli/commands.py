"""The command line, with its commands `run`, `plan`, `data`, `sweep` and `check`; others have files of their own.

A user's mistake is one line on standard error and exit code 2. Results go to standard output, progress and warnings to
standard error. Imports wait until a command needs them.
"""

import errno
import inspect
import os
import sys
import warnings
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.text import plainly
from dphpo_bench.cli import options
from dphpo_bench.cli.account import account_command
from dphpo_bench.cli.audit import audit_command
from dphpo_bench.cli.describe import describe_command
from dphpo_bench.cli.explain import explain_command
from dphpo_bench.cli.leaderboard import app as leaderboard_app
from dphpo_bench.cli.listing import list_command
from dphpo_bench.cli.new import app as new_app
from dphpo_bench.cli.output import complain, say, show, show_json
from dphpo_bench.cli.results import results_command
from dphpo_bench.cli.show import show_command
from dphpo_bench.cli.statement import statement_command


def _show_version(asked: bool) -> None:
    if asked:
        say(f"dphpo-bench {version('dphpo-bench')}")
        raise typer.Exit


EXIT_CODES = {"ok": 0, "failed": 1, "unverified": 1, "over_budget": 3}
INTERRUPTED = 130
UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a standard output; those of a file have its name."""

app = typer.Typer(
    name="dphpo-bench",
    help="Measure hyperparameter tuning under differential privacy, end to end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Measure hyperparameter tuning under differential privacy, end to end."""


app.add_typer(leaderboard_app, name="leaderboard")
app.add_typer(new_app, name="new")


@app.command("run")
def run_command(
    method: options.MethodOption,
    task: options.TaskOption = None,
    task_file: options.TaskFileOption = None,
    epsilon: options.EpsilonOption = 3.0,
    delta: options.DeltaOption = None,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER|none",
            help="Repeats a run exactly, its noise included. Default: 0 if the task's data are public, else none.",
        ),
    ] = None,
    secure_noise: Annotated[
        bool, typer.Option("--secure-noise", help="Exact noise from cryptographic generators, without a seed; slow.")
    ] = False,
    model: options.ModelOption = None,
    settings: options.SetOption = None,
    data_dir: options.DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Where the record is written.")] = Path("results"),
    save_model: Annotated[
        Path | None, typer.Option(help="A new file NAME.safetensors for the trained model; see docs/commands.md.")
    ] = None,
    account: options.AccountOption = None,
    not_private: options.NotPrivateOption = False,
    checkpoint_every: options.CheckpointOption = None,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Tune and train under one budget, verify what was released, test, and write a record.

    Exit code: 0 done, 1 the run failed, 2 a mistake in the call, 3 the method exceeded its plan, 130 interrupted.
    """
    from dphpo_bench.base.terminal import make_progress
    from dphpo_bench.cli.run_tables import run_table
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.plan_cache import PlanCache
    from dphpo_bench.harness.run import run
    from dphpo_bench.harness.saving import check_model_path
    from dphpo_bench.harness.seeds import default_seed

    made_method, made_task, budget = options.resolve(method, task, model, epsilon, delta, settings, task_file)
    if save_model:
        check_model_path(save_model)
    progress = make_progress(quiet)
    source = DataSource.resolve(data_dir, progress=progress)
    result = run(
        made_method,
        made_task,
        budget,
        seed=options.parse_seed(seed, None if secure_noise else default_seed(made_task)),
        source=source,
        results_dir=results_dir,
        device=device,
        progress=progress,
        plans=PlanCache.of(source),
        secure_noise=secure_noise,
        check=False,
        account=account,
        not_private=not_private,
        checkpoint_every=checkpoint_every,
    )
    saved = result.save(save_model) if save_model and result.model is not None else None
    if as_json:
        sys.stdout.write(result.record.to_json())
    else:
        show(run_table(result, saved))
        if result.account:
            say(f"Account {result.account.name}: {result.account}")
        if saved:
            say(f"In Python: dphpo_bench.load_model({str(saved)!r}, {made_task.name!r})")
    if result.record.error:
        complain(f"Run {result.record.status}: {result.record.error}")
    raise typer.Exit(EXIT_CODES[result.record.status])


@app.command("plan")
def plan_command(
    method: options.MethodOption,
    task: options.TaskOption = None,
    task_file: options.TaskFileOption = None,
    epsilon: options.EpsilonOption = 3.0,
    delta: options.DeltaOption = None,
    model: options.ModelOption = None,
    settings: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Show what a run would release and cost, and its ε. Reads no data."""
    from dphpo_bench.base.terminal import make_progress
    from dphpo_bench.cli.run_tables import plan_json, plan_tables
    from dphpo_bench.harness.plan import plan

    asked = options.resolve(method, task, model, epsilon, delta, settings, task_file)
    with make_progress(quiet).track("Planning", 0):
        checked = plan(*asked)
    if as_json:
        show_json(plan_json(checked))
    else:
        show(*plan_tables(checked))


@app.command("data")
def data_command(data_dir: options.DataDirOption = None, as_json: options.JsonOption = False) -> None:
    """Show which datasets are here, which are missing, and how to get them."""
    from dphpo_bench.cli.listing import dataset_status
    from dphpo_bench.contract.registry import tasks
    from dphpo_bench.data.source import DataSource

    source = DataSource.resolve(data_dir)
    rows = [row for task in tasks().values() for row in dataset_status(task.cls(), source)]
    if as_json:
        show_json(rows)
        return
    from rich.table import Table

    table = Table("task", "split", "rows", "state", title="Datasets")
    table.add_column("where / how to get it", overflow="fold")
    for row in rows:
        table.add_row(row["task"], row["split"], f"{row['rows']:,}", row["state"], row["where"])
    show(table)


app.command("list")(list_command)
app.command("describe")(describe_command)
app.command("results")(results_command)
app.command("show")(show_command)
app.command("statement")(statement_command)


@app.command("sweep")
def sweep_command(
    suite: Annotated[Path, typer.Argument(help="A suite: a TOML file that names methods, tasks, epsilons, seeds.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Only these cells; fields: method, task, model, epsilon, seed. Repeatable: "
            "values of one field are alternatives, and all fields must fit.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan every cell and print its ε and cost, but run none.")
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
        typer.Option(help="Address of this machine's Ray cluster: auto or HOST:PORT; default: a new Ray."),
    ] = None,
    task_file: options.TaskFilesOption = None,
    data_dir: options.DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Where records are read and written.")] = Path("results"),
    account: options.AccountOption = None,
    not_private: options.NotPrivateOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the dry run as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show failures and the summary only.")] = False,
) -> None:
    """Run methods × tasks × ε × seeds; run it again to continue where it ended.

    Cells with a record are skipped, even if they failed. Each cell runs in a process of its own. On private records the
    seeds of the suite only number the runs, whose noise has none; what all of them cost together is said before the
    first, and their account counts each.

    Exit code: 0 every cell is done, 1 some failed or cannot be planned, 2 a mistake in the call or a full disk,
    130 interrupted.
    """
    from dphpo_bench.cli.sweep import json_rows, make_executor, print_dry, run_dry, run_sweep
    from dphpo_bench.contract.task_files import TaskFiles
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.account import DEFAULT
    from dphpo_bench.harness.own_data import check_declared_data
    from dphpo_bench.harness.plan import warn_of_budget
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.cells import cells_of, portable
    from dphpo_bench.sweep.private_cells import PrivateCells, unseeded
    from dphpo_bench.sweep.suite import load_suite

    if as_json and not dry_run:
        raise InvalidValueError("Expected --json with --dry-run; records are shown by dphpo-bench results --json.")
    source = DataSource.resolve(data_dir)
    store = RecordStore(results_dir)
    if task_file and executor == "ray":
        raise InvalidValueError(
            "Expected --executor process with --task-file; install the task to run it on a cluster."
        )
    tasks = TaskFiles.of(task_file or [])
    found = cells_of(load_suite(suite, tasks.make), source, only or [], tasks.make)
    if not dry_run or (results_dir / ".data" / "key").exists():
        found = unseeded(found, store)
    with portable(found) as cells, closing(make_executor(executor, workers, address, cells)) as made:
        budgets = {(cell.task.facts.task, cell.task.facts.n_records, cell.budget): cell.task.facts for cell in cells}
        for (_, _, budget), facts in budgets.items():
            warn_of_budget(budget, facts)
        if not dry_run:
            for task, identity in {cell.identity.task: (cell.task, cell.identity) for cell in cells}.values():
                check_declared_data(store.root, task, identity, source)
            private = PrivateCells(store, DEFAULT if account is None else account, not_private)
            code = run_sweep(
                cells, store, made, source, tasks.places, retry_failed=retry_failed, quiet=quiet, private=private
            )
            raise typer.Exit(code)
        workers = made.capacity
        stock, groups = run_dry(cells, store, made, source, retry_failed=retry_failed, quiet=quiet)
    if as_json:
        show_json([row for group in groups for row in json_rows(group)])
    else:
        print_dry(stock, groups, workers)
    raise typer.Exit(1 if any(group.error for group in groups) else 0)


app.command("account")(account_command)
app.command("audit")(audit_command)
app.command("explain")(explain_command)


@app.command("check")
def check_command(
    plug_ins: Annotated[
        list[str],
        typer.Argument(
            metavar="PLUGIN...", help="A method, a task, MODULE:CLASS, FILE.py:CLASS, or an installed distribution."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Of tasks, this model alone; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Run the contract tests on a plug-in: a line for each test, with the reason if it fails.

    Exit code: 0 all tests pass, 1 some do not, 2 a mistake in the call.
    """
    from dphpo_bench.cli.check import check

    raise typer.Exit(check(plug_ins, model, as_json=as_json))


def _let_paragraphs_flow(group: typer.Typer) -> None:
    """Break help texts where the terminal ends, and not where lines of the code do as well."""
    for command in group.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for below in group.registered_groups:
        if below.typer_instance:
            _let_paragraphs_flow(below.typer_instance)


_let_paragraphs_flow(app)


def main() -> None:
    """The entry point, which turns errors into one line and an exit code."""
    warnings.showwarning = _show_warning
    try:
        code = app(prog_name="dphpo-bench", standalone_mode=False)
        sys.stdout.flush()  # a full disk shows here, rather than when nobody can say so
    except DphpoBenchError as error:
        complain(str(error))
        code = error.exit_code
    except typer.TyperException as error:
        if reason := getattr(error, "format_message", error.__str__)():  # else the help has been shown
            complain(f"{plainly(reason.rstrip('.'))}. Try dphpo-bench --help.")
        code = getattr(error, "exit_code", 2)
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        code = _give_up_output(error)
    if code == INTERRUPTED:  # typer turns an interrupt into this code
        complain("Interrupted. What was not finished left no record; everything finished before is kept.")
    sys.exit(code if isinstance(code, int) else 0)


def _give_up_output(error: OSError) -> int:
    """The exit code where standard output takes no more; who closed it, such as `head`, needs no complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails at it again when it ends
    if error.errno == errno.EPIPE:
        return 1
    complain(f"Cannot write the output: {error.strerror}.")
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        complain(f"Warning: {message}")
