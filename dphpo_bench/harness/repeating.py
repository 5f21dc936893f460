"""Commands that repeat runs."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.base.text import value_text
from dphpo_bench.contract.registry import make_method
from dphpo_bench.records.record import Identity, RunRecord

DISCRETE = "opendp"  # start of the noise's description in the record of a run with secure noise


@dataclass(frozen=True)
class Call:
    """A call of `dphpo-bench run`; its text is the command. A run without a seed is another one each time."""

    method: str
    task: str
    model: str
    epsilon: float
    delta: float
    seed: int | str | None
    parameters: Mapping[str, Any]  # those that are not the method's defaults
    task_file: str | None = None  # of a task that is not registered
    secure_noise: bool = False
    device: str = "auto"
    threads: str | int | None = None  # of PyTorch, which the last digits of a result may depend on
    results_dir: str | None = None
    again: str | None = None  # number of a seeded run on private records

    @classmethod
    def of(cls, identity: Identity) -> "Call":
        who, changed = identity, changed_parameters(identity)
        again = None if who.seed is None else who.run
        return cls(who.method, who.task, who.model, who.epsilon, who.delta, who.seed, changed, again=again)

    @classmethod
    def of_record(cls, record: RunRecord, task_file: str | None = None) -> "Call":
        who, environment = record.identity, record.environment
        return replace(
            cls.of(who),
            seed=who.seed if who.seed is None or who.is_public else "YOUR_SEED",  # whoever sees it subtracts the noise
            task_file=task_file,
            secure_noise=environment.get("noise", "").startswith(DISCRETE),
            device=environment.get("device", "auto"),
            threads=environment.get("threads"),
        )

    def __str__(self) -> str:
        short = f"{self.epsilon:g}"
        epsilon = short if float(short) == self.epsilon else repr(self.epsilon)
        words = [] if self.threads is None else ["env", f"OMP_NUM_THREADS={self.threads}"]
        words += ["dphpo-bench", "run", "-m", self.method, "-t", self.task, "--model", self.model]
        words += [] if self.task_file is None else ["--task-file", self.task_file]
        words += ["--epsilon", epsilon, "--delta", repr(self.delta)]
        seed = "none" if self.seed is None else str(self.seed)
        words += ["--secure-noise"] if self.secure_noise else ["--seed", seed]
        for name, value in self.parameters.items():
            words += ["--set", f"{name}={'none' if value is None else value_text(value)}"]
        words += [] if self.device == "auto" else ["--device", self.device]
        words += [] if self.results_dir is None else ["--results-dir", self.results_dir]
        words += [] if self.again is None else ["--again", self.again]
        return shlex.join(words)


def changed_parameters(identity: Identity) -> Mapping[str, Any]:
    """Return the parameters that are not the method's defaults; all of them if there is no such method here."""
    try:
        defaults = make_method(identity.method).parameters
    except DphpoBenchError:
        defaults = {}
    return different(identity.parameters, defaults)


def different(parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name not in defaults or defaults[name] != value}
