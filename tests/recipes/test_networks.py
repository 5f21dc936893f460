"""Parameter counts against those in the papers; pictures of other kinds."""

import pytest
import torch

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.recipes.networks import tanh_cnn


@pytest.mark.parametrize(("shape", "parameters"), [((1, 28, 28), 26_010), ((3, 32, 32), 550_570)])
def test_the_papers_networks_have_the_papers_sizes(shape: tuple[int, int, int], parameters: int) -> None:
    model = tanh_cnn(shape, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 20, 48), (1, 32, 32), (3, 8, 19), (4, 64, 33)])
@pytest.mark.parametrize("n_classes", [2, 43])
def test_pictures_of_any_shape_channels_and_number_of_classes(shape: tuple[int, int, int], n_classes: int) -> None:
    assert tanh_cnn(shape, n_classes)(torch.rand(2, *shape)).shape == (2, n_classes)


def test_pictures_that_are_too_small_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least 8x8 pixels for the model cnn, got 7x9"):
        tanh_cnn((1, 7, 9), 10)
