"""Studies that are killed, damaged, short of budget, or not alone: same draws, one entry, no second start."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench.base.errors import AccountError, InvalidValueError, RecordError
from dphpo_bench.external import declared
from dphpo_bench.external.memory import Memory
from dphpo_bench.external.trials import StudyTrial
from dphpo_bench.harness.account import Account
from dphpo_bench.harness.account_report import open_account
from dphpo_bench.search import Study, StudyResult
from tests.external.test_study import BUDGET, SPACE, event
from tests.harness.children import ended, start

pytestmark = pytest.mark.filterwarnings("ignore:No model", "ignore:The winner's", "ignore:Training drew nothing")
SECRET = 20  # of a search of several trials
Seen = list[tuple[dict[str, Any], int]]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the secret seed from a list of one, so that two folders hold the same study."""
    monkeypatch.setattr(declared.secrets, "randbits", lambda _: SECRET)


def study(root: Path, **changes: Any) -> Study:
    settings = {"held_out": 0.1, "n_scored": 1000, "method": "dp_hyper", "name": "mine", **changes}
    return Study(SPACE, budget=BUDGET, event=event, results_dir=root, **settings)


def gone_through(
    of: Study, in_trial: Callable[[StudyTrial, int], object] = lambda *_: None
) -> tuple[Seen, StudyResult]:
    """Go through a study whose scores are the rates; `in_trial` is called before each tell."""
    seen: Seen = []
    for trial in of:
        seen.append((trial.params, trial.seed))
        in_trial(trial, len(seen))
        of.tell(trial, trial.params["rate"], trial.params["rate"])
    return seen, of.result()


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in(root: Path, number: int, **changes: Any) -> None:
    """Kill a process in its trial of this number, counted from 1."""
    child = start(lambda: gone_through(study(root, **changes), lambda _, at: at == number and die()))
    assert ended(child) == -signal.SIGKILL


@pytest.mark.parametrize("method", ["papernot_steinke", "dp_hyper"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_killed_study_goes_on_and_the_trial_under_way_has_lost(tmp_path: Path, method: str, number: int) -> None:
    everything, _ = gone_through(study(tmp_path / "whole", method=method))
    assert len(everything) > 3
    killed_in(tmp_path / "killed", number, method=method)
    rest, result = gone_through(study(tmp_path / "killed", method=method))
    trials = everything if method == "papernot_steinke" else everything[:-1]
    assert [seed for _, seed in rest] == [seed for _, seed in everything[number:]]
    assert rest[: len(trials) - number] == trials[number:]
    left = [params for index, (params, _) in enumerate(trials) if index != number - 1]
    best = max(left, key=lambda params: params["rate"])
    assert result.params == best
    assert result.model == best["rate"]
    (entry,) = Account(tmp_path / "killed").read()[1]
    assert (entry.what, entry.status) == ("selection", "ok")
    assert [path.name for path in (tmp_path / "killed" / ".unfinished").iterdir()] == ["declared-mine.lock"]


def test_a_final_run_that_was_killed_has_failed(tmp_path: Path) -> None:
    everything, whole = gone_through(study(tmp_path / "whole"))
    killed_in(tmp_path / "killed", len(everything))
    of = study(tmp_path / "killed")
    rest, result = gone_through(of)
    assert rest == []
    assert (result.params, result.score, result.model) == (whole.params, whole.score, None)


@pytest.mark.parametrize("where", [(Memory, "end"), (Account, "note")])
def test_a_trial_that_was_told_is_not_run_again(tmp_path: Path, where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the best model and the journal, or between the record and the account."""
    everything, whole = gone_through(study(tmp_path / "whole"))

    def work() -> None:
        monkeypatch.setattr(*where, lambda *_, **__: die())
        gone_through(study(tmp_path / "killed"))

    assert ended(start(work)) == -signal.SIGKILL
    rest, result = gone_through(study(tmp_path / "killed"))
    assert rest == (everything[1:] if where[0] is Memory else [])
    assert (result.params, result.score, result.model) == (whole.params, whole.score, whole.model)
    assert len(Account(tmp_path / "killed").read()[1]) == 1
    assert len(list((tmp_path / "killed").glob("mine/*/*.json"))) == 1


def test_a_study_that_was_left_goes_on_in_another_of_its_name(tmp_path: Path) -> None:
    everything, _ = gone_through(study(tmp_path / "whole"))
    of = study(tmp_path / "left")
    for _ in of:
        break
    with pytest.raises(InvalidValueError, match="The search is not over"):
        of.result()
    rest, _ = gone_through(study(tmp_path / "left"))
    assert rest == everything[1:]
    assert len(Account(tmp_path / "left").read()[1]) == 1


def test_what_a_kill_leaves_of_a_state_file_is_gone_at_the_end(tmp_path: Path) -> None:
    """It would hold the model and the score of a trial that may have lost."""

    def work() -> None:
        of = study(tmp_path)
        for number, trial in enumerate(of):
            if number == 1:
                Path.replace = die  # type: ignore[method-assign,assignment]
            of.tell(trial, 0.1 + 0.2 * number, "model")

    assert ended(start(work)) == -signal.SIGKILL
    assert [*(tmp_path / ".unfinished").glob(".*.tmp")]
    gone_through(study(tmp_path))
    assert [path.name for path in (tmp_path / ".unfinished").iterdir()] == ["declared-mine.lock"]


@pytest.mark.parametrize("damage", [b"torn", None])
def test_a_damaged_state_is_one_line(tmp_path: Path, damage: Any) -> None:
    killed_in(tmp_path, 3)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / ".unfinished").glob("*.[js]*"))
    (path,) = (tmp_path / ".unfinished").glob("*.state")
    content = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(RecordError, match=r"\.state.*best model of an interrupted study.*\.jsonl to start anew"):
        gone_through(study(tmp_path))
    path.write_bytes(content)
    assert gone_through(study(tmp_path))[1].model is not None


def test_another_space_does_not_go_on(tmp_path: Path) -> None:
    killed_in(tmp_path, 2)
    of = Study(
        {"rate": [0.1]}, budget=BUDGET, event=event, results_dir=tmp_path, held_out=0.1, n_scored=1000, name="mine",
        method="dp_hyper",
    )  # fmt: skip
    with pytest.raises(RecordError, match="declared otherwise"):
        next(iter(of))


# ------------------------------------------------------------------------------------------------------ accounts


def test_a_budget_that_is_spent_ends_it_before_the_first_trial(tmp_path: Path) -> None:
    open_account(tmp_path, 1.0, 1e-5)
    of, trained = study(tmp_path), []
    with pytest.raises(AccountError, match="does not cover this release"):
        gone_through(of, lambda *_: trained.append(1))
    with pytest.raises(AccountError, match="does not cover this release"):
        bench.select(
            lambda _: trained.append(1), SPACE, budget=BUDGET, event=event, n_scored=10, results_dir=tmp_path, name="b"
        )
    assert trained == []
    assert Account(tmp_path).read()[1] == ()


def test_two_studies_on_one_account_at_once_keep_its_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # two studies have two secrets
    open_account(tmp_path, 3.0, 1e-5)  # enough for one of them
    (tmp_path / "gate").touch()

    def work(name: str) -> None:
        of = study(tmp_path, name=name)
        while (tmp_path / "gate").exists():
            time.sleep(0.001)
        try:
            gone_through(of, lambda *_: time.sleep(0.05))
        except AccountError:
            os._exit(3)

    children = [start(lambda name=name: work(name)) for name in ("first", "second")]  # type: ignore[misc]
    (tmp_path / "gate").unlink()
    assert sorted(ended(child) for child in children) == [0, 3]
    (entry,) = Account(tmp_path).read()[1]
    assert entry.status == "ok"


def test_a_trial_counts_nothing_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries and records of trials would tell how many there were."""
    monkeypatch.undo()  # two procedures have two secrets

    def counted(*_: object) -> Any:
        with bench.declared(bench.events.gaussian(9.0), BUDGET, name="inner", results_dir=tmp_path):
            pass

    refusal = "Expected a trial of a private selection without runs, tuners or callbacks"
    with pytest.raises(AccountError, match=refusal):
        gone_through(study(tmp_path), counted)
    with pytest.raises(AccountError, match=refusal):
        bench.select(counted, SPACE, budget=BUDGET, event=event, n_scored=10, results_dir=tmp_path, name="other")
    assert [entry.task for entry in Account(tmp_path).read()[1]] == ["mine", "other"]
    counted()
    assert len(Account(tmp_path).read()[1]) == 3


def test_the_record_tells_no_time_and_no_loser(tmp_path: Path) -> None:
    seen, result = gone_through(study(tmp_path))
    assert result.path is not None
    text = result.path.read_text()
    assert (result.record.created.hour, result.record.created.minute, result.record.created.second) == (0, 0, 0)
    assert result.record.seconds == {}
    assert result.record.cost is None
    losers = [params["rate"] for params, _ in seen if params != result.params]
    assert losers
    assert not any(str(rate) in text for rate in losers)
    assert result.account is not None
    assert bench.read_record(result.path) == result.record


class Broken:
    """Written by pickle; read only once `mended` is there."""

    mended: Path

    def __reduce__(self) -> Any:
        return Path.read_text, (self.mended,)


def test_a_model_that_cannot_be_read_is_not_lost(tmp_path: Path) -> None:
    Broken.mended = tmp_path / "mended"
    of = study(tmp_path / "results", method="papernot_steinke")

    def all_of(of: Study) -> None:
        for trial in of:
            of.tell(trial, 0.5, Broken())

    with pytest.raises(InvalidValueError, match="pickle can read again: FileNotFoundError"):
        all_of(of)
    Broken.mended.write_text("the model")
    again = study(tmp_path / "results", method="papernot_steinke")
    all_of(again)
    assert again.result().model == "the model"
    assert len(Account(tmp_path / "results").read()[1]) == 1
