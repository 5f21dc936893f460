"""The public names: one list, loaded on first use."""

import subprocess
import sys

import dphpo_bench


def test_every_public_name_loads_and_a_strange_one_does_not():
    assert "run" in dphpo_bench.__all__
    for name in dphpo_bench.__all__:
        assert getattr(dphpo_bench, name) is not None
    assert not hasattr(dphpo_bench, "nothing_of_this_name")


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, dphpo_bench; print([name for name in ('torch', 'pandas', 'optuna') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
