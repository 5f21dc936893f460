"""The command that repeats a run."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.contract.registry import make_method
from dphpo_bench.records.record import Identity, RunRecord

DISCRETE = "opendp"
"""What the noise of a run with secure noise begins with, in its record."""


def command_of(
    identity: Identity,
    *,
    device: str = "auto",
    threads: str | int | None = None,
    results_dir: Path | str | None = None,
    secure_noise: bool = False,
) -> str:
    """The command that repeats the run of this identity; a run without a seed is another one each time.

    Args:
        identity: of the run.
        device: a torch device.
        threads: of PyTorch, which the last digits of a result may depend on; None: as many as there are.
        results_dir: where its record is written; None: the default.
        secure_noise: whether its noise is exact.
    """
    words = [] if threads is None else ["env", f"OMP_NUM_THREADS={threads}"]
    words += ["dphpo-bench", "run", "-m", identity.method, "-t", identity.task, "--model", identity.model]
    words += ["--epsilon", repr(identity.epsilon), "--delta", repr(identity.delta)]
    if secure_noise:
        words.append("--secure-noise")
    else:
        words += ["--seed", "none" if identity.seed is None else str(identity.seed)]
    for name, value in changed_parameters(identity).items():
        words += ["--set", f"{name}={'none' if value is None else value}"]
    if device != "auto":
        words += ["--device", device]
    if results_dir is not None:
        words += ["--results-dir", str(results_dir)]
    return shlex.join(words)


def command_of_record(record: RunRecord) -> str:
    """The command that repeats the run of a record, with its threads and on its device."""
    environment = record.environment
    return command_of(
        record.identity,
        device=environment.get("device", "auto"),
        threads=environment.get("threads"),
        secure_noise=environment.get("noise", "").startswith(DISCRETE),
    )


def changed_parameters(identity: Identity) -> Mapping[str, Any]:
    """The parameters that are not the method's defaults; all of them if there is no such method here."""
    try:
        defaults = make_method(identity.method).parameters
    except DphpoBenchError:
        defaults = {}
    return {
        name: value for name, value in identity.parameters.items() if name not in defaults or defaults[name] != value
    }
