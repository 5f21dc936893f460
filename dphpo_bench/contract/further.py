"""Further tests of a trained model, beside the metrics on the test records."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dphpo_bench.base.checks import short_text
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.base.text import shown
from dphpo_bench.contract.metrics import Metric, ModelMetric, ModelMetrics
from dphpo_bench.contract.seals import refuse_sealed

if TYPE_CHECKING:
    from dphpo_bench.data.source import DataSource

AnyMetric = Metric | ModelMetric | ModelMetrics

SHIFTED = "shifted"
"""Name of the further test that the board shows: records that differ from those that were trained on."""

MAX_ABOUT = 500


@dataclass(frozen=True)
class FurtherTest:
    """A test of the released model on other records, or by other metrics, than the task's own.

    The harness runs it after the metrics on the test records. It costs no ε, as long as `load` gives no training
    records. It is no part of a run's identity: records with and without it belong to one setting.

    Attributes:
        name: such as "shifted"; letters, digits and underscores.
        about: what is measured, in a line of at most 500 characters. It stands in the record. Change it with the
            records or the metrics: boards compare values only where it is the same.
        load: source → records, in a fixed order, without chance.
        metrics: beside others; None: those of the task.

    Raises:
        InvalidValueError: if a text is unfit.
    """

    name: str
    about: str
    load: "Callable[[DataSource], Records]"
    metrics: tuple[AnyMetric, ...] | None = None

    def __post_init__(self) -> None:
        if not short_text("name", self.name).isidentifier():
            raise InvalidValueError(f"Expected a name of letters, digits and underscores, got {shown(self.name)}.")
        if not (1 <= len(self.about) <= MAX_ABOUT and self.about.isprintable()):
            raise InvalidValueError(
                f"Expected about to be 1 to {MAX_ABOUT} printable characters, got {shown(self.about, form=repr)}."
            )

    def records(self, task: str, source: "DataSource") -> Records:
        """Return the records.

        Raises:
            SealedDataError: if a method plans or runs, or a model is measured.
        """
        refuse_sealed(f"The test {self.name!r}", task)
        return self.load(source)
