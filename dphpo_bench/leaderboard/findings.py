"""What a reader should know first: who is first, and whether searching pays, at the smallest and the largest ε."""

import statistics as plain
from collections.abc import Iterator, Sequence

from dphpo_bench.leaderboard.board import Finding, Overall, Table

UNTUNED = "untuned auto_clipping"


def findings(tables: Sequence[Table], overalls: Sequence[Overall]) -> tuple[Finding, ...]:
    """The findings that the tables that count, and the overall standings, have the data for."""
    epsilons = sorted({table.epsilon for table in tables})
    ends = list(dict.fromkeys([*epsilons[:1], *epsilons[-1:]]))
    found = {
        "Who is first": [_first(overall) for overall in overalls if overall.epsilon in ends and len(overall.rows) > 1],
        "Does searching pay for itself": [text for epsilon in ends for text in _searching(tables, epsilon)],
    }
    return tuple(Finding(title, " ".join(texts)) for title, texts in found.items() if texts)


def _first(overall: Overall) -> str:
    """Who has the best mean rank, and how many others may really be as good."""
    best, *rest = overall.rows
    assert best.mean_rank is not None
    tied = [row for row in rest if row.mean_rank and row.mean_rank.mean == best.mean_rank.mean]
    names = ", ".join(row.contestant.label for row in (best, *tied))
    close = sum(bool(best.ranks and row.ranks and row.ranks.low <= best.ranks.high) for row in rest[len(tied) :])
    return (
        f"At {overall.title}, {names} {'share' if tied else 'has'} the best mean rank, {best.mean_rank.mean:.2f} of "
        f"{len(overall.rows)} (tables: {len(overall.tables)}). Others whose rank interval overlaps with "
        f"{'theirs' if tied else 'its own'}: {close}."
    )


def _searching(tables: Sequence[Table], epsilon: float) -> Iterator[str]:
    """How many searches are better or worse than no tuning, beyond chance."""
    rows = [row for table in tables if table.epsilon == epsilon for row in table.rows if row.runs > 1]
    gaps = [row.gap_to_untuned for row in rows if row.gap_to_untuned]
    intervals = [(gap.low, gap.high) for gap in gaps if gap.low is not None and gap.high is not None]
    if intervals:
        better, worse = sum(low > 0 for low, _ in intervals), sum(high < 0 for _, high in intervals)
        spent = plain.median(row.tuning_share for row in rows)
        yield (
            f"At ε = {epsilon:g}, {better} of {len(intervals)} results of methods with several training runs are "
            f"better than {UNTUNED} and {worse} worse, with 95 % confidence each. Their search takes "
            f"{100 * spent:.0f} % of ε (median)."
        )
