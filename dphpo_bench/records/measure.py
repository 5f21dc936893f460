"""What the test data of a run were measured by: the metric that tables and the board show, and its direction."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "roc_auc", "token_accuracy"})
"""Metrics between 0 and 1, which are shown in percent."""

TITLES = {"f1": "F1", "r2": "R²", "roc_auc": "ROC-AUC"}
"""Names that are written otherwise."""


@dataclass(frozen=True, order=True, slots=True)
class Measure:
    """A metric, as a record names it.

    Attributes:
        name: such as "accuracy".
        higher_is_better: the direction.
    """

    name: str = "accuracy"
    higher_is_better: bool = True

    @property
    def share(self) -> bool:
        """Whether its values lie between 0 and 1."""
        return self.name in SHARES

    @property
    def title(self) -> str:
        """The name as it is read."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def header(self) -> str:
        """The name, with its unit and with its direction where small is good."""
        unit = f"{self.title}, %" if self.share else self.title
        return unit if self.higher_is_better else f"{unit} (lower is better)"

    def text(self, value: float) -> str:
        """A value for people: 87.33 % of a share, else four digits."""
        return f"{value:.2%}" if self.share else f"{value:.4g}"


ACCURACY = Measure()


def shown_measure(facts: Mapping[str, Any], measured: Iterable[str] = ()) -> Measure:
    """The metric to show: the first that the task's public facts name, else the accuracy, else the first measured.

    Args:
        facts: of the identity. `metrics` lists names and directions.
        measured: names of what was measured. A metric that the facts do not name counts as one to be high.
    """
    told = facts.get("metrics") or [facts.get("metric")]
    match told:
        case [{"name": str(name), "higher_is_better": bool(higher)}, *_]:
            return Measure(name, higher)
    names = list(measured)
    return ACCURACY if "accuracy" in names or not names else Measure(names[0])
