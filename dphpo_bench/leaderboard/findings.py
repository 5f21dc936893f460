"""What a reader should know first: who is first, and whether searching pays, at the smallest and the largest ε."""

import statistics as plain
from collections import Counter
from collections.abc import Iterator, Sequence

from dphpo_bench.leaderboard.board import Absent, Answer, Contestant, Estimate, Finding, Overall, Part, Place, Table
from dphpo_bench.leaderboard.columns import change_text
from dphpo_bench.leaderboard.contestants import Cell, mean_over

UNTUNED = "untuned auto_clipping"
ADVISED = "recommended"
MOST_NAMED = 4


def findings(counted: Sequence[tuple[Cell, Table]], overalls: Sequence[Overall]) -> tuple[Finding, ...]:
    """The findings that the tables that count, and the overall standings, have the data for."""
    epsilons = sorted({table.epsilon for _, table in counted})
    ends = list(dict.fromkeys([*epsilons[:1], *epsilons[-1:]]))
    found = {
        "Who is first": [_first(overall) for overall in overalls if overall.epsilon in ends and len(overall.rows) > 1],
        "Does searching pay for itself": [text for epsilon in ends for text in _searching(counted, epsilon)],
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


def _searching(counted: Sequence[tuple[Cell, Table]], epsilon: float) -> Iterator[str]:
    """How many searches are better or worse than no tuning, beyond chance: by naive values, and by recommended ones.

    Those in half of the tables or more, so that a submission to one of them does not change what is said of all.
    """
    tables = [(cell, table) for cell, table in counted if table.epsilon == epsilon]
    among = Counter(row.contestant for _, table in tables for row in table.rows)
    found = [
        (row, cell)
        for cell, table in tables
        for row in table.rows
        if row.runs > 1 and not row.lacks_seeds and 2 * among[row.contestant] >= len(tables)
    ]
    untuned = [row.gap_to_untuned for row, _ in found if row.gap_to_untuned]
    advised = [lead for row, cell in found if (lead := _lead(cell, row.contestant, ADVISED))]
    if untuned:
        better, worse = _beyond_chance(untuned)
        told = (
            f"{better} of {len(untuned)} results of methods with several training runs are better than {UNTUNED} and "
        )
        told += f"{worse} worse"
        if advised:
            better, worse = _beyond_chance(advised)
            told += f"; {better} are better than {ADVISED}, whose values are from the literature, and {worse} worse"
        spent = plain.median(row.tuning_share for row, _ in found)
        yield (
            f"At ε = {epsilon:g}, {told} (95 % confidence each). Their search takes {100 * spent:.0f} % of ε (median)."
        )


def _lead(cell: Cell, who: Contestant, label: str) -> Estimate | None:
    """By how much a contestant is better than another one; None without that."""
    others = [entry for entry in cell.entries if entry.contestant.label == label and not entry.lacks]
    return mean_over([cell.by_contestant[who]], others) if others else None


def _beyond_chance(leads: Sequence[Estimate]) -> tuple[int, int]:
    """How many are above zero, and how many below, with 95 % confidence each."""
    signs = [lead.sign for lead in leads]
    return signs.count(1), signs.count(-1)


def sentences(answer: Answer) -> list[str]:
    """What follows from an answer, who is first and who is last, as plain text; each sentence begins with a name."""
    first, *others = answer.places
    cost = f", for the cost of {_runs(first.cost)}" if first.cost else ""
    place = f"{_distance(answer, first.lead.mean)}{_interval(answer, first)}{_worst(answer, first)}"
    told = [f"{first.contestant.label} is {place}{cost}."]
    ties = [place.contestant.label for place in others if place.tied]
    if others and not ties:
        told[0] = f"{told[0][:-1]}, and ahead of every other with 95 % confidence each."
    elif ties:
        more = f" and {len(ties) - MOST_NAMED} more" if len(ties) > MOST_NAMED else ""
        told.append(f"{', '.join(ties[:MOST_NAMED])}{more} cannot be told from it, with 95 % confidence each.")
    if len(others) > len(ties):
        last = others[-1]
        told.append(f"{last.contestant.label} is last, {_distance(answer, last.lead.mean)}{_worst(answer, last)}.")
    return told


def absence(answer: Answer, one: Absent) -> str:
    """In how many tables somebody is; if in half or more, how far it and the first are from the anchor there."""
    if one.lead is None or one.first is None or one not in answer.nearly:
        return f"in {one.tables}"
    first = f"{answer.places[0].contestant.label} is {_distance(answer, one.first.mean)}"
    return f"in {one.tables}: {_distance(answer, one.lead.mean)} there, where {first}"


def _runs(cost: float) -> str:
    text = f"{cost:.3g}"
    return "one untuned run" if text == "1" else f"{text} untuned runs"


def _distance(answer: Answer, mean: float) -> str:
    if not change_text(mean, answer.measure).strip("+−0."):
        return f"level with {answer.anchor}"
    return f"{_amount(answer, abs(mean))} {'ahead of' if mean > 0 else 'behind'} {answer.anchor}"


def _amount(answer: Answer, value: float) -> str:
    unit = answer.measure.unit or f"of {answer.measure.title}"
    return f"{change_text(value, answer.measure).lstrip('+')} {unit}"


def _interval(answer: Answer, place: Place) -> str:
    low, high = place.lead.low, place.lead.high
    if low is None or high is None:
        return ""
    return f" [{change_text(low, answer.measure)}, {change_text(high, answer.measure)}]"


def _worst(answer: Answer, place: Place) -> str:
    if len(place.parts) < 2:
        return ""
    worst: Part = place.parts[-1]
    return f", at worst {change_text(worst.value, answer.measure)} ({worst.name})"
