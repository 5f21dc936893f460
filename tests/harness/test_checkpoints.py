"""Runs that are killed go on from their last checkpoint, to the same bits."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.harness import cache
from dphpo_bench.session import checkpoints
from dphpo_bench.session.session import Session
from tests.harness.children import ended, start
from tests.own_task import array_task

BUDGET = bench.PrivacyBudget(3.0, 1e-3)
# One of each kind of state; the contract kills all other methods.
SINGLE_RUNS = (
    *("hyfreedp", "adaptive_clipping", "dp_adam_bc", "tail_average", "prodigy", "schedule_free"),
    *(bench.make_method("dp_zo", {"epochs": 4}), bench.make_method("banded_mf", {"bands": 4})),
)


def every(steps: int | None, **options: Any) -> bench.ExecutionOptions:
    return bench.ExecutionOptions(checkpoint_every=steps, **options)


def toy(shift: float = 0.0, public: bool = True, **options: Any) -> bench.ArrayTask:
    inputs = torch.randn(240, 5, generator=torch.Generator().manual_seed(0)) + shift
    labels = (inputs[:, 0] > shift).long()
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    records, test = (inputs[:192], labels[:192]), (inputs[192:], labels[192:])
    return array_task("toy", records, network, test, public=public, batch_size=32, epochs=4, **options)


def run(folder: Path, method: str | bench.Method, task: bench.ArrayTask | None = None, **options: Any) -> Any:
    options = {"seed": 0, "progress": bench.NullProgress(), "execution": every(5), **options}
    return bench.run(method, task or toy(), BUDGET, results_dir=folder, **options)


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: Any, **options: Any) -> None:
    """Run in a child that is killed when it begins a step."""
    steps = Session.steps

    def deadly(self: Session, total: int, state: Any = None) -> Iterator[int]:
        for taken in steps(self, total, state):
            if taken == step:
                os.kill(os.getpid(), signal.SIGKILL)
            yield taken

    with monkeypatch.context() as patched:
        patched.setattr(Session, "steps", deadly)
        assert ended(start(lambda: run(folder, *arguments, **options))) == -signal.SIGKILL


def checkpoint_in(folder: Path) -> Path:
    (path,) = (folder / ".unfinished").glob("*.checkpoint")
    return path


def bits(result: Any) -> tuple[str, list[bytes]]:
    """Return the record without its times, and the weights."""
    record = json.loads(result.record.to_json())
    for name in ("seconds", "created", "peak_memory_bytes"):
        del record[name]
    return json.dumps(record), [weight.detach().numpy().tobytes() for weight in result.model.parameters()]


@pytest.mark.parametrize("method", SINGLE_RUNS)
def test_a_killed_run_ends_with_the_record_and_model_of_one_that_was_not(
    method: str | bench.Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bits(run(tmp_path / "whole", method, execution=every(None)))
    # Before the first checkpoint, and after each of three.
    for step in (3, 7, 20) if method == "hyfreedp" else (12,):
        killed_at(step, monkeypatch, tmp_path / "killed", method)
    assert (checkpoint_in(tmp_path / "killed").stat().st_mode & 0o777) == 0o600
    path = checkpoint_in(tmp_path / "killed")
    path.with_name(f".{path.name}.0123456789ab.tmp").write_bytes(b"of a kill while it was written")
    assert bits(run(tmp_path / "killed", method)) == whole
    assert list((tmp_path / "killed/.unfinished").iterdir()) == []


def test_variants_of_an_augmentation_go_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(inputs: Tensor, generator: torch.Generator) -> Tensor:
        inputs += torch.randn(inputs.shape, generator=generator)
        return nn.functional.dropout(inputs, 0.2)  # from torch's own generator

    task = toy(augment=bench.recipes.Augmentation(noisy, copies=3))
    whole = bits(run(tmp_path / "whole", "dp_sgd", task, execution=every(None)))
    killed_at(12, monkeypatch, tmp_path / "killed", "dp_sgd", task)
    assert bits(run(tmp_path / "killed", "dp_sgd", task)) == whole
    assert bits(run(tmp_path / "plain", "dp_sgd"))[1] != whole[1]


@dataclass(frozen=True)
class Forgetful(bench.recipes.SingleRun):
    """A method whose loop does not say what changes while it lasts."""

    name = "forgetful"
    summary = "Adds up what it was given."
    reference = "none"
    tuning = ()
    end_to_end_private = True

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: bench.Session) -> bench.Outcome:
        """Train without a word about the state."""
        training, model = plan.parameters, session.build_model()
        for gradient in training.gradients(session, model):
            with torch.no_grad():
                torch._foreach_add_(bench.recipes.trainable(model), gradient, alpha=-0.1)
        return bench.Outcome(model, {})


@dataclass(frozen=True)
class ForgetsItsRate(Forgetful):
    """A method that changes a learning rate that its state does not name."""

    name = "forgets_its_rate"

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: bench.Session) -> bench.Outcome:
        """Train at a rate that falls."""
        training, model, rate = plan.parameters, session.build_model(), 1.0
        for _ in bench.recipes.training_steps(session, training.steps, [model], [0.0], state=[]):
            rate *= 0.9
            with torch.no_grad():
                gradient = training.gradient(session, model)
                torch._foreach_add_(bench.recipes.trainable(model), gradient, alpha=-rate)
        return bench.Outcome(model, {})


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_whole", full)
    assert run(tmp_path, "dp_sgd").record.status == "ok"


class TestRefused:
    @pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"?"])
    def test_a_damaged_checkpoint(
        self, damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed_at(7, monkeypatch, tmp_path, "dp_sgd")
        path = checkpoint_in(tmp_path)
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(bench.errors.DphpoBenchError, match="is damaged: remove it") as refused:
            run(tmp_path, "dp_sgd")
        assert refused.value.exit_code == 2
        path.unlink()
        assert run(tmp_path, "dp_sgd").record.status == "ok"

    @pytest.mark.parametrize("method", ["dp_hyper", "nonprivate"])
    def test_more_than_one_training_run(self, method: str, tmp_path: Path) -> None:
        with pytest.raises(bench.errors.InvalidValueError, match="does more than one training run"):
            run(tmp_path, method)

    def test_a_method_that_does_not_name_its_state(self, tmp_path: Path) -> None:
        with pytest.raises(bench.errors.InvalidValueError, match="cannot go on from a checkpoint"):
            run(tmp_path, Forgetful())
        assert not list(tmp_path.rglob("*.json"))

    def test_the_same_noise_on_another_question(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        private = {"task": toy(public=False), "seed": None}
        killed_at(8, monkeypatch, tmp_path, ForgetsItsRate(), **private)
        failed = run(tmp_path, ForgetsItsRate(), check=False, **private).record
        assert failed.status == "failed"
        assert "asked something else than before" in failed.error
        assert list((tmp_path / ".unfinished").iterdir()) == []
        assert run(tmp_path, ForgetsItsRate(), **private).record.status == "ok"  # another release

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"execution": every(5, secure_noise=True), "seed": None},
                "Secure noise cannot be drawn twice",
            ),
            ({"results_dir": None}, "Expected results_dir with checkpoint_every"),
            ({"execution": every(0)}, "Expected a whole checkpoint_every from 1"),
        ],
    )
    def test_runs_that_could_not_go_on(self, options: dict[str, Any], message: str, tmp_path: Path) -> None:
        options = {"seed": 0, "results_dir": tmp_path, "execution": every(5), **options}
        with pytest.raises(bench.errors.InvalidValueError, match=message):
            bench.run("dp_sgd", toy(), BUDGET, progress=bench.NullProgress(), **options)


class TestPrivateRecords:
    def account(self, folder: Path) -> list[dict[str, Any]]:
        return bench.account(folder).to_json()["releases"]  # type: ignore[no-any-return]

    def test_a_run_that_goes_on_is_counted_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for step in (7, 12):
            killed_at(step, monkeypatch, tmp_path, "dp_sgd", toy(public=False), seed=None)
            (line,) = self.account(tmp_path)
            assert line["status"] == "open"
        result = run(tmp_path, "dp_sgd", toy(public=False), seed=None)
        (ended,) = self.account(tmp_path)
        assert (ended["number"], ended["status"]) == (line["number"], "ok")
        assert ended["record"] == result.record.identity.key
        assert list((tmp_path / ".unfinished").iterdir()) == []

    def test_other_records_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        killed_at(7, monkeypatch, tmp_path, "dp_sgd", toy(public=False), seed=None)
        for path in (tmp_path / ".data").glob("*.digest"):
            path.unlink()
        with pytest.raises(
            bench.errors.DphpoBenchError, match=r"of a run with another data set, .* is a second release"
        ):
            run(tmp_path, "dp_sgd", toy(1.0, public=False), seed=None)
        checkpoint_in(tmp_path).unlink()
        lost = run(tmp_path, "dp_sgd", toy(1.0, public=False), seed=None, check=False).record
        assert "asked something else than before" in str(lost.error)  # by the hashes of what was released
        assert len(self.account(tmp_path)) == 1

    def test_edited_code_does_not_draw_the_noise_of_a_killed_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        private: dict[str, Any] = {"task": toy(public=False), "seed": None, "execution": every(None)}
        killed_at(7, monkeypatch, tmp_path, "dp_sgd", **private)
        with monkeypatch.context() as patched:
            patched.setattr(cache, "code_hash", lambda _: "edited")
            with pytest.raises(bench.errors.DphpoBenchError, match=r"by other code.* is a second release"):
                run(tmp_path, "dp_sgd", **private)
        assert run(tmp_path, "dp_sgd", **private).record.status == "ok"

    def test_a_run_of_a_lost_journal_is_another_release(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        killed_at(7, monkeypatch, tmp_path, "dp_sgd", toy(public=False), seed=None)
        (journal,) = (tmp_path / ".unfinished").glob("*.jsonl")
        journal.unlink()
        run(tmp_path, "dp_sgd", toy(public=False), seed=None)
        assert [line["status"] for line in self.account(tmp_path)] == ["open", "ok"]
