"""Convolutional networks that the literature on private training uses as its yardsticks."""

from itertools import pairwise

from torch import nn


def small_tanh_cnn() -> nn.Module:
    """Network for 28x28 grey pictures and ten classes; 26,010 parameters.

    Source: Papernot et al., "Tempered sigmoid activations for deep learning with differential privacy", AAAI
    2021, which also found that tanh suits private training better than ReLU.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def large_tanh_cnn() -> nn.Module:
    """Network for 32x32 colour pictures and ten classes; 550,570 parameters.

    Source: Papernot et al. 2021 (as above) and Tramèr and Boneh, ICLR 2021, table of CIFAR-10's network.
    """
    widths = (3, 32, 32, 64, 64, 128, 128)
    layers: list[nn.Module] = []
    for block, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.Tanh()]
        if block % 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))
