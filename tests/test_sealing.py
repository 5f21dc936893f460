"""What a careless plug-in might do with a session, and why it gets nowhere."""

import copy
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench import harness, registry
from dphpo_bench.data.source import DataSource
from dphpo_bench.errors import InvalidValueError, OverBudgetError, SealedDataError
from dphpo_bench.session import Session
from tests.conftest import TinyTask

TRIAL = bench.gaussian(8.0)
RUNS = bench.UniformCount(3, 6)


@dataclass(frozen=True)
class Probe(bench.Method):
    """Plans two steps of DP-SGD and a best-of, and runs whatever the test hands it."""

    name = "probe"
    summary = "Runs what a test hands it."
    reference = "a test"
    tuning = ()
    end_to_end_private = True

    body: Any = field(default=None, compare=False)
    while_planning: Any = field(default=None, compare=False)
    event: Any = field(default=None, compare=False)

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
        if self.while_planning:
            self.while_planning()
        step = bench.poisson_sampled(0.1, bench.gaussian(8.0))
        event = self.event or bench.compose(bench.repeat(step, 2), bench.best_of(TRIAL, RUNS))
        return bench.Plan(budget, event, event, {}, (), bench.Cost(1, 1, 1.0))

    def run(self, plan: bench.Plan, session: Session) -> bench.Outcome:
        return self.body(session)


def finish(session: Session) -> bench.Outcome:
    return bench.Outcome(session.build_model())


def run(body: Any, task: bench.Task | None = None, **options: Any) -> Any:
    return bench.run(
        Probe(body), task or TinyTask(), bench.PrivacyBudget(8.0, 1e-4), **{"seed": 0, "check": False, **options}
    ).record


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("what", ["session", "batch", "closure"])
def test_what_releases_cannot_be_copied(copied: Any, what: str) -> None:
    """A deep copy had a ledger of its own and repeated the noise."""

    def body(session: Session) -> bench.Outcome:
        batch = session.sample(0.1)
        copied({"session": session, "batch": batch, "closure": [session]}[what])
        return finish(session)

    if (what, copied) == ("closure", copy.copy):
        pytest.skip("a shallow copy of a list copies no session")
    with pytest.raises(InvalidValueError, match=r"no copy of it.*Session\.fork"):
        run(body)


@pytest.mark.parametrize("which", ["load_train", "load_test"])
def test_a_method_that_opens_data_by_itself_is_over_budget(which: str) -> None:
    def body(session: Session) -> bench.Outcome:
        with suppress(bench.DphpoBenchError):  # known all the same
            getattr(TinyTask(), which)(DataSource.resolve())
        return finish(session)

    record = run(body)
    assert record.status == "over_budget"
    assert f"{which} of task tiny was called by the method" in record.error


def test_a_plan_that_opens_data_is_refused() -> None:
    def peek() -> None:
        with pytest.raises(SealedDataError):
            TinyTask().load_train(DataSource.resolve())

    with pytest.raises(SealedDataError, match="sees no data while it plans"):
        bench.plan(Probe(while_planning=peek), TinyTask(), bench.PrivacyBudget(8.0, 1e-4))


def test_nothing_is_released_after_the_run() -> None:
    kept: list[Any] = []

    def body(session: Session) -> bench.Outcome:
        kept.extend([session, session.sample(0.1)])
        return finish(session)

    assert run(body).status == "ok"
    session, batch = kept
    with pytest.raises(OverBudgetError, match="comes too late"):
        batch.gradient(session.build_model(), bench.AutoS(), 8.0)
    with pytest.raises(OverBudgetError, match="comes too late"):
        session.nonprivate()


def test_raw_records_are_taken_back(tiny_task) -> None:
    kept = []

    class Raw(Probe):
        end_to_end_private = False

        def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
            return bench.Plan(budget, bench.non_private(), bench.non_private(), {}, (), bench.Cost(1, 1, 1.0))

        def run(self, plan: bench.Plan, session: Session) -> bench.Outcome:
            kept.extend([session.nonprivate(), session.holdout(0.5)[0].nonprivate()])
            assert len(kept[0]) == 600
            return finish(session)

    data = tiny_task.load_train(DataSource.resolve())
    task = bench.ArrayTask("own", (data.inputs, data.targets), nn.Linear(5, 3))
    assert bench.run(Raw(), task, bench.PrivacyBudget(8.0, 1e-4), seed=0).record.status == "ok"
    assert [split.inputs.numel() + split.targets.numel() for split in kept] == [0, 0]
    assert torch.equal(task.load_train(DataSource.resolve()).inputs, data.inputs)  # the curator still has them


def selection(session: Session, keep: list[Any]) -> Any:
    """A best-of whose trials are kept by the method; returns the winner's outcome."""

    def trials(sessions: list[Session]) -> list[bench.Scored]:
        results = []
        for child in sessions:
            score = child.score(child.build_model(), 8.0)
            keep.append((child, child.build_model(), score))
            results.append(bench.Scored(keep[-1], score))
        return results

    return session.best_of(trials, RUNS, TRIAL)


def test_the_winner_may_be_released() -> None:
    def body(session: Session) -> bench.Outcome:
        _, model, score = selection(session, [])
        return bench.Outcome(model, {"score": score})

    assert run(body).status == "ok"


@pytest.mark.parametrize("what", ["model", "score"])
def test_a_loser_may_not_be_released(what: str) -> None:
    def body(session: Session) -> bench.Outcome:
        kept: list[Any] = []
        _, best, _ = selection(session, kept)
        _, model, score = next(trial for trial in kept if trial[1] is not best)
        if what == "model":
            return bench.Outcome(model)
        return bench.Outcome(best, {"path": [{"scores": [score]}]})

    record = run(body)
    assert record.status == "over_budget"
    assert f"releases the {what} of a trial that lost" in record.error
    assert record.released == {}


def test_a_trial_is_over_when_it_has_its_score() -> None:
    def body(session: Session) -> bench.Outcome:
        def trials(sessions: list[Session]) -> list[bench.Scored]:
            kept.extend(sessions)
            return [bench.Scored(None, 0.0) for _ in sessions]  # the trial's own release is left over

        kept: list[Session] = []
        session.best_of(trials, RUNS, TRIAL)
        with pytest.raises(OverBudgetError, match="comes too late"):
            kept[0].score(session.build_model(), 8.0)
        return finish(session)

    assert run(body).status == "ok"


def test_the_order_of_trials_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def winner() -> tuple[int, float]:
        found = []

        def body(session: Session) -> bench.Outcome:
            kept: list[Any] = []
            found.append(selection(session, kept)[2])
            return bench.Outcome(session.build_model(), {"trials": len(kept)})

        return run(body, seed=5).released["trials"], found[0]

    ordered = winner()
    monkeypatch.setattr(Session, "_order", staticmethod(lambda count: list(reversed(range(count)))))
    assert winner() == ordered


def test_of_equal_trials_the_first_wins_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(session: Session) -> bench.Outcome:
        def trials(sessions: list[Session]) -> list[bench.Scored]:
            return [bench.Scored(child.uniform("who"), 0.5) for child in sessions]

        return bench.Outcome(session.build_model(), {"who": session.best_of(trials, RUNS, TRIAL)})

    ordered = run(body).released
    monkeypatch.setattr(Session, "_order", staticmethod(lambda count: list(reversed(range(count)))))
    assert run(body).released == ordered


@pytest.mark.parametrize(("seed", "shown"), [(0, True), (None, False)])
def test_an_error_quotes_nothing_where_data_may_be_private(seed: int | None, shown: bool) -> None:
    def body(session: Session) -> bench.Outcome:
        session.sample(0.1).gradient(session.build_model(), bench.AutoS(), 8.0)
        raise ValueError("the record is 12345")

    error = run(body, seed=seed).error
    assert ("12345" in error) == shown
    assert "ValueError" in error
    assert shown or "test_sealing.py:" in error


def test_an_error_of_a_plug_ins_own_says_no_more_for_being_of_our_kind() -> None:
    def body(session: Session) -> bench.Outcome:
        session.sample(0.1).gradient(session.build_model(), bench.AutoS(), 8.0)
        raise bench.InvalidValueError("the record is 12345")

    assert "12345" not in run(body, seed=None).error


def test_an_error_of_the_engine_is_shown() -> None:
    def body(session: Session) -> bench.Outcome:
        session.sample(0.1).gradient(session.build_model(), bench.AutoS(), 4.0)
        return finish(session)

    record = run(body, seed=None)
    assert record.status == "over_budget"
    assert "does not cover the release" in record.error


def test_an_error_without_a_traceback_has_a_line_too() -> None:
    assert harness.reason_of(ValueError("x"), hide=True).startswith("ValueError; its text may")


def test_a_method_that_opens_data_while_it_is_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Early(Probe):
        def __post_init__(self) -> None:
            with suppress(bench.DphpoBenchError):
                TinyTask().load_test(DataSource.resolve())

    monkeypatch.setattr(registry, "methods", lambda: {"early": registry.Registered(Early, "a test")})
    with pytest.raises(SealedDataError, match="load_test of task tiny was called by the method"):
        registry.make_method("early")


def test_records_read_by_a_class_that_is_no_task_are_sealed_too() -> None:
    class Reader:
        def load_test(self, source: DataSource) -> bench.Split:
            return TinyTask().load_test(source)

    class Mixed(Reader, TinyTask):
        pass

    Mixed().load_test(DataSource.resolve())

    def body(session: Session) -> bench.Outcome:
        with suppress(bench.DphpoBenchError):
            Mixed().load_test(DataSource.resolve())
        return finish(session)

    assert run(body).status == "over_budget"


def test_pairs_are_not_counted() -> None:
    """Outputs of shape (n, classes, 1) were compared with labels as n times n pairs: one record moved a score by n."""

    class Ensemble(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.model(inputs)], dim=-1)

    def body(session: Session) -> bench.Outcome:
        session.best_of(lambda children: [scored(children[0])], RUNS, TRIAL)
        return finish(session)

    def scored(child: Session) -> bench.Scored:
        with pytest.raises(InvalidValueError, match=r"outputs of shape \(n, classes\), got \('n', 3, 1\)"):
            child.score(Ensemble(child.build_model()), 8.0)
        return bench.Scored(None, 0.0)

    assert run(body).status == "ok"


def test_a_loser_that_was_built_elsewhere_may_not_be_released() -> None:
    def body(session: Session) -> bench.Outcome:
        template, tried = session.build_model(), []

        def trials(sessions: list[Session]) -> list[bench.Scored]:
            results = []
            for child in sessions:
                model = copy.deepcopy(template)
                with torch.no_grad():
                    model.weight += len(tried)
                tried.append((child.score(model, 8.0), model))
                results.append(bench.Scored(model, tried[-1][0]))
            return results

        session.best_of(trials, RUNS, TRIAL)
        return bench.Outcome(min(tried, key=lambda pair: pair[0])[1])

    record = run(body)
    assert record.status == "over_budget"
    assert "releases the model of a trial that lost" in record.error


def test_weights_that_two_trials_share_are_nobodys_secret() -> None:
    """A head of zeros that every trial starts from, and the fallback too."""

    def zeros(session: Session) -> nn.Module:
        model = session.build_model()
        nn.init.zeros_(model.weight)
        return model

    def body(session: Session) -> bench.Outcome:
        def trials(sessions: list[Session]) -> list[bench.Scored]:
            for child in sessions:
                child.score(zeros(child), 8.0)
            raise ValueError

        assert session.best_of(trials, RUNS, TRIAL) is None
        return bench.Outcome(zeros(session))

    assert run(body).status == "ok"


def test_a_short_number_is_no_score() -> None:
    def body(session: Session) -> bench.Outcome:
        session.best_of(
            lambda children: [bench.Scored(None, 0.25 * child.uniform("x")) for child in children], RUNS, TRIAL
        )
        session.best_of(
            lambda children: [bench.Scored(None, round(child.uniform("x"), 1)) for child in children], RUNS, TRIAL
        )
        return bench.Outcome(session.build_model(), {"learning_rates": [index / 10 for index in range(10)]})

    many = bench.compose(bench.best_of(TRIAL, RUNS), bench.best_of(TRIAL, RUNS))
    assert bench.run(Probe(body, event=many), TinyTask(), bench.PrivacyBudget(8.0, 1e-4), seed=0).record.status == "ok"


def test_lent_records_that_want_gradients_are_taken_back() -> None:
    """Emptying them raised, and the run left no record."""

    def body(session: Session) -> bench.Outcome:
        session.nonprivate().inputs.requires_grad_()
        return finish(session)

    class Raw(Probe):
        end_to_end_private = False

    method = Raw(body, event=bench.non_private())
    assert bench.run(method, TinyTask(), bench.PrivacyBudget(8.0, 1e-4), seed=0).record.status == "ok"


@pytest.mark.parametrize("where", ["run", "trial"])
def test_leaving_python_is_a_failure(where: str) -> None:
    def body(session: Session) -> bench.Outcome:
        def trials(sessions: list[Session]) -> list[bench.Scored]:
            sys.exit(0)

        if where == "run":
            sys.exit(0)
        assert session.best_of(trials, RUNS, TRIAL) is None
        return finish(session)

    record = run(body)
    assert (record.status, record.error) == (("failed", "SystemExit: 0") if where == "run" else ("ok", None))
