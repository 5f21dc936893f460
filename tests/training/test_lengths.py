"""A model may say how long records are; what comes after is left out, and no result depends on it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.clipping import Abadi, AutoS
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.evaluation import last_place, lengths_of, refuse_wrong_lengths
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.losses import (
    IGNORED,
    PerRecord,
    correct_predictions,
    correct_tokens,
    cross_entropy,
    token_cross_entropy,
)
from dphpo_bench.training.values import total_score
from tests.training.models import flat

LENGTH, WORDS, WIDTH = 18, 7, 5
SEEN: list[tuple[int, ...]] = []


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


class Mean(nn.Module):
    """Classifies the mean of a text's words; 0 fills it up."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        SEEN.append(tuple(ids.shape))
        outputs: Tensor = self.head(self.pooled(self.table(ids), (ids != 0)[..., None]))
        return outputs

    def pooled(self, words: Tensor, counts: Tensor) -> Tensor:
        return (words * counts).sum(1) / counts.sum(1).clamp(min=1)


class SaysLengths(Mean):
    def lengths_of(self, ids: Tensor) -> Tensor:
        return last_place(ids != 0)


class Causal(nn.Module):
    """Says the next word after each place, from the sum of all words up to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        SEEN.append(tuple(ids.shape))
        outputs: Tensor = self.head(self.table(ids).cumsum(1).tanh())
        return outputs


class CausalSaysLengths(Causal):
    def lengths_of(self, ids: Tensor) -> Tensor:
        return ids.new_zeros(len(ids))


def texts(n: int = 23) -> tuple[Tensor, Tensor]:
    """Of 1 to 18 words; the last one of none."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, WORDS, (n, LENGTH), generator=generator)
    ends = torch.randint(1, LENGTH + 1, (n,), generator=generator)
    ends[0], ends[-1] = LENGTH, 0
    return torch.where(torch.arange(LENGTH) < ends[:, None], ids, 0), ends


def classes() -> tuple[Tensor, Tensor]:
    ids, ends = texts()
    return ids, ends % 3


def words() -> tuple[Tensor, Tensor]:
    ids, _ = texts()
    return ids, torch.where(ids == 0, IGNORED, ids.roll(-1, 1) % WORDS)


CASES: dict[str, tuple[type[nn.Module], type[nn.Module], tuple[Tensor, Tensor], PerRecord]] = {
    "classes": (Mean, SaysLengths, classes(), cross_entropy),
    "words": (Causal, CausalSaysLengths, words(), token_cross_entropy),
}


def results(engine: GradientEngine, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    some = torch.tensor([20, 3, 22, 4, 0, 11, 8])
    return [
        flat(engine.clipped_sum(inputs, targets, Abadi(0.1))),
        flat(engine.clipped_sum(inputs, targets, AutoS(), some)),
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [LoopEngine, LayerwiseEngine])
def test_no_result_depends_on_it(kind: type[GradientEngine], case: str) -> None:
    plain, says, (inputs, targets), loss = CASES[case]
    wanted = results(kind(plain(), loss), inputs, targets)
    assert {shape[1] for shape in SEEN} == {LENGTH}
    SEEN.clear()
    for found, expected in zip(results(kind(says(), loss), inputs, targets), wanted, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert {shape[1] for shape in SEEN} == {4, 8, 12, 16, LENGTH}


def test_where_a_record_is_cut_depends_on_that_record_alone() -> None:
    inputs, targets = words()
    model = CausalSaysLengths()
    together = lengths_of(model, inputs, targets)
    alone = [lengths_of(model, inputs[row : row + 1], targets[row : row + 1]) for row in range(len(inputs))]
    assert torch.equal(together, torch.cat(alone))
    ends = texts()[1]
    assert bool((together >= ends).all())
    assert bool((together < ends.clamp(min=1) + 4).all())
    assert set(together.tolist()) <= {4, 8, 12, 16, LENGTH}


def test_targets_that_are_not_by_place_are_left_alone() -> None:
    """As many labels as places: they all count."""
    inputs, labels = texts()[0], torch.ones(23, LENGTH)
    model, expected = SaysLengths(LENGTH), Mean(LENGTH)
    losses = bench.losses.binary_cross_entropy
    sums = [flat(LayerwiseEngine(one, losses).clipped_sum(inputs, labels, AutoS())) for one in (model, expected)]
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize("case", CASES)
def test_no_score_depends_on_it(case: str) -> None:
    plain, says, (inputs, targets), _ = CASES[case]
    score: PerRecord = {"classes": correct_predictions, "words": correct_tokens}[case]
    records, some = bench.Records(inputs, targets), torch.tensor([20, 3, 22, 4, 0, 11, 8])
    for rows in (None, some):
        expected = total_score(plain(), score, records, rows)
        assert expected > 0
        assert {shape[1] for shape in SEEN} == {LENGTH}
        SEEN.clear()
        assert total_score(says(), score, records, rows) == pytest.approx(expected)
        assert min(shape[1] for shape in SEEN) == 4
        SEEN.clear()


class CountsWhatFillsUp(SaysLengths):
    def pooled(self, words: Tensor, counts: Tensor) -> Tensor:
        return words.mean(1)


class SaysLess(SaysLengths):
    def pooled(self, words: Tensor, counts: Tensor) -> Tensor:
        return (words * counts).sum(1)

    def lengths_of(self, ids: Tensor) -> Tensor:
        return super().lengths_of(ids) - 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (CountsWhatFillsUp(), "^Expected outputs that do not depend on what comes after.*Correct lengths_of"),
        (SaysLess(), "^Expected outputs that do not depend on what comes after"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@pytest.mark.parametrize("size", [LENGTH, 12, 7])
def test_lengths_that_are_wrong_are_refused(model: nn.Module, message: str, size: int) -> None:
    """Few records, of lengths at which rounding up to four may hide a place too few."""
    with pytest.raises(InvalidValueError, match=message):
        refuse_wrong_lengths(model, torch.randint(1, WORDS, (6, size)))


@pytest.mark.parametrize("model", [SaysLengths(), CausalSaysLengths()], ids=lambda model: type(model).__name__)
def test_lengths_that_are_right_are_taken(model: nn.Module) -> None:
    refuse_wrong_lengths(model, texts()[0])
