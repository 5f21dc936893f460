"""What all searches by held-out scores share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.task import TaskFacts
from dphpo_bench.training.clipping import parse_clipping

if TYPE_CHECKING:
    from dphpo_bench.recipes.dp_sgd import DpSgd

from dphpo_bench.contract.method import Method


@dataclass(frozen=True)
class SearchMethod(Method):
    """A method that compares DP-SGD runs of different hyperparameters, scored on held-out records.

    Attributes:
        validation: expected share of the records that scores are computed on; the others train.
        clipping: as in `parse_clipping`.
        optimizer: a `torch.optim` name; default: the task's.
        batch_size: expected batch size; default: the task's. With as many as there are records, trials are
            trained together, in one matrix product where the model is linear.
        epochs: expected passes over the data of one trial; default: the task's.
        averaging: decay of the exponential average of weights that a run returns; 0 returns the last ones.
    """

    validation: float = 0.1
    clipping: str = "auto_s"
    optimizer: str | None = None
    batch_size: int | None = None
    epochs: float | None = None
    averaging: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise InvalidValueError(f"Expected 0 < validation < 1, got validation={self.validation}.")
        parse_clipping(self.clipping)

    def training(self, facts: TaskFacts) -> "DpSgd":
        """One run of the search, but for its hyperparameters and its noise."""
        from dphpo_bench.recipes.dp_sgd import DpSgd

        facts = facts.with_schedule(self.batch_size, self.epochs)
        return DpSgd.of(facts, optimizer=self.optimizer, clipping=self.clipping, averaging=self.averaging)
