"""Data and inputs that a recipe's task is made of, from the rooms below."""

from dphpo_bench.contract.task import Input as Input
from dphpo_bench.data.datasets import Images as Images
from dphpo_bench.data.datasets import Split as Split
from dphpo_bench.data.datasets import Table as Table
from dphpo_bench.training.augmentation import Augmentation as Augmentation
