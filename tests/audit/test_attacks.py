"""Attacks on whole procedures: what the attacker sees, and what he shows."""

import itertools
import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import dphpo_bench as bench
from dphpo_bench.audit import attacks as auditing
from dphpo_bench.audit.arguments import ATTACKS
from dphpo_bench.audit.attacks import Audit, audit
from dphpo_bench.audit.bounds import Guesses, LowerBound, Size
from dphpo_bench.audit.canaries import SETUPS, Transcript
from dphpo_bench.base.errors import AuditError, DataError, InvalidValueError
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.account import Account
from dphpo_bench.records.store import read_record
from dphpo_bench.session import access
from dphpo_bench.session.session import Session
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.randomness import Streams
from tests.conftest import TinyTask, asking

M = 40


def experiment(task: bench.Task, name: str, seed: int = 0) -> Any:
    train = task.load_train(DataSource.resolve())
    return SETUPS[name](task, train, M, Streams(seed))


def rows(split: bench.Records) -> list[tuple[float, ...]]:
    return [
        (*inputs, float(label)) for inputs, label in zip(split.inputs.tolist(), split.targets.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", ATTACKS)
def test_canaries_are_in_as_the_coins_say(tiny_task, name: str) -> None:
    made = experiment(tiny_task, name)
    found = set(rows(made.records))
    assert [row in found for row in rows(made.canaries)] == made.members.tolist()
    assert 5 < made.members.sum() < 35  # a fixed seed
    n_base = {"black_box": 600 - M, "white_box": 600 - M // 2}[name]
    assert len(made.records) == n_base + made.members.sum()
    assert (experiment(tiny_task, name, seed=1).members != made.members).any()
    if name == "black_box":  # labels are wrong
        train = {row[:-1]: row[-1] for row in rows(tiny_task.load_train(DataSource.resolve()))}
        assert all(train[row[:-1]] != row[-1] for row in rows(made.canaries))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_gradient_canary_has_weights_of_its_own(tiny_task, model: str) -> None:
    task = type(tiny_task)(model)
    made = experiment(task, "white_box")
    built = made.task.build_model()
    for index in (0, M - 1):
        loss = functional.cross_entropy(
            built(made.canaries.inputs[index : index + 1]), made.canaries.targets[index : index + 1]
        )
        gradients = torch.autograd.grad(loss, list(built.parameters()))
        own = made.transcript._tags(gradients)
        assert own[:, index].norm() > 0
        assert own.norm() == own[:, index].norm()
        assert own.norm() ** 2 > 0.97 * sum(gradient.norm() ** 2 for gradient in gradients)
    gradient_engine(built)  # the engine takes it


def test_a_transcript_adds_log_likelihood_ratios() -> None:
    """Two canaries, three classes, a linear model at zero: p = 1/3, so the direction is (p − e_y) / ‖p − e_y‖."""
    canaries = bench.Records(10 * torch.eye(2), torch.tensor([0, 2]))
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    transcript = Transcript(canaries, lambda tensors: tensors[0])
    gradient = torch.tensor([[3.0, 1.0], [0.0, 0.0], [0.0, -2.0]])
    transcript.gradient(model, [gradient, torch.zeros(3)], share=0.5)
    along = np.array([-2 / 3 * 3, (1 / 3 * 1 - 2 / 3 * -2)]) / (math.sqrt(6) / 3)
    # The noise is measured in the four directions that are across: two classes more for each canary.
    expected = along * 0.5 / ((3**2 + 1 + 2**2 - np.sum(along**2)) / 4)
    assert transcript.scores.numpy() == pytest.approx(expected)
    lost, won = transcript.trial(), transcript.trial()
    lost.gradient(model, [gradient], share=1.0)
    won.gradient(model, [gradient], share=0.5)
    won.gradient(model, [torch.full((3, 2), torch.nan)], share=0.5)
    transcript.won(won)
    assert transcript.scores.numpy() == pytest.approx(2 * expected)
    assert transcript.releases == 3


@dataclass(frozen=True)
class Unclipped(bench.Method):
    """Charges the ledger as it should, and goes around the session for a gradient without noise."""

    name = "unclipped"
    summary = "Fools the ledger."
    reference = "a test"
    tuning = ()
    end_to_end_private = True

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        event = bench.events.gaussian(60.0)
        return bench.Plan(budget, event, event, None, (), bench.Cost(1, 1, 1.0))

    def run(self, plan: bench.Plan, session: Session) -> bench.Outcome:
        model = session.build_model()
        # Charged, and thrown away.
        session.sample(asking(1.0, bench.events.gaussian(60.0))).gradient(model, bench.clipping.AutoS(), 60.0)
        raw = session._access.raw
        total = raw.own_model().engine(model).clipped_sum(raw.train.inputs, raw.train.targets, bench.clipping.AutoS())
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), total, strict=True):
                weight -= 0.01 * gradient
        return bench.Outcome(model)


def test_a_method_that_fools_the_ledger_is_refuted(tiny_task) -> None:
    """False-alarm rate 1e-6, the error probability of the bound; δ is far smaller, or nothing could be so certain."""
    low = bench.PrivacyBudget(0.5, 1e-10)
    assert bench.run(Unclipped(), tiny_task, low, seed=0).record.status == "ok"
    found = audit(Unclipped(), tiny_task, low, canaries=200, confidence=1 - 1e-6)
    assert found.refutes
    assert found.attack == "white box: released model"
    assert found.bound.epsilon > 1.5 > 0.5 >= found.claimed


def test_an_honest_method_is_not_refuted_and_shows_its_leak(fixed_noise, tiny_task) -> None:
    method = fixed_noise(noise_multiplier=0.6, steps=20)
    found = audit(method, tiny_task, bench.PrivacyBudget(200.0, 1e-5), canaries=250)
    assert 1.0 < found.bound.epsilon < found.claimed
    assert found.attack == "white box: released gradients"
    assert audit(method, tiny_task, bench.PrivacyBudget(200.0, 1e-5), canaries=250, runs=1) == found


def test_private_records_are_audited_only_by_who_says_so(monkeypatch, fixed_noise, tiny_task, budget) -> None:
    """Nothing is read before; and a seed, from which the noise follows, causes a warning."""
    monkeypatch.setattr(type(tiny_task), "public", False)
    monkeypatch.setattr(auditing, "execute", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(InvalidValueError, match=r"The data of task tiny are private, .* \(private_records=True\)"):
        audit(fixed_noise(), tiny_task, budget, canaries=40)
    monkeypatch.undo()
    monkeypatch.setattr(type(tiny_task), "public", False)
    with pytest.warns(UserWarning, match="seed|account") as warned:
        audit(fixed_noise(), tiny_task, budget, canaries=40, attacks=("black_box",), private_records=True, seed=0)
    words = " ".join(str(one.message) for one in warned)
    assert "whoever learns a seed can subtract the noise" in words
    assert "no account counts this run" in words


@cache
def audit_on_digits(name: str, epsilon: float) -> Audit:
    task = bench.make_task("digits")
    method = bench.make_method(name, {"bands": 2} if name == "banded_mf" else {})
    return audit(method, task, bench.PrivacyBudget(epsilon, task.facts.default_delta), attacks=("white_box",))


@pytest.mark.parametrize(
    ("name", "epsilon", "fault"),
    [
        ("dp_sgd", 1.0, "one release without noise"),
        pytest.param("dp_sgd", 3.0, "one release without noise", marks=pytest.mark.slow),
        pytest.param("dp_sgd", 3.0, "half of the noise", marks=pytest.mark.slow),
        ("banded_mf", 3.0, "a quarter of the noise"),
        pytest.param("dp_sgd", 8.0, "a quarter of the noise", marks=pytest.mark.slow),
    ],
)
def test_too_little_noise_is_caught_on_digits_at_the_default_size(
    monkeypatch, name: str, epsilon: float, fault: str
) -> None:
    """With a true ledger; and all of the noise is not. Fixed seeds: a false alarm has a probability of 5 % each."""
    whole, releases = access.add_gaussian_noise, itertools.count(1)

    def too_little(total: Any, noise: float, sensitivity: float, generator: Any) -> Any:
        share = {"half of the noise": 0.5, "a quarter of the noise": 0.25}.get(fault, float(next(releases) % 112 != 50))
        return whole(total, noise * share, sensitivity, generator)

    right = audit_on_digits(name, epsilon)
    monkeypatch.setattr(access, "add_gaussian_noise", too_little)
    found = audit_on_digits.__wrapped__(name, epsilon)
    assert (found.refutes, right.refutes) == (True, False)
    assert found.can_refute
    assert right.can_refute
    assert found.reach is not None
    assert (found.reach.rate is None) == (epsilon == 8.0)
    assert found.reach.noise > (0.5 if epsilon == 3.0 else 0.4)
    assert (found.runs, found.bound.guesses.canaries) == (2, 1400) if epsilon < 8 else found.runs > 1


def audited(
    bound: float, ceiling: float, *, refutes: bool = False, refutable: bool = False, claimed: float = 3
) -> Audit:
    one = LowerBound(bound, 0.95, Guesses(300, 150, 140), ceiling, refutes, refutable)
    return Audit(3, 1e-5, "loss", one, {"loss": one}, 1, Size(500, 2))


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (audited(3.5, 4.0), (True, True), "Refuted: the audit shows ε ≥ 3.5 where 3 is claimed."),
        (
            audited(2.0, 2.5, refutes=True, refutable=True),
            (True, True),
            "Refuted: so many right guesses contradict the claim's privacy curve, that of ε = 3.",
        ),
        (
            audited(0.5, 2.519),
            (False, False),
            "This audit cannot refute the claim, whatever leaks, and says nothing about it: with all guesses right it "
            "would show ε ≥ 2.51, less than is claimed. 500 canaries in each of 2 runs could refute it.",
        ),
        (
            audited(0.5, 3.5),
            (False, True),
            "Not refuted, which is no proof of privacy: with all guesses right it would show ε ≥ 3.50.",
        ),
    ],
)
def test_what_an_audit_says_of_a_claim(found: Audit, verdict: tuple[bool, bool], words: str) -> None:
    assert (found.refutes, found.can_refute) == verdict
    assert found.verdict() == words
    assert (found.to_record().refuted, found.to_record().ceiling) == (verdict[0], found.ceiling)


def test_a_run_that_fails_cannot_be_attacked(fixed_noise, tiny_task, budget) -> None:
    with pytest.raises(AuditError, match=r"fixed_noise is failed: ZeroDivisionError"):
        audit(fixed_noise(fault="raise"), tiny_task, budget)
    with pytest.raises(AuditError, match=r"fixed_noise is over_budget: The plan does not cover"):
        audit(fixed_noise(extra_steps=1), tiny_task, budget)


def test_the_records_bound(tmp_path: Path, main_here: Any, monkeypatch) -> None:
    options = ["audit", "--method", "dp_sgd", "--task", "digits", "--epsilon", "8", "--delta", "1e-5", "--quiet"]
    code, out, _ = main_here(*options, "--attack", "black_box", "--canaries", "50", "--json")
    assert code == 0
    found = json.loads(out)
    record = read_record(tmp_path / found["record"])
    assert record.audit.lower_bound == found["bound"]["epsilon"]
    assert (record.audit.attack, record.audit.canaries) == (found["attack"], 50)
    assert (record.audit.ceiling, record.audit.refuted) == (found["ceiling"], False)

    monkeypatch.setattr(auditing, "audit", lambda *args, **named: replace(audit(*args, **named), claimed=0.1))
    code, _, err = main_here(*options, "--attack", "white_box", "--canaries", "200")
    assert code == 3
    assert err.startswith("Refuted: the audit shows ε ≥ ")
    assert err.endswith("where 0.1 is claimed.\n")
    assert read_record(tmp_path / found["record"]).audit.lower_bound > 0.1  # the refutation is on record


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_audit_of_records_that_cannot_be_loaded_is_not_counted(fixed_noise, budget, tmp_path: Path) -> None:
    class Lost(TinyTask):
        public = False

        def load_train(self, source: bench.DataSource) -> bench.Records:
            raise DataError("The disk is gone.")

    with pytest.raises(DataError, match="gone"):
        audit(fixed_noise(), Lost(), budget, canaries=40, private_records=True, account=Account(tmp_path))
    assert not Account(tmp_path).read()[1]
