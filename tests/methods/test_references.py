"""References that are not private: they say so, and they are what they claim to be."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.methods.dp_sgd import FixedDpSgd
from dphpo_bench.methods.grid_oracle import GridOracle
from dphpo_bench.methods.grid_oracle_schedule import GridOracleSchedule
from dphpo_bench.methods.noiseless import Noiseless
from dphpo_bench.methods.nonprivate import NonPrivate
from tests.conftest import TinyTask, session_on


def test_an_oracles_run_has_the_noise_of_one_run() -> None:
    facts, budget = TinyTask().facts, bench.PrivacyBudget(3, 1e-5)
    plan = GridOracle().plan(facts, budget)
    one = FixedDpSgd(clipping="auto_s").plan(facts, budget)
    assert plan.parameters == one.parameters
    assert plan.releases == one.releases
    assert 0.99 * 3 <= bench.events.epsilon(plan.training_event, 1e-5).epsilon <= 3
    assert plan.cost.runs == 8
    assert plan.cost.examples == pytest.approx(one.cost.examples * (1 + 7 * 0.9) + 7 * 0.1 * facts.n_records)


@pytest.mark.parametrize("method", [GridOracle, GridOracleSchedule])
def test_an_oracle_takes_the_best_of_its_grid(plain_run, method: type[GridOracle]) -> None:
    record = plain_run(method(points=4)).record
    rates = [candidate["learning_rate"] for candidate in record.released["candidates"]]
    scores = [candidate["score"] for candidate in record.released["candidates"]]
    assert rates == pytest.approx([1e-4, 10 ** (-8 / 3), 10 ** (-4 / 3), 1.0])
    assert record.released["learning_rate"] == rates[scores.index(max(scores))]
    assert min(scores) < 0.7 < max(scores)
    # Six hundred records, a tenth of them held out: raw scores are whole numbers of sixtieths.
    assert all(score * 60 == pytest.approx(round(score * 60)) for score in scores)
    trained = [entry for entry in record.privacy.ledger["entries"] if entry["count"] == 4 * 30]
    assert trained, "every candidate is trained, and charged, on the records that do not judge it"


def test_an_oracle_refines_its_grid_around_the_best(plain_run) -> None:
    record = plain_run(GridOracle(points=4, refinements=2)).record
    ninths = [round(9 * (4 + math.log10(each["learning_rate"]))) for each in record.released["candidates"]]
    score = dict(zip(ninths, [each["score"] for each in record.released["candidates"]], strict=True))
    expected = [0, 12, 24, 36]
    for half in (6, 3):
        best = max(expected, key=score.__getitem__)
        expected += [place for place in (best - half, best + half) if 0 <= place <= 36]
    assert ninths == expected
    assert (
        record.released["learning_rate"]
        == max(record.released["candidates"], key=lambda each: each["score"])["learning_rate"]
    )
    facts, budget = TinyTask().facts, bench.PrivacyBudget(3, 1e-5)
    assert GridOracle(points=4, refinements=2).plan(facts, budget).cost.runs == 4 + 2 * 2 + 1


class RareClass(TinyTask):
    """Ranked by the area under the curve of a binary task, of which a tenth is positive."""

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, kind="binary", n_classes=None)

    @property
    def metrics(self) -> tuple[bench.metrics.Metric, ...]:
        return (bench.metrics.ROC_AUC,)

    def _split(self, n: int, seed: int) -> bench.Records:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(n, 5, generator=generator)
        return bench.Records(inputs, (inputs[:, 0] + torch.randn(n, generator=generator) > 1.8).float())

    def build_model(self) -> nn.Module:
        return nn.Linear(5, 1)


def held_out_of(task: bench.Task) -> tuple[bench.Session, bench.Records]:
    """A session on the records that judge, and these records."""
    session = session_on(task, task.load_train(None))  # type: ignore[arg-type]
    _, validation = session.holdout(GridOracle().validation)
    return validation, validation.nonprivate()


def test_an_oracle_can_be_judged_by_the_ranking_metric() -> None:
    """By its definition: the share of pairs of a positive and a negative record whose outputs are in order."""
    result = bench.run(GridOracle(points=3, judge="metric"), RareClass(), bench.PrivacyBudget(3, 1e-5), seed=0)
    record = result.record
    assert record.status == "ok", record.error
    scores = [candidate["score"] for candidate in record.released["candidates"]]
    rates = [candidate["learning_rate"] for candidate in record.released["candidates"]]
    assert record.released["learning_rate"] == rates[scores.index(max(scores))]
    by_score = bench.run(GridOracle(points=3), RareClass(), bench.PrivacyBudget(3, 1e-5), seed=0).record
    raw = [candidate["score"] for candidate in by_score.released["candidates"]]
    assert scores != raw
    assert record.privacy is not None
    assert record.privacy.recomputed is not None
    assert record.privacy.recomputed.epsilon == math.inf
    # A tenth of 600 records: pairs of a few positives and the others.
    validation, records = held_out_of(RareClass())
    positives = int(records.targets.sum())  # type: ignore[union-attr]
    pairs = positives * (len(records) - positives)
    assert all(score * 2 * pairs == pytest.approx(round(score * 2 * pairs), abs=1e-6) for score in scores)
    model = nn.Linear(5, 1)
    outputs = model(records.inputs).flatten()
    up, down = (outputs[records.targets == of] for of in (1, 0))
    in_order = float((up[:, None] > down).double().mean())
    assert validation.objective.quality(model, records) == pytest.approx(in_order)


def test_nonprivate_trains_as_autograd_does(tiny_task: TinyTask, budget) -> None:
    """On one minibatch of everything, at a fixed rate, it is plain gradient descent with momentum."""
    method = NonPrivate(learning_rate=0.1, optimizer="SGD", batch_size=600, epochs=3)
    result = bench.run(method, tiny_task, budget, seed=0)
    assert result.record.released == {"learning_rate": 0.1}
    assert result.record.cost.runs == 1
    train = tiny_task.load_train(None)  # type: ignore[arg-type]
    model = session_on(tiny_task, train).build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 3)) / 2
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(train.inputs), train.targets).backward()
        optimizer.step()
    torch.testing.assert_close(list(result.model.parameters()), list(model.parameters()))


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_noiseless_is_dp_sgd_without_its_noise(tiny_task: TinyTask, budget, schedule: str) -> None:
    """On full batches it is descent along the mean of clipped gradients, and its ε is infinite."""
    method = Noiseless(
        clipping="abadi:0.5",
        learning_rate=0.1,
        optimizer="SGD",
        batch_size=600,
        epochs=4,
        averaging=0.0,
        schedule=schedule,
    )
    result = bench.run(method, tiny_task, budget, seed=0)
    assert result.record.privacy.epsilon == math.inf
    assert result.record.privacy.end_to_end_private is False
    train = tiny_task.load_train(None)  # type: ignore[arg-type]
    model = session_on(tiny_task, train).build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        if schedule == "linear":
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 4)
        total = [torch.zeros_like(value) for value in model.parameters()]
        for one, target in zip(train.inputs, train.targets, strict=True):
            loss = torch.nn.functional.cross_entropy(model(one[None]), target[None])
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            share = min(1.0, 0.5 / float(torch.cat([part.flatten() for part in gradient]).norm()))
            for whole, part in zip(total, gradient, strict=True):
                whole += share * part / len(train)
        for value, whole in zip(model.parameters(), total, strict=True):
            value.grad = whole
        optimizer.step()
    torch.testing.assert_close(list(result.model.parameters()), list(model.parameters()), rtol=1e-4, atol=1e-5)
