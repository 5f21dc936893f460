"""Parameter counts against those in the papers."""

import torch

from dphpo_bench.recipes.networks import large_tanh_cnn, small_tanh_cnn


def test_small_network_has_the_papers_26010_parameters() -> None:
    model = small_tanh_cnn()
    assert sum(parameter.numel() for parameter in model.parameters()) == 26_010
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_large_network_has_the_papers_550570_parameters() -> None:
    model = large_tanh_cnn()
    assert sum(parameter.numel() for parameter in model.parameters()) == 550_570
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
