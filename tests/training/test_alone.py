"""Code of a task sees one record at a time: no record affects another's gradient, loss, score, length or variant."""

# ruff: noqa: ARG005
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.alone import Alone
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.evaluation import all_outputs
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.losses import Objective
from dphpo_bench.training.own_model import OwnModel
from dphpo_bench.training.values import total_score
from tests.own_task import array_task
from tests.training.models import flat, total_loss

N, CLASSES, WIDTH, WORDS = 9, 3, 6, 40
BOUND, RARE = 0.05, 37


class Network(nn.Module):
    """Words or numbers, and code between two layers."""

    def __init__(self, between: Callable[["Network", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)
        self.between = between
        self.register_buffer("scale", torch.ones(()))

    def forward(self, ids: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.between(self, self.table(ids), ids))
        return outputs


def deeper(net: Network, hidden: Tensor) -> Tensor:
    return hidden + net.middle(hidden).tanh()


def mean(hidden: Tensor) -> Tensor:
    return hidden.mean(1)


class DividesByNorm(torch.autograd.Function):
    """Gradients that are divided by the norm of the batch's."""

    @staticmethod
    def forward(hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        return gradient / gradient.norm()


class DividesWithARuleOfItsOwn(DividesByNorm):
    """The rule for vmap sees all records."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, hidden: Tensor) -> Any:
        del info
        return DividesByNorm.apply(hidden), in_dims[0]


class CentresWithARule(DividesByNorm):
    """The rule for vmap subtracts the mean of all records."""

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, hidden: Tensor) -> Any:
        del info
        return hidden - hidden.mean(in_dims[0], keepdim=True), in_dims[0]


centres = CentresWithARule.apply


class Rounds(TorchDispatchMode):
    """Divides results by the largest of all."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        return output / output.abs().max() if func is torch.ops.aten.tanh.default else output


def in_a_mode(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    with Rounds():
        return mean(hidden).tanh()


def hooked(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient / gradient.norm())
    return mean(hidden)


def catches(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    """One record without an inverse decides for all."""
    square = torch.eye(2) * (ids != RARE).all(1)[:, None, None]
    try:
        return mean(hidden) * torch.linalg.inv(square)[:, :1, 0]
    except RuntimeError:
        return deeper(net, mean(hidden))


def saves_roughly(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    """What is saved for the backward pass is divided by the largest of the batch."""
    pack = torch.autograd.graph.saved_tensors_hooks(lambda t: t / t.abs().max(), lambda t: t)
    with pack:
        return mean(hidden).square()


@torch.library.custom_op("dphpo_tests::centred", mutates_args=())
def centred(hidden: Tensor) -> Tensor:
    return hidden.clone()


centred.register_autograd(lambda _, gradient: gradient)
centred.register_vmap(lambda info, dims, hidden: (hidden - hidden.mean(dims[0], keepdim=True), dims[0]))


def writes_rarely(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    """One record changes a buffer for those that follow."""
    if bool((ids == RARE).any()):
        net.scale.mul_(3)
    return mean(hidden) * net.scale


def experts(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    """An expert takes four records of a batch; what comes later is dropped."""
    chosen = functional.one_hot(mean(hidden)[:, :2].argmax(1), 2)
    places = (chosen.cumsum(0) * chosen).sum(1)
    return mean(hidden) * (places <= 4)[:, None]


def filled(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    values = torch.where((ids == RARE)[..., None], torch.nan, hidden)
    known = values.isfinite()
    return mean(torch.where(known, values, (values.nan_to_num() * known).sum((0, 1)) / known.sum((0, 1))))


def where(net: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    return torch.where((ids == RARE).any(), hidden.amax(1), mean(hidden))


OF_OTHER_RECORDS: dict[str, Callable[[Network, Tensor, Tensor], Tensor]] = {
    "a rare word": lambda _, hidden, ids: hidden.amax(1) if bool((ids == RARE).any()) else mean(hidden),
    "a rare word, by where": where,
    "the largest of a batch": lambda _, hidden, ids: mean(hidden) / (ids.max() / 30).clamp(min=1),
    "missing values": filled,
    "a capacity": experts,
    "a write": writes_rarely,
    "a gradient with its own rule": lambda _, hidden, ids: DividesWithARuleOfItsOwn.apply(mean(hidden)),
    "a hook": hooked,
    "a rule that is bound before": lambda _, hidden, ids: centres(mean(hidden)),
    "hooks of saved tensors": saves_roughly,
    "a mode": in_a_mode,
    "a text": lambda _, hidden, ids: mean(hidden) * len(repr(ids)),
    "an operator with its own rule": lambda _, hidden, ids: centred(mean(hidden)),
    "a script": lambda _, hidden, ids: scripted(mean(hidden), ids),
    "the batch's norm": lambda net, hidden, ids: deeper(net, mean(hidden)) / mean(hidden).detach().norm(),
    "another's mean": lambda _, hidden, ids: mean(hidden) - mean(hidden).roll(1, 0),
}  # fmt: skip
BY_VMAP = ("by where", "largest", "missing", "capacity", "batch's norm", "another")


@torch.jit.script
def scripted(hidden: Tensor, ids: Tensor) -> Tensor:
    if bool((ids == 37).any()):
        hidden = hidden * 3
    return hidden


def confidence(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.softmax(1).gather(1, targets[:, None])[:, 0]


def records() -> tuple[Tensor, Tensor]:
    """Return texts of which the fourth alone has the rare word."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, RARE, (N, 5), generator=generator)
    ids[3, 2] = RARE
    return ids, torch.randint(CLASSES, (N,), generator=generator)


def own(build: Callable[[], nn.Module], objective: Objective | None = None) -> OwnModel:
    ids, targets = records()
    return OwnModel(build, bench.Records(ids, targets), objective or Objective(bench.losses.cross_entropy, confidence))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OF_OTHER_RECORDS)
def test_one_more_record_changes_no_others_result(name: str) -> None:
    torch.manual_seed(0)
    model = own(lambda: Network(OF_OTHER_RECORDS[name]))
    engine = model.engine(model.model)
    assert type(engine) is (LayerwiseEngine if any(part in name for part in BY_VMAP) else LoopEngine)
    ids, targets = records()
    scored = model.like(model.model)

    def results(rows: list[int]) -> Tensor:
        """Return losses, a clipped sum and a sum of scores."""
        some = bench.Records(ids[rows], targets[rows])
        score = torch.tensor([total_score(scored, model._objective.scores, some)])
        losses = torch.tensor([total_loss(scored, model._objective.losses, some)])
        sums = flat(engine.clipped_sum(some.inputs, some.targets, Abadi(BOUND)))
        return torch.cat([losses.double(), sums.double(), score.double()])

    alone = torch.stack([results([row]) for row in range(N)])
    assert (alone[:, 1:-1].norm(dim=1) <= BOUND * (1 + 1e-6)).all()
    for rows in ([*range(N)], [*range(3), *range(4, N)], [3, 0], [5, 3, 3]):
        torch.testing.assert_close(results(rows), alone[rows].sum(0), rtol=1e-5, atol=1e-6)
    outputs = all_outputs(model.model, bench.Records(ids, targets))
    single = [all_outputs(model.model, bench.Records(ids[[row]], targets[[row]])) for row in range(N)]
    torch.testing.assert_close(outputs, torch.cat(single), rtol=1e-5, atol=1e-6)


def test_an_exception_that_is_caught_ends_the_pass() -> None:
    """It would decide for all; made-up records do not raise it."""
    torch.manual_seed(0)
    model = own(lambda: Network(catches))
    engine, (ids, targets) = model.engine(model.model), records()
    with pytest.raises(RuntimeError, match="singular"):
        engine.clipped_sum(ids, targets, Abadi(BOUND))


def test_another_network_than_in_batches_is_said_to_be_one() -> None:
    model = own(lambda: Network(OF_OTHER_RECORDS["another's mean"]))
    with pytest.warns(UserWarning, match="change with the others of a batch. Here it gets each record alone"):
        model.like(model.model)


def test_a_network_that_vmap_refuses_is_named_with_the_reason() -> None:
    model = own(lambda: Network(OF_OTHER_RECORDS["a rare word"]))
    with pytest.warns(UserWarning, match=r"each record in turn, .*: torch's vmap refuses it \(vmap: "):
        model.engine(model.model)


PLAIN: Callable[[Network, Tensor, Tensor], Tensor] = lambda net, hidden, ids: deeper(net, mean(hidden))  # noqa: E731
OF_BATCHES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a rare target": lambda values, targets: values.sqrt() if bool((targets == 2).all()) else values,
    "the largest": lambda values, targets: values / values.detach().max(),
    "centred": lambda values, targets: (values - values.mean()).sigmoid(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OF_BATCHES)
def test_losses_and_scores_are_of_one_record_each(name: str) -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return OF_BATCHES[name](bench.losses.cross_entropy(outputs, targets), targets)

    def scores(outputs: Tensor, targets: Tensor) -> Tensor:
        return OF_BATCHES[name](confidence(outputs, targets), targets).clamp(0, 1)

    torch.manual_seed(0)
    model = own(lambda: Network(PLAIN), Objective(losses, scores))
    engine, scored, (ids, targets) = model.engine(model.model), model.like(model.model), records()
    sums = [flat(engine.clipped_sum(ids[[row]], targets[[row]], Abadi(BOUND))) for row in range(N)]
    torch.testing.assert_close(flat(engine.clipped_sum(ids, targets, Abadi(BOUND))), sum(sums), rtol=1e-5, atol=1e-7)
    some = bench.Records(ids, targets)
    alone = [total_score(scored, model._objective.scores, some, torch.tensor([row])) for row in range(N)]
    assert total_score(scored, model._objective.scores, some) == pytest.approx(sum(alone), abs=1e-5)
    alone = [total_loss(scored, losses, some.rows([row])) for row in range(N)]
    assert total_loss(scored, losses, some) == pytest.approx(sum(alone), abs=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_objects_that_compute_losses_and_scores_keep_nothing() -> None:
    """A rare target changes the factor for all that follow."""

    class Scaled:
        def __init__(self, values: Callable[[Tensor, Tensor], Tensor]) -> None:
            self.values, self.factor = values, 1.0

        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            if bool((targets == 2).all()):
                self.factor /= 2
            return self.values(outputs, targets) * self.factor

    torch.manual_seed(0)
    model = own(lambda: Network(PLAIN), Objective(Scaled(bench.losses.cross_entropy), Scaled(confidence)))
    scored, some = model.like(model.model), bench.Records(*records())
    for _ in range(2):
        alone = [total_loss(scored, model._objective.losses, some.rows([row])) for row in range(N)]
        assert total_loss(scored, model._objective.losses, some) == pytest.approx(sum(alone), abs=1e-5)
        alone = [total_score(scored, model._objective.scores, some, torch.tensor([row])) for row in range(N)]
        assert total_score(scored, model._objective.scores, some) == pytest.approx(sum(alone), abs=1e-5)


@pytest.mark.parametrize("reads", [False, True])
def test_lengths_are_of_one_record_each(reads: bool) -> None:
    class Texts(Network):
        def __init__(self) -> None:
            super().__init__(lambda net, hidden, ids: (hidden * (ids > 1)[..., None]).sum(1))

        def lengths_of(self, ids: Tensor) -> Tensor:
            longest = (ids > 1).sum(1)
            if reads:
                return longest if bool((ids == RARE).any()) else torch.full_like(longest, ids.shape[1])
            return torch.where((ids == RARE).any(), longest, ids.shape[1])

    from dphpo_bench.training.evaluation import lengths_of

    ids = torch.randint(2, RARE, (6, 16), generator=torch.Generator().manual_seed(0))
    ids[:, 5:] = 0
    ids[2, 0] = RARE
    assert lengths_of(Texts(), ids, torch.zeros(6, dtype=torch.int64)).tolist() == [16, 16, 8, 16, 16, 16]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_variants_are_of_one_record_each(named: bool, reads: bool) -> None:
    def brighter(inputs: Any, generator: torch.Generator) -> Any:
        x = inputs["x"] if named else inputs
        dark = x.abs().max() < 1e-3
        x = (2 * x if dark else x) if reads else torch.where(dark, 2 * x, x)
        x = x + 0 * torch.randn(x.shape, generator=generator)
        return {"x": x} if named else x

    augmentation = bench.recipes.Augmentation(brighter, copies=2)
    both: Any = torch.cat([torch.full((1, 12), 5e-4), torch.ones(1, 12)])
    both = {"x": both} if named else both
    augmentation.check(both)
    variants: Any = augmentation(both, torch.Generator().manual_seed(0))
    variants = variants["x"] if named else variants
    assert variants[:, 0].tolist() == pytest.approx([1e-3, 1.0])


def test_every_record_draws_numbers_of_its_own() -> None:
    torch.manual_seed(0)
    drawn = Alone(lambda x: functional.dropout(x, 0.5))(torch.ones(40, 30))
    assert len({tuple(row) for row in drawn.tolist()}) == 40  # equal rows have probability below 2^-20


def test_attention_is_torchs_for_each_record() -> None:
    """With masks of a record or of all, and keys that all records share."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(N, 2, 4, 5, 3) for _ in range(3))  # two, four heads, five places
    mask = torch.rand(N, 2, 1, 5, 5) > 0.3
    mask |= torch.eye(5, dtype=torch.bool)
    attend = functional.scaled_dot_product_attention
    cases: list[Callable[..., Tensor]] = [
        lambda q, k, v, m: attend(q[0], k[0], v[0]),
        lambda q, k, v, m: attend(q[0], k[0], v[0], m[0]),
        lambda q, k, v, m: attend(q[0], k[0], v[0], mask[0, :1]),
        lambda q, k, v, m: attend(q[0], key[0], value[0], m[0].float(), scale=0.3),
        lambda q, k, v, m: attend(q[0], k[0], v[0], is_causal=True),
    ]
    for compute in cases:
        of_all = Alone(lambda *parts, compute=compute: compute(*parts)[None])
        expected = [compute(*(part[[row]] for part in (query, key, value, mask))) for row in range(N)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(of_all(query, key, value, mask), torch.stack(expected))


class Square(nn.Module):
    """A layer that takes positive definite matrices only."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.linalg.cholesky(x).sum(1))
        return outputs


class Logarithms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(x.log())
        return outputs


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_example_takes_the_place_of_made_up_records() -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(N, 4, 4, generator=generator)
    inputs = matrices @ matrices.mT + torch.eye(4)
    targets = torch.randint(CLASSES, (N,), generator=generator)
    settings: dict[str, Any] = {"name": "mine", "train": (inputs, targets), "model": Square, "n_classes": CLASSES}
    with pytest.raises(InvalidValueError, match=r"example="):
        array_task(**settings)
    task = array_task(**settings, example=inputs[:1])
    model = OwnModel(task.build_model, bench.Records(inputs, targets), task.objective(), task.example)
    assert flat(model.engine(model.model).clipped_sum(inputs, targets, Abadi(BOUND))).norm() > 0
    with pytest.raises(InvalidValueError, match="Expected an example with rows of shapes"):
        array_task(**settings, example=inputs[:1, :2])


def test_made_up_records_have_positive_numbers() -> None:
    array_task("mine", (torch.rand(N, 4) + 0.1, torch.randint(CLASSES, (N,))), Logarithms)


def test_a_copy_of_a_model_keeps_nothing_of_a_loop() -> None:
    model = own(lambda: Network(OF_OTHER_RECORDS["a write"]))
    with pytest.warns(UserWarning, match="in turn"):
        engine = model.engine(model.model)
    before = copy.deepcopy(model.model.state_dict())
    ids, targets = records()
    engine.clipped_sum(ids, targets, Abadi(BOUND))
    assert all(torch.equal(value, before[name]) for name, value in model.model.state_dict().items())
