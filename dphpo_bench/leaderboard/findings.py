"""What a reader should know first: sentences whose every number comes from the tables."""

import statistics as plain
from collections.abc import Iterable, Sequence

from dphpo_bench.leaderboard.board import Estimate, Finding, Overall, OverallRow, Table

SMALL_COST = 2.0
"""A method is cheap that processes at most so many times the examples of one untuned run."""


def findings(
    tables: Sequence[Table], overalls: Sequence[Overall], oracle: str, untuned: str, nonprivate: str
) -> tuple[Finding, ...]:
    """Up to three findings: which method at the smallest ε, whether searching pays, what is left to gain.

    A finding whose data are not there is left out. Tables in which a method has a single seed do not count where
    intervals are needed.

    Args:
        tables: of the board.
        overalls: of the board.
        oracle: name of the method that tunes without privacy.
        untuned: name of the method that tunes nothing.
        nonprivate: name of the method that trains without privacy.
    """
    smallest = min((overall for overall in overalls if overall.rows), key=_epsilon, default=None)
    found = [
        smallest and _which_method(smallest, oracle, untuned),
        _does_search_pay(tables, untuned),
        _what_is_left(tables, oracle, nonprivate),
    ]
    return tuple(finding for finding in found if finding)


def _epsilon(overall: Overall) -> float:
    return float("inf") if overall.epsilon is None else overall.epsilon


def _which_method(overall: Overall, oracle: str, untuned: str) -> Finding:
    best, *rest = overall.rows
    sentences = [
        f"{'Over all ε' if overall.epsilon is None else f'At {overall.title}'}, {best.contestant.label} has the best "
        f"mean rank, {_rank(best)} of {len(overall.rows)} over {_plural(len(overall.tables), 'table')}."
    ]
    equal = [row.contestant.label for row in rest if _overlap(best, row)]
    if equal:
        sentences.append(f"Other tasks and seeds could put it behind {_list(equal)}: their rank intervals overlap.")
    elif rest:
        sentences.append("Its rank interval overlaps no other's.")
    others = [
        f"{100 * row.utility.mean:.1f} % for {description}"
        for name, description in (
            (untuned, f"untuned {untuned}"),
            (oracle, f"{oracle}, whose tuning is not private"),
        )
        if (row := _of(name, (*overall.rows, *overall.references))) and row.utility and row is not best
    ]
    if best.utility and others:
        sentences.append(f"Its mean accuracy is {100 * best.utility.mean:.1f} %, against {' and '.join(others)}.")
    if best.relative_cost is not None:
        sentences.append(
            f"It processes {best.relative_cost:.2g} times the examples of one untuned run, "
            f"and spends {100 * best.tuning_share:.0f} % of ε on tuning."
        )
    cheap = [row for row in overall.rows if row.relative_cost is not None and row.relative_cost <= SMALL_COST]
    if cheap and cheap[0] is best:
        sentences.append(
            f"So it is also the choice for a small budget: nothing better costs up to {SMALL_COST:g} runs."
        )
    elif cheap:
        sentences.append(
            f"For the cost of at most {SMALL_COST:g} untuned runs, {cheap[0].contestant.label} is best, with a mean "
            f"rank of {_rank(cheap[0])}."
        )
    return Finding(f"Which method at {overall.title}", " ".join(sentences))


def _of(method: str, rows: Iterable[OverallRow]) -> OverallRow | None:
    return next((row for row in rows if row.contestant.method == method), None)


def _does_search_pay(tables: Sequence[Table], untuned: str) -> Finding | None:
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
            f"At ε = {epsilon:g}, {better} of {len(searches)} results of methods with several training runs are better "
            f"than untuned {untuned} and {worse} worse, with 95 % confidence each; their search takes "
            f"{100 * spent:.0f} % of ε (median)."
        )
    return Finding("Does searching pay for itself", " ".join(sentences)) if sentences else None


def _what_is_left(tables: Sequence[Table], oracle: str, nonprivate: str) -> Finding | None:
    sentences = []
    for epsilon in _ends(tables):
        to_oracle, to_nonprivate = [], []
        for table in tables:
            best = max(
                (row.utility.mean for row in table.rows if row.utility and not row.few_seeds and not row.failed),
                default=None,
            )
            references = {row.contestant.method: row.utility for row in table.references if not row.few_seeds}
            ideal, ceiling = references.get(oracle), references.get(nonprivate)
            if table.epsilon != epsilon or best is None or not ideal:
                continue
            to_oracle.append(ideal.mean - best)
            if ceiling:
                to_nonprivate.append(ceiling.mean - best)
        if to_oracle:
            gap = 100 * plain.median(to_oracle)
            side = "below" if gap > 0 else "above"
            text = (
                f"At ε = {epsilon:g}, the best private method ends {abs(gap):.1f} points {side} {oracle} "
                f"(median over {_plural(len(to_oracle), 'table')})"
            )
            if to_nonprivate:
                text += f", and {100 * plain.median(to_nonprivate):.1f} points below training without privacy"
            sentences.append(text + ".")
    if not sentences:
        return None
    sentences.append("The best is picked after the fact, so that these gaps are optimistic.")
    return Finding("What is left to gain", " ".join(sentences))


def _ends(tables: Sequence[Table]) -> list[float]:
    """The smallest and the largest ε."""
    epsilons = sorted({table.epsilon for table in tables})
    return epsilons if len(epsilons) < 3 else [epsilons[0], epsilons[-1]]


def _rank(row: OverallRow) -> str:
    return f"{row.mean_rank.mean:.2f}" if row.mean_rank else "none"


def _overlap(first: OverallRow, second: OverallRow) -> bool:
    return bool(first.ranks and second.ranks and second.ranks.low <= first.ranks.high)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _above_zero(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.low is not None and estimate.low > 0


def _below_zero(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.high is not None and estimate.high < 0


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
