"""The charts of the leaderboard: Vega-Lite specifications, the same for static drawings and for the page.

A contestant looks the same in every chart. Its colour stands out on white and on black, and differs from the others for
the colour-blind, as far as twelve colours can; it also has a shape of its own. Names come from strangers: they are data
in a specification, never part of an expression.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from altair.utils.schemapi import debug_mode

from dphpo_bench.leaderboard.board import Board, Table
from dphpo_bench.leaderboard.charts.budget import budget_chart
from dphpo_bench.leaderboard.charts.frame import Chart
from dphpo_bench.leaderboard.charts.looks import cast_of
from dphpo_bench.leaderboard.charts.metric import cost_chart, metric_chart
from dphpo_bench.leaderboard.charts.paths import path_chart
from dphpo_bench.leaderboard.charts.ranks import rank_chart


def charts(board: Board) -> list[Chart]:
    """All charts that the board has the data for."""
    cast = cast_of(board)
    settings: dict[str, list[Table]] = {}
    for table in board.tables:
        settings.setdefault(table.setting, []).append(table)
    # With only one ε, the second overall standing repeats the first.
    overalls = board.overalls[:1] if len(board.overalls) == 2 else board.overalls
    with debug_mode(False):  # in debug mode, Altair validates each part of a chart
        drawn = [
            *(chart for overall in overalls for chart in rank_chart(overall, cast)),
            *(chart for setting, tables in settings.items() for chart in metric_chart(setting, tables, cast)),
            *(chart for setting, tables in settings.items() for chart in cost_chart(setting, tables, cast)),
            *budget_chart(board, cast),
            *(chart for setting, tables in settings.items() for chart in path_chart(setting, tables, cast)),
        ]
    return list(_with_unique_names(drawn))


def _with_unique_names(drawn: Iterable[Chart]) -> Iterator[Chart]:
    taken: set[str] = set()
    for chart in drawn:
        stem = re.sub("[^a-z0-9]+", "-", chart.name.lower()).strip("-")[:60].strip("-")
        name = next(name for number in range(1, len(taken) + 2) if (name := f"{stem}-{number}" if number > 1 else stem)
                    not in taken)  # fmt: skip
        taken.add(name)
        yield replace(chart, name=name)
