"""No two runs on private records share noise, whatever seed both have; whoever names an earlier run gets its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dphpo_bench as bench
from dphpo_bench.audit import attacks
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.harness.state import Run
from dphpo_bench.records.store import RecordStore
from tests.conftest import TinyTask
from tests.own_task import array_task

X = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BUDGET = bench.PrivacyBudget(3.0, 1e-4)


pytestmark = pytest.mark.filterwarnings("ignore")


class Scaled(nn.Linear):
    """A layer of zeros that reads a value which no hash of code holds."""

    factor = 1.0

    def reset_parameters(self) -> None:
        """Start from zeros, so that what differs after training is noise."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scaled outputs."""
        return super().forward(inputs) * Scaled.factor


def own(**changes: Any) -> bench.ArrayTask:
    return array_task("own", (X, Y), lambda: Scaled(4, 2), (X, Y), **{"epochs": 2, "batch_size": 60, **changes})


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, label_smoothing=1e-6, reduction="none")


def nudged(inputs: Tensor, generator: torch.Generator) -> Tensor:
    return inputs + 1e-6


def trained(method: bench.Method, task: bench.Task, **options: Any) -> Tensor:
    model = bench.run(method, task, BUDGET, seed=7, progress=bench.NullProgress(), **options).model
    assert model is not None
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _alone() -> None: ...


def _global() -> None:
    Scaled.factor = 1 + 1e-6


DIFFERENCES: dict[str, tuple[dict[str, Any], Callable[[], None]]] = {
    "nothing": ({}, _alone),
    "losses": ({"losses": smoothed}, _alone),
    "augment": ({"augment": bench.recipes.Augmentation(nudged)}, _alone),
    "version": ({"version": "2"}, _alone),
    "a global": ({}, _global),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("has_folder", [False, True])
def test_two_runs_at_one_secret_seed_share_no_noise(
    difference: str, has_folder: bool, fixed_noise, tmp_path: Path, monkeypatch
) -> None:
    """Questions that hardly differ have answers that hardly differ, but for noise of deviation .03 in 10 weights.

    Unrelated noise is within .001 in all of them with probability below 1e-10.
    """
    monkeypatch.setattr(Scaled, "factor", 1.0)
    options, change = DIFFERENCES[difference]
    where = {"results_dir": tmp_path} if has_folder else {}
    first = trained(fixed_noise(), own(), **where)
    change()
    assert not torch.allclose(trained(fixed_noise(), own(**options), **where), first, atol=1e-3)
    if has_folder:
        records = [bench.read_record(path) for path in tmp_path.glob("own/*/*.json")]
        entries = bench.account(tmp_path).releases
        assert {entry.record for entry in entries} == {record.identity.key for record in records}
        assert {entry.number for entry in entries} == {record.identity.run for record in records}
        assert len(entries) == 2


def test_public_runs_draw_the_noise_that_published_ones_drew(fixed_noise) -> None:
    class Newer(TinyTask):
        version = 2

    first, second = (trained(fixed_noise(), task) for task in (TinyTask(), Newer()))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("has_account", [False, True])
def test_audits_at_one_seed_share_no_noise(has_account: bool, fixed_noise, tmp_path: Path, monkeypatch) -> None:
    runs: list[Run] = []

    def stop(run: Run) -> None:
        runs.append(run)
        raise InterruptedError

    monkeypatch.setattr(attacks, "execute", stop)
    book = attacks.Account(tmp_path) if has_account else None
    options: Any = {"private_records": True, "seed": 7, "canaries": 20, "runs": 1, "account": book}
    for _ in range(2):
        with pytest.raises(InterruptedError):
            attacks.audit(fixed_noise(), own(), BUDGET, progress=bench.NullProgress(), **options)
    first, second = (run.streams() for run in runs)
    assert first.seed == second.seed
    assert first.axes != second.axes
    if book:
        assert [f"run {entry.number}" for entry in book.read()[1]] == [first.axes[0], second.axes[0]]


def test_an_audit_takes_the_record_that_is_there(fixed_noise, tmp_path: Path) -> None:
    trained(fixed_noise(), own(), results_dir=tmp_path)
    (entry,) = bench.account(tmp_path).releases
    where: dict[str, Any] = {"seed": 7, "source": bench.DataSource.resolve(), "progress": bench.NullProgress()}
    record = attacks.recorded(fixed_noise(), own(), BUDGET, RecordStore(tmp_path), **where)
    assert (record.identity.key, record.identity.run) == (entry.record, entry.number)
    assert len(bench.account(tmp_path).releases) == 1


class TestAgain:
    def first(self, method: bench.Method, folder: Path, **options: Any) -> tuple[str, Tensor]:
        weights = trained(method, own(**options), results_dir=folder)
        return bench.account(folder).releases[-1].number, weights

    def test_the_same_run_has_the_same_noise_and_is_counted_once(self, fixed_noise, tmp_path: Path) -> None:
        number, weights = self.first(fixed_noise(), tmp_path)
        self.first(fixed_noise(), tmp_path)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        again = trained(fixed_noise(), own(), results_dir=tmp_path, account=bench.AccountOptions(again=number))
        torch.testing.assert_close(again, weights, rtol=0, atol=0)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize("change", ["task", "method", "plan", "seed", "code", "number"])
    def test_another_run_is_refused_before_the_records_are_read(
        self, change: str, fixed_noise, tmp_path: Path, monkeypatch
    ) -> None:
        number, _ = self.first(fixed_noise(), tmp_path)
        if change == "code":
            monkeypatch.setattr("dphpo_bench.harness.cache.code_hash", lambda _: "edited")
        task = own(version="2") if change == "task" else own()
        monkeypatch.setattr(bench.ArrayTask, "load_train", lambda *_: pytest.fail("the records were read"))
        method = fixed_noise(**{"method": {"extra_steps": 1}, "plan": {"steps": 7}}.get(change, {}))
        number = "../x" if change == "number" else number
        with pytest.raises(InvalidValueError, match="again=") as refused:
            bench.run(
                method,
                task,
                BUDGET,
                seed=8 if change == "seed" else 7,
                results_dir=tmp_path,
                account=bench.AccountOptions(again=number),
            )
        assert "\n" not in str(refused.value)
        assert len(bench.account(tmp_path).releases) == 1

    @pytest.mark.parametrize(
        "options", [{"seed": None}, {"results_dir": None}, {"execution": bench.ExecutionOptions(checkpoint_every=2)}]
    )
    def test_what_cannot_be_repeated_is_refused(self, options: dict[str, Any], fixed_noise, tmp_path: Path) -> None:
        with pytest.raises(InvalidValueError, match=r"Expected again= .* with private records"):
            bench.run(
                fixed_noise(),
                own(),
                BUDGET,
                account=bench.AccountOptions(again="0" * 16),
                **{"seed": 7, "results_dir": tmp_path, **options},
            )
        with pytest.raises(InvalidValueError, match=r"Expected again= .* with private records"):
            bench.run(
                fixed_noise(),
                TinyTask(),
                BUDGET,
                seed=7,
                results_dir=tmp_path,
                account=bench.AccountOptions(again="0" * 16),
            )

    @pytest.mark.parametrize("damage", ["a global", "more steps", "cut", "of another run"])
    def test_what_no_hash_sees_is_not_released(self, damage: str, fixed_noise, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(Scaled, "factor", 1.0)
        number, _ = self.first(fixed_noise(), tmp_path)
        other, _ = self.first(fixed_noise(), tmp_path)
        notes = [next((tmp_path / ".accounts").glob(f"*{each}.releases")) for each in (number, other)]
        if damage == "a global":
            Scaled.factor = 1 + 1e-3
        elif damage == "more steps":
            notes[0].write_bytes(notes[0].read_bytes()[:-16])
        elif damage == "cut":
            notes[0].write_bytes(b"")
        else:
            notes[0].write_bytes(notes[1].read_bytes())
        with pytest.raises(DphpoBenchError, match="asked something else than before"):
            trained(fixed_noise(), own(), results_dir=tmp_path, account=bench.AccountOptions(again=number))
        assert [entry.status for entry in bench.account(tmp_path).releases] == ["ok", "ok"]
        assert all(bench.read_record(path).status == "ok" for path in tmp_path.glob("own/*/*.json"))


@pytest.mark.parametrize("declared", [False, True])
def test_private_records_leave_no_hash_without_a_key(declared: bool, fixed_noise, budget, tmp_path) -> None:
    """Two neighbouring tables differ in no identity, no name of a file and no saved model."""

    class Own(TinyTask):
        public = False
        fingerprint_is_declared = declared

        def fingerprint(self, source: bench.DataSource) -> str:
            assert declared, "a hash of private records was asked for"
            return "the table of May"

    record = bench.run(fixed_noise(), Own(), budget, results_dir=tmp_path).record
    assert record.identity.facts["public"] is False
    assert record.identity.data_fingerprint == Own().data_fingerprint(bench.DataSource.resolve())
    assert (record.identity.data_fingerprint == "the table of May") is declared
