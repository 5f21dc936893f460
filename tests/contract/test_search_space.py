"""Candidates: drawn without reading anything."""

from dataclasses import replace

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract import search_space as search
from dphpo_bench.contract.search_space import Space
from dphpo_bench.training.clipping import parse_clipping

SPACE = {
    "learning_rate": FloatDistribution(1e-4, 1.0, log=True),
    "layers": IntDistribution(1, 4),
    "clipping": CategoricalDistribution(["auto_s", "auto_v"]),
}


def test_draws_are_repeatable_and_inside_the_space() -> None:
    draws = [search.draw(SPACE, seed) for seed in range(50)]
    assert draws == [search.draw(SPACE, seed) for seed in range(50)]
    assert all(1e-4 <= draw["learning_rate"] <= 1 and draw["layers"] in (1, 2, 3, 4) for draw in draws)
    assert {draw["clipping"] for draw in draws} == {"auto_s", "auto_v"}


def test_a_grid_is_the_product_of_its_axes() -> None:
    grid = search.grid(SPACE, 3)
    assert len(grid) == 3 * 3 * 2
    assert sorted({point["learning_rate"] for point in grid}) == pytest.approx([1e-4, 1e-2, 1.0])
    assert sorted({point["layers"] for point in grid}) == [1, 2, 4]
    assert all(1e-4 <= point["learning_rate"] <= 1.0 for point in grid)  # not beyond, by rounding


# ------------------------------------------------------------------------------------------ what is searched

USUAL = search.usual(1000, 100, 10.0)


def test_the_usual_space_is_made_of_public_facts() -> None:
    assert search.usual(150, 100, 3.0)["batch_size"].choices == (100, 150)  # type: ignore[attr-defined]
    assert search.usual(1, 1, 3.0)["batch_size"].choices == (1,)  # type: ignore[attr-defined]
    assert USUAL["epochs"].choices == (5.0, 20.0)  # type: ignore[attr-defined]


def test_a_rate_of_the_tasks_own_is_the_middle_for_the_tasks_own_optimiser() -> None:
    space = search.usual(1000, 100, 10.0, learning_rate=5e-4)
    assert (space["learning_rate"].low, space["learning_rate"].high) == pytest.approx((5e-5, 5e-3))  # type: ignore[attr-defined]
    assert set(USUAL) - set(space) == {"optimizer", "learning_rate:sgd"}


@pytest.mark.parametrize("extent", ["learning_rate", "wide", "reference", "joint"])
def test_a_rate_of_the_tasks_own_says_nothing_of_another_optimiser(extent: search.Extent) -> None:
    """A grid of SGD around a rate of AdamW ended at .05 where rates of about 1 are best."""
    facts = bench.make_task("digits", "linear").facts
    own, naive = (replace(facts, optimizer="AdamW", learning_rate=rate) for rate in (5e-4, search.NAIVE_RATE))
    sgd, adamw = (Space(extent, optimizer=name) for name in ("SGD", "AdamW"))
    assert own.searched(sgd)["learning_rate"] == naive.searched(sgd)["learning_rate"]
    assert own.searched(adamw)["learning_rate"].high < naive.searched(adamw)["learning_rate"].high  # type: ignore[attr-defined]
    assert own.searched(Space(extent, optimizer="Adam")) == own.searched(adamw)  # both adapt: a rate serves both


def test_each_optimiser_has_learning_rates_of_its_own() -> None:
    drawn = [search.draw(USUAL, seed) for seed in range(100)]
    assert {one["optimizer"] for one in drawn} == {"AdamW", "SGD"}
    for one in drawn:
        assert set(one) == {"optimizer", "learning_rate", "clipping", "weight_decay", "batch_size", "epochs"}
        low, high = (0.03, 3) if one["optimizer"] == "SGD" else (0.003, 0.3)
        assert low <= one["learning_rate"] <= high
        assert search.distribution_of(USUAL, "learning_rate", one).low == low  # type: ignore[attr-defined]
        assert search.distribution_of(USUAL, "clipping", one) is USUAL["clipping"]


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (Space(), {"optimizer", "learning_rate", "clipping", "weight_decay", "batch_size", "epochs"}),
        (Space("fixed_schedule"), {"optimizer", "learning_rate", "clipping", "weight_decay"}),
        (Space("grid"), {"optimizer", "learning_rate", "clipping"}),
        (Space("learning_rate"), {"learning_rate"}),
        (Space("wide"), {"learning_rate"}),
        (Space("reference"), {"learning_rate", "clipping"}),
        (Space("joint"), {"learning_rate", "clipping", "batch_size", "epochs"}),
        (Space("joint", ("clipping", "batch_size")), {"learning_rate", "epochs"}),
        (Space("full", ("clipping", "epochs")), {"optimizer", "learning_rate", "weight_decay", "batch_size"}),
        (Space("grid", (), "AdamW"), {"learning_rate", "clipping"}),
    ],
)
def test_a_search_varies_what_it_is_told_and_nothing_that_was_set_by_hand(space: Space, names: set[str]) -> None:
    assert {search.hyperparameter(name) for name in space.of(USUAL)} == names
    assert set(search.draw(space.of(USUAL), 0)) == names


def test_neighbours_are_within_the_range_of_their_optimiser_and_keep_the_schedule() -> None:
    space = {
        "optimizer": CategoricalDistribution(["AdamW", "SGD"]),
        "learning_rate": FloatDistribution(0.001, 0.1, log=True),
        "learning_rate:sgd": FloatDistribution(0.1, 10.0, log=True),
        "epochs": FloatDistribution(1, 4),
        "averaging": FloatDistribution(0.5, 0.5),
    }
    best = {"optimizer": "SGD", "learning_rate": 10.0, "epochs": 1.0, "averaging": 0.5}
    assert search.beside(space, best, 3) == [{**best, "learning_rate": 1.0}]
    assert search.beside(space, {**best, "learning_rate": 1.0}, 1) == []


def test_a_grid_has_no_point_twice_and_is_bounded() -> None:
    grid = search.grid(Space("grid").of(USUAL), 7)
    assert len(grid) == 2 * 2 * 7
    assert len({tuple(sorted(point.items())) for point in grid}) == len(grid)
    assert {point["learning_rate"] for point in grid if point["optimizer"] == "SGD"} >= {0.03, 3.0}
    for points, line in ((10**8, "points <= 1,000,000, got 100000000"), (900_000, "at most 1,000,000 combinations")):
        with pytest.raises(InvalidValueError, match=line):
            search.grid(Space("grid").of(USUAL), points)


# ------------------------------------------------------------------------------------------- the joint space


def choices(space: dict[str, BaseDistribution]) -> dict[str, tuple[object, ...]]:
    return {name: values.choices for name, values in space.items() if isinstance(values, CategoricalDistribution)}


def test_the_joint_space_is_around_the_tasks_own_schedule() -> None:
    assert choices(search.joint(1438, 512, 40)) == {
        "clipping": ("auto_s", "abadi:0.1", "abadi:1", "abadi:10"),
        "batch_size": (128, 512, 1438),  # no batch is larger than all records
        "epochs": (10.0, 40, 160),
    }
    assert choices(search.joint(1, 1, 3.0))["batch_size"] == (1,)
    assert {parse_clipping(str(text)).sensitivity for text in choices(search.joint(9, 3, 1.0))["clipping"]} == {
        0.1,
        1,
        10,
    }


def test_rates_of_the_joint_space_are_those_of_the_optimiser_that_trains() -> None:
    def rates(optimizer: str, learning_rate: float = 1e-3) -> tuple[float, float]:
        stated = search.joint(1438, 512, 40, learning_rate)
        values = Space("joint", optimizer=optimizer).of(stated)["learning_rate"]
        assert isinstance(values, FloatDistribution)
        return values.low, values.high

    assert rates("AdamW") == pytest.approx((0.003, 0.3))
    assert rates("SGD") == pytest.approx((0.003, 30))  # a step of SGD is as long as C
    assert rates("AdamW", 5e-4) == pytest.approx((5e-5, 5e-3))


def test_what_a_task_states_replaces_the_usual_values_of_the_joint_space() -> None:
    stated = {
        "learning_rate": FloatDistribution(0.1, 1.0),
        "epochs": CategoricalDistribution([7]),
        "momentum": FloatDistribution(0, 0.9),
    }
    space = Space("joint", optimizer="SGD").of(search.joint(1438, 512, 40, stated=stated))
    assert set(space) == {"learning_rate", "clipping", "batch_size", "epochs"}
    assert space["learning_rate"] is stated["learning_rate"]
    assert space["epochs"] is stated["epochs"]


def test_the_grid_of_the_joint_space_has_each_clipping_at_each_schedule() -> None:
    grid = search.grid(Space("joint", optimizer="AdamW").of(search.joint(1438, 512, 40)), 13)
    assert len(grid) == 4 * 3 * 3 * 13
    assert len({tuple(point.values()) for point in grid}) == len(grid)


def test_a_space_of_nothing_is_a_mistake() -> None:
    with pytest.raises(InvalidValueError, match="got none"):
        Space("learning_rate").of({"clipping": USUAL["clipping"]})
    with pytest.raises(InvalidValueError, match="extent to be 'full'"):
        Space("everything")  # type: ignore[arg-type]
