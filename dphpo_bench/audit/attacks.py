"""Attacks on a whole procedure, tuning included, which show a lower bound on its ε.

Coin flips decide which canaries are put among the training records. The method runs as always. The attacker sees the
releases and guesses which canaries are in; the number of right guesses bounds ε from below (`audit.bounds`). A bound
above the claim refutes the claim.

Two attacks:

- *Black box*: canaries are training records with wrong labels, and the attacker sees only the released model. A canary
  with a low loss is guessed to be in.
- *White box*: gradient canaries. The model gets an additional input for each canary, which is zero for all other
  records, so that a canary's gradient lies in weights that no other gradient touches (the Dirac canaries of Nasr et al.
  2023, arXiv:2302.07956, by means of the data alone). The attacker sees every noisy gradient that was released and adds
  up how far each points along the canary's own. The releases of trials that lost stay hidden.
"""

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dphpo_bench.audit.arguments import ATTACKS, AttackName, checked_canaries
from dphpo_bench.audit.bounds import LowerBound, best_bounds
from dphpo_bench.audit.canaries import GRADIENTS, LABELS, MODEL, SETUPS
from dphpo_bench.base.errors import AuditError
from dphpo_bench.base.meter import Meter
from dphpo_bench.base.progress import Progress
from dphpo_bench.base.terminal import TerminalProgress
from dphpo_bench.contract.task import Task
from dphpo_bench.harness.attempt import execute
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.harness.run import resolve_device, run
from dphpo_bench.harness.setup import Setup
from dphpo_bench.training.randomness import Streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dphpo_bench.contract.method import Method
    from dphpo_bench.data.source import DataSource
    from dphpo_bench.harness.plan import CheckedPlan
    from dphpo_bench.harness.plan_cache import PlanCache
    from dphpo_bench.privacy.budget import PrivacyBudget
    from dphpo_bench.records.record import Audit as AuditRecord
    from dphpo_bench.records.record import RunRecord
    from dphpo_bench.records.store import RecordStore

WEIGHTS = {"black_box": {LABELS: 0.05}, "white_box": {MODEL: 0.15, GRADIENTS: 0.8}}
"""Shares of the error probability. The attack that shows most of noisy methods has the largest."""


@dataclass(frozen=True)
class Audit:
    """The result of attacks on one procedure.

    Attributes:
        claimed: ε of the plan; ∞ if the method is not private.
        delta: δ of the plan.
        attack: the attack with the largest bound, in words.
        bound: the largest bound.
        by_attack: the bound of each attack. All of them hold at once with the confidence of `bound`.
        runs: how often the procedure ran for each attack.
    """

    claimed: float
    delta: float
    attack: str
    bound: LowerBound
    by_attack: dict[str, LowerBound]
    runs: int

    @property
    def refutes(self) -> bool:
        """Whether the bound is above the claim."""
        return self.bound.epsilon > self.claimed

    def to_record(self) -> "AuditRecord":
        """The part of it that a run's record keeps."""
        from dphpo_bench.records.record import Audit as AuditRecord

        return AuditRecord(
            lower_bound=self.bound.epsilon,
            confidence=self.bound.confidence,
            attack=self.attack,
            canaries=self.bound.guesses.canaries,
        )

    def to_json(self) -> dict[str, Any]:
        """The audit as JSON values."""
        return {**asdict(self), "refutes": self.refutes}


def recorded(
    method: "Method",
    task: Task,
    budget: "PrivacyBudget",
    store: "RecordStore",
    *,
    seed: int | None,
    source: "DataSource",
    device: str = "auto",
    progress: Progress | None = None,
    plans: "PlanCache | None" = None,
) -> "RunRecord":
    """The record of the run without canaries, which is made if there is none yet, or if it has no seed.

    Raises:
        AuditError: if that run failed.
        DphpoBenchError: if the plan, the data or the folder make a run impossible.
    """
    store.check_writable()
    record = None
    if seed is not None:
        record = store.find(identity_of(method, task_identity(task, task.facts, source), budget, seed))
    if record is None:
        result = run(
            method,
            task,
            budget,
            seed=seed,
            source=source,
            results_dir=store.root,
            device=device,
            progress=progress,
            plans=plans,
            check=False,
        )
        record = result.record
    if record.status != "ok":
        raise AuditError(f"Nothing to audit, the run of {method.name} is {record.status}: {record.error}")
    return record


def audit(
    method: "Method",
    task: Task,
    budget: "PrivacyBudget",
    *,
    attacks: Sequence[AttackName] = ATTACKS,
    canaries: int | None = None,
    runs: int = 1,
    confidence: float = 0.95,
    seed: int | None = 0,
    source: "DataSource | None" = None,
    device: str = "auto",
    progress: Progress | None = None,
    plans: "PlanCache | None" = None,
) -> Audit:
    """Attack a method's whole procedure on a task.

    Args:
        method: what to attack.
        task: whose training records, number of records and schedule to use.
        budget: (ε, δ) that the method is given.
        attacks: which attacks; the confidence accounts for taking the best of them.
        canaries: m of each run. About half of them are put among the records, in place of others. None: 300, or half
            of the records if that is less.
        runs: how often the procedure runs for each attack, with fresh canaries. The coins of all runs count together,
            so more runs show more.
        confidence: that the bound is right.
        seed: of canaries, coins and runs; None draws one that is not kept.
        source: where data are found; default: environment, then the hub.
        device: "auto", "cpu", "cuda" or another torch device.
        progress: where long work reports to; default: standard error.
        plans: where plans are kept; None makes new ones.

    Raises:
        InvalidValueError: if a number is out of range.
        AuditError: if the run fails or is refused, so that there is nothing to attack.
        DphpoBenchError: if the plan or the data make a run impossible.
    """
    from dphpo_bench.data.source import DataSource

    canaries = checked_canaries(task, canaries, attacks=attacks, runs=runs, confidence=confidence)
    progress = progress or TerminalProgress()
    device = resolve_device(device)
    seed = secrets.randbits(128) if seed is None else seed
    source = source or DataSource.resolve(progress=progress)
    task.prepare(source)
    train = task.load_train(source)
    shown: dict[str, list[tuple[NDArray[np.float64], NDArray[np.bool_]]]] = {}  # scores and coins by attack
    claimed = 0.0
    with progress.whole(Meter(until="the bound")) as meter, progress.track("Audit", len(attacks) * runs) as advance:
        for name in attacks:
            checked: CheckedPlan | None = None  # the facts are the same in all runs of an attack
            for index in range(runs):
                streams = Streams(seed).within("audit", task.name, name, str(index))
                experiment = SETUPS[name](task, train, canaries, streams)
                checked = checked or plan(method, experiment.task, budget, plans=plans)
                meter.total = meter.total or len(attacks) * runs * checked.plan.cost.examples
                claimed = max(claimed, checked.epsilon.epsilon)
                setup = Setup(
                    streams.derive("run"),
                    device=device,
                    progress=progress,
                    meter=meter,
                    observer=experiment.transcript,
                )
                attempt = execute(checked, experiment.task, experiment.records, setup)
                if attempt.outcome is None:
                    raise AuditError(
                        f"Nothing to attack, the run of {method.name} is {attempt.status}: {attempt.error}"
                    )
                for what, scores in experiment.scores(attempt.outcome.model).items():
                    shown.setdefault(what, []).append((scores, experiment.members))
                advance()
    weights = {what: weight for name in attacks for what, weight in WEIGHTS[name].items()}
    total = sum(weights.values())
    bounds = best_bounds(
        [
            (np.concatenate(scores), np.concatenate(coins))
            for scores, coins in (zip(*found, strict=True) for found in shown.values())
        ],
        budget.delta,
        confidence,
        [weights[what] / total for what in shown],
    )
    by_attack = dict(zip(shown, bounds, strict=True))
    best = max(by_attack, key=lambda what: by_attack[what].epsilon)
    return Audit(claimed, budget.delta, best, by_attack[best], by_attack, runs)
