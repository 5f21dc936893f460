"""The metric that tables and the board show, and its direction."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "roc_auc", "token_accuracy", "several metrics"})
"""Metrics between 0 and 1, which are shown in percent."""

LOGARITHMIC = frozenset({"perplexity"})
"""Metrics of which ratios mean something, not differences: those of logarithms of a perplexity are in nats."""

TITLES = {"f1": "F1", "r2": "R²", "roc_auc": "ROC-AUC"}
"""Metrics that are not shown by their names."""


@dataclass(frozen=True, order=True, slots=True)
class Measure:
    """A metric by its name in records, such as "accuracy", and its direction."""

    name: str = "accuracy"
    higher_is_better: bool = True

    @property
    def share(self) -> bool:
        """True if the values lie between 0 and 1."""
        return self.name in SHARES

    @property
    def logarithmic(self) -> bool:
        """True if values are compared and averaged by their logarithms."""
        return self.name in LOGARITHMIC

    @property
    def unit(self) -> str:
        """The unit of differences, for people; empty for the unit of the metric."""
        return "points" if self.share else "nats" if self.logarithmic else ""

    @property
    def title(self) -> str:
        """The name for people."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def header(self) -> str:
        """The title with its unit, and with its direction if lower is better."""
        unit = f"{self.title}, %" if self.share else self.title
        return unit if self.higher_is_better else f"{unit} (lower is better)"

    def score(self, value: float) -> float:
        """Return a score, where more is better: the value, or its logarithm, for which the value must be above zero."""
        size = math.log(value) if self.logarithmic else value
        return size if self.higher_is_better else -size

    def value(self, score: float) -> float:
        """Return the value with this score."""
        size = score if self.higher_is_better else -score
        return math.exp(size) if self.logarithmic else size

    def text(self, value: float) -> str:
        """Return a value for people: a share in percent, anything else with four digits."""
        return f"{value:.2%}" if self.share else f"{value:.4g}"


ACCURACY = Measure()
SEVERAL = Measure("several metrics")
"""The measure of tables that each show another share; higher is better. No record can have this name."""


def compared_value(measure: Measure, value: float, facts: Mapping[str, Any]) -> float:
    """Return the value for comparisons: a perplexity is at most the number of classes, here tokens.

    A uniform guess has that perplexity. A confidently wrong model can have any; a single collapsed run would
    dominate means and ranks.

    Args:
        measure: what was measured.
        value: as measured, on test data.
        facts: of the run's identity.

    Returns:
        The value; of a perplexity at least 1, and not a number if it is below.
    """
    if not measure.logarithmic:
        return value
    classes = facts.get("n_classes")
    limited = min(value, classes) if type(classes) is int and classes > 1 else value
    return limited if limited >= 1 else math.nan


def shown_measure(facts: Mapping[str, Any], measured: Iterable[str] = ()) -> Measure:
    """Return the metric to show: the first in the task's facts, else the accuracy, else the first that was measured.

    Args:
        facts: of the run's identity. Their `metrics` are a list of names and directions.
        measured: names of the measured metrics. Unless the facts say otherwise, higher is better.
    """
    metrics = facts.get("metrics") or [facts.get("metric")]
    match metrics:
        case [{"name": str(name), "higher_is_better": bool(higher)}, *_]:
            return Measure(name, higher)
    names = list(measured)
    return ACCURACY if "accuracy" in names or not names else Measure(names[0])
