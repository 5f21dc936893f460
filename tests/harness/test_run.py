"""Plan, run, verify: what the harness believes, refuses and records."""

import itertools
import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError, InvalidValueError, PlanOverBudgetError, RecordError
from dphpo_bench.base.progress import NullProgress, TerminalProgress
from dphpo_bench.harness import journal
from dphpo_bench.harness.state import Run
from dphpo_bench.harness.training import verify
from dphpo_bench.privacy.events import best_of, gaussian
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import geometric
from tests.own_task import array_task


def test_a_plan_over_budget_is_refused_before_data_is_read(fixed_noise, tiny_task, budget, monkeypatch) -> None:
    monkeypatch.setattr(type(tiny_task), "load_train", lambda *_: pytest.fail("private data were read"))
    with pytest.raises(PlanOverBudgetError, match=r"costs epsilon=.*more than the budget epsilon=3"):
        bench.run(fixed_noise(noise_multiplier=0.5), tiny_task, budget, seed=0)


def test_a_delta_of_one_over_n_is_warned_about(fixed_noise, tiny_task) -> None:
    with pytest.warns(UserWarning, match="not below 1/N"):
        bench.plan(fixed_noise(), tiny_task, bench.PrivacyBudget(3, 1 / tiny_task.n_records))


def test_a_finished_run(fixed_noise, plain_run) -> None:
    result = plain_run(fixed_noise())
    record = result.record
    assert record.status == "ok"
    assert record.error is None
    assert record.privacy.recomputed.by_accountant == record.privacy.planned.by_accountant
    assert 0 < record.privacy.epsilon <= 3
    assert record.metrics["accuracy"] > 0.6  # three classes: chance is 1/3
    assert record.released == {"steps": 6}
    assert result.path is None


def test_more_releases_than_planned_are_refused_and_recorded(fixed_noise, plain_run) -> None:
    result = plain_run(fixed_noise(extra_steps=1))
    assert result.record.status == "over_budget"
    assert result.record.metrics == {}
    assert result.record.released == {}
    assert result.model is None
    assert result.record.privacy.recomputed.epsilon <= result.record.privacy.planned.epsilon


def test_verification_does_not_rely_on_the_ledgers_own_refusal(fixed_noise, tiny_task, budget) -> None:
    checked = bench.plan(fixed_noise(), tiny_task, budget)
    ledger = Ledger()  # no allowance: refuses nothing
    for _ in range(7):
        ledger.open_batch(tiny_task.facts.sample_rate, bench.events.gaussian(4.0))
    run = Run(checked=checked, task=tiny_task, ledger=ledger)
    verify(run)
    assert run.status == "over_budget"
    assert run.recomputed is not None
    assert run.recomputed.epsilon > checked.epsilon.epsilon
    assert "more than the planned" in str(run.error)


def test_fewer_releases_than_planned_quote_the_plan(fixed_noise, plain_run) -> None:
    privacy = plain_run(fixed_noise(extra_steps=-3)).record.privacy
    assert privacy.recomputed.epsilon < privacy.planned.epsilon == privacy.epsilon
    assert privacy.risk == plain_run(fixed_noise()).record.privacy.risk


@pytest.mark.parametrize(
    ("fault", "message"), [("raise", "ZeroDivisionError: a bug in the method"), ("nan", "not finite")]
)
def test_a_failure_is_a_result(fixed_noise, plain_run, fault: str, message: str) -> None:
    result = plain_run(fixed_noise(fault=fault))
    assert result.record.status == "failed"
    assert message in result.record.error
    assert result.record.privacy.recomputed.epsilon > 0
    assert result.model is None


def test_a_model_of_other_classes_fails(fixed_noise, plain_run) -> None:
    class Returns(fixed_noise):
        def _end(self, model):
            return bench.Outcome(torch.nn.Linear(model.in_features, model.out_features + 4), {})

    result = plain_run(Returns())
    assert result.record.status == "failed"
    assert "outputs, one for each class, got outputs of shape" in result.record.error
    assert result.record.metrics == {}


def test_parameters_that_are_no_fields_are_refused(fixed_noise, plain_run) -> None:
    """The identity would say nothing of them: the record of one method would pass for that of the other."""

    class Own(fixed_noise):
        def __init__(self, rate: float) -> None:
            super().__init__()
            object.__setattr__(self, "rate", rate)

    with pytest.raises(
        bench.errors.InvalidValueError, match="the parameters of Own to be fields, got rate beside them"
    ):
        plain_run(Own(0.1))


def test_an_interrupt_leaves_no_record(fixed_noise, plain_run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        plain_run(fixed_noise(fault="interrupt"), results_dir=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_same_seed_gives_the_same_run_and_another_seed_another(fixed_noise, plain_run) -> None:
    def weights(seed: int | None) -> torch.Tensor:
        model = plain_run(fixed_noise(), seed=seed).model
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert not torch.equal(weights(None), weights(None))


def test_a_task_that_lies_about_n_is_refused(fixed_noise, tiny_task, budget, monkeypatch) -> None:
    monkeypatch.setattr(type(tiny_task), "load_train", lambda self, _: self._split(599, 1))
    with pytest.raises(DataError, match="declares N=600 public training records but loads 599"):
        bench.run(fixed_noise(), tiny_task, budget, seed=0)


def test_only_infinity_excuses_a_reference_from_the_budget(fixed_noise, tiny_task, budget) -> None:
    class Careless(fixed_noise):
        end_to_end_private = False

    with pytest.raises(PlanOverBudgetError):
        bench.plan(Careless(noise_multiplier=0.5), tiny_task, budget)


def test_a_reference_has_an_infinite_epsilon_whatever_it_plans(fixed_noise, tiny_task, budget) -> None:
    """Such as that of its last training alone. Tables, statements and models would say so."""

    class Reference(fixed_noise):
        end_to_end_private = False

    assert bench.plan(Reference(), tiny_task, budget).epsilon.epsilon == math.inf
    privacy = bench.run(Reference(), tiny_task, budget, seed=0).record.privacy
    assert (privacy.planned.epsilon, privacy.epsilon) == (math.inf, math.inf)
    assert privacy.recomputed.epsilon < budget.epsilon


def test_a_metric_that_raises_costs_no_model(fixed_noise, tiny_task, budget, tmp_path, monkeypatch) -> None:
    """It has been paid for: the run failed, and the model is there, from `run` and from its error; the record tells
    what was released."""

    class Telling(fixed_noise):
        def _end(self, model):
            return bench.Outcome(model, {"learning_rate": 0.5})

    broken = bench.metrics.Metric("broken", True, lambda *_: 1 / 0)
    monkeypatch.setattr(type(tiny_task), "metrics", (broken,))
    result = bench.run(Telling(), tiny_task, budget, seed=0, check=False)
    assert (result.record.status, result.record.metrics) == ("failed", {})
    assert result.record.released == {"learning_rate": 0.5}
    assert result.record.error == "The metric broken cannot be computed: division by zero."
    saved = result.save(tmp_path / "model.safetensors")
    with pytest.raises(bench.errors.RunFailedError, match="this error's `model`") as caught:
        bench.run(Telling(), tiny_task, budget, seed=0)
    weights = caught.value.model.state_dict()
    assert all(torch.equal(weights[name], one) for name, one in load_file(saved).items())


def test_released_values_that_json_cannot_hold_fail_the_run(fixed_noise, plain_run) -> None:
    class Leaky(fixed_noise):
        def _end(self, model):
            return bench.Outcome(model, {"weights": torch.zeros(3)})

    record = plain_run(Leaky()).record
    assert record.status == "failed"
    assert "JSON" in record.error
    assert record.released == {}


TRIALS: list[None] = []
"""An item for each trial that has run."""


def count_trial() -> None:
    TRIALS.append(None)


def searching(interrupted: bool = False) -> bench.Method:
    """A private selection whose trials release nothing but noise; it is interrupted if asked to."""

    class Searching(bench.Method):
        name, summary, reference, tuning = "searching", "Searches.", "a test", ()
        end_to_end_private = True
        parameters: ClassVar[dict[str, object]] = {}
        event = best_of(gaussian(50.0), geometric(20))

        def plan(self, facts, budget):
            return bench.Plan(budget, self.event, self.event, None, (), bench.Cost(20, 0, 0.0), accountant="profile")

        def run(self, plan, session):
            def trial(own):
                count_trial()
                return bench.search.TrialResult(None, bench.recipes.mean_score(own, own.build_model(), 50.0))

            session.best_of(trial, geometric(20), gaussian(50.0))
            if interrupted:
                raise KeyboardInterrupt
            return bench.Outcome(session.build_model())

    return Searching()


def test_the_accountant_of_the_plan_is_the_one_quoted(plain_run) -> None:
    privacy = plain_run(searching()).record.privacy
    assert privacy.planned.accountant == privacy.recomputed.accountant == "profile"
    assert privacy.epsilon == privacy.planned.by_accountant["profile"]
    assert min(privacy.planned.by_accountant.values()) < privacy.epsilon  # another bound is tighter, and stored


def test_the_number_of_trials_is_not_in_the_record(tiny_task, budget, tmp_path) -> None:
    record = bench.run(searching(), tiny_task, budget, results_dir=tmp_path).record
    assert "train" not in record.seconds
    assert record.peak_memory_bytes is None
    assert (record.created.hour, record.created.minute, record.created.second) == (0, 0, 0)
    assert record.cost.runs == 20  # the expected number
    assert "train" in bench.run(searching(), tiny_task, budget, seed=0).record.seconds


def test_the_number_of_trials_is_not_in_the_log(tiny_task, budget, capsys) -> None:
    bench.run(searching(), tiny_task, budget, progress=TerminalProgress())
    shown = capsys.readouterr().err
    assert "is a secret" in shown
    assert "Trials" not in shown
    bench.run(searching(), tiny_task, budget, seed=0, progress=TerminalProgress())
    assert "Trials: " in capsys.readouterr().err


def test_an_interrupted_run_goes_on_only_where_sums_are_rounded_as_before(
    tiny_task, budget, tmp_path, monkeypatch
) -> None:
    """The same noise on sums that differ in their last bits would show the difference."""
    with pytest.raises(KeyboardInterrupt):
        bench.run(searching(interrupted=True), tiny_task, budget, results_dir=tmp_path)
    monkeypatch.setattr(journal, "_remembered", set())  # as in a new process
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        with pytest.raises(RecordError, match="another number of threads"):
            bench.run(searching(), tiny_task, budget, results_dir=tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert bench.run(searching(), tiny_task, budget, results_dir=tmp_path).record.status == "ok"


def test_a_run_that_was_killed_does_not_redraw_the_number_of_trials(tiny_task, budget, tmp_path, monkeypatch) -> None:
    """Without the journal, five geometric numbers of mean 20 agree with a probability below 1e-6."""
    totals = [len(TRIALS)]
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            bench.run(searching(interrupted=True), tiny_task, budget, results_dir=tmp_path)
        monkeypatch.setattr(journal, "_remembered", set())  # as in a new process
        totals.append(len(TRIALS))
    bench.run(searching(), tiny_task, budget, results_dir=tmp_path)
    totals.append(len(TRIALS))
    assert len({after - before for before, after in itertools.pairwise(totals)}) == 1
    assert totals[1] > totals[0]
    assert not list((tmp_path / ".unfinished").iterdir())  # recorded, so forgotten


BUDGET = bench.PrivacyBudget(3.0, 1e-4)


def task(model: nn.Module, **options: object) -> bench.ArrayTask:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((200, 4)).astype(np.float32), rng.integers(0, 2, 200)
    return array_task("own", data, model, batch_size=100, epochs=2, public=True, **options)


def test_losses_that_are_never_finite_are_refused() -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.log(-torch.ones(len(targets))) * outputs.sum(-1)

    with pytest.raises(InvalidValueError, match="Expected losses that are finite"):
        task(nn.Linear(4, 2), losses=losses)


def test_scores_that_raise_are_refused() -> None:
    def scores(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("not yet written")

    with pytest.raises(InvalidValueError, match="No score can be computed from the model's outputs: not yet written"):
        task(nn.Linear(4, 2), scores=scores)


def test_a_number_is_no_budget() -> None:
    with pytest.raises(InvalidValueError, match="Expected budget to be PrivacyBudget"):
        bench.run("dp_sgd", task(nn.Linear(4, 2)), 3, seed=0, progress=NullProgress())  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="got epsilon='3'"):
        bench.PrivacyBudget("3", 1e-5)  # type: ignore[arg-type]
