"""Parts from the training room and the session, apart from `parts`, because they import torch, which plans need not."""

from dphpo_bench.session.sealed import noisy_votes as noisy_votes
from dphpo_bench.training.optimizers import UpdateRule as UpdateRule
from dphpo_bench.training.optimizers import WeightAverage as WeightAverage
