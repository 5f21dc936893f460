"""Candidates: drawn without looking at anything."""

import math

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract import search_space as search

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


def test_a_logarithmic_range_is_drawn_uniformly_in_its_logarithm() -> None:
    """Mean of n uniforms on [-4, 0]: six standard deviations leave a false alarm of 2e-9."""
    n = 300
    mean = sum(math.log10(search.draw(SPACE, 10**9 + seed)["learning_rate"]) for seed in range(n)) / n
    assert mean == pytest.approx(-2, abs=6 * 4 / math.sqrt(12 * n))


def test_a_draw_leaves_optunas_log_level_alone() -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    search.draw(SPACE, 0)
    assert optuna.logging.get_verbosity() == before


def test_a_grid_is_the_product_of_its_axes() -> None:
    grid = search.grid(SPACE, 3)
    assert len(grid) == 3 * 3 * 2
    assert sorted({point["learning_rate"] for point in grid}) == pytest.approx([1e-4, 1e-2, 1.0])
    assert sorted({point["layers"] for point in grid}) == [1, 2, 4]
    assert all(1e-4 <= point["learning_rate"] <= 1.0 for point in grid)  # not beyond, by rounding


def test_a_grid_of_one_point_is_the_middle() -> None:
    assert search.grid({"learning_rate": SPACE["learning_rate"]}, 1) == [{"learning_rate": pytest.approx(1e-2)}]


def test_a_grid_needs_points() -> None:
    with pytest.raises(InvalidValueError, match="points >= 1"):
        search.grid(SPACE, 0)
