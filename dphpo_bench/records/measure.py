"""The metric that tables and the board show, and its direction."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "roc_auc", "token_accuracy", "several metrics"})
"""Shares whose records hold name and direction alone. Those of all other shares say so: see `Measure.to_json`."""

LOGARITHMIC = frozenset({"perplexity"})
"""Metrics of which ratios mean something, not differences: those of logarithms of a perplexity are in nats."""

TITLES = {"f1": "F1", "r2": "R²", "roc_auc": "ROC-AUC"}
"""Metrics that are not shown by their names."""


@dataclass(frozen=True, order=True, slots=True)
class Measure:
    """A metric by its name in records. Values of a share lie between 0 and 1, and are shown in per cent."""

    name: str = "accuracy"
    higher_is_better: bool = True
    share: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", self.share or self.name in SHARES)

    def to_json(self) -> dict[str, Any]:
        """Return the entry among the metrics of a record's facts."""
        values = {"name": self.name, "higher_is_better": self.higher_is_better}
        return {**values, "is_share": True} if self.share and self.name not in SHARES else values

    @property
    def logarithmic(self) -> bool:
        return self.name in LOGARITHMIC

    @property
    def unit(self) -> str:
        """The unit of differences, for people; empty for the unit of the metric."""
        return "points" if self.share else "nats" if self.logarithmic else ""

    @property
    def range(self) -> tuple[float, float]:
        """The values that it can have."""
        return (0.0, 1.0) if self.share else (1.0, math.inf) if self.logarithmic else (-math.inf, math.inf)

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def header(self) -> str:
        unit = f"{self.title}, %" if self.share else self.title
        return unit if self.higher_is_better else f"{unit} (lower is better)"

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.higher_is_better else value < other

    def score(self, value: float) -> float:
        """Return a score, where more is better: the value, or its logarithm, for which the value must be above zero."""
        size = math.log(value) if self.logarithmic else value
        return size if self.higher_is_better else -size

    def value(self, score: float) -> float:
        size = score if self.higher_is_better else -score
        return math.exp(size) if self.logarithmic else size

    def text(self, value: float) -> str:
        return f"{value:.2%}" if self.share else f"{value:.4g}"


ACCURACY = Measure()
SEVERAL = Measure("several metrics")
"""The measure of tables that each show another share; higher is better. No record can have this name."""


def compared_value(measure: Measure, value: float, facts: Mapping[str, Any]) -> float:
    """Return the value for comparisons: a perplexity counts as at most the number of classes, and as NaN below 1.

    A uniform guess has that perplexity. A confidently wrong model can have any; a single collapsed run would
    dominate means and ranks.
    """
    if not measure.logarithmic:
        return value
    classes = facts.get("n_classes")
    limited = min(value, classes) if type(classes) is int and classes > 1 else value
    return limited if limited >= 1 else math.nan


def shown_measure(facts: Mapping[str, Any], measured: Iterable[str] = ()) -> Measure:
    """Return the metric to show: the first in the task's facts, else the accuracy, else the first that was measured."""
    first = next(_declared(facts), None)
    if first:
        return first
    names = list(measured)
    return ACCURACY if "accuracy" in names or not names else Measure(names[0])


def measure_named(name: str, facts: Mapping[str, Any]) -> Measure:
    """Return a metric by its name, as the facts of a run's identity declare it; unless they do, higher is better."""
    return next((measure for measure in _declared(facts) if measure.name == name), Measure(name))


def _declared(facts: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield the metrics that facts declare; a stranger's facts may hold anything."""
    entries = facts.get("metrics") or [facts.get("metric")]
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {"name": str(name), "higher_is_better": bool(higher)}:
                yield Measure(name, higher, entry.get("is_share") is True)
