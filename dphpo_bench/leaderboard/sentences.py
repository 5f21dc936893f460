"""Sentences and small tables about a board, as plain text: its findings, its answers, who beats whom."""

import statistics as plain
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from dphpo_bench.leaderboard.answers import FAMILY_ERROR, UNTUNED, Absent, Answer, Claims, Place, Subject
from dphpo_bench.leaderboard.entries import Contest
from dphpo_bench.leaderboard.means import POINT
from dphpo_bench.leaderboard.tables import Board, Overall, Table
from dphpo_bench.leaderboard.values import BEHIND, EQUIVALENT, UNCERTAIN, Entry, Finding
from dphpo_bench.records.measure import Estimate, change_text

ADVISED = "recommended"
MOST_NAMED = 4
MUCH_LESS = 1.5
"""An entry that costs less by this factor, and is a point behind the first at most, is named beside it."""


def findings(counted: Sequence[tuple[Contest, Table]], overalls: Sequence[Overall]) -> tuple[Finding, ...]:
    epsilons = sorted({table.epsilon for _, table in counted})
    ends = list(dict.fromkeys([*epsilons[:1], *epsilons[-1:]]))
    sentences_by_title = {
        "Who is first": [_first(overall) for overall in overalls if overall.epsilon in ends and len(overall.rows) > 1],
        "Does searching pay for itself": [text for epsilon in ends for text in _searching(counted, epsilon)],
    }
    return tuple(Finding(title, " ".join(texts)) for title, texts in sentences_by_title.items() if texts)


def _first(overall: Overall) -> str:
    best, *rest = overall.rows
    assert best.mean_rank is not None
    tied = [row for row in rest if row.mean_rank and row.mean_rank.mean == best.mean_rank.mean]
    names = ", ".join(row.entry.label for row in (best, *tied))
    close = sum(bool(best.ranks and row.ranks and row.ranks.low <= best.ranks.high) for row in rest[len(tied) :])
    return (
        f"At {overall.title}, {names} {'share' if tied else 'has'} the best mean rank, {best.mean_rank.mean:.2f} of "
        f"{len(overall.rows)} (tables: {len(overall.tables)}). Others whose rank interval overlaps with "
        f"{'theirs' if tied else 'its own'}: {close}."
    )


def _searching(counted: Sequence[tuple[Contest, Table]], epsilon: float) -> Iterator[str]:
    """Yield how many searches are significantly better or worse than no tuning, and than recommended values.

    Those in half of the tables or more, so that a submission to one of them does not change what is said of all.
    """
    tables = [(contest, table) for contest, table in counted if table.epsilon == epsilon]
    among = Counter(row.entry for _, table in tables for row in table.rows)
    searches = [
        (row, contest)
        for contest, table in tables
        for row in table.rows
        if row.runs > 1 and not row.lacks_seeds and 2 * among[row.entry] >= len(tables)
    ]
    untuned = [row.gap_to_untuned for row, _ in searches if row.gap_to_untuned]
    advised = []
    for row, contest in searches:
        alone = Subject(contest.title, contest.task_model.measure, (contest,))
        known = [member.entry for member in contest.members if member.entry.label == ADVISED and not member.lacks]
        if known and (lead := alone.lead(row.entry, known[0])):
            advised.append(lead)
    if untuned:
        better, worse = _beyond_chance(untuned)
        text = (
            f"{better} of {len(untuned)} results of methods with several training runs are better than {UNTUNED} and "
        )
        text += f"{worse} worse"
        if advised:
            better, worse = _beyond_chance(advised)
            text += f"; {better} are better than {ADVISED}, whose values are from the literature, and {worse} worse"
        spent = plain.median(row.tuning_share for row, _ in searches)
        yield (
            f"At ε = {epsilon:g}, {text} (95 % confidence each). Their search takes {100 * spent:.0f} % of ε (median)."
        )


def _beyond_chance(leads: Sequence[Estimate]) -> tuple[int, int]:
    signs = [lead.sign for lead in leads]
    return signs.count(1), signs.count(-1)


def sentences(answer: Answer) -> list[str]:
    """Return who is first, who is within a point of it, who may be either, and who is last of those behind."""
    first, *others = answer.places
    runs = f"{first.cost:.3g}" if first.cost else ""
    cost = runs and f", for the cost of {'one untuned run' if runs == '1' else f'{runs} untuned runs'}"
    texts = [f"{first.entry.label} is {_distance(answer, first.lead.mean)}{_intervals(answer, first)}"
             f"{_worst(answer, first)}{cost}{_cheaper(answer)}."]  # fmt: skip
    if len(answer.places) == 1:
        return texts
    near = _named(others, EQUIVALENT)
    texts.append(f"Shown to be within {point_text(answer)} of {first.entry.label}: {near or 'none'}.")
    unclear = _named(others, UNCERTAIN)
    if unclear:
        texts.append(f"Too uncertain to say: {unclear}.")
    behind = [place for place in others if place.verdict == BEHIND]
    if behind:
        last = behind[-1]
        place = f"{_distance(answer, last.lead.mean)}{_worst(answer, last)}"
        texts.append(f"{len(behind)} {'is' if len(behind) == 1 else 'are'} behind; {last.entry.label} is {place}.")
    return texts


def _cheaper(answer: Answer) -> str:
    """Return the cheapest place that costs much less, and is a point behind at most; nothing if there is none."""
    first, *others = answer.places
    if not first.cost or not (answer.measure.share or answer.measure.logarithmic):
        return ""
    least, most = first.lead.mean - POINT, first.cost / MUCH_LESS
    near = [place for place in others if place.verdict != BEHIND and place.lead.mean >= least]
    cheap = [place for place in near if place.cost and place.cost <= most]
    if not cheap:
        return ""
    place = min(cheap, key=lambda place: round(place.cost or 0.0, 1))
    distance = f"{_distance(answer, place.lead.mean)}{_intervals(answer, place)}"
    return f"; for {place.cost:.3g}, {place.entry.label} is {distance}"


def point_text(answer: Answer) -> str:
    measure = answer.measure
    return "a point" if measure.share else "1 % in perplexity" if measure.logarithmic else "1 %"


def _named(places: Sequence[Place], verdict: str) -> str:
    labels = [place.entry.label for place in places if place.verdict == verdict]
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return f"{', '.join(labels[:MOST_NAMED])}{more}"


def about_intervals(answer: Answer) -> str:
    """Return what the intervals of an answer cover, and what they leave out."""
    seeds = "over seeds, with these tasks and test records"
    if any(place.over_tasks for place in answer.everyone):
        return f"first 95 % interval: {seeds}; second: if tasks were drawn anew, too"
    return f"95 % interval: {seeds}"


def absence(answer: Answer, absent: Absent) -> str:
    if absent.lead is None or absent.first is None or absent not in answer.nearly:
        return f"in {absent.tables}"
    first = f"{answer.places[0].entry.label} is {_distance(answer, absent.first.mean)}"
    return f"in {absent.tables}: {_distance(answer, absent.lead.mean)} there, where {first}"


def _distance(answer: Answer, mean: float) -> str:
    if not change_text(mean, answer.measure).strip("+−0."):
        return f"level with {answer.anchor}"
    unit = answer.measure.unit or f"of {answer.measure.title}"
    amount = change_text(abs(mean), answer.measure).lstrip("+")
    return f"{amount} {unit} {'ahead of' if mean > 0 else 'behind'} {answer.anchor}"


def _intervals(answer: Answer, place: Place) -> str:
    seeds, tasks = _ends(answer, place.lead), _ends(answer, place.over_tasks)
    return f" {seeds} over seeds, {tasks} over tasks" if seeds and tasks else f" {seeds}" if seeds else ""


def _ends(answer: Answer, estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{change_text(estimate.low, answer.measure)}, {change_text(estimate.high, answer.measure)}]"


def _worst(answer: Answer, place: Place) -> str:
    if len(place.parts) < 2:
        return ""
    worst = place.parts[-1]
    return f", at worst {change_text(worst.value, answer.measure)} ({worst.name})"


def summary(board: Board) -> str:
    pairs = sum(len(claims.pairs) for claims in board.claims)
    claimed = sum(len(claims.significant) for claims in board.claims)
    return (
        f"All pairs of entries, on the same tables: {pairs:,} comparisons by Welch's test, of which {claimed:,} "
        f"tell who is better. They are tested so that the chance of any wrong one is {100 * FAMILY_ERROR:g} %, all "
        "counted together (Holm), as far as t-tests hold, and are about these tasks. A pair that is not named is "
        "undecided, which does not mean equal."
    )


def by_subject(board: Board) -> list[tuple[str, list[Claims]]]:
    return [
        (subject, list(of_subject)) for subject, of_subject in groupby(board.claims, key=lambda claims: claims.subject)
    ]


def count_text(claims: Claims) -> str:
    return f"ε = {claims.epsilon:g}: {len(claims.significant):,} of {len(claims.pairs):,} pairs differ significantly"


def victories(claims: Claims) -> list[str]:
    everyone = (*claims.order, *claims.others)
    texts = [f"{who.label} beats {_whom(claims, who)}." for who in everyone if claims.beaten(who)]
    few = [pair for pair in claims.significant if 2 * pair.ahead <= pair.tables]
    if few:
        pairs = (f"{pair.better.label} than {pair.worse.label} ({pair.ahead} of {pair.tables})" for pair in few)
        texts.append(f"Better on average, but on half of the tasks at most: {', '.join(pairs)}.")
    return texts


def _whom(claims: Claims, who: Entry) -> str:
    beaten = {pair.worse: pair for pair in claims.beaten(who)}
    first = [other for other in claims.order if other in beaten and who in claims.order]
    rest = [other.label for other in claims.order if other != who and other not in beaten]
    text = ", ".join(other.label for other in first)
    if len(rest) < len(first):
        text = "all others that are in all tables" if claims.others else "all others"
        text += f" but {', '.join(rest)}" if rest else ""
    further = [
        other.label + (f" (on {pair.tables} of {claims.tasks} tasks)" if pair.tables < claims.tasks else "")
        for other, pair in beaten.items()
        if other not in first
    ]
    return "; and ".join(filter(None, (text, ", ".join(further))))


def first_answers(board: Board) -> list[Answer]:
    return [answer for answer in board.answers if answer.subject == board.answers[0].subject]
