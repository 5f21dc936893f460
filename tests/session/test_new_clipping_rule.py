"""A clipping rule in one class: its text, its training, its record, and what a session asks it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.methods.dp_sgd import FixedDpSgd
from dphpo_bench.training.gradients import gradient_engine
from tests.conftest import TinyTask, session_on

asked: list[int] = []


@dataclass(frozen=True)
class Halves(bench.clipping.Clipping):
    """A rule of a plug-in: gradients are halved, and clipped to `largest`."""

    name = "halves"
    interpolated = True
    largest: float = 1.0

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        return self.largest

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        asked.append(len(norms))
        return (self.largest / norms).clamp(max=0.5)


def test_a_new_rule_is_one_class(tiny_task: Any) -> None:
    rule = bench.clipping.parse_clipping("halves:0.3")
    assert (rule, bench.clipping.parse_clipping("HALVES")) == (Halves(0.3), Halves())
    record = bench.run(FixedDpSgd(clipping="halves:0.3"), tiny_task, bench.PrivacyBudget(3, 1e-4), seed=0).record
    assert (record.status, record.identity.parameters["clipping"]) == ("ok", "halves:0.3")
    assert set(asked) == {4097}  # made-up norms, never those of records
    train = tiny_task.load_train(bench.DataSource.resolve())
    session = session_on(tiny_task, train)
    model = session.build_model()
    batch = session.sample(bench.events.poisson_sampled(1.0, bench.events.gaussian(1e-6)))
    mean = torch.cat([part.flatten() for part in batch.gradient(model, rule, 1e-6)])
    total = gradient_engine(model).clipped_sum(train.inputs, train.targets, rule)
    expected = torch.cat([part.flatten() for part in total]) / len(train)
    torch.testing.assert_close(mean.double(), expected, rtol=1e-3, atol=1e-5)


class Silent(bench.clipping.Clipping):
    sensitivity = 1.0

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return (1 / norms).clamp(max=1.0)


class Inherits(bench.clipping.Abadi):
    """It says, like Abadi, that a session may ask it about the norms of records."""


@pytest.mark.parametrize("rule", [Silent(), Inherits(0.5), object()])
def test_a_rule_that_does_not_say_how_it_is_held_is_refused(rule: Any) -> None:
    task = TinyTask()
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    batch = session.sample(bench.events.poisson_sampled(0.1, bench.events.gaussian(4.0)))
    with pytest.raises(bench.errors.InvalidValueError, match=r"sets interpolated = True, got (Silent|Inherits|object)"):
        batch.gradient(session.build_model(), rule, 4.0)
