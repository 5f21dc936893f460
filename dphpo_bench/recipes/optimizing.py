"""Optimizers that a recipe takes, from the training room."""

from dphpo_bench.training.optimizers import UpdateRule as UpdateRule
from dphpo_bench.training.optimizers import WeightAverage as WeightAverage
