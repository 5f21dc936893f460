"""Commands work in any folder: nothing that lies there is taken for a module of ours, or of Python."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("dphpo-bench")


def test_a_sweep_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    """A clone of this project has a folder dphpo_bench without methods and tasks, which are mapped into the package."""
    (tmp_path / "dphpo_bench").mkdir()
    for module in ("dphpo_bench/__init__.py", "statistics.py"):
        (tmp_path / module).write_text("raise SystemExit('imported from the working folder')\n")
    suite = tmp_path / "suite.toml"
    suite.write_text('methods = ["dp_sgd"]\ntasks = ["digits"]\nepsilons = [3]\nseeds = [0]\n')
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [COMMAND, "sweep", suite, "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "imported from the working folder" not in done.stdout + done.stderr
