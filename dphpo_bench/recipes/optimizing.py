"""Optimizers that a recipe takes, from the training room."""

from dphpo_bench.training.averaging import WeightAverage as WeightAverage
from dphpo_bench.training.optimizers import UpdateRule as UpdateRule
