"""The command line: its commands, errors and exit codes.

A user's mistake is one line on standard error and exit code 2. Results go to standard output, progress and warnings to
standard error. Imports wait until a command needs them.
"""

import errno
import inspect
import os
import sys
import warnings
from importlib.metadata import version
from typing import Annotated, Any

import typer

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.cli.leaderboard import advise_command, publish_command
from dphpo_bench.cli.leaderboard import app as leaderboard_app
from dphpo_bench.cli.output import complain, say
from dphpo_bench.cli.plugins import check_command, data_command, describe_command, list_command, new_app
from dphpo_bench.cli.records import account_command, results_command, show_command, statement_command
from dphpo_bench.cli.run import audit_command, plan_command, price_command, run_command
from dphpo_bench.cli.sweep import explain_command, sweep_command


def _show_version(asked: bool) -> None:
    if asked:
        say(f"dphpo-bench {version('dphpo-bench')}")
        raise typer.Exit


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


for command in (
    run_command, plan_command, sweep_command, audit_command, price_command, advise_command, data_command, list_command,
    describe_command, check_command, results_command, show_command, explain_command, statement_command, account_command,
    publish_command,
):  # fmt: skip
    app.command(command.__name__.removesuffix("_command"))(command)


def _prepare(group: typer.Typer) -> None:
    """Break help texts where the terminal ends, not where lines of the code do."""
    for command in group.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for below in group.registered_groups:
        if below.typer_instance:
            _prepare(below.typer_instance)


_prepare(app)


def main() -> None:
    """Run the command line; errors become one line and an exit code."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # others, as of tests, stay as they are
            stream.reconfigure(errors="replace")
    try:
        code = app(prog_name="dphpo-bench", standalone_mode=False)
        sys.stdout.flush()  # a full disk shows here, rather than when nobody can say so
    except DphpoBenchError as error:
        complain(str(error))
        code = error.exit_code
    except typer.TyperException as error:
        if reason := getattr(error, "format_message", error.__str__)():  # else the help has been shown
            hint = f" Try {context.command_path} --help." if (context := getattr(error, "ctx", None)) else ""
            complain(f"{reason.rstrip('.')}.{hint}")
        code = getattr(error, "exit_code", 2)
    except OSError as error:
        code = 2
        if isinstance(error, PermissionError) and error.filename is not None:
            complain(f"Cannot open {error.filename}: {error.strerror}.")
        elif error.filename is not None or error.errno not in UNWRITABLE:
            raise
        else:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails at it again at the end
            if error.errno == errno.EPIPE:  # `head`, which closed it, needs no complaint
                code = 1
            else:
                complain(f"Cannot write the output: {error.strerror}.")
    if code == INTERRUPTED:  # typer turns an interrupt into this code
        complain("Interrupted. What was not finished left no record; everything finished before is kept.")
    sys.exit(code if isinstance(code, int) else 0)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        complain(f"Warning: {message}")
