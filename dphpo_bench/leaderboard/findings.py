"""What a reader should know first: sentences whose every number comes from the tables."""

import statistics as plain
from collections.abc import Iterable, Iterator, Sequence

from dphpo_bench.leaderboard.board import Contestant, Estimate, Finding, Overall, OverallRow, Row, Table

SMALL_COST = 2.0
"""A method is cheap that processes at most so many times the examples of one untuned run."""

Who = tuple[str, str]
"""A method's name and its parameters as compact JSON."""


def findings(
    tables: Sequence[Table], overalls: Sequence[Overall], oracle: Who, untuned: Who, nonprivate: Who
) -> tuple[Finding, ...]:
    """Up to three findings: which method at the smallest ε, whether searching pays, what is left to gain.

    A finding whose data are not there is left out.

    Args:
        tables: of the board that count.
        overalls: of the board.
        oracle: what tunes without privacy.
        untuned: what tunes nothing.
        nonprivate: what trains without privacy.
    """
    contested = [overall for overall in overalls if len(overall.rows) > 1]
    smallest = min(
        contested, key=lambda overall: float("inf") if overall.epsilon is None else overall.epsilon, default=None
    )
    found = [
        smallest and _which_method(smallest, oracle, untuned),
        _does_search_pay(tables, untuned),
        _what_is_left(tables, oracle, nonprivate),
    ]
    return tuple(finding for finding in found if finding)


def _which_method(overall: Overall, oracle: Who, untuned: Who) -> Finding:
    best, *rest = overall.rows
    several = len(overall.tables) > 1
    tied = [row.contestant.label for row in rest if row.mean_rank and row.mean_rank.mean == _mean_rank(best)]
    where = "Over all ε" if overall.epsilon is None else f"At {overall.title}"
    first = _list([best.contestant.label, *tied], "and")
    rank = "mean rank" if several else "rank"
    sentences = [
        f"{where}, {first} {'have' if tied else 'has'} the best {rank}, {_mean_rank(best):.2f} of {len(overall.rows)}, "
        f"over {_plural(len(overall.tables), 'table')}."
    ]
    close = [row.contestant.label for row in rest[len(tied) :] if _overlap(best, row)]
    if close:
        others = "Other tasks and seeds" if several else "Other seeds"
        sentences.append(f"{others} could put {_list(close, 'or')} before: their rank intervals overlap.")
    elif rest[len(tied) :]:
        sentences.append("The rank intervals of all others lie behind.")
    against = [
        f"{100 * row.utility.mean:.1f} % for {description}"
        for who, description in (
            (untuned, f"untuned {untuned[0]}"),
            (oracle, f"{oracle[0]}, whose tuning is not private"),
        )
        for row in (*overall.rows, *overall.references)
        if _is(row.contestant, who) and row.utility and row is not best
    ]
    if best.utility and against:
        sentences.append(
            f"The mean accuracy of {best.contestant.label} is {100 * best.utility.mean:.1f} %, "
            f"against {' and '.join(against)}."
        )
    if best.relative_cost is not None:
        cost = f"{best.relative_cost:.2g}"
        many = "as many examples as" if cost == "1" else f"{cost} times the examples of"
        sentences.append(
            f"It processes {many} one untuned run, and spends {100 * best.tuning_share:.0f} % of ε on tuning."
        )
    cheap = next(
        (row for row in overall.rows if row.relative_cost is not None and row.relative_cost <= SMALL_COST), None
    )
    if cheap is best:
        sentences.append("So it suits a small budget, too.")
    elif cheap:
        sentences.append(
            f"For the cost of at most {SMALL_COST:g} untuned runs, {cheap.contestant.label} is best, with a "
            f"{rank} of {_mean_rank(cheap):.2f}."
        )
    return Finding(f"Which method at {overall.title}", " ".join(sentences))


def _does_search_pay(tables: Sequence[Table], untuned: Who) -> Finding | None:
    """Count searches that are better or worse than no tuning beyond chance."""
    sentences = []
    for epsilon in _ends(tables):
        searches = [
            row
            for table in tables
            if table.epsilon == epsilon
            for row in table.rows
            if row.runs > 1 and row.gap_to_untuned and row.gap_to_untuned.low is not None
        ]
        if not searches:
            continue
        better = sum(_above_zero(row.gap_to_untuned) for row in searches)
        worse = sum(_below_zero(row.gap_to_untuned) for row in searches)
        spent = plain.median(row.tuning_share for row in searches)
        sentences.append(
            f"At ε = {epsilon:g}, {better} of {_plural(len(searches), 'result')} of methods with several training runs "
            f"are better than untuned {untuned[0]} and {worse} worse, with 95 % confidence each; their search takes "
            f"{100 * spent:.0f} % of ε (median)."
        )
    return Finding("Does searching pay for itself", " ".join(sentences)) if sentences else None


def _what_is_left(tables: Sequence[Table], oracle: Who, nonprivate: Who) -> Finding | None:
    """The distance of the best method to both references, in the tables that have all three with enough seeds."""
    sentences = []
    for epsilon in _ends(tables):
        gaps = [
            (ideal - best, ceiling - best)
            for table in tables
            if table.epsilon == epsilon
            and (best := max(_means(table.rows), default=None)) is not None
            and (ideal := next(_means(row for row in table.references if _is(row.contestant, oracle)), None))
            is not None
            and (ceiling := next(_means(row for row in table.references if _is(row.contestant, nonprivate)), None))
            is not None
        ]
        if gaps:
            to_oracle, to_ceiling = (plain.median(distances) for distances in zip(*gaps, strict=True))
            sentences.append(
                f"At ε = {epsilon:g}, the best private method ends {_distance(to_oracle)} {oracle[0]} and "
                f"{_distance(to_ceiling)} training without privacy (medians over {_plural(len(gaps), 'table')})."
            )
    if not sentences:
        return None
    sentences.append("The best is picked after the fact, so that these distances are optimistic.")
    return Finding("What is left to gain", " ".join(sentences))


def _means(rows: Iterable[Row]) -> Iterator[float]:
    """Mean accuracies of rows with enough seeds and no failures."""
    return (row.utility.mean for row in rows if row.utility and not row.few_seeds and not row.failed)


def _distance(difference: float) -> str:
    points = f"{abs(100 * difference):.1f}"
    return "level with" if float(points) == 0 else f"{points} points {'below' if difference > 0 else 'above'}"


def _ends(tables: Sequence[Table]) -> list[float]:
    """The smallest and the largest ε."""
    epsilons = sorted({table.epsilon for table in tables})
    return epsilons if len(epsilons) < 3 else [epsilons[0], epsilons[-1]]


def _is(contestant: Contestant, who: Who) -> bool:
    return (contestant.method, contestant.parameters) == who


def _mean_rank(row: OverallRow) -> float:
    assert row.mean_rank is not None  # only those who have one are among an overall's rows
    return row.mean_rank.mean


def _overlap(first: OverallRow, second: OverallRow) -> bool:
    return bool(first.ranks and second.ranks and second.ranks.low <= first.ranks.high)


def _above_zero(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.low is not None and estimate.low > 0


def _below_zero(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.high is not None and estimate.high < 0


def _list(names: Sequence[str], last: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
