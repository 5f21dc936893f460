"""The command line, with its commands `run` and `plan`; the others have files of their own.

A user's mistake is one line on standard error and exit code 2. Results go to standard output, progress and warnings to
standard error. Imports wait until a command needs them.
"""

import errno
import inspect
import os
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dphpo_bench.base.encodings import write_replacements
from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.base.text import plainly
from dphpo_bench.cli import options
from dphpo_bench.cli.account import account_command
from dphpo_bench.cli.advise import advise_command
from dphpo_bench.cli.audit import audit_command
from dphpo_bench.cli.check import check_command
from dphpo_bench.cli.describe import describe_command
from dphpo_bench.cli.explain import explain_command
from dphpo_bench.cli.leaderboard import app as leaderboard_app
from dphpo_bench.cli.listing import data_command, list_command
from dphpo_bench.cli.new import app as new_app
from dphpo_bench.cli.output import complain, say, say_json, show, show_json
from dphpo_bench.cli.price import price_command
from dphpo_bench.cli.results import results_command
from dphpo_bench.cli.show import show_command
from dphpo_bench.cli.statement import statement_command
from dphpo_bench.cli.sweep import sweep_command


def _show_version(asked: bool) -> None:
    if asked:
        say(f"dphpo-bench {version('dphpo-bench')}")
        raise typer.Exit


EXIT_CODES = {"ok": 0, "failed": 1, "unverified": 1, "over_budget": 3}
INTERRUPTED = 130
UNWRITABLE = (errno.EPIPE, errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
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
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
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
    again: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Draw the noise of an earlier run on private records again: the number in its record, with --seed. "
            "The account counts nothing more. Anything else than that run is refused.",
        ),
    ] = None,
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
    from dphpo_bench.harness.cache import Cache
    from dphpo_bench.harness.counting import default_seed
    from dphpo_bench.harness.run import AccountOptions, ExecutionOptions, run
    from dphpo_bench.harness.trained import check_model_path, loading_code

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
        results_dir=results_dir,
        account=AccountOptions(account, not_private, again),
        execution=ExecutionOptions(device, source, Cache.of(source), secure_noise, checkpoint_every),
        progress=progress,
        check=False,
    )
    saved = result.save(save_model) if save_model and result.model is not None else None
    if as_json:
        say_json(result.record.to_json())
    else:
        show(run_table(result, saved))
        if result.account:
            say(f"Account {result.account.name}: {result.account}")
        if saved and result.trained:
            say(f"In Python: {loading_code(result.trained, saved)}.predict(inputs)")
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


for command in (
    advise_command, data_command, list_command, describe_command, results_command, show_command, statement_command,
    sweep_command, account_command, price_command, audit_command, explain_command, check_command,
):  # fmt: skip
    app.command(command.__name__.removesuffix("_command"))(command)


class Quick:
    """A mixin whose flags have values from the start; for a flag without one, typer imports pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters


class QuickGroup(Quick, TyperGroup): ...


class QuickCommand(Quick, TyperCommand): ...


def _prepare(group: typer.Typer) -> None:
    """Break help texts where the terminal ends, not where lines of the code do; and make commands start quickly."""
    group.info.cls = QuickGroup
    for command in group.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        command.cls = QuickCommand
    for below in group.registered_groups:
        if below.typer_instance:
            _prepare(below.typer_instance)


_prepare(app)


def main() -> None:
    """Run the command line; errors become one line and an exit code."""
    warnings.showwarning = _show_warning
    write_replacements(sys.stdout, sys.stderr)
    try:
        code = app(prog_name="dphpo-bench", standalone_mode=False)
        sys.stdout.flush()  # a full disk shows here, rather than when nobody can say so
    except DphpoBenchError as error:
        complain(str(error))
        code = error.exit_code
    except typer.TyperException as error:
        if reason := getattr(error, "format_message", error.__str__)():  # else the help has been shown
            hint = f" Try {context.command_path} --help." if (context := getattr(error, "ctx", None)) else ""
            complain(f"{plainly(reason.rstrip('.'))}.{hint}")
        code = getattr(error, "exit_code", 2)
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        code = _give_up_output(error)
    if code == INTERRUPTED:  # typer turns an interrupt into this code
        complain("Interrupted. What was not finished left no record; everything finished before is kept.")
    sys.exit(code if isinstance(code, int) else 0)


def _give_up_output(error: OSError) -> int:
    """Return the exit code where standard output takes no more; `head`, which closed it, needs no complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails at it again when it ends
    if error.errno == errno.EPIPE:
        return 1
    complain(f"Cannot write the output: {error.strerror}.")
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        complain(f"Warning: {message}")
