"""Mistakes of plug-ins with a session, and why they release nothing."""

import copy
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.flop_counter import FlopCounterMode

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, ModelFailedError, OverBudgetError, SealedDataError
from dphpo_bench.contract import registry
from dphpo_bench.data.source import DataSource
from dphpo_bench.session.batch import gradients_together
from dphpo_bench.session.session import Session
from tests.conftest import TinyTask

TRIAL = bench.events.gaussian(8.0)
RUNS = bench.search.UniformCount(3, 6)
STEP = bench.events.poisson_sampled(0.1, bench.events.gaussian(8.0))


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
        event = self.event or bench.events.compose(bench.events.repeat(STEP, 2), bench.events.best_of(TRIAL, RUNS))
        return bench.Plan(budget, event, event, None, (), bench.Cost(1, 1, 1.0))

    def run(self, plan: bench.Plan, session: Session) -> bench.Outcome:
        return self.body(session)


def finish(session: Session) -> bench.Outcome:
    return bench.Outcome(session.build_model())


def run(body: Any, task: bench.Task | None = None, event: Any = None, **options: Any) -> Any:
    options = {"seed": 0, "check": False, **options}
    return bench.run(Probe(body, event=event), task or TinyTask(), bench.PrivacyBudget(8.0, 1e-4), **options).record


class Built(TinyTask):
    """The tiny task with another model."""

    def __init__(self, build: Any) -> None:
        super().__init__()
        self.build_model = build


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("what", ["session", "batch"])
def test_what_releases_cannot_be_copied(copied: Any, what: str) -> None:
    """A deep copy had a ledger of its own and repeated the noise."""

    def body(session: Session) -> bench.Outcome:
        copied({"session": session, "batch": session.sample(STEP)}[what])
        return finish(session)

    record = run(body)
    assert record.status == "failed"
    assert re.search(r"no copy of it.*Session\.fork", record.error)


def test_nothing_is_released_after_the_run() -> None:
    kept: list[Any] = []

    def body(session: Session) -> bench.Outcome:
        kept.extend([session, session.sample(STEP)])
        return finish(session)

    assert run(body).status == "ok"
    session, batch = kept
    with pytest.raises(OverBudgetError, match="comes too late"):
        batch.gradient(session.build_model(), bench.clipping.AutoS(), 8.0)
    with pytest.raises(OverBudgetError, match="comes too late"):
        session.nonprivate()


def test_raw_records_are_taken_back(tiny_task) -> None:
    kept = []

    class Raw(Probe):
        end_to_end_private = False

        def plan(self, facts: bench.TaskFacts, budget: bench.PrivacyBudget) -> bench.Plan:
            return bench.Plan(
                budget, bench.events.non_private(), bench.events.non_private(), None, (), bench.Cost(1, 1, 1.0)
            )

        def run(self, plan: bench.Plan, session: Session) -> bench.Outcome:
            kept.extend([session.nonprivate(), session.holdout(0.5)[0].nonprivate()])
            kept[0].inputs.requires_grad_()  # emptying them raised, and the run left no record
            assert len(kept[0]) == 600
            return finish(session)

    data = tiny_task.load_train(DataSource.resolve())
    task = bench.ArrayTask("own", (data.inputs, data.targets), nn.Linear(5, 3))
    run = bench.run(Raw(), task, bench.PrivacyBudget(8.0, 1e-4), seed=0, account=bench.AccountOptions(not_private=True))
    assert run.record.status == "ok"
    assert [split.inputs.numel() + split.targets.numel() for split in kept] == [0, 0]
    assert torch.equal(task.load_train(DataSource.resolve()).inputs, data.inputs)  # the curator still has them


@pytest.mark.parametrize(("seed", "shown"), [(0, True), (None, False)])
def test_an_error_quotes_nothing_where_data_may_be_private(seed: int | None, shown: bool) -> None:
    def body(session: Session) -> bench.Outcome:
        session.sample(STEP).gradient(session.build_model(), bench.clipping.AutoS(), 8.0)
        raise error("the record is 12345")

    error = ValueError
    text = run(body, seed=seed).error
    assert ("12345" in text) == shown
    assert "ValueError" in text
    assert shown or "test_sealing.py:" in text
    error = bench.errors.InvalidValueError  # of our kind, and no word more
    assert shown or "12345" not in run(body, seed=seed).error


@pytest.mark.parametrize("way", ["thread", "parameters", "forward"])
def test_records_are_sealed_whoever_asks(way: str) -> None:
    """From the first word of a method to the last use of its model."""
    records: list[Any] = []

    def load() -> None:
        with suppress(bench.errors.DphpoBenchError):
            records.append(TinyTask().load_test(DataSource.resolve()))

    class Nosy(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            load()
            return super().forward(inputs)

    class Telling(Probe):
        @property
        def parameters(self) -> dict[str, Any]:
            load()
            return {}

    def body(session: Session) -> bench.Outcome:
        if way == "thread":
            (thread := threading.Thread(target=load)).start()
            thread.join()
        return bench.Outcome(Nosy(5, 3) if way == "forward" else session.build_model())

    method = (Telling if way == "parameters" else Probe)(body)
    try:
        record = bench.run(method, TinyTask(), bench.PrivacyBudget(8.0, 1e-4), seed=0, check=False).record
    except SealedDataError:
        assert way == "parameters"
    else:
        assert record.status in ("over_budget", "failed")
    assert records == []


def test_a_method_that_opens_data_while_it_is_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Early(Probe):
        def __post_init__(self) -> None:
            with suppress(bench.errors.DphpoBenchError):
                TinyTask().load_test(DataSource.resolve())

    monkeypatch.setattr(registry, "methods", lambda: {"early": registry.Registered(Early, "a test")})
    with pytest.raises(SealedDataError, match="load_test of task tiny was called by the method"):
        registry.make_method("early")


class Ensemble(nn.Module):
    """Outputs of shape (n, classes, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.model(inputs)], dim=-1)


def test_pairs_are_not_counted() -> None:
    """Outputs of shape (n, classes, 1) were compared with labels as n times n pairs: one record moved a score by n."""

    def body(session: Session) -> bench.Outcome:
        with pytest.raises(InvalidValueError, match=r"one score for each record, shape \(1,\), got \(1, 1\)"):
            bench.recipes.mean_score(session, session.build_model(), 8.0)
        return bench.Outcome(nn.Linear(5, 3))

    assert run(body, Built(Ensemble), event=TRIAL).status == "ok"


@pytest.mark.parametrize("where", ["run", "trial"])
def test_leaving_python_is_a_failure(where: str) -> None:
    def body(session: Session) -> bench.Outcome:
        if where == "run":
            sys.exit(0)
        assert session.best_of(lambda _: sys.exit(0), RUNS, TRIAL) is None
        return finish(session)

    record = run(body)
    assert record.status == ("failed" if where == "run" else "ok")
    assert (record.error or "").startswith("SystemExit: 0" if where == "run" else "")


# ------------------------------------------------------------------------------------------- what watches


class Watching(nn.Linear):
    """Keeps what it sees outside of itself."""

    seen: ClassVar[list[torch.Tensor]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen.append(inputs)
        return super().forward(inputs)


def test_a_method_s_model_meets_no_record() -> None:
    """Its weights are taken, and the run is the one of the model that the task built."""
    step = bench.events.gaussian(8.0)
    asked = bench.events.poisson_sampled(1.0, bench.events.repeat(step, 4))
    whole = bench.events.poisson_sampled(1.0, step)

    def body(session: Session, own: type[nn.Linear] = Watching) -> bench.Outcome:
        model, clipping = own(5, 3), bench.clipping.AutoS()
        model.load_state_dict(session.build_model().state_dict())
        batch = session.sample(asked)
        along = batch.gradient(model, clipping, 8.0)
        batches = [session.sample(whole), session.sample(whole)]
        together = gradients_together(batches, [model, session.build_model()], [clipping] * 2, [8.0, 8.0])
        released = [
            bench.recipes.mean_score(session, model, 8.0),
            bench.recipes.mean_losses(batch, model, along, (0.0, 0.1), 1.0, 8.0),
            bench.recipes.rising_share(batch, model, along, (0.1,), 2.0, 8.0),
            [float(part.sum()) for part in (*along, *together[0])],
        ]
        return bench.Outcome(session.build_model(), {"released": released})

    Watching.seen.clear()
    event = bench.events.compose(step, asked, whole, whole)
    watched = run(body, event=event)
    assert watched.status == "ok"
    assert Watching.seen == []
    assert watched.released == run(lambda session: body(session, nn.Linear), event=event).released


@contextmanager
def hooked(register: Any) -> Iterator[None]:
    handle = register(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (lambda: FlopCounterMode(display=False), "no mode of torch"),
        (lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x), "no mode of torch"),
        (lambda: hooked(nn.modules.module.register_module_forward_hook), "without hooks"),
        (lambda: hooked(register_optimizer_step_pre_hook), "without hooks"),
    ],
)
def test_what_sees_everything_in_torch_is_refused(mode: Any, words: str) -> None:
    def body(session: Session) -> bench.Outcome:
        model = session.build_model()
        with mode(), pytest.raises(InvalidValueError, match=words):
            bench.recipes.mean_score(session, model, 8.0)
        return finish(session)

    assert run(body).status == "ok"


class Choosy(nn.Module):
    """Raises where a record has a large first number: a bit without noise."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if (inputs[:, 0] > 4).any():  # no made-up record has such a number
            raise ValueError(f"the record is {inputs[0]}")
        return self.model(inputs)


def test_an_exception_of_a_model_is_the_end_of_a_run() -> None:
    def body(session: Session) -> bench.Outcome:
        model = session.build_model()
        with pytest.raises(ModelFailedError) as caught:
            bench.recipes.mean_score(session, model, 8.0)
        assert caught.value.__context__ is None
        assert "ValueError" in str(caught.value)
        assert "record is" not in str(caught.value)
        with suppress(bench.errors.DphpoBenchError):
            bench.recipes.mean_score(session, model, 8.0)
        return finish(session)

    record = run(body, Built(Choosy), event=bench.events.repeat(TRIAL, 2))
    assert record.status == "failed"
    assert "The model raised ValueError on private records" in record.error
    assert "record is" not in record.error


def test_an_exception_of_a_model_in_a_trial_is_the_end_of_the_run() -> None:
    """Also of a trial that catches it and says that all is well: that all trials lost would be a bit without noise."""

    def trial(own: Session) -> bench.search.TrialResult:
        with suppress(ModelFailedError):
            bench.recipes.mean_score(own, own.build_model(), 8.0)
        return bench.search.TrialResult("won", 1.0)

    def body(session: Session) -> bench.Outcome:
        return bench.Outcome(nn.Linear(5, 3), {"best": session.best_of(trial, RUNS, TRIAL)})

    record = run(body, Built(Choosy))
    assert record.status == "failed"
    assert "The model raised ValueError on private records" in record.error


def test_a_failure_in_sealed_utilities_is_counted(tmp_path: Path) -> None:
    """The account took the run back, since the parts' ledgers are thrown away: a membership test without a price."""

    def body(session: Session) -> bench.Outcome:
        session.sealed_utilities([bench.recipes.DpSgd(1.0, 2, 0.0, 0.1)], 2, 0.5)
        return bench.Outcome(nn.Linear(5, 3))

    task = Built(Choosy)
    task.public = False
    with pytest.warns(UserWarning, match="whoever learns a seed"):
        record = run(body, task, results_dir=tmp_path)
    assert (record.status, record.privacy.ledger["entries"]) == ("failed", [])
    assert not record.asked_nothing
    assert "trained on" not in record.privacy.ledger["failed"]
    report = bench.account(tmp_path)
    assert (len(report.releases), report.uncounted) == (1, ())


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 3), nn.Dropout(0.5), nn.Linear(3, 3))


def test_masks_are_secret_and_tell_no_batch_size() -> None:
    """They came from the global generator: known, and its state said how many records were drawn."""

    def body(session: Session) -> bench.Outcome:
        model, states = session.build_model(), []
        kind = bench.events.poisson_sampled(0.5, bench.events.gaussian(8.0))
        for _ in range(3):
            torch.manual_seed(0)
            session.sample(kind).gradient(model, bench.clipping.AutoS(), 8.0)
            states.append(torch.rand(()).item())
        return bench.Outcome(nn.Linear(5, 3), {"states": states})

    record = run(
        body,
        Built(Dropping),
        event=bench.events.repeat(bench.events.poisson_sampled(0.5, bench.events.gaussian(8.0)), 3),
    )
    assert record.status == "ok"
    torch.manual_seed(0)
    assert record.released["states"] == [torch.rand(()).item()] * 3
