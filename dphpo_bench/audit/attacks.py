"""Attacks on a whole procedure, tuning included: right guesses about canaries bound its ε from below.

- *Black box*: canaries are training records with wrong labels. The attacker sees only the released model, and guesses
  that a canary with a low loss is in.
- *White box*: the model gets an additional input for each canary, which is zero for all other records, so that a
  canary's gradient lies in weights that no other gradient touches (the Dirac canaries of Nasr et al. 2023,
  arXiv:2302.07956, by data alone). The attacker adds up how far each released gradient points along the canary's. The
  releases of trials that lost stay hidden.
"""

import math
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dphpo_bench.audit.arguments import ATTACKS, AttackName, check_arguments, most_canaries
from dphpo_bench.audit.bounds import (
    FEWEST,
    Curve,
    LowerBound,
    Reach,
    Size,
    best_bounds,
    claimed_curve,
    default_size,
    reach,
    size_for_curve,
)
from dphpo_bench.audit.canaries import GRADIENTS, LABELS, MODEL, SETUPS
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import AccountError, AuditError, UnsupportedEventError
from dphpo_bench.base.progress import Meter, Progress, TerminalProgress
from dphpo_bench.base.text import rounded_down
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import VOID, Account, Entry
from dphpo_bench.harness.cache import Cache
from dphpo_bench.harness.journal import NONCE, Journal
from dphpo_bench.harness.loading import account_of, default_seed, prepare, refuse_no_privacy, warn_of_seeds
from dphpo_bench.harness.plan import CheckedPlan, plan
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.harness.run import ExecutionOptions, resolve_device, run
from dphpo_bench.harness.state import Run
from dphpo_bench.harness.training import execute
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.records.record import Audit as AuditRecord
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.training.randomness import Streams

WEIGHTS = {"black_box": {LABELS: 0.05}, "white_box": {MODEL: 0.15, GRADIENTS: 0.8}}
"""Shares of the error probability. The strongest attack on noisy methods has the largest share."""


@dataclass(frozen=True, repr=False)
class Audit(Displayed):
    """The result of attacks on one procedure."""

    claimed: float  # ε of the plan; ∞ if the method is not private
    delta: float
    attack: str  # the attack with the largest bound, in words
    bound: LowerBound
    by_attack: dict[str, LowerBound]  # all of them hold at once with the confidence of `bound`
    runs: int  # of the procedure, for each attack
    needed: Size | None = None  # the smallest size at which right guesses refute the claim's curve, if within reach
    reach: Reach | None = None  # what the white box finds at this size; None without it, or without a claim

    @property
    def refutes(self) -> bool:
        return self.bound.epsilon > self.claimed or any(bound.refutes for bound in self.by_attack.values())

    @property
    def ceiling(self) -> float:
        """Largest ε that this audit could have shown, with all guesses right."""
        return max(bound.ceiling for bound in self.by_attack.values())

    @property
    def can_refute(self) -> bool:
        """True if right guesses would have refuted the claim. If not, the audit says nothing about it."""
        return self.ceiling > self.claimed or any(bound.refutable for bound in self.by_attack.values())

    def verdict(self) -> str:
        """Return sentences on the claim; an attack that fails is never praise."""
        if self.bound.epsilon > self.claimed:
            return f"Refuted: the audit shows ε ≥ {self.bound.epsilon:.4g} where {self.claimed:.4g} is claimed."
        if self.refutes:
            return (
                f"Refuted: so many right guesses contradict the claim's privacy curve, that of ε = {self.claimed:.4g}."
            )
        if self.claimed == math.inf:
            return "No finite ε is claimed, so there is nothing to refute."
        first = "Not refuted, which is no proof of privacy"
        if not self.can_refute:
            first = "This audit cannot refute the claim, whatever leaks, and says nothing about it"
        less = "" if self.ceiling > self.claimed else ", less than is claimed"
        text = f"{first}: with all guesses right it would show ε ≥ {rounded_down(self.ceiling)}{less}."
        if self.can_refute or self.needed is None:
            return text
        each = f" in each of {self.needed.runs:,} runs" if self.needed.runs > 1 else ""
        return f"{text} {self.needed.canaries:,} canaries{each} could refute it."

    def display(self) -> Display:
        """Return the bound of each attack, what an audit of this size does not find, and the verdict."""
        rows = []
        for name, bound in self.by_attack.items():
            right = f"{bound.guesses.correct:,} of {bound.guesses.guessed:,} guesses about {bound.guesses.canaries:,}"
            shows = f"ε ≥ {rounded_down(bound.epsilon)}, at most {rounded_down(bound.ceiling)} with all right"
            rows.append((name, f"{right} canaries right: {shows}"))
        rows.append(("claimed", f"ε = {self.claimed:.6g} at δ = {self.delta:.3g}"))
        rows.append(("confidence", f"{self.bound.confidence:g} in all bounds at once"))
        if self.can_refute:
            hidden = "It attacks no released gradient, so it finds large faults only."
            if self.reach:
                rate = self.reach.rate
                single = f" of fewer than {math.ceil(100 * rate)} % of the records" if rate else ""
                hidden = (
                    f"Hidden at this size: {math.ceil(100 * self.reach.noise)} % of the claimed noise or more; one "
                    f"release without noise{single}; what losing trials release."
                )
            rows.append(("not found", hidden))
        return "Audit", [*rows, ("verdict", self.verdict())]

    def to_record(self) -> AuditRecord:
        return AuditRecord(
            lower_bound=self.bound.epsilon,
            confidence=self.bound.confidence,
            attack=self.attack,
            canaries=self.bound.guesses.canaries,
            ceiling=self.ceiling,
            refuted=self.refutes,
        )

    def to_json(self) -> dict[str, Any]:
        verdict = {"refutes": self.refutes, "ceiling": self.ceiling, "can_refute": self.can_refute}
        return {**asdict(self), **verdict}


def recorded(
    method: Method,
    task: Task,
    budget: PrivacyBudget,
    store: RecordStore,
    *,
    seed: int | None,
    source: DataSource,
    device: str = "auto",
    progress: Progress | None = None,
    account: str | None = None,
) -> RunRecord:
    """Return the record of the run without canaries; run it if there is no record yet, or no seed."""
    store.check_writable()
    record = None
    if seed is not None:
        find = store.find if task.public else store.find_any
        record = find(identity_of(method, task_identity(task, task.facts, source), budget, seed))
    if record is None:
        record = run(
            method,
            task,
            budget,
            seed=seed,
            results_dir=store.root,
            account=account,
            execution=ExecutionOptions(device, source, Cache.of(source)),
            progress=progress,
            check=False,
        ).record
    if record.status != "ok":
        raise AuditError(f"Nothing to audit, the run of {method.name} is {record.status}: {record.error}")
    return record


def audit(
    method: Method,
    task: Task,
    budget: PrivacyBudget,
    *,
    attacks: Sequence[AttackName] = ATTACKS,
    canaries: int | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    private_records: bool = False,
    seed: int | Literal["default"] | None = "default",
    source: DataSource | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    account: Account | None = None,
) -> Audit:
    """Attack a method's whole procedure on a task; see `run` for source, device and progress.

    Args:
        attacks: the confidence accounts for taking the best of them.
        canaries: m of each run. About half of them replace other records.
        runs: of the procedure for each attack, with fresh canaries. Without both numbers, `sizes.default_size` chooses
            them; else the default is 1,400 canaries, or half of the records if that is less, and one run.
        confidence: probability that the bound is right.
        private_records: allow private records: each run of the audit releases something about them, beside the run that
            is audited.
        seed: of canaries, coins and runs; None draws a secret one. By default 0 if the records are public, else None.
        account: of private records: counts all runs of the audit before the data are read.
    """
    check_arguments(
        task, canaries=canaries, runs=runs, attacks=attacks, confidence=confidence, private_records=private_records
    )
    if seed == "default":
        seed = default_seed(task)
    if seed is not None:
        warn_of_seeds(task, f"seed={seed}")
    error, most = _largest_error(attacks, confidence), most_canaries(task)
    size = size_of(method, task, budget, attacks=attacks, canaries=canaries, runs=runs, confidence=confidence)
    canaries, runs = size.canaries, size.runs
    progress = progress or TerminalProgress()
    device = resolve_device(device)
    is_seeded, seed = seed is not None, secrets.randbits(128) if seed is None else seed
    source = source or DataSource.resolve(progress=progress)
    numbers: list[str] = []
    account = None if task.public else account
    if not task.public:
        entry = Entry.of(plan(method, task, budget), 0, "audit")
        refuse_no_privacy(entry, allowed=False)
        if account is None:
            account_of(task, None, None)  # warns
        else:
            account.check([entry] * (len(attacks) * runs))
            numbers.append(_counted(entry, account))  # the first, before the data are read
    try:
        prepare(method, task, source)
        train = task.load_train(source)
    except BaseException:  # nothing has been asked of the records
        if account:
            account.note(numbers[0], status=VOID)
        raise
    shown: dict[str, list[tuple[NDArray[np.float64], NDArray[np.bool_]]]] = {}  # scores and coins by attack
    curves: dict[str, Curve] = {}
    claimed = 0.0
    with progress.whole(Meter(until="the bound")) as meter, progress.track("Audit", len(attacks) * runs) as advance:
        for name in attacks:
            checked: CheckedPlan | None = None  # the facts are the same in all runs of an attack
            for index in range(runs):
                streams = Streams(seed).within("audit", task.name, name, str(index))
                experiment = SETUPS[name](task, train, canaries, streams)
                if checked is None:
                    checked = plan(method, experiment.task, budget)
                    curve = _curve(checked, error)
                meter.total = meter.total or len(attacks) * runs * checked.plan.cost.examples
                claimed = max(claimed, checked.epsilon.epsilon)
                run_seed = streams.derive("run")
                if account and (index or name != attacks[0] or Entry.of(checked, 0).event != entry.event):
                    numbers.append(_counted(Entry.of(checked, 0, "audit"), account))
                nonce = {NONCE: int(numbers[-1], 16)} if numbers else {}
                this_run = Run(
                    checked=checked,
                    task=experiment.task,
                    train=experiment.records,
                    seed=run_seed if is_seeded else None,  # without one, errors and numbers of trials stay hidden
                    journal=Journal.holding({"seed": run_seed, **nonce}),
                    device=device,
                    progress=progress,
                    meter=meter,
                    observer=experiment.transcript,
                    source=source,
                )
                execute(this_run)
                if this_run.model is None:
                    raise AuditError(
                        f"Nothing to attack, the run of {method.name} is {this_run.status}: {this_run.error}"
                    )
                for what, scores in experiment.scores(this_run.model).items():
                    shown.setdefault(what, []).append((scores, experiment.members))
                    curves[what] = curve
                advance()
    if account:
        for number in numbers:
            with suppress(AccountError):
                account.note(number, status="ok")
    attacked = [
        (np.concatenate(scores), np.concatenate(coins))
        for scores, coins in (zip(*several, strict=True) for several in shown.values())
    ]
    weights, delta = _weights(attacks), budget.delta
    shares, claims = [weights[what] for what in shown], [curves[what] for what in shown]
    by_attack = dict(zip(shown, best_bounds(attacked, delta, confidence, shares, claims), strict=True))
    best = max(by_attack, key=lambda what: by_attack[what].epsilon)
    needed, reached = size_for_curve(curves[best], delta, error, most), None
    if curves.get(GRADIENTS):
        reached = reach(canaries * runs, delta, curves[GRADIENTS], (1 - confidence) * weights[GRADIENTS])
    return Audit(claimed, delta, best, by_attack[best], by_attack, runs, needed, reached)


def size_of(
    method: Method,
    task: Task,
    budget: PrivacyBudget,
    *,
    attacks: Sequence[AttackName],
    canaries: int | None,
    runs: int | None,
    confidence: float,
) -> Size:
    """Return the size of an audit with these arguments."""
    most = most_canaries(task)
    if canaries is not None or runs is not None:
        return Size(canaries or min(FEWEST, most), runs or 1)
    error = _largest_error(attacks, confidence)
    return default_size(_curve(plan(method, task, budget), error), budget.delta, error, most)


def _counted(entry: Entry, account: Account) -> str:
    number = f"{secrets.randbits(64):016x}"
    account.count([replace(entry, number=number)])
    return number


def _curve(checked: CheckedPlan, error: float) -> Curve:
    """Return the curve that a plan claims by the accountant of its quoted ε: any upper bound makes one that holds."""

    def epsilon_at(delta: float) -> float:
        try:
            return epsilon(checked.plan.event, delta, accountant=checked.epsilon.quoted).epsilon
        except UnsupportedEventError:  # at this δ only
            return math.inf

    return claimed_curve(epsilon_at, (checked.epsilon.epsilon, checked.plan.budget.delta), error)


def _weights(attacks: Sequence[AttackName]) -> dict[str, float]:
    weights = {what: weight for name in attacks for what, weight in WEIGHTS[name].items()}
    total = sum(weights.values())
    return {what: weight / total for what, weight in weights.items()}


def _largest_error(attacks: Sequence[AttackName], confidence: float) -> float:
    return (1 - confidence) * max(_weights(attacks).values())
