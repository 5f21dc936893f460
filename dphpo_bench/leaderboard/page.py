"""The leaderboard as one HTML file: tables, filters and interactive charts. It opens from disk and uses no network.

Jinja escapes everything that comes from a record. The charts' data are JSON in which `<`, `>`, `&`, quotes and line
separators are escaped, too.
"""

import math
import re
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts.frame import VEGA_LITE_VERSION, Chart
from dphpo_bench.leaderboard.charts.looks import config
from dphpo_bench.leaderboard.columns import MARKS, overall_columns, rounded_number, row_columns

TEMPLATES: dict[str, Any] = {
    "loader": PackageLoader("dphpo_bench.leaderboard", "templates"),
    "undefined": StrictUndefined,
    "trim_blocks": True,
    "lstrip_blocks": True,
}
"""How templates are found and read."""

MOST_REFUSED = 100
FONT = "system-ui, sans-serif"
# The colours of page.css.
THEMES = {
    "light": config(ink="#1b1f24", quiet="#59636e", grid="#e6e9ed", background="#ffffff", font=FONT),
    "dark": config(ink="#e3e6e9", quiet="#9ba5af", grid="#2b3138", background="#14171a", font=FONT),
}


def to_html(board: Board, charts: Sequence[Chart]) -> str:
    """The whole page, the same text for the same board and charts.

    Raises:
        ValueError: if a chart holds a number that JSON cannot express, such as NaN.
    """
    environment = Environment(**TEMPLATES, autoescape=True, keep_trailing_newline=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters["sort_value"] = sort_value
    return environment.get_template("page.html").render(
        board=board,
        charts=charts,
        # The page has titles as headings.
        specs={chart.name: {key: part for key, part in chart.spec.items() if key != "title"} for chart in charts},
        themes=THEMES,
        settings=list(dict.fromkeys(table.setting for table in board.tables)),
        epsilons=[f"{epsilon:g}" for epsilon in sorted({table.epsilon for table in board.tables})],
        overall_columns=overall_columns,
        row_columns=partial(row_columns, explains=board.explains),
        measure=board.measure,
        marks=MARKS,
        most_refused=MOST_REFUSED,
        bundle=_bundle(),
    )


def sort_value(value: float | str | None) -> str | None:
    """What a cell is sorted by, as an attribute that JavaScript reads back; cells with None go last."""
    if value is None or isinstance(value, str):
        return value
    if math.isnan(value):
        return None
    return "Infinity" if value == math.inf else repr(rounded_number(float(value)))


@cache
def _bundle() -> Markup:
    """Vega, Vega-Lite and Vega-Embed, as a text that cannot end the script element around it."""
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE_VERSION)
    return Markup(re.sub(r"<(?=/script|script|!--)", r"\\x3c", text, flags=re.IGNORECASE))
