"""How long a task's model is trained by default."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How a model is trained by default.

    Attributes:
        batch_size: expected.
        epochs: passes over the data in expectation.
        learning_rate: AdamW's; its own default is tuned on nothing.
    """

    batch_size: int
    epochs: float
    learning_rate: float = 1e-3
