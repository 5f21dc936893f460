"""What a contract asks a new process: `python -m dphpo_bench.testing.new_process`, with a request on standard input."""

import json
import os
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from dphpo_bench.data.source import DataSource
from dphpo_bench.testing.expectations import ContractError, expect

SLOW = (
    *("torch", "torchvision", "opacus", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "optuna", "kymatio", "PIL"),
    *("transformers", "sacrebleu"),
)
"""Packages whose import takes long enough to notice; `dphpo-bench list` imports all plug-ins."""

SECONDS = 300
"""How long a new process may take."""


def ask_new_process(cls: type, what: str, **details: Any) -> dict[str, Any]:
    """Ask a new Python process, which hashes texts differently and has one thread, about a plug-in's class.

    Args:
        cls: the plug-in's class.
        what: "import" it only, tell the "facts" of a task, or "run" a method.
        details: JSON values that the process needs for that.

    Raises:
        ContractError: if another process cannot import the class, or the process fails or takes too long.
    """
    name = f"{cls.__module__}:{cls.__qualname__}"
    expect(
        cls.__module__ != "__main__" and "<locals>" not in name,
        f"{name} cannot be imported by another process, such as a sweep's. Define it at the top of a module.",
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
        "PYTHONSAFEPATH": "1",  # the working directory may hold the plug-in's folder, which is not the plug-in
        "PYTHONHASHSEED": "7",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dphpo_bench.testing.new_process"],
            input=json.dumps({"what": what, "class": name, **details}),
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ContractError(f"Expected a new process to be done within {SECONDS} seconds.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ContractError(f"A new process that loads the plug-in ends with code {done.returncode}: {last}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def expect_cheap(what: str, answer: dict[str, Any]) -> None:
    """What a new process did with a plug-in imported no slow package."""
    slow = ", ".join(answer["slow"])
    expect(
        not slow,
        f"{what} {slow}, though dphpo-bench list and plan import every plug-in. Of {', '.join(SLOW)}, import what you "
        "need inside the functions that need it.",
    )


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    found: Any = resolve_name(request["class"])
    if request["what"] == "import":
        return {"slow": _slow()}
    if request["what"] == "run":
        from dphpo_bench.contract.registry import read_parameters
        from dphpo_bench.testing.runs import Bench
        from dphpo_bench.testing.small_tasks import Blobs

        return Bench(found(**read_parameters(found, request["parameters"])), Blobs()).seen()
    task = found(request["model"])
    facts, slow = repr(task.facts), _slow()
    source = DataSource.resolve(request["data_dir"], request["cache_dir"])
    fingerprints = {"fingerprint": task.data_fingerprint(source), "model_fingerprint": task.model_fingerprint()}
    return {"facts": facts, "slow": slow, **fingerprints}


def _slow() -> list[str]:
    return [name for name in SLOW if name in sys.modules]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_answer(json.load(sys.stdin))) + "\n")
