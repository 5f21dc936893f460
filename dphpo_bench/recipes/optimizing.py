"""Optimizers that a recipe takes, from the training room: apart from `parts`, because they import torch."""

from dphpo_bench.training.optimizers import UpdateRule as UpdateRule
from dphpo_bench.training.optimizers import WeightAverage as WeightAverage
