"""What a contract asks a new process: `python -m dphpo_bench.testing.new_process`, a JSON request on standard input.

The answer says which slow packages importing the plug-in brought along, and what came of using it.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SLOW = ("torch", "torchvision", "opacus", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "optuna", "kymatio", "PIL")
"""Packages whose import takes long enough to notice; `dphpo-bench list` imports all plug-ins."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Import the plug-in and do what is asked: nothing more, "facts" of a task, or a "run" of a method."""
    module, qualname = request["module"], request["qualname"]
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    if request["what"] == "facts":
        task = found(request["model"])
        facts = task.facts
        slow = _slow()
        from dphpo_bench.data.source import DataSource

        source = DataSource.resolve(request["data_dir"], Path(request["cache_dir"]))
        fingerprints = {"fingerprint": task.fingerprint(source), "model_fingerprint": task.model_fingerprint()}
        return {"slow": slow, "facts": repr(facts), **fingerprints}
    if request["what"] == "run":
        from dphpo_bench.contract.registry import read_parameters
        from dphpo_bench.testing.runs import Bench, observed
        from dphpo_bench.testing.small_tasks import Blobs

        return observed(Bench(found(**read_parameters(found, request["parameters"])), Blobs()).run())
    return {"slow": _slow()}


def _slow() -> list[str]:
    return [name for name in SLOW if name in sys.modules]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(answer(json.load(sys.stdin))) + "\n")
