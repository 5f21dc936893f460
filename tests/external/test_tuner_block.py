"""A tuner as loops hold it: in a block that ends by itself, and as an optimiser."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from tests.external.loops import STEPS, TRAIN, network, private, tuner_of

pytestmark = pytest.mark.filterwarnings("ignore:No account counts", "ignore:.*hook", "ignore:Secure RNG")


def test_a_block_finishes_at_its_end(tmp_path: Path) -> None:
    with tuner_of(network(), results_dir=tmp_path) as tuner:
        for _ in range(STEPS):
            tuner.backward()
            tuner.step()
    assert tuner.finished is not None
    assert tuner.finished.record.status == "ok"
    with pytest.raises(InvalidValueError, match="Expected finish"):
        tuner.finish()
    with tuner_of(network(), results_dir=tmp_path, steps=1, name="other") as tuner:
        tuner.backward()
        tuner.step()
        finished = tuner.finish(metrics={"accuracy": 0.5})
    assert tuner.finished is finished


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_block_that_an_error_leaves_fails_and_stays_counted(error: Any, steps: int, tmp_path: Path) -> None:
    """Its gradients were released, so the account keeps it. The text of the error may quote a record."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tuner = tuner_of(model, results_dir=tmp_path)

    def loop() -> None:
        with tuner:
            tuner.attach(optimizer)
            for _ in range(steps):
                tuner.backward()
                tuner.step()
            raise error("of a record")

    with pytest.raises(error):
        loop()
    assert "step" not in vars(optimizer)
    for more in (tuner.backward, tuner.finish):
        with pytest.raises(InvalidValueError):
            more()
    if not steps:
        assert not [*tmp_path.iterdir()]
        return
    (entry,), (path,) = bench.account(tmp_path).releases, tmp_path.glob("blobs/**/*.json")
    record = bench.read_record(path)
    assert (entry.status, record.status, record.error) == ("failed", "failed", f"{error.__name__} ended the loop.")
    assert record.privacy is not None
    assert record.privacy.epsilon == pytest.approx(bench.account(tmp_path).totals[0].together)
    assert tuner.finished is not None
    assert tuner.finished.record == record


@pytest.mark.parametrize("by_opacus", [False, True])
def test_a_loop_holds_the_tuner_as_its_optimiser(by_opacus: bool) -> None:
    model = network()
    tuner = tuner_of(model, steps=2)
    module: Any = model
    if by_opacus:
        module, optimizer, loader, accountant = private(model, tuner)
        tuner.attach(optimizer, loader, accountant)
    optimizer = tuner
    for _ in range(2):
        functional.cross_entropy(module(TRAIN.inputs[:50]), TRAIN.targets[:50]).backward()  # of an evaluation
        optimizer.zero_grad()
        assert not any(weight.grad is not None and weight.grad.any() for weight in model.parameters())
        if by_opacus:
            functional.cross_entropy(module(TRAIN.inputs[:50]), TRAIN.targets[:50]).backward()
        else:
            tuner.backward()
        optimizer.step()
    assert tuner.finish() is not None
