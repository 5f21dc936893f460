"""Tasks with an augmentation: what a run releases, what names it, and Datasets that would be frozen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import dphpo_bench as bench
from dphpo_bench.audit.canaries import SETUPS
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.base.tensors import single
from dphpo_bench.privacy.events import gaussian, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.recipes import Augmentation, RandomFlip, RandomShift
from dphpo_bench.recipes.array_task import ArrayTask
from dphpo_bench.session.access import generator_of_variants
from dphpo_bench.testing.small_tasks import Excerpt
from dphpo_bench.training.randomness import Streams
from tests.conftest import asking, session_on
from tests.own_task import array_task

N = 90
PICTURES = torch.rand(N, 1, 6, 6, generator=torch.Generator().manual_seed(0))
LABELS = (PICTURES.flatten(1).mean(1) > 0.5).long()
BUDGET = bench.PrivacyBudget(3, 1e-3)
NO_NOISE = 1e-12
BOTH = Augmentation((RandomShift(2), RandomFlip()), copies=4)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2))


def make(augment: Any = BOTH, **changes: Any) -> ArrayTask:
    arguments: dict[str, Any] = {"train": (PICTURES, LABELS), "model": network, "epochs": 2, "public": True, **changes}
    return array_task("pictures", augment=augment, **arguments)


def run(task: bench.Task, method: str | bench.Method = "dp_sgd", seed: int | None = 0, **options: Any) -> Any:
    execution = bench.ExecutionOptions(device="cpu", **options)
    return bench.run(method, task, BUDGET, seed=seed, progress=NullProgress(), execution=execution)


def weights(result: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in result.model.parameters()])


class Watched:
    """A transform of the package's own kind, which remembers its variants."""

    __module__ = "dphpo_bench.tests"

    def __init__(self) -> None:
        self.variants: list[Tensor] = []

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        self.variants.append(inputs + torch.randn(inputs.shape, generator=generator))
        return self.variants[-1].clone()


@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("unit", [None, np.arange(N) // 3 * (np.arange(N) % 7 > 0)])
def test_a_session_averages_the_variants_of_a_unit_before_it_clips(rate: float, unit: Any) -> None:
    watched = Watched()
    task = make(Augmentation(watched, copies=3), unit=unit, batch_size=10)
    train = task.load_train(bench.DataSource.resolve("unused", "unused"))
    session = session_on(task, train)
    watched.variants.clear()
    model = session.build_model()
    batch = session.sample(asking(rate, repeat(gaussian(NO_NOISE), 2)))
    rows, units = session._access.raw.members(batch._indices)
    first = batch.gradient(model, bench.clipping.Abadi(0.05), NO_NOISE)
    (variants,) = watched.variants
    rows = torch.arange(N) if rows is None else rows
    whose = torch.arange(len(rows)) if units is None else torch.arange(len(units)).repeat_interleave(units.sizes)
    copied, whose = rows.repeat_interleave(3), whose.repeat_interleave(3)
    expected = torch.zeros_like(torch.cat([part.flatten() for part in first])).double()
    for one in torch.unique(whose):
        losses = nn.functional.cross_entropy(model(variants[whose == one]), LABELS[copied[whose == one]])
        gradient = torch.cat(
            [part.flatten() for part in torch.autograd.grad(losses, list(model.parameters()))]
        ).double()
        expected += gradient * min(1.0, 0.05 / float(gradient.norm())) / (rate * task.facts.n_records)
    torch.testing.assert_close(torch.cat([part.flatten() for part in first]).double(), expected, rtol=1e-5, atol=1e-8)
    again = batch.gradient(model, bench.clipping.Abadi(0.05), NO_NOISE)
    assert not all(map(torch.equal, first, again))  # new variants each time


def test_losses_and_scores_are_of_the_records_themselves() -> None:
    found = []
    for augment in (None, BOTH):
        task = make(augment)
        session = session_on(task, task.load_train(bench.DataSource.resolve("unused", "unused")))
        model = session.build_model()
        direction = [torch.ones_like(parameter) for parameter in model.parameters()]
        batch = session.sample(asking(0.5, repeat(gaussian(NO_NOISE), 3)))
        rising = bench.recipes.rising_share(batch, model, direction, (0.1,), 1.01, NO_NOISE)
        found.append(
            [
                bench.recipes.mean_losses(batch, model, direction, (0.0, 0.1), 2.0, NO_NOISE),
                rising,
                bench.recipes.mean_score(session, model, NO_NOISE),
            ]
        )
    assert found[0] == found[1]


def test_the_share_of_gradients_below_the_threshold_counts_records() -> None:
    task = make()
    session = session_on(task, task.load_train(bench.DataSource.resolve("unused", "unused")))
    batch = session.sample(asking(1.0, gaussian(NO_NOISE), gaussian(2 * NO_NOISE)))
    _, share = batch.gradient_and_quantile(session.build_model(), 1e6, NO_NOISE, NO_NOISE)
    assert share == pytest.approx(1.0)


class TestRuns:
    def test_the_account_is_the_same_and_a_seed_repeats_the_run(self) -> None:
        plain, augmented, again = run(make(None)), run(make()), run(make())
        assert augmented.record.privacy == plain.record.privacy
        assert torch.equal(weights(augmented), weights(again))
        assert not torch.equal(weights(augmented), weights(plain))

    def test_it_is_a_part_of_the_identity_only_where_there_is_one(self) -> None:
        plain, one, other = (run(make(augment)).record.identity for augment in (None, BOTH, replace(BOTH, copies=2)))
        assert "augmentation" not in plain.facts
        shift, flip = "RandomShift(pixels=2, margin='reflected')", "RandomFlip()"
        assert one.facts["augmentation"] == {"transform": [shift, flip], "copies": 4}
        assert len({plain.key, one.key, other.key}) == 3
        assert {**one.facts, "augmentation": None} == {**plain.facts, "augmentation": None}

    def test_a_bare_transform_gets_sixteen_copies(self) -> None:
        facts = run(make(lambda pictures, _: pictures)).record.identity.facts["augmentation"]
        assert facts["copies"] == 16
        assert facts["transform"] == [
            f"{__name__}.TestRuns.{self.test_a_bare_transform_gets_sixteen_copies.__name__}.<locals>.<lambda>"
        ]

    @pytest.mark.parametrize("method", ["hyfreedp", "adaptive_clipping", "liu_talwar", "propose_test", "grid_oracle"])
    def test_methods_run(self, method: str) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))  # trials of it are stacked without augmentation
        test = (PICTURES[:20], LABELS[:20])
        assert run(make(model=model, test=test), method, secure_noise=False).record.status == "ok"

    def test_with_secure_noise(self) -> None:
        pytest.importorskip("opendp")
        task = make()
        assert run(task, seed=None, secure_noise=True).record.status == "ok"
        train = task.load_train(bench.DataSource.resolve("unused", "unused"))
        draws = [
            generator_of_variants(session_on(task, train, Ledger(), Streams(seed, secure=True))._access)
            for seed in (1, 1, 2)
        ]
        first, again, other = (torch.rand(4, generator=draw) for draw in draws)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_an_excerpt_has_it_too(self) -> None:
        assert Excerpt(make()).augment == BOTH

    def test_an_audit_leaves_tags_as_they_are(self) -> None:
        task = make(model=nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
        train = task.load_train(bench.DataSource.resolve("unused", "unused"))
        experiment = SETUPS["white_box"](task, train, 10, Streams(0))
        assert experiment.task.augment is not None
        experiment.task.augment.check(experiment.records.inputs)
        inputs = single(experiment.records.inputs)[-12:]
        variants = single(experiment.task.augment(inputs.clone(), torch.Generator().manual_seed(0)))
        assert torch.equal(variants[:, -10:], inputs[:, -10:])
        assert not torch.equal(variants[:, :-10], inputs[:, :-10])

    def test_a_transform_of_a_registered_task_is_refused_before_anything_is_released(self) -> None:
        from tests.security.wrong.tasks import DrawsElsewhere

        with pytest.raises(InvalidValueError, match="draws all its random numbers"):
            run(DrawsElsewhere())


@pytest.mark.parametrize("augment", [lambda x, _: x[..., :3], 7, "flip"])
def test_a_wrong_transform_is_refused_in_a_line(augment: Any) -> None:
    with pytest.raises(InvalidValueError) as refusal:
        make(augment)
    assert "\n" not in str(refusal.value)


class Items(Dataset[Any]):
    """Pictures and labels by a function of the item's number."""

    def __init__(self, item: Callable[[int], Any], n: int = N) -> None:
        self.item, self.n = item, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def flipped(index: int) -> tuple[Tensor, int]:
    return PICTURES[index].flip(-1) if torch.rand(()) < 0.5 else PICTURES[index], int(LABELS[index])


class TestRandomDatasets:
    @pytest.mark.parametrize(
        "item",
        [
            flipped,
            lambda index: (PICTURES[index].numpy() + np.random.default_rng().normal(), int(LABELS[index])),
            lambda index: {"inputs": flipped(index)[0], "labels": int(LABELS[index])},
            lambda index: (PICTURES[index], int(torch.randint(2, ()))),
        ],
    )
    @pytest.mark.parametrize("augment", [None, RandomFlip()])
    def test_they_are_refused(self, item: Any, augment: Any) -> None:
        with pytest.raises(InvalidValueError, match=r"two reads.*of train differ.*augment=") as refusal:
            make(augment, train=Items(item))
        assert "\n" not in str(refusal.value)

    def test_so_are_test_records(self) -> None:
        with pytest.raises(InvalidValueError, match="items of test differ"):
            make(None, test=Items(flipped))

    @pytest.mark.parametrize("n", [1, 2])
    def test_few_items_are_read_often_enough(self, n: int) -> None:
        with pytest.raises(InvalidValueError, match="augment="):
            make(None, train=Items(flipped, n), batch_size=1)

    def test_items_that_stay_pass(self) -> None:
        item = {"inputs": PICTURES[0], "labels": 1}
        task = make(None, train=Items(lambda _: item, 40))
        assert task.facts.n_records == 40
        missing = Items(lambda index: (torch.full((1, 6, 6), torch.nan), index % 2))
        with pytest.raises(InvalidValueError, match="finite inputs"):
            make(None, train=missing)
