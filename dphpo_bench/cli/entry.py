"""The entry point. It imports nothing before it can be interrupted without a traceback."""

import os
import sys


def main() -> None:
    """Run the command line; an interrupt at any time is one line and exit code 130."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: a file opened later would get its descriptor
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    try:
        from dphpo_bench.cli.commands import main as run

        run()
    except KeyboardInterrupt:  # while modules are imported, or at the very end
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
