"""Queries of parts of the records. They import torch, which plans need not."""

from dphpo_bench.session.sealed import noisy_votes as noisy_votes
