"""The commands `new method` and `new task`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dphpo_bench.testing.scaffold import Kind

app = typer.Typer(help="Write a package with a method or a task of your own, ready to install.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Its name for --method or --task, such as two_rates.")]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="The folder in which the package's folder is made.")
]


@app.command("method")
def method_command(name: NameArgument, output: OutputOption = Path()) -> None:
    """Write a small private tuning method: its source, its entry point, its contract test."""
    _write("method", name, output)


@app.command("task")
def task_command(name: NameArgument, output: OutputOption = Path()) -> None:
    """Write a small task on data that scikit-learn packages: its source, its entry point, its contract test."""
    _write("task", name, output)


def _write(kind: "Kind", name: str, output: Path) -> None:
    from dphpo_bench.testing.scaffold import FILES, write_package

    folder = write_package(kind, name, output)
    files = ", ".join(target.format(name=name) for target in FILES.values())
    run = f"--method {name} --task digits" if kind == "method" else f"--method hyfreedp --task {name}"
    sys.stdout.write(
        f"Wrote {folder}: {files}. Next:\n"
        f"  pip install -e {folder}\n  dphpo-bench check {name}\n  dphpo-bench run {run}\n"
    )
