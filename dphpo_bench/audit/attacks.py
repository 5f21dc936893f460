"""Attacks on a whole procedure, tuning included: how much ε they show at least.

Canaries are put among the training records, or left out, by coin flips. The method runs as always. The attacker sees
what it released, guesses who is in, and the number of right guesses bounds ε from below (`privacy.audit`). A bound
above the claim refutes the claim.

Two attacks:

- *Black box*: canaries are training records with wrong labels, and the attacker sees the released model only. A
  canary whose loss is low is guessed to be in.
- *White box*: gradient canaries. The model gets one input more for each canary, which is zero for all other records, so
  that a canary's gradient lies in weights that nobody else's touches (the Dirac canaries of Nasr et al. 2023,
  arXiv:2302.07956, by means of the data alone). The attacker sees every noisy gradient that was released and adds up
  how far each points along the canary's own; releases of trials that lost are not seen, as nobody sees them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.audit.bounds import LowerBound, best_bounds
from dphpo_bench.base.errors import AuditError, InvalidValueError
from dphpo_bench.base.progress import Progress, SilentProgress
from dphpo_bench.base.tensors import Records, single
from dphpo_bench.contract.task import Input, Task
from dphpo_bench.harness.attempt import execute
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.recording import identity_of, task_identity
from dphpo_bench.harness.run import resolve_device, run
from dphpo_bench.harness.setup import Setup
from dphpo_bench.training.linear import linear_layer
from dphpo_bench.training.modes import evaluating
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
    from dphpo_bench.training.losses import Objective

AttackName = Literal["black_box", "white_box"]
ATTACKS: tuple[AttackName, ...] = ("black_box", "white_box")

LABELS, MODEL, GRADIENTS = (
    "black box: loss of wrong labels",
    "white box: released model",
    "white box: released gradients",
)
WEIGHTS = {"black_box": {LABELS: 0.05}, "white_box": {MODEL: 0.15, GRADIENTS: 0.8}}
"""Shares of the error probability, of the attacks that are asked for: most for what shows most of noisy methods."""

DEFAULT_CANARIES = 300

TAG = 10.0
"""Value of a canary's own input: so large that its gradient lies almost wholly in its own weights."""


@dataclass(frozen=True)
class Audit:
    """What the attacks on one procedure have shown.

    Attributes:
        claimed: ε of the plan; ∞ for what is not private.
        delta: δ of the plan.
        attack: the attack that showed most, in words.
        bound: what it showed.
        by_attack: the bound of each attack, all of them valid at once with the confidence of `bound`.
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
        """What a run's record holds of it."""
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
    seed: int,
    source: "DataSource",
    device: str = "auto",
    progress: Progress | None = None,
) -> "RunRecord":
    """The record of the run without canaries, which is made if there is none yet.

    Raises:
        AuditError: if that run failed.
        DphpoBenchError: if the plan, the data or the folder make a run impossible.
    """
    store.check_writable()
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
    seed: int = 0,
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
        attacks: which; the bound covers that the best of them is taken.
        canaries: m of each run. About half of them are put among the records, and as many records left out. None:
            300, or half of the records if they are fewer.
        runs: how often the procedure runs for each attack, with fresh canaries. Coins of all runs count together, so
            more runs show more.
        confidence: that the bound is right.
        seed: of canaries, coins, and all else.
        source: where data are found; default: environment, then the hub.
        device: "auto", "cpu", "cuda" or another torch device.
        progress: where long work reports to.
        plans: where plans are kept; None makes new ones.

    Raises:
        InvalidValueError: if a number is out of range.
        AuditError: if the run fails or is refused, so that there is nothing to attack.
        DphpoBenchError: if the plan or the data make a run impossible.
    """
    from dphpo_bench.data.source import DataSource

    canaries = checked_canaries(task, canaries, attacks=attacks, runs=runs, confidence=confidence)
    progress = progress or SilentProgress()
    device = resolve_device(device)
    train = task.load_train(source or DataSource.resolve(progress=progress))
    shown: dict[str, list[tuple[NDArray[np.float64], NDArray[np.bool_]]]] = {}
    claimed = 0.0
    with progress.track("Audit", len(attacks) * runs) as advance:
        for name in attacks:
            checked: CheckedPlan | None = None  # the facts are the same in all runs of an attack
            for index in range(runs):
                streams = Streams(seed).within("audit", task.name, name, str(index))
                experiment = _SETUPS[name](task, train, canaries, streams)
                checked = checked or plan(method, experiment.task, budget, plans=plans)
                claimed = max(claimed, checked.epsilon.epsilon)
                setup = Setup(streams.derive("run"), device=device, progress=progress, observer=experiment.transcript)
                attempt = execute(checked, experiment.task, experiment.records, setup)
                if attempt.outcome is None:
                    raise AuditError(
                        f"Nothing to attack, the run of {method.name} is {attempt.status}: {attempt.error}"
                    )
                for what, scores in experiment.scores(attempt.outcome.model).items():
                    shown.setdefault(what, []).append((scores, experiment.members))
                advance()
    together = {
        what: (np.concatenate([scores for scores, _ in found]), np.concatenate([coins for _, coins in found]))
        for what, found in shown.items()
    }
    names = list(together)
    weights = {what: weight for name in attacks for what, weight in WEIGHTS[name].items()}
    asked_for = sum(weights.values())
    bounds = best_bounds(
        list(together.values()), budget.delta, confidence, [weights[what] / asked_for for what in names]
    )
    by_attack = dict(zip(names, bounds, strict=True))
    best = max(names, key=lambda what: by_attack[what].epsilon)
    return Audit(claimed, budget.delta, best, by_attack[best], by_attack, runs)


def checked_canaries(task: Task, canaries: int | None, *, attacks: Sequence[str], runs: int, confidence: float) -> int:
    """The number of canaries of each run; see `audit`.

    Raises:
        InvalidValueError: if it, or another number, is out of range.
    """
    most = task.facts.n_records // 2
    canaries = min(DEFAULT_CANARIES, most) if canaries is None else canaries
    if not 2 <= canaries <= most:
        raise InvalidValueError(f"Expected 2 <= canaries <= {most}, half of the records, got {canaries}.")
    if runs < 1:
        raise InvalidValueError(f"Expected runs >= 1, got {runs}.")
    if not attacks or set(attacks) - set(ATTACKS):
        raise InvalidValueError(f"Expected attacks among {', '.join(ATTACKS)}, got {', '.join(attacks) or 'none'}.")
    if not 0 < confidence < 1:
        raise InvalidValueError(f"Expected 0 < confidence < 1, got {confidence}.")
    return canaries


class Transcript:
    """Adds up how far released gradients point along the gradients of canaries; a `session.Observer`.

    A canary's share in a released gradient is a fraction of known length along a known direction, in Gaussian noise of
    known deviation: the sum of ⟨gradient, direction⟩ · length / deviation² is the log-likelihood ratio, but for terms
    that are the same for all canaries.

    Args:
        canaries: the records, shape (m, d), and their labels.
        tags: gives the weights of the canaries' own inputs, shape (classes, m), of gradients as of parameters.
    """

    def __init__(self, canaries: Records, tags: "Callable[[Sequence[Tensor]], Tensor]") -> None:
        self._canaries = canaries
        self._tags = tags
        self.scores = torch.zeros(len(canaries), dtype=torch.float64)
        self.releases = 0

    def gradient(self, model: nn.Module, released: Sequence[Tensor], share: float, noise: float) -> None:
        """See `session.Observer`."""
        with torch.no_grad():
            inputs, labels = single(self._canaries.inputs), single(self._canaries.targets)
            outputs = _outputs(model, inputs)
            slopes = functional.softmax(outputs, dim=1) - functional.one_hot(labels, outputs.shape[1])
            directions = functional.normalize(slopes.nan_to_num(nan=0.0), dim=1)
            along = (self._tags(released).detach().cpu().double().T * directions).sum(dim=1)
        self.scores += along.nan_to_num(nan=0.0) * share / max(noise, 1e-3 * share) ** 2
        self.releases += 1

    def trial(self) -> "Transcript":
        """See `session.Observer`."""
        return Transcript(self._canaries, self._tags)

    def won(self, trial: Any) -> None:
        """See `session.Observer`."""
        self.scores += trial.scores
        self.releases += trial.releases


@dataclass(frozen=True)
class _Experiment:
    """One run to attack.

    Attributes:
        task: whose model is trained.
        records: what it is trained on, canaries included.
        canaries: all of them, in or out.
        members: shape (m,), whether each is in.
        transcript: of the releases; None if the attacker does not see them.
    """

    task: Task
    records: Records
    canaries: Records
    members: "NDArray[np.bool_]"
    transcript: Transcript | None = None

    def scores(self, model: nn.Module) -> "dict[str, NDArray[np.float64]]":
        """What speaks for each canary being in, by attack."""
        inputs, labels = single(self.canaries.inputs), single(self.canaries.targets)
        losses = functional.cross_entropy(_outputs(model, inputs), labels, reduction="none")
        if self.transcript is None:
            return {LABELS: -losses.double().numpy()}
        without = torch.zeros_like(inputs)  # what the canary's own weights have changed
        base = functional.cross_entropy(_outputs(model, without), labels, reduction="none")
        # A run without releases has scores that say nothing, so that the number of canaries is what was planned.
        return {MODEL: (base - losses).double().numpy(), GRADIENTS: self.transcript.scores.numpy()}


def classified(task: Task) -> tuple[tuple[int, ...], int]:
    """The shape of one input, and the number of classes.

    Raises:
        AuditError: if the task is no classification of single inputs of real numbers, for which canaries are made.
    """
    facts = task.facts
    if facts.kind != "classification" or not isinstance(facts.inputs, Input) or facts.inputs.dtype != "float":
        raise AuditError(f"Expected a classification of real numbers to audit, got {task.name} of kind {facts.kind!r}.")
    return facts.inputs.shape, facts.n_classes or 0


def _black_box(task: Task, train: Records, m: int, streams: Streams) -> _Experiment:
    """Canaries are records with wrong labels."""
    generator = streams.generator("canaries")
    order = torch.randperm(len(train), generator=generator)
    _, n_classes = classified(task)
    inputs, chosen = single(train.inputs)[order[:m]], single(train.targets)[order[:m]]
    wrong = (chosen + torch.randint(1, n_classes, (m,), generator=generator)) % n_classes
    canaries = Records(inputs, wrong)
    members = _coins(m, streams)
    return _Experiment(task, _joined(train, order[m:], canaries, members), canaries, members)


def _white_box(task: Task, train: Records, m: int, streams: Streams) -> _Experiment:
    """Canaries have an input of their own each."""
    generator = streams.generator("canaries")
    order = torch.randperm(len(train), generator=generator)[m // 2 :]
    flat = single(train.inputs)[order].flatten(1)
    base = Records(torch.cat([flat, flat.new_zeros(len(flat), m)], dim=1), single(train.targets)[order])
    tagged = flat.new_zeros(m, flat.shape[1] + m)
    tagged[:, flat.shape[1] :].fill_diagonal_(TAG)
    labels = torch.randint(classified(task)[1], (m,), generator=generator)
    canaries = Records(tagged, labels)
    members = _coins(m, streams)
    records = _joined(base, torch.arange(len(base)), canaries, members)
    seen = Records(tagged.float(), labels)
    return _Experiment(
        _TaggedTask(task, m), records, seen, members, Transcript(seen, lambda tensors: tensors[0][:, -m:])
    )


_SETUPS = {"black_box": _black_box, "white_box": _white_box}


def _coins(m: int, streams: Streams) -> "NDArray[np.bool_]":
    coins = torch.rand(m, dtype=torch.float64, generator=streams.generator("coins")) < 0.5
    return coins.numpy()


def _joined(base: Records, rows: Tensor, canaries: Records, members: "NDArray[np.bool_]") -> Records:
    some, inside = base.rows(rows), canaries.rows(torch.from_numpy(members).nonzero().squeeze(1))
    return Records(
        torch.cat([single(some.inputs), single(inside.inputs)]),
        torch.cat([single(some.targets), single(inside.targets)]),
    )


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's outputs on the CPU, in the mode of evaluation."""
    like = next(model.parameters())
    with evaluating(model):
        return torch.cat([model(piece.to(like.device, like.dtype)).cpu() for piece in torch.split(inputs, 1024)])


class _TaggedTask(Task):
    """A task whose model has inputs of its own for canaries, beside the task's own; see `_white_box`."""

    summary = "A task under attack."

    def __init__(self, task: Task, tags: int) -> None:
        self.name, self.model_name = task.name, task.model_name
        self._task = task
        self._tags = tags
        self._shape, self._n_classes = classified(task)

    @property
    def facts(self) -> Any:
        """The task's, but for the inputs' shape."""
        facts = self._task.facts
        return replace(facts, inputs=Input((math.prod(self._shape) + self._tags,)))

    def load_train(self, source: "DataSource") -> Records:
        """Nothing: the audit makes the records itself."""
        raise NotImplementedError

    def load_test(self, source: "DataSource") -> Records:
        """Nothing: an audit does not look at the test data."""
        raise NotImplementedError

    def build_model(self) -> nn.Module:
        """The task's model, with weights of zero for the canaries' inputs; they are the first parameter."""
        model = self._task.build_model()
        layer = linear_layer(model)
        if layer is None or not all(parameter.requires_grad for parameter in layer.parameters()):
            return _Tagged(model, self._shape, nn.Linear(self._tags, self._n_classes, bias=False))
        wide = nn.Linear(layer.in_features + self._tags, layer.out_features, bias=layer.bias is not None)
        with torch.no_grad():
            wide.weight.zero_()[:, : layer.in_features] = layer.weight
            if layer.bias is not None:
                wide.bias.copy_(layer.bias)
        return wide

    def objective(self) -> "Objective":
        """The task's."""
        return self._task.objective()

    def fingerprint(self, source: "DataSource") -> str:
        """The task's."""
        return self._task.fingerprint(source)


class _Tagged(nn.Module):
    """A model plus a linear layer for canaries."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], tags: nn.Linear) -> None:
        super().__init__()
        nn.init.zeros_(tags.weight)
        self.tags = tags
        self.model = model
        self._shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        own = self.tags.in_features
        outputs: Tensor = self.model(inputs[:, :-own].reshape(-1, *self._shape)) + self.tags(inputs[:, -own:])
        return outputs
