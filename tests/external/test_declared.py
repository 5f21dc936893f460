"""Procedures that callers declare: counted once, before anything is asked; marked wherever they are shown."""

import json
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import dphpo_bench as bench
from dphpo_bench.base.errors import AccountError, InvalidValueError, PlanOverBudgetError, RecordError
from dphpo_bench.external.declared import Declaration, DeclaredRun, Finished
from dphpo_bench.harness.account import Account
from dphpo_bench.harness.account_report import open_account
from dphpo_bench.leaderboard.submissions import read_submissions
from dphpo_bench.records.statement import lines
from tests.harness.children import ended, start

BUDGET = bench.PrivacyBudget(1.0, 1e-5)
EVENT = bench.events.repeat(bench.events.gaussian(20.0), 16)  # as one Gaussian of noise multiplier 5


def declaration(name: str = "mine", **changes: Any) -> Declaration:
    fields = {"method": "dp_sgd", "what": "training", "budget": BUDGET, "event": EVENT, "n_records": 1000}
    return Declaration(name, **{**fields, **changes})


def opened(root: Path, name: str = "mine", account: str | None = None, **changes: Any) -> DeclaredRun:
    return DeclaredRun.open(declaration(name, **changes), results_dir=root, account=account)


def finished(root: Path, name: str = "mine", **changes: Any) -> Finished:
    return opened(root, name, **changes).finish(released={"learning_rate": 0.1})


def test_epsilon_is_that_of_the_declared_event(tmp_path: Path) -> None:
    record = finished(tmp_path).record
    outside = pld.from_gaussian_mechanism(5.0).get_epsilon_for_delta(1e-5)
    assert record.privacy is not None
    assert record.privacy.epsilon == pytest.approx(outside, rel=1e-3)
    assert record.accounting == "declared by the caller"
    assert bench.read_record(next(tmp_path.glob("mine/dp_sgd/*.json"))) == record


def test_it_is_counted_before_its_first_question_and_once(tmp_path: Path) -> None:
    run = opened(tmp_path)
    (entry,) = Account(tmp_path).read()[1]
    assert (entry.what, entry.status, entry.task) == ("training", "open", "mine")
    run.finish()
    (entry,) = Account(tmp_path).read()[1]
    report = bench.account(tmp_path)
    assert entry.status == "ok"
    assert report.uncounted == ()
    assert report.totals[0].together == pytest.approx(run.epsilon.epsilon)
    assert [path.name for path in (tmp_path / ".unfinished").iterdir()] in ([], ["declared-mine.lock"])


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
    assert run.resumed
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
        assert not run.resumed
        (tmp_path / "held").touch()
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


def test_a_canceled_one_costs_nothing(tmp_path: Path) -> None:
    opened(tmp_path).cancel()
    assert Account(tmp_path).read()[1] == ()
    finished(tmp_path)
    assert len(Account(tmp_path).read()[1]) == 1


def test_a_resumed_one_cannot_be_canceled(tmp_path: Path) -> None:
    opened(tmp_path).release()
    opened(tmp_path).cancel()
    assert len(Account(tmp_path).read()[1]) == 1


def test_more_than_declared_is_over_budget(tmp_path: Path) -> None:
    ended_with = opened(tmp_path).finish(spent=bench.events.gaussian(1.0))
    assert ended_with.record.status == "over_budget"
    assert ended_with.record.privacy is not None
    assert ended_with.record.privacy.epsilon > 4
    assert bench.account(tmp_path).totals[0].together == pytest.approx(ended_with.record.privacy.epsilon)


def test_less_than_declared_is_quoted_as_declared(tmp_path: Path) -> None:
    privacy = opened(tmp_path).finish(spent=bench.events.gaussian(50.0)).record.privacy
    assert privacy is not None
    assert privacy.recomputed is not None
    assert privacy.recomputed.epsilon < 0.2 * privacy.epsilon
    assert privacy.epsilon == privacy.planned.epsilon


def test_a_search_tells_no_time(tmp_path: Path) -> None:
    event = bench.events.best_of(bench.events.gaussian(20.0), bench.search.geometric(4.0))
    record = finished(tmp_path, event=event, what="selection", method="papernot_steinke").record
    assert (record.created.hour, record.created.minute, record.created.second) == (0, 0, 0)
    assert record.seconds == {}


def test_a_solver_tells_no_time_either(tmp_path: Path) -> None:
    record = finished(tmp_path, event=bench.events.objective_perturbation(20.0, 10.0, 1)).record
    assert (record.created.hour, record.created.minute, record.created.second) == (0, 0, 0)


def test_marked_wherever_it_is_shown(tmp_path: Path, main: Any) -> None:
    path = finished(tmp_path).path
    assert path is not None
    code, shown, _ = main("show", str(path))
    assert code == 0
    assert "Accounting: declared by the caller" in shown
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
    with pytest.warns(UserWarning, match="seed=3"):
        run = DeclaredRun.open(declaration(), results_dir=tmp_path, seed=3)
    run.finish(metrics={"accuracy": 0.99})
    (refused,) = read_submissions([tmp_path]).rejected
    assert "declared by a caller" in refused.reason
    code, _, errors = main("explain", str(tmp_path))
    assert code == 2
    assert "Left out: 1 record" in errors


def test_one_seed_makes_the_same_draws() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [DeclaredRun.open(declaration(), results_dir=None, seed=seed) for seed in (3, 3, 4, None, None)]
    first = [run.streams.derive("any") for run in runs]
    assert first[0] == first[1]
    assert len(set(first)) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "Expected a name"),
        ({"name": ""}, "Expected a name"),
        ({"name": 3}, "Expected a name"),
        ({"budget": 3}, "Expected a PrivacyBudget"),
        ({"unit": ""}, "unit"),
        ({"n_records": 0}, "n_records"),
    ],
)
def test_a_mistake_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        declaration(**{"name": "mine", **changes})


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
        run = DeclaredRun.open(declaration(), results_dir=None)
    assert run.finish().path is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidValueError, match="results_dir"):
        DeclaredRun.open(declaration(), results_dir=None, account="mine")
