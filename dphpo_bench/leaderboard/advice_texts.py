"""Advice as texts, and the guide: the advice for a grid of questions, as the README and the page of a board show it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from dphpo_bench.leaderboard.advice import Advice, Option, Question, advise
from dphpo_bench.leaderboard.means import Rate
from dphpo_bench.leaderboard.measured import KINDS, Measured
from dphpo_bench.records.measure import Measure

NO_INTERVAL = "no interval: a single task"

RECORDS = (2_000, 50_000)
"""Numbers of records in the guide's questions, if the board has measured near each; else it asks about its own."""

MAX_LINES = 15
"""Rows of the guide in the README; it says how many more there are."""

COMPUTE = (1, 3, 10)

MODELS = {"linear": "a linear model", "network": "a network from scratch", "fine-tuned": "a network to fine-tune"}


def number(value: float) -> str:
    """Return points with one decimal, without a sign on zero."""
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def lead(behind: float) -> str:
    """Return points behind as a distance to the oracle, as everywhere on the board: above zero is ahead."""
    text = f"{-behind:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def distance_text(option: Option) -> str:
    mean = option.distance.mean
    return f"{number(abs(mean))} points {'ahead' if round(mean, 1) < 0 else 'behind'}"


def interval_text(option: Option) -> str:
    """Return the interval of the distance to the oracle, or why there is none."""
    distance = option.distance
    if distance.low is None or distance.high is None:
        return NO_INTERVAL
    return f"[{lead(distance.high)}, {lead(distance.low)}]"


def rate_text(rate: Rate) -> str:
    if not rate.runs:
        return "no run near this ε"
    return f"{rate.count} of {rate.runs} ({100 * rate.low:.1f} to {100 * rate.high:.1f} %)"


def sentence(option: Option) -> str:
    """Return the advice in a sentence."""
    distance = distance_text(option).replace("ahead", "ahead of")
    interval = NO_INTERVAL if option.distance.low is None else f"{interval_text(option)} on another task"
    return (
        f"Take {option.label}: {distance} the oracle, {interval}; "
        f"collapsed runs {rate_text(option.collapses)}; {cost_text(option)}."
    )


def cost_text(option: Option) -> str:
    if math.isinf(option.price):
        return "cost not known"
    most = "" if round(option.most, 1) == option.price else f", up to {option.most:.1f}"
    runs = "untuned run" if option.price == 1 else "untuned runs"
    return f"{option.price:g} {runs}{most}"


def grid(rows: Iterable[Measured]) -> tuple[Advice, ...]:
    """Return the advice for each kind of model, some numbers of records, and each ε measured with that kind.

    The compute is not limited: `Advice.front` has what to take with less. Empty without rows.
    """
    measured = [row for row in rows if Measure(row.metric).share]
    epsilons = {kind: sorted({row.epsilon for row in measured if row.kind == kind}) for kind in KINDS}

    def answers(sizes: Iterable[int]) -> tuple[Advice, ...]:
        return tuple(
            advise(measured, Question(records, kind, epsilon))
            for kind in KINDS
            for records in sizes
            for epsilon in epsilons[kind]
        )

    usual, sizes = answers(RECORDS), [row.records for row in measured]
    near = {advice.question.records for advice in usual if advice.choice}
    return usual if near.issuperset(RECORDS) else answers(sorted({min(sizes), max(sizes)}) if sizes else ())


@dataclass(frozen=True)
class GuideLine:
    """The same method for several ε, with one kind of model and one number of records."""

    model: str
    records: int
    advice: tuple[Advice, ...]

    @property
    def epsilons(self) -> str:
        first, last = (self.advice[at].question.epsilon for at in (0, -1))
        return f"{first:g}" if first == last else f"{first:g} to {last:g}"

    @property
    def choices(self) -> list[Option]:
        return [advice.choice for advice in self.advice if advice.choice]

    @property
    def method(self) -> str:
        return self.choices[0].label if self.choices else ""

    @property
    def why(self) -> str:
        return self.advice[0].reason

    @property
    def distances(self) -> str:
        """The distances to the oracle at the ε, in points."""
        return " / ".join(lead(option.distance.mean) for option in self.choices)

    @property
    def interval(self) -> str:
        """The intervals together, from the lowest end to the highest."""
        lows = [option.distance.low for option in self.choices if option.distance.low is not None]
        highs = [option.distance.high for option in self.choices if option.distance.high is not None]
        return f"[{lead(max(highs))}, {lead(min(lows))}]" if lows and highs else NO_INTERVAL

    @property
    def collapses(self) -> str:
        """The collapses where they are most frequent."""
        return rate_text(max((option.collapses for option in self.choices), key=lambda rate: (rate.high, rate.count)))

    @property
    def cost(self) -> str:
        return cost_text(max(self.choices, key=lambda option: option.cost))


def guide_lines(advice: Iterable[Advice]) -> list[GuideLine]:
    """Return a line for each method of neighbouring ε; what is not known has a line, too."""
    return [
        GuideLine(model, records, tuple(group))
        for (model, records, _), group in groupby(
            advice, lambda each: (each.question.model, each.question.records, each.choice and each.choice.label)
        )
    ]


def selects(advice: Iterable[Advice]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return name, label and options, each a value and a text, of what the page's form asks."""
    questions = [each.question for each in advice]
    epsilons = sorted({question.epsilon for question in questions})
    return [
        ("model", "Model", [(name, MODELS[name]) for name in dict.fromkeys(each.model for each in questions)]),
        ("records", "Records", [(str(count), f"{count:,}") for count in sorted({each.records for each in questions})]),
        ("epsilon", "ε", [(f"{epsilon:g}", f"{epsilon:g}") for epsilon in epsilons]),
        ("compute", "Compute, untuned runs", [("Infinity", "any"), *((str(runs), str(runs)) for runs in COMPUTE)]),
    ]
