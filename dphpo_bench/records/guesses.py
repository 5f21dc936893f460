"""Lines on runs that are no better than a constant guess."""

from collections.abc import Sequence

from dphpo_bench.base.text import count
from dphpo_bench.records.measure import shown_measure
from dphpo_bench.records.reading import Result
from dphpo_bench.records.record import RunRecord

MAX_NAMED = 3
BALANCED_ACCURACY = "balanced_accuracy"
_ROUNDING = 0.0005  # what is shown as .500 is no better than 1/2


def guess_line(record: RunRecord) -> str | None:
    """Return a line on a run that is no better than a constant guess, and why that may be; None for any other."""
    guess, measure = record.constant_guess, shown_measure(record.identity.facts, record.metrics)
    if guess is None or measure.name not in record.metrics:
        return _balanced_line(record)
    value = record.metrics[measure.name]
    better = value > guess.value if measure.higher_is_better else value < guess.value
    verdict = "Not clearly better than" if better else "No better than"
    margin = ", within chance on so few test records" if better else ""
    compared = f"test {measure.title} {measure.text(value)}, the best constant guess has {measure.text(guess.value)}"
    return f"{verdict} a constant guess: {compared}{margin}. {guess.why}"


def _balanced_line(record: RunRecord) -> str | None:
    """Return a line on predictions that are no better than a constant guess, though the first metric is better."""
    balanced, n_classes = record.metrics.get(BALANCED_ACCURACY), record.identity.facts.get("n_classes") or 2
    if balanced is None or type(n_classes) is not int or not 1 < n_classes < 2**31:  # a stranger's facts may be any
        return None
    if not balanced < 1 / n_classes + _ROUNDING:
        return None
    return (
        f"No better than a constant guess: test balanced accuracy {balanced:.2%}, any constant guess has "
        f"{1 / n_classes:.2%}. Of rare classes, class_shares with class_weights='balanced', or another threshold, help."
    )


def guesses_line(results: Sequence[Result]) -> str | None:
    """Return a line that names some runs that are no better than a constant guess; None if there are none."""
    paths = [str(result.path) for result in results if guess_line(result.record)]
    if not paths:
        return None
    verb, more = "is" if len(paths) == 1 else "are", len(paths) - MAX_NAMED
    named = ", ".join(paths[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return (
        f"{count(len(paths), 'run')} {verb} not clearly better than a constant guess: {named}. "
        "dphpo-bench show RECORD says why that may be."
    )
