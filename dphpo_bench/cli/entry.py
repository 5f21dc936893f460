"""The entry point. It imports nothing before it can be interrupted without a traceback."""

import sys


def main() -> None:
    """Run the command line; an interrupt at any time is one line and exit code 130."""
    try:
        from dphpo_bench.cli.commands import main as run

        run()
    except KeyboardInterrupt:  # while modules are imported, or at the very end
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
