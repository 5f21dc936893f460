"""Models of the built-in tasks: a linear layer, and convolutional networks that the literature uses as yardsticks."""

from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from dphpo_bench.base.errors import InvalidValueError

LEAST_SIDE = 8
"""The smallest height and width of pictures that the networks take."""


def zero_linear(n_inputs: int, n_outputs: int) -> nn.Linear:
    """Build a linear layer whose weights and biases start from zero."""
    model = nn.Linear(n_inputs, n_outputs)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def perceptron(n_inputs: int, *widths: int, activation: Literal["tanh", "relu"] = "tanh") -> nn.Module:
    """Build a linear layer of zeros, or with hidden widths before the outputs a network with torch's weights."""
    if len(widths) == 1:
        return zero_linear(n_inputs, widths[0])
    between = nn.Tanh if activation == "tanh" else nn.ReLU
    layers = [layer for pair in pairwise((n_inputs, *widths)) for layer in (nn.Linear(*pair), between())]
    return nn.Sequential(*layers[:-1])


def tanh_cnn(image_shape: tuple[int, int, int], n_classes: int) -> nn.Module:
    """Build the small network for grey pictures from 20 pixels on, else the large one.

    Source: Papernot et al., "Tempered sigmoid activations for deep learning with differential privacy", AAAI 2021,
    which also found that tanh suits private training better than ReLU. On 28x28 grey and 32x32 colour pictures of ten
    classes these are the paper's networks.

    Args:
        image_shape: (channels, height, width).
    """
    channels, *sides = image_shape
    if min(sides) < LEAST_SIDE:
        raise InvalidValueError(
            f"Expected pictures of at least {LEAST_SIDE}x{LEAST_SIDE} pixels for the model cnn, got "
            f"{sides[0]}x{sides[1]}. Enlarge them, or choose another model."
        )
    small = channels == 1 and min(sides) >= 20
    with torch.device("meta"):  # shapes alone: nothing is drawn or computed
        size = nn.Sequential(*_layers(small, channels))(torch.empty(1, *image_shape)).numel()
    hidden = 32 if small else 128
    layers = _layers(small, channels)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, n_classes))


def _layers(small: bool, channels: int) -> list[nn.Module]:
    """Build the layers before the head: Papernot et al. 2021, and for the large one Tramèr and Boneh, ICLR 2021."""
    if small:
        return [
            nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, kernel_size=4, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
        ]
    layers: list[nn.Module] = []
    for block, (before, after) in enumerate(pairwise((channels, 32, 32, 64, 64, 128, 128))):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.Tanh()]
        if block % 2:
            layers.append(nn.MaxPool2d(2))
    return layers
