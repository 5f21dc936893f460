"""Who beats whom, does it hold, and what would settle the rest: sentences and small tables, as plain text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dphpo_bench.leaderboard.board import Answer, Board
from dphpo_bench.leaderboard.columns import NOTHING, change_text
from dphpo_bench.leaderboard.evidence import FAMILY_ERROR, Claims, Pair, Power, Variation
from dphpo_bench.leaderboard.power import MOST_TIMES, TIMES
from dphpo_bench.leaderboard.values import Contestant

MORE_THAN_ALL = "more than 100"


@dataclass(frozen=True)
class Sheet:
    """A small table of texts."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def summary(board: Board) -> str:
    """How many pairs are told apart, and how sure that is."""
    pairs = sum(len(claims.pairs) for claims in board.claims)
    told = sum(len(claims.told_apart) for claims in board.claims)
    return (
        f"All pairs of contestants, on the same tables and seed by seed: {pairs:,} comparisons, of which {told:,} "
        f"tell who is better. They are tested so that the chance of any wrong one is {100 * FAMILY_ERROR:g} %, all "
        "counted together (Holm), as far as t-tests hold, and are about these tasks. A pair that is not named is "
        "undecided, which does not mean equal."
    )


def by_subject(board: Board) -> list[tuple[str, list[Claims]]]:
    """The claims, those of one subject together."""
    return [(subject, list(found)) for subject, found in groupby(board.claims, key=lambda one: one.subject)]


def count_text(claims: Claims) -> str:
    """Such as "ε = 3: 5 of 276 pairs are told apart"."""
    return f"ε = {claims.epsilon:g}: {len(claims.told_apart):,} of {len(claims.pairs):,} pairs are told apart"


def victories(claims: Claims) -> list[str]:
    """A sentence for each contestant that beats another, the best mean first, and then those without one.

    Last, what rests on few of the tables.
    """
    everyone = (*claims.order, *claims.others)
    found = [f"{who.label} beats {_whom(claims, who)}." for who in everyone if claims.beaten(who)]
    few = [pair for pair in claims.told_apart if 2 * pair.ahead <= pair.tables]
    if few:
        pairs = (f"{one.better.label} than {one.worse.label} ({one.ahead} of {one.tables})" for one in few)
        found.append(f"Better on average, but on half of the tasks at most: {', '.join(pairs)}.")
    return found


def _whom(claims: Claims, who: Contestant) -> str:
    """Whom it beats, or whom it does not beat, whichever are fewer, of those that are in all tables; then the others.

    Where not all tables were compared, it is said how many were.
    """
    beaten = {pair.worse: pair for pair in claims.beaten(who)}
    first = [one for one in claims.order if one in beaten and who in claims.order]
    rest = [one.label for one in claims.order if one != who and one not in beaten]
    told = ", ".join(one.label for one in first)
    if len(rest) < len(first):
        told = "all others that are in all tables" if claims.others else "all others"
        told += f" but {', '.join(rest)}" if rest else ""
    further = [_with_tables(claims, pair) for one, pair in beaten.items() if one not in first]
    return "; and ".join(filter(None, (told, ", ".join(further))))


def _with_tables(claims: Claims, pair: Pair) -> str:
    return pair.worse.label + (f" (on {pair.tables} of {claims.tasks} tasks)" if pair.tables < claims.tasks else "")


def first_answers(board: Board) -> list[Answer]:
    """The answers about the first subject: at each ε, then over all."""
    return [one for one in board.answers if one.subject == board.answers[0].subject]


def stability(board: Board) -> list[str]:
    """For each ε, whether the order holds on boards that are made in other ways."""
    return [_stability(claims, [one for one in board.variations if one.epsilon == claims.epsilon])
            for claims in _first(board) if claims.complete]  # fmt: skip


def _first(board: Board) -> list[Claims]:
    return [one for one in board.claims if one.subject == board.claims[0].subject]


def _stability(claims: Claims, variations: Sequence[Variation]) -> str:
    ways = sum(count for one in variations for _, count in one.firsts)
    stays = sum(count for one in variations for who, count in one.firsts if who == claims.order[0])
    worst = max(variations, key=lambda one: (one.swapped, one.reversed))
    wrong = max(one.reversed for one in variations)
    apart = sum(pair.told_apart for pair in claims.complete)
    told = f", and {wrong or 'none'} of the {apart} told apart" if apart else ""
    among = ", of those in all tables," if claims.others else ","
    return (
        f"At ε = {claims.epsilon:g}{among} {claims.order[0].label} is first on {stays} of {ways} boards made in "
        f"another way; at most {worst.swapped} of {worst.pairs} pairs change places{told}."
    )


def stability_sheet(board: Board) -> Sheet:
    """What becomes of the order, for each ε and each group of ways."""
    rows = (
        (
            f"{one.epsilon:g}",
            one.title,
            ", ".join(f"{who.label} ({count})" if one.worst else who.label for who, count in one.firsts),
            f"{one.swapped} of {one.pairs}{f' ({one.worst})' if one.worst else ''}",
            str(one.reversed),
        )
        for one in board.variations
    )
    return Sheet(("ε", "the board made", "first (times)", "pairs that change places", "of those told apart"), (*rows,))


def needs(board: Board) -> list[str]:
    """For each ε, what it takes to tell more apart."""
    found = []
    for claims in _first(board):
        power = claims.power
        if power:
            least = _smallest(claims, power)
            unit = f" {claims.measure.unit}" if claims.measure.unit else ""
            tasks = "a task" if claims.tasks == 1 else f"each of {'up to ' * bool(claims.others)}{claims.tasks} tasks"
            found.append(
                f"At ε = {claims.epsilon:g}, {power.seeds} seeds or more on {tasks} tell the typical pair apart "
                f"if {least}{unit}{' or more' if least != MORE_THAN_ALL else ''} lie between them"
                f"{f'; one point takes {_times(power)} times the data' if claims.measure.share else ''}."
            )
    return found


def _smallest(claims: Claims, power: Power) -> str:
    """The smallest lead that is seen; more than 100 points is more than a perfect score has over zero."""
    if claims.measure.share and power.smallest > 1:
        return MORE_THAN_ALL
    return change_text(power.smallest, claims.measure).lstrip("+")


def _times(power: Power) -> str:
    return f"more than {MOST_TIMES}" if power.times_for_point is None else f"{power.times_for_point:g}"


def needs_sheet(board: Board) -> Sheet:
    """What it takes to tell more apart, for each subject and ε."""
    settled = (f"settled by {times} times the data" for times in TIMES)
    headers = ("tables", "undecided pairs", "typical lead seen", "times the data for a point", *settled)
    return Sheet(headers, tuple(tuple(_needs_row(one, one.power)) for one in board.claims if one.power))


def _needs_row(claims: Claims, power: Power) -> Iterator[str]:
    yield claims.title
    yield str(len(claims.pairs) - len(claims.told_apart))
    yield _smallest(claims, power)
    yield _times(power) if claims.measure.share else NOTHING
    yield from (str(count) for _, count in power.by_times)
