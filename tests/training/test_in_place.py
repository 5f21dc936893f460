"""Models, losses and scores that write to what they are given change no record, and no later pass sees the change."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dphpo_bench.base.tensors import Records
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.evaluation import all_outputs
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.linear import LinearEngine, clipped_sums
from dphpo_bench.training.losses import Objective, PerRecord, cross_entropy
from dphpo_bench.training.values import Query, total_score
from tests.training.models import flat, linear, vectors

ENGINES: dict[str, Callable[[nn.Module, PerRecord], GradientEngine]] = {
    "loop": LoopEngine,
    "layerwise": LayerwiseEngine,
}


class Centred(nn.Module):
    """Centres each record, in place or not, and then applies a small network."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(20, 7), nn.Tanh(), nn.Linear(7, 5))
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            x -= x.mean(1, keepdim=True) + 1
        else:
            x = x - (x.mean(1, keepdim=True) + 1)
        logits: Tensor = self.network(x)
        return logits


class TwoInputs(nn.Module):
    """The sum of what `Centred` gives for two inputs."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.centred = Centred(in_place)

    def forward(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        return {"logits": self.centred(first) + self.centred(second)}


def greedy(values: PerRecord) -> PerRecord:
    """The same losses or scores, which are written over the targets and the outputs, too."""

    def found(outputs: Any, targets: Any) -> Tensor:
        own = targets["class"] if isinstance(targets, Mapping) else targets
        result = values(outputs, own.clone())
        own.zero_()
        if isinstance(targets, dict):
            targets.clear()
        return result

    return found


def polite(values: PerRecord) -> PerRecord:
    return lambda outputs, targets: values(outputs, targets["class"] if isinstance(targets, Mapping) else targets)


def records_of(names: bool) -> Records:
    x, y = vectors(40)
    return Records({"first": x, "second": x.flip(0)}, {"class": y}) if names else Records(x, y)


def taken(in_place: bool, names: bool) -> nn.Module:
    return TwoInputs(in_place) if names else Centred(in_place)


def unchanged(records: Records, before: Records) -> bool:
    return all(torch.equal(tensor, before.named()[name]) for name, tensor in records.named().items())


FORMS = pytest.mark.parametrize("names", [False, True], ids=["tensor", "names"])
ROWS = pytest.mark.parametrize("rows", [None, torch.tensor([7, 3, 30])], ids=["full batch", "some"])


@FORMS
@ROWS
@pytest.mark.parametrize("kind", ENGINES)
def test_engines_give_out_copies(kind: str, rows: Tensor | None, names: bool) -> None:
    records = records_of(names)
    before = copy.deepcopy(records)
    ours, theirs = (
        ENGINES[kind](taken(in_place, names), loss(cross_entropy))
        for in_place, loss in ((False, polite), (True, greedy))
    )

    def asked(engine: GradientEngine) -> Tensor:
        return flat(engine.clipped_sum(records.inputs, records.targets, AutoS(), rows))

    expected = asked(ours)
    for _ in range(2):
        torch.testing.assert_close(asked(theirs), expected)
        assert unchanged(records, before)


@ROWS
def test_closed_forms_write_to_no_record(rows: Tensor | None) -> None:
    x, y = vectors(40)
    records, before = Records(x, y), Records(x.clone(), y.clone())
    engine, stack = LinearEngine(linear()), [LinearEngine(linear()) for _ in range(2)]
    first_writes = nn.Sequential(nn.ReLU(inplace=True), linear())
    for _ in range(2):
        all_outputs(first_writes, records)
        engine.clipped_sum(x, y, AutoS(), rows)
        clipped_sums(stack, x, y, [AutoS(), AutoS()], rows)
        assert unchanged(records, before)


def correct(outputs: Any, targets: Tensor) -> Tensor:
    found: Tensor = (outputs["logits"] if isinstance(outputs, Mapping) else outputs).argmax(1) == targets
    return found.float()


def losses_along(model: nn.Module, losses: PerRecord, records: Records, rows: Tensor | None) -> Tensor:
    direction = [torch.ones_like(parameter) for parameter in model.parameters()]
    query = Query(lambda ours, x, y: ours.losses_along(direction, (0.0, 0.5, -0.5), x, y), 100.0, 3)
    return query.total(model, Objective(losses, losses), records, rows)


@FORMS
@ROWS
def test_evaluation_gives_out_copies(rows: Tensor | None, names: bool) -> None:
    records = records_of(names)
    before = copy.deepcopy(records)
    ours, theirs = (taken(in_place, names) for in_place in (False, True))
    for _ in range(2):
        expected = total_score(ours, polite(correct), records, rows)
        assert total_score(theirs, greedy(correct), records, rows) == expected
        outputs = [all_outputs(model, records) for model in (ours, theirs)]
        assert torch.equal(*(found["logits"] if names else found for found in outputs))
        pairs = (ours, polite), (theirs, greedy)
        torch.testing.assert_close(*(losses_along(each, form(cross_entropy), records, rows) for each, form in pairs))
        assert unchanged(records, before)
