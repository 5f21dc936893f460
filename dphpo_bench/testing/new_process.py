"""Ask a new Python process about a plug-in: `python -m dphpo_bench.testing.new_process`, a request on standard input.

A worker of `sweep.executors` cannot answer: it has imported what a plug-in must not, and hashes texts as this process.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from dphpo_bench.data.source import DataSource
from dphpo_bench.testing.runs import ContractError

CODE = (".py", ".pyi", ".pyc", ".so", ".pyd", ".dll", ".dylib")  # suffixes of files that imports open

SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr")
PACKAGES = ("site-packages", "dist-packages")

SECONDS = 300  # time limit of a new process


def ask_new_process(cls: type, what: str, **details: Any) -> dict[str, Any]:
    """Ask a new Python process, which hashes texts differently and has one thread, about a plug-in's class.

    `what` is to return the "fingerprints" of a task, or to "plan" or "run" a method; `details` are JSON values that
    the process needs for that.
    """
    name = f"{cls.__module__}:{cls.__qualname__}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "PYTHONSAFEPATH": "1",  # the working directory may hold the plug-in's folder, which is not the plug-in
        "PYTHONHASHSEED": "7",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "dphpo_bench.testing.new_process"],
        input=json.dumps({"what": what, "class": name, **details}),
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ContractError(f"A new process that loads the plug-in ends with code {done.returncode}: {last}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    cls: Any = resolve_name(request["class"])
    if request["what"] in ("plan", "run"):
        from dphpo_bench.contract.registry import read_parameters
        from dphpo_bench.privacy.budget import PrivacyBudget
        from dphpo_bench.testing.runs import DELTA, Bench
        from dphpo_bench.testing.small_tasks import blobs_for

        method = cls(**read_parameters(cls, request["parameters"]))
        bench = Bench(method, blobs_for(method))
        if request["what"] == "run":
            return bench.seen()
        with _opened(cls.__module__) as opened:
            plan = bench.method.plan(bench.facts, PrivacyBudget(bench.epsilon, DELTA))
        return {"plan": plan.to_json(), "opened": opened}
    task = cls(request["model"])
    source = DataSource.resolve(request["data_dir"], request["cache_dir"])
    return {"fingerprint": task.data_fingerprint(source), "model_fingerprint": task.model_fingerprint()}


@contextmanager
def _opened(module: str) -> Iterator[list[str]]:
    """List the files that are opened meanwhile, except for code, files of packages, and the system's."""
    package = [Path(sys.modules[module].__file__ or "").parent] if sys.modules[module].__package__ else []
    system = map(Path, (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *SYSTEM))
    roots = {root.resolve() for root in (*package, *system)}
    opened: list[str] = []
    is_over = False

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "sqlite3.connect") or is_over or not isinstance(arguments[0], str | bytes):
            return
        path = Path(os.fsdecode(arguments[0])).resolve()
        is_installed = roots & {*path.parents} or any(parent.name in PACKAGES for parent in path.parents)
        if not is_installed and path.suffix not in CODE and str(path) not in opened:
            opened.append(str(path))

    sys.addaudithook(hear)  # for as long as the process lives
    yield opened
    is_over = True


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_answer(json.load(sys.stdin))) + "\n")
