"""Unseeded runs on private records that start again after a kill, without checkpoints: never the same noise twice."""

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.session.releases import Releases
from dphpo_bench.session.session import Session
from dphpo_bench.sweep import cells
from tests.harness.children import ended, start
from tests.own_task import array_task

BUDGET = bench.PrivacyBudget(3.0, 1e-3)
OTHER = "asked something else than before"


def private_rows(public: bool = False) -> bench.ArrayTask:
    inputs = torch.randn(240, 5, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    rows = (inputs[:192], labels[:192]), (inputs[192:], labels[192:])
    return array_task("rows", rows[0], nn.Linear(5, 2), rows[1], public=public, batch_size=32, epochs=4)


@dataclass(frozen=True)
class OfTheClock(bench.recipes.SingleRun):
    """A method whose questions depend on the number of runs that began in a folder; the first is killed."""

    folder: str = ""
    changes: bool = True
    name = "of_the_clock"
    summary = "Asks other questions after a kill."
    reference = "none"
    tuning = ()
    end_to_end_private = True

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: bench.Session) -> bench.Outcome:
        """Train from weights that depend on the number of earlier runs."""
        path = Path(self.folder) / "begun"
        begun = len(path.read_text()) if path.exists() else 0
        path.write_text("x" * (begun + 1))
        training, model = plan.parameters, session.build_model()
        if self.changes:
            next(model.parameters()).data += begun
        for step, gradient in enumerate(training.gradients(session, model)):
            if not begun and step == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            with torch.no_grad():
                torch._foreach_add_(bench.recipes.trainable(model), gradient, alpha=-0.1)
        return bench.Outcome(model, {})


def killed_then(folder: Path, method: bench.Method, task: bench.ArrayTask | None = None) -> bench.RunResult:
    task = task or private_rows()

    def run() -> bench.RunResult:
        return bench.run(method, task, BUDGET, results_dir=folder, progress=bench.NullProgress(), check=False)

    assert ended(start(run)) == -signal.SIGKILL
    return run()


def entries(folder: Path) -> list[dict[str, Any]]:
    return bench.account(folder).to_json()["releases"]  # type: ignore[no-any-return]


def test_another_question_is_refused_and_the_next_run_starts_anew(tmp_path: Path) -> None:
    method = OfTheClock(folder=str(tmp_path))
    failed = killed_then(tmp_path / "r", method).record
    assert failed.status == "failed"
    assert OTHER in (failed.error or "")
    assert list((tmp_path / "r/.unfinished").iterdir()) == []
    assert [entry["status"] for entry in entries(tmp_path / "r")] == ["failed"]
    assert bench.run(method, private_rows(), BUDGET, results_dir=tmp_path / "r").record.status == "ok"
    assert len(entries(tmp_path / "r")) == 2


def test_a_run_whose_releases_cannot_be_noted_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk. Without notes another question would get the same noise."""
    monkeypatch.setattr(os, "pwrite", lambda _, note, __: len(note) // 2)
    assert killed_then(tmp_path / "r", OfTheClock(folder=str(tmp_path))).record.status == "ok"
    assert len(entries(tmp_path / "r")) == 2


def test_the_same_questions_get_the_same_answers_and_are_counted_once(tmp_path: Path) -> None:
    assert killed_then(tmp_path / "r", OfTheClock(folder=str(tmp_path), changes=False)).record.status == "ok"
    assert len(entries(tmp_path / "r")) == 1
    assert list((tmp_path / "r/.unfinished").iterdir()) == []


def test_public_records_may_be_asked_anything(tmp_path: Path) -> None:
    assert (
        killed_then(tmp_path / "r", OfTheClock(folder=str(tmp_path)), private_rows(public=True)).record.status == "ok"
    )


def test_a_trial_that_asks_something_else_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = "liu_talwar"
    build_model, score = Session.build_model, Session.release
    with monkeypatch.context() as patched:

        def deadly(*arguments: Any, **named: Any) -> float:
            score(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        patched.setattr(Session, "release", deadly)
        assert ended(start(lambda: bench.run(method, private_rows(), BUDGET, results_dir=tmp_path))) == -signal.SIGKILL

    def moved(self: Session) -> nn.Module:
        model = build_model(self)
        next(model.parameters()).data += 1.0
        return model

    monkeypatch.setattr(Session, "build_model", moved)
    record = bench.run(method, private_rows(), BUDGET, results_dir=tmp_path, check=False).record
    assert (record.status, OTHER in (record.error or "")) == ("failed", True)


def test_a_test_of_sealed_utilities_is_noted_with_its_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[list[torch.Tensor]] = []
    monkeypatch.setattr(Releases, "is_as_before", lambda _, release: noted.append(release) or True)
    record = bench.run("propose_test", private_rows(), BUDGET, results_dir=tmp_path).record
    tests = [release[0] for release in noted if release[0].dtype == torch.float64 and release[0].ndim == 1]
    assert record.status == "ok"
    assert any(len(asked) > 2 and -1 <= asked[-1] < len(asked) - 2 for asked in tests)


@pytest.mark.parametrize(
    ("local", "changes", "statuses"),
    [
        (True, True, ["failed", "ok", "ok"]),
        (True, False, ["ok", "ok", "ok"]),
        (False, True, ["ok", "ok", "ok", "open"]),
    ],
)
def test_a_cell_that_is_tried_again_is_compared_or_counted_anew(
    local: bool, changes: bool, statuses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where workers share no disk with the sweep, another try draws other noise, which is a second release."""
    if not local:
        monkeypatch.setattr(cells, "LOCAL", ())
    methods, folder = [OfTheClock(folder=str(tmp_path), changes=changes)], tmp_path / "r"
    table = bench.compare(methods, private_rows(), [3], delta=1e-3, results_dir=folder, quiet=True, workers=1)
    record = table.records[0]
    assert (record.status, OTHER in (record.error or "")) == (("failed", True) if local and changes else ("ok", False))
    assert sorted(entry["status"] for entry in entries(folder)) == statuses
    assert list((folder / ".unfinished").iterdir()) == []


def test_notes_are_of_one_secret_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "private/run.releases"
    one, other = [torch.ones(3)], [torch.zeros(3)]
    first = Releases(path, b"secret")
    assert first.is_as_before(one)
    assert first.is_as_before(other)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    again = Releases(path, b"secret")
    assert again.is_as_before(one)
    assert not again.is_as_before(one)
    assert Releases(path, b"another").is_as_before(other)  # begins anew


def test_nothing_is_released_while_earlier_notes_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier process may have released something else with the same noise, unless there are no notes."""
    path, journal = tmp_path / "run.releases", tmp_path / "run.jsonl"
    assert Releases(path, b"secret", resumed_from=[journal]).is_as_before([torch.ones(3)])
    journal.touch()

    def fails(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("open", "pread"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fails)
            with pytest.raises(OSError, match="Input/output"):
                Releases(path, b"secret", resumed_from=[journal]).is_as_before([torch.zeros(3)])
    assert journal.exists()
    path.unlink()
    monkeypatch.setattr(os, "open", fails)
    assert Releases(path, b"secret", resumed_from=[journal]).is_as_before([torch.zeros(3)])
    assert not journal.exists()
