"""Procedures that callers declare: counted once, before anything is asked; marked wherever they are shown."""

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import dphpo_bench as bench
from dphpo_bench.base.errors import (
    AccountError,
    BudgetTooSmallError,
    InvalidValueError,
    PlanOverBudgetError,
    RecordError,
)
from dphpo_bench.external.declared import DeclaredRun, Finished
from dphpo_bench.harness.account import Account
from dphpo_bench.harness.account_report import open_account
from dphpo_bench.leaderboard.submissions import read_submissions
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.recipes.dp_sgd import dp_sgd_event
from dphpo_bench.records.statement import lines
from tests.harness.children import ended, start

BUDGET = bench.PrivacyBudget(1.0, 1e-5)
EVENT = bench.events.repeat(bench.events.gaussian(20.0), 16)  # as one Gaussian of noise multiplier 5


def declared(root: Path | None, name: str = "mine", **changes: Any) -> DeclaredRun:
    fields: dict[str, Any] = {"event": EVENT, "budget": BUDGET, "results_dir": root, "goes_on": True, "n_records": 1000}
    return DeclaredRun(name=name, **{**fields, **changes})


def opened(root: Path | None, name: str = "mine", **changes: Any) -> DeclaredRun:
    run = declared(root, name, **changes)
    run.open()
    return run


def finished(root: Path, name: str = "mine", **changes: Any) -> Finished:
    return opened(root, name, **changes).finish(released={"learning_rate": 0.1})


def test_a_block_is_counted_when_it_begins_and_recorded_when_it_ends(tmp_path: Path) -> None:
    with bench.declared(EVENT, BUDGET, name="mine", results_dir=tmp_path) as run:
        (entry,) = Account(tmp_path).read()[1]
        assert (entry.what, entry.status, entry.task) == ("training", "open", "mine")
    (entry,) = Account(tmp_path).read()[1]
    assert entry.status == "ok"
    assert run.finished is not None
    assert run.finished.record.status == "ok"
    with pytest.raises(KeyError), bench.declared(EVENT, BUDGET, name="mine", results_dir=tmp_path) as run:
        raise KeyError("x")
    assert run.finished is not None
    assert (run.finished.record.status, run.finished.record.error) == ("failed", "KeyError ended the block.")


def test_a_second_block_of_one_context_is_not_counted_without_a_record(tmp_path: Path) -> None:
    run = bench.declared(EVENT, BUDGET, name="mine", results_dir=tmp_path)
    with run:
        pass
    with pytest.raises(RecordError, match="The training mine has ended"), run:
        pass
    assert len(Account(tmp_path).read()[1]) == 1
    finished(tmp_path)  # nobody holds the name


def test_another_working_directory_loses_neither_record_nor_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of a run may change it, and the end of the run was noted in another account, which was damaged by that."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with bench.declared(EVENT, BUDGET, name="mine", results_dir="results") as run:
        monkeypatch.chdir(tmp_path / "other")
    (entry,) = Account(tmp_path / "results").read()[1]
    assert entry.status == "ok"
    assert run.finished is not None
    assert run.finished.path == tmp_path / "results" / "mine" / "dp_sgd" / f"{entry.record}.json"
    assert not [*(tmp_path / "other").iterdir()]


def test_a_block_that_was_killed_is_a_release_of_its_own(tmp_path: Path) -> None:
    opened(tmp_path, goes_on=False).release()
    with pytest.raises(RecordError, match="was interrupted, and code of yours cannot go on"):
        opened(tmp_path, goes_on=False)
    assert len(Account(tmp_path).read()[1]) == 1


def test_epsilon_is_that_of_the_declared_event(tmp_path: Path) -> None:
    record = finished(tmp_path).record
    outside = pld.from_gaussian_mechanism(5.0).get_epsilon_for_delta(1e-5)
    assert record.privacy is not None
    assert record.privacy.epsilon == pytest.approx(outside, rel=1e-3)
    assert record.accounting == "declared by the caller"
    assert bench.read_record(next(tmp_path.glob("mine/dp_sgd/*.json"))) == record


def test_a_second_of_its_name_is_a_second_release(tmp_path: Path) -> None:
    first, second = finished(tmp_path), finished(tmp_path)
    assert first.record.identity.key != second.record.identity.key
    assert len(Account(tmp_path).read()[1]) == 2


def test_a_killed_one_goes_on_with_its_draws_and_its_entry(tmp_path: Path) -> None:
    def begin() -> None:
        run = opened(tmp_path)
        (tmp_path / "seed").write_text(str(run.streams.seed))
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(start(begin)) == -signal.SIGKILL
    run = opened(tmp_path)
    assert str(run.streams.seed) == (tmp_path / "seed").read_text()
    run.finish()
    assert len(Account(tmp_path).read()[1]) == 1


def test_a_killed_one_that_declares_otherwise_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).release()
    with pytest.raises(RecordError, match="declared otherwise"):
        opened(tmp_path, event=bench.events.gaussian(6.0))
    assert len(Account(tmp_path).read()[1]) == 1


def test_one_name_at_a_time(tmp_path: Path) -> None:
    def hold() -> None:
        run = opened(tmp_path)  # held while it has a name
        (tmp_path / "held").write_text(run.name)
        time.sleep(60)

    child = start(hold)
    try:
        while not (tmp_path / "held").exists():
            time.sleep(0.01)
        with pytest.raises(RecordError, match="under way in another process"):
            opened(tmp_path)
        other = opened(tmp_path, "other")  # two on one account at once
        other.finish()
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
    opened(tmp_path).finish()
    assert [entry.task for entry in Account(tmp_path).read()[1]] == ["mine", "other"]


def test_the_cap_of_the_account_holds(tmp_path: Path) -> None:
    open_account(tmp_path, 0.9, 1e-5)
    finished(tmp_path)
    with pytest.raises(AccountError, match="does not cover this release"):
        opened(tmp_path, "next")
    assert not list((tmp_path / ".unfinished").glob("*next.jsonl"))
    assert len(Account(tmp_path).read()[1]) == 1


def test_a_search_tells_no_time(tmp_path: Path) -> None:
    event = bench.events.best_of(bench.events.gaussian(20.0), bench.search.geometric(4.0))
    record = finished(tmp_path, event=event, what="selection", method="papernot_steinke").record
    assert (record.created.hour, record.created.minute, record.created.second) == (0, 0, 0)
    assert record.seconds == {}


def test_marked_wherever_it_is_shown(tmp_path: Path, main: Any) -> None:
    path = finished(tmp_path).path
    assert path is not None
    code, shown, _ = main("show", str(path))
    assert code == 0
    assert "declared by the caller; nobody checked it" in shown
    assert "Again:" not in shown
    stated = " ".join(main("statement", str(path))[1].split())
    assert "Nobody checked that sampling, clipping and noise are as declared." in stated
    assert "The harness recomputed" not in stated
    assert "the batches were drawn so" not in stated
    assert json.loads(main("results", str(tmp_path), "--json")[1])[0]["accounting"] == "declared by the caller"


def test_a_statement_speaks_of_tuning_where_there_was_some(tmp_path: Path) -> None:
    changes = {"tuned": {"training_event": bench.events.gaussian(9.0)}, "plain": {}, "same": {"training_event": EVENT}}
    for name, fields in changes.items():
        record = finished(tmp_path, name, **fields).record
        stated = " ".join(" ".join(lines(record, None)).split())
        assert ("for tuning and training together" in stated) == (name == "tuned")
        assert ("spent nothing on tuning" in stated) == (name != "tuned")


def test_never_on_the_board_and_never_repeated(tmp_path: Path, main: Any) -> None:
    opened(tmp_path).finish(metrics={"accuracy": 0.99})
    (refused,) = read_submissions([tmp_path]).rejected
    assert "declared by a caller" in refused.reason
    code, _, errors = main("explain", str(tmp_path))
    assert code == 2
    assert "Left out: 1 record" in errors


@pytest.mark.filterwarnings("ignore:No account counts this")
@pytest.mark.parametrize("has_folder", [False, True])
def test_no_two_runs_share_draws(has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dphpo_bench.external.declared.secrets.randbits", lambda bits: 3 if bits == 128 else nonces.pop()
    )
    nonces, draws = [4, 5, 6], []
    for _ in range(3):
        run = opened(tmp_path if has_folder else None)
        draws.append(run.streams.derive("any"))
        run.finish()
    assert len(set(draws)) == 3
    if has_folder:
        assert len(list(tmp_path.glob("mine/*/*.json"))) == len(bench.account(tmp_path).releases) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "Expected a name"),
        ({"budget": 3}, "Expected budget to be PrivacyBudget"),
        ({"event": 3}, "Expected event to be DpEvent"),
        ({"results_dir": None, "account": "mine"}, "results_dir"),
        ({"unit": ""}, "unit"),
        ({"n_records": 0}, "n_records"),
    ],
)
def test_a_mistake_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        bench.declared(**{"event": EVENT, "budget": BUDGET, "name": "mine", **changes})


def test_an_event_above_the_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanOverBudgetError, match="more than the budget"):
        opened(tmp_path, event=bench.events.gaussian(2.0))
    assert not (tmp_path / ".accounts").exists()


def test_a_delta_that_permits_to_publish_a_record_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="delta=1e-05 is not below 1/N"):
        opened(tmp_path, n_records=100_000)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="No account counts this"):
        run = opened(None)
    assert run.finish().path is None
    assert list(tmp_path.iterdir()) == []


def pld_epsilon(rate: float, steps: int, noise: float) -> float:
    one = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
    return float(one.self_compose(steps).get_epsilon_for_delta(1e-5))


@pytest.mark.parametrize(
    ("rate", "noise", "budget"),
    [
        (0.02, 1.0, 2.7734),
        pytest.param(0.25, 2.0, 3.0, marks=pytest.mark.slow),  # between its neighbours
        (1.0, 10.0, 2.0),
        (0.001, 0.8, 2.5),
    ],
)
def test_the_last_step_that_fits_is_covered_and_the_next_is_not(rate: float, noise: float, budget: float) -> None:
    steps = bench.steps_within(bench.PrivacyBudget(budget, 1e-5), rate, noise)
    assert pld_epsilon(rate, steps, noise) <= budget + 1e-3
    assert pld_epsilon(rate, math.ceil(1.01 * steps), noise) > budget - 2e-3  # two discretizations
    ours = [epsilon(dp_sgd_event(rate, count, noise), 1e-5).epsilon for count in (steps, steps + 1)]
    assert ours[0] <= budget < ours[1]


def test_a_budget_without_a_step_and_one_without_an_end() -> None:
    with pytest.raises(BudgetTooSmallError, match=r"No step fits epsilon=0\.01 .* with one step it is"):
        bench.steps_within(bench.PrivacyBudget(0.01, 1e-5), 0.25, 0.5)
    assert bench.steps_within(bench.PrivacyBudget(1.0, 1e-5), 1e-6, 100.0) == 10**8
    for wrong in ((0.0, 1.0), (0.5, 0.0)):
        with pytest.raises(InvalidValueError):
            bench.steps_within(bench.PrivacyBudget(1.0, 1e-5), *wrong)
