"""DP-FedAvg: what it costs, and that at one local step it is DP-SGD on clients."""

import torch

import dphpo_bench as bench
from dphpo_bench.methods.dp_fedavg import DpFedAvg
from dphpo_bench.methods.dp_sgd import FixedDpSgd
from dphpo_bench.testing import Blobs
from tests.conftest import session_on

TASK = Blobs("mlp", unit="client", n_records=120, batch_size=30)
BUDGET = bench.PrivacyBudget(3, 1e-3)


def weights(method: bench.Method) -> torch.Tensor:
    """On the same random streams, which in a run have the method's name."""
    session = session_on(TASK, TASK.load_train(bench.DataSource.resolve()))
    model = method.run(method.plan(TASK.facts, BUDGET), session).model
    return torch.cat([part.detach().flatten() for part in model.parameters()])


def test_local_steps_cost_nothing_but_time() -> None:
    facts = TASK.facts
    one, five = FixedDpSgd().plan(facts, BUDGET), DpFedAvg().plan(facts, BUDGET)
    assert repr(one.event) == repr(five.event)
    assert five.cost.examples == 5 * one.cost.examples


def test_one_local_step_is_dp_sgd() -> None:
    ours, plain = weights(DpFedAvg(local_steps=1)), weights(FixedDpSgd())
    assert torch.equal(ours, plain)
    assert not torch.allclose(weights(DpFedAvg(local_steps=3, local_rate=1.0)), plain, atol=1e-3)


def test_runs_side_by_side_take_their_local_steps() -> None:
    run = DpFedAvg(local_steps=3, local_rate=1.0).plan(TASK.facts, BUDGET).parameters
    alone, *sessions = (session_on(TASK, TASK.load_train(bench.DataSource.resolve())) for _ in range(3))
    expected = run.train(alone)
    for model in run.train_together(sessions, [run, run]):
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(ours, theirs)
