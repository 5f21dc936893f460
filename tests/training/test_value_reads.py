"""Code that looks at numbers of a batch: one record must not decide which way the others go."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.evaluation import total_score
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.own_model import OwnModel
from tests.training.models import flat

N, CLASSES, WIDTH = 12, 3, 6
BOUND = 0.05
SURE = 0.9999999


class Network(nn.Module):
    """Two layers, and code between them."""

    def __init__(self, between: Callable[["Network", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.between(self, self.first(x).tanh()))
        return outputs


def deeper(net: Network, hidden: Tensor) -> Tensor:
    return hidden + net.middle(hidden).tanh()


def exits(net: Network, hidden: Tensor) -> Tensor:
    """Made-up records never take this exit, for which all of a batch must be sure."""
    sure = net.last(hidden).softmax(1).amax(1).min() > 0.9
    return hidden if sure else deeper(net, hidden)


def solves(tolerance: float) -> Callable[[Network, Tensor], Tensor]:
    """Look for a fixed point until all records have converged."""

    def between(net: Network, hidden: Tensor) -> Tensor:
        state = torch.zeros_like(hidden)
        for _ in range(60):
            new = torch.tanh(0.6 * net.middle(state) + hidden)
            change, state = (new - state).abs().max(), new
            if change < tolerance:
                break
        return state

    return between


def steps(net: Network, hidden: Tensor) -> Tensor:
    """Solve a differential equation by steps whose size follows the error of all records."""
    time, size = 0.0, 0.2
    while time < 1:
        size = min(size, 1 - time)
        slope = net.middle(hidden).tanh()
        correction = size / 2 * (net.middle(hidden + size * slope).tanh() - slope)
        error = (correction.norm() / hidden.norm()).item()
        if error < 1e-3 or size < 1e-3:
            hidden, time = hidden + size * slope + correction, time + size
        size *= min(3.0, max(0.3, 0.9 * (1e-3 / (error + 1e-12)) ** 0.5))
    return hidden


def writes(net: Network, hidden: Tensor) -> Tensor:
    """What is read follows from the records by a write to a part of a new tensor."""
    kept = hidden.new_zeros(2, *hidden.shape)
    kept[1].copy_(hidden)
    return hidden if kept[1].abs().amin() > SURE else deeper(net, hidden)


def by_list(net: Network, hidden: Tensor) -> Tensor:
    least = torch.tensor([row.detach().abs().amin() for row in hidden])
    return hidden if least.min() > SURE else deeper(net, hidden)


def by_foreach(net: Network, hidden: Tensor) -> Tensor:
    sums = [hidden.new_zeros(hidden.shape)]
    torch._foreach_add_(sums, [hidden.abs()])
    return hidden if sums[0].min() > SURE else deeper(net, hidden)


class Shrinks(torch.autograd.Function):
    """Gradients that are shrunk if one of a batch is large."""

    @staticmethod
    def forward(_: Any, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient * 1e-3 if gradient.abs().max() > 20 else gradient


def hooked(net: Network, hidden: Tensor) -> Tensor:
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient * 1e-3 if gradient.norm() > 50 else gradient)
    return hidden


# All but the last of `sure_and_unsure` would leave by such an exit, and all together do not.
LOOKS: dict[str, Callable[[Network, Tensor], Tensor]] = {
    "an early exit": exits,
    "a fixed point": solves(1e-3),
    "a differential equation": steps,
    "a write": writes,
    "experts": lambda net, hidden: deeper(net, hidden) if (hidden.abs().amin(1) < SURE).any() else hidden,
    "equal": lambda _, hidden: hidden if torch.equal(hidden.abs(), torch.ones_like(hidden)) else -hidden,
    "allclose": lambda _, hidden: hidden if torch.allclose(hidden.abs(), torch.ones(()), 0, 1e-7) else -hidden,
    "a list": lambda net, hidden: hidden if min(hidden.abs().amin(1).tolist()) > SURE else deeper(net, hidden),
    "a tensor of a list": by_list,
    "a number of rows": lambda _, hidden: -hidden if len(hidden[hidden.abs().amin(1) < SURE]) else hidden,
    "several tensors": by_foreach,
    "a gradient": lambda _, hidden: Shrinks.apply(hidden),
    "a hook": hooked,
}  # fmt: skip
DOES_NOT_LOOK: dict[str, Callable[[Network, Tensor], Tensor]] = {
    "a weight": lambda net, hidden: hidden if net.last.bias[0].item() > 0 else deeper(net, hidden),
    "chance for each record": lambda net, hidden: hidden if torch.rand_like(hidden).max() < 0 else deeper(net, hidden),
    "zeros": lambda net, hidden: hidden if torch.zeros_like(hidden).any() else deeper(net, hidden),
    "a shape": lambda net, hidden: hidden if hidden.shape[1] > 9 else deeper(net, hidden),
    "torch's check of classes": lambda _, hidden: hidden + nn.functional.one_hot(hidden.argmax(1), WIDTH),
    "torch's check of a scale": lambda _, hidden: hidden + torch.distributions.Normal(0, hidden.exp()).stddev,
    "chance": lambda net, hidden: hidden if torch.rand(()) < 0 else deeper(net, hidden),
}  # fmt: skip


def confidence(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.softmax(1).gather(1, targets[:, None])[:, 0]


def own(between: Callable[[Network, Tensor], Tensor], device: str = "cpu") -> OwnModel:
    records = bench.Records(torch.zeros(N, 12), torch.zeros(N, dtype=torch.int64))
    objective = Objective(bench.losses.cross_entropy, confidence)
    return OwnModel(lambda: Network(between).to(device), records, objective)


def sure_and_unsure() -> tuple[Tensor, Tensor]:
    """Return records whose hidden values are 1 or -1, and a last one whose values are 0."""
    generator = torch.Generator().manual_seed(1)
    inputs = 1e5 * torch.randn(N, 12, generator=generator)
    inputs[-1] *= 1e-9
    return inputs, torch.randint(CLASSES, (N,), generator=generator)


@pytest.mark.parametrize("name", LOOKS)
def test_one_more_record_changes_no_others_result(name: str) -> None:
    torch.manual_seed(0)
    model = own(LOOKS[name])
    with pytest.warns(UserWarning, match=r"looks at numbers .* in test_value_reads.py, line \d+"):
        engine = model.engine(model.model)
    with torch.no_grad():
        model.model.first.bias.zero_()
        model.model.last.weight *= 40
    inputs, targets = sure_and_unsure()
    scored = model.scored(model.model)

    def results(rows: slice) -> Tensor:
        """Return losses, a clipped sum and a sum of scores."""
        records = bench.Records(inputs[rows], targets[rows])
        score = torch.tensor([total_score(scored, model.scores, records)])
        losses = engine.losses(records.inputs, records.targets).sum().view(1)
        sums = flat(engine.clipped_sum(records.inputs, records.targets, Abadi(BOUND)))
        return torch.cat([losses.double(), sums.double(), score.double()])

    alone = torch.stack([results(slice(row, row + 1)) for row in range(N)])
    for rows in (slice(N), slice(N - 1)):
        torch.testing.assert_close(results(rows), alone[rows].sum(0), rtol=1e-5, atol=1e-5)
    model.model.rows_at_once = N  # type: ignore[assignment]
    assert (results(slice(N)) - alone.sum(0)).abs().max() > 1e-4, "all at once they do not differ"


@pytest.mark.parametrize("name", DOES_NOT_LOOK)
def test_what_follows_from_no_record_may_be_read(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = own(DOES_NOT_LOOK[name])
        model.engine(model.model)
    assert not hasattr(model.model, "rows_at_once")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [*LOOKS, *DOES_NOT_LOOK])
def test_the_same_is_seen_on_a_gpu(name: str) -> None:
    model = own({**LOOKS, **DOES_NOT_LOOK}[name], "cuda")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        engine = model.engine(model.model)
    assert any("looks at numbers" in str(warning.message) for warning in seen) == (name in LOOKS)
    inputs, targets = sure_and_unsure()
    assert all(part.is_cuda and part.isfinite().all() for part in engine.clipped_sum(inputs, targets, Abadi(BOUND)))
    assert total_score(model.scored(model.model), model.scores, bench.Records(inputs, targets)) >= 0


def test_what_visibly_mixes_is_refused_unless_it_asks_for_each_record_alone() -> None:
    model = own(lambda net, hidden: hidden if (hidden.abs() < 0.5).all() else deeper(net, hidden))
    with pytest.raises(InvalidValueError, match=r"looks at their numbers in .*, line \d+. .* rows_at_once = 1"):
        model.engine(model.model)
    model.model.rows_at_once = 1  # type: ignore[assignment]
    model.engine(model.model)


def test_integers_may_be_read_as_masks_are() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, words: Tensor, mask: Tensor) -> Tensor:
            hidden = self.table(words)
            if not mask.all():
                hidden = hidden * mask[..., None]
            outputs: Tensor = self.last(hidden.sum(1))
            return outputs

    inputs: Any = {"words": torch.zeros(N, 5, dtype=torch.int64), "mask": torch.ones(N, 5, dtype=torch.int64)}
    records = bench.Records(inputs, torch.zeros(N, dtype=torch.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = OwnModel(Words, records, Objective(bench.losses.cross_entropy, confidence))
        model.engine(model.model)
    assert not hasattr(model.model, "rows_at_once")


def test_numbers_of_pictures_are_no_masks() -> None:
    class Pictures(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x / 255 if x.max() > 1 else x.float())

    records = bench.Records(torch.zeros(N, 12, dtype=torch.uint8), torch.zeros(N, dtype=torch.int64))
    model = OwnModel(Pictures, records, Objective(bench.losses.cross_entropy, confidence))
    with pytest.warns(UserWarning, match="The model looks at numbers of a batch"):
        model.engine(model.model)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


def unless_all_are_large(values: Tensor) -> Tensor:
    return values.sqrt() if values.amin() > 1e4 else values


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return unless_all_are_large(bench.losses.cross_entropy(outputs, targets))


def scores(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.ones(len(outputs)) if (outputs.amax(1) > 1e4).all() else confidence(outputs, targets)


def torchs_own(outputs: Tensor, targets: Tensor) -> Tensor:
    """Torch rejects a negative variance."""
    return nn.functional.gaussian_nll_loss(outputs[:, 0], targets.float(), outputs[:, 1].exp(), reduction="none")


@pytest.mark.parametrize("what", ["loss", "score"])
def test_losses_and_scores_that_look_get_each_record_alone(what: str) -> None:
    objective = Objective(losses, confidence) if what == "loss" else Objective(bench.losses.cross_entropy, scores)
    torch.manual_seed(0)
    model = OwnModel(Plain, bench.Records(torch.zeros(N, 12), torch.zeros(N, dtype=torch.int64)), objective)
    with pytest.warns(UserWarning, match=f"The {what} looks at numbers of a batch in test_value_reads.py"):
        model.check(scores=True)
    with torch.no_grad():
        model.model.layers[2].weight *= 1e8
        model.model.layers[0].bias.zero_()
    inputs, targets = sure_and_unsure()
    inputs[-1] = 0
    engine, records, scores_of = model.engine(model.model), bench.Records(inputs, targets), objective.scores
    alone = [engine.losses(inputs[row : row + 1], targets[row : row + 1]) for row in range(N)]
    torch.testing.assert_close(engine.losses(inputs, targets), torch.cat(alone))
    scored = model.scored(model.model)
    alone = [total_score(scored, scores_of, records, torch.tensor([row])) for row in range(N)]
    assert total_score(scored, model.scores, records) == pytest.approx(sum(alone), abs=1e-6)
    if what == "score":
        assert total_score(scored, scores_of, records) != pytest.approx(sum(alone), abs=1e-3)


def test_targets_come_as_in_training() -> None:
    def of_numbers(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets, reduction="none").mean(1)

    records = bench.Records(torch.zeros(N, 12), torch.zeros(N, CLASSES, dtype=torch.float64))
    OwnModel(Plain, records, Objective(of_numbers, lambda outputs, _: outputs[:, 0].sigmoid())).check(scores=True)


def test_packed_sequences_are_read_by_torch_alone() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(9, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
            self.last = nn.Linear(WIDTH, CLASSES)

        def forward(self, words: Tensor) -> Tensor:
            lengths = (words > 0).sum(1).clamp(min=1).cpu()
            pack = nn.utils.rnn.pack_padded_sequence(self.table(words), lengths, True, enforce_sorted=False)
            outputs: Tensor = self.last(self.layer(pack)[1][0])
            return outputs

    records = bench.Records(torch.zeros(N, 5, dtype=torch.int64), torch.zeros(N, dtype=torch.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = OwnModel(Packed, records, Objective(bench.losses.cross_entropy, confidence))
        model.engine(model.model)
    assert not hasattr(model.model, "rows_at_once")


def test_sparse_tensors_may_be_on_the_way() -> None:
    torch.manual_seed(0)
    model = own(lambda _, hidden: hidden.relu().to_sparse().to_dense())
    model.engine(model.model)


def test_a_check_of_torchs_losses_is_none_of_the_callers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = bench.Records(torch.zeros(N, 12), torch.zeros(N, dtype=torch.int64))
        OwnModel(Plain, records, Objective(torchs_own, confidence)).check(scores=True)


@pytest.mark.parametrize("named", [False, True])
def test_a_transform_that_looks_gets_each_record_alone(named: bool) -> None:
    def brighter(inputs: Any, generator: torch.Generator) -> Any:
        x = inputs["x"] if named else inputs
        x = (2 * x if x.abs().max() < 1e-3 else x) + torch.randn(x.shape, generator=generator)
        return {"x": x} if named else x

    augmentation = bench.recipes.Augmentation(brighter, copies=2)
    dark, bright = torch.full((1, 12), 5e-4), torch.ones(1, 12)
    inputs: Any = {"x": dark} if named else dark
    with pytest.warns(UserWarning, match=r"The transform of augment= looks at .* in test_value_reads.py"):
        augmentation.check(inputs)
    both = torch.cat([dark, bright])
    alone, beside = (
        augmentation({"x": x} if named else x, torch.Generator().manual_seed(0)) for x in (dark, both)
    )  # fmt: skip
    torch.testing.assert_close(*((part["x"] if named else part)[0] for part in (alone, beside)))
