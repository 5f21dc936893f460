"""Parts that tasks and methods are made of."""

from dphpo_bench.contract.task import Input as Input
from dphpo_bench.training.augmentation import Augmentation as Augmentation
