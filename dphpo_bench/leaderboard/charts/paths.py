"""The chart of learning rates over a run."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from dphpo_bench.leaderboard.board import Table
from dphpo_bench.leaderboard.charts.frame import MOST_PATHS, Chart, best_note, inline_data, log_ticks, make_chart
from dphpo_bench.leaderboard.charts.looks import REFERENCE_DASHES, Cast, ramp


def path_chart(setting: str, tables: Sequence[Table], cast: Cast) -> Iterator[Chart]:
    """The chart, if a method released its learning rates while it trained."""
    present = [row.contestant for table in tables for row in table.rows if row.path]
    looks = cast.looks(present, MOST_PATHS)
    values: list[dict[str, Any]] = [
        {
            "contestant": looks[row.contestant].name,
            "epsilon": table.epsilon,
            "step": point.step,
            "learning_rate": point.learning_rate,
            "loss_bound": point.loss_bound,
        }
        for table in tables
        for row in table.rows
        if row.contestant in looks
        for point in row.path
        if 0 < point.learning_rate < math.inf
    ]
    if not values:
        return
    epsilons = sorted({value["epsilon"] for value in values})
    names = [look.name for look in looks.values()]
    base = alt.Chart().mark_line(interpolate="step-after", strokeWidth=1.5).encode(
        # The beginning, where most happens, is wide.
        x=alt.X("step:Q", title="step (square root scale)", scale=alt.Scale(type="sqrt"), axis=alt.Axis(tickCount=6)),
        color=alt.Color("epsilon:O", title="target ε", scale=alt.Scale(domain=epsilons, range=ramp(len(epsilons)))),
        strokeDash=alt.StrokeDash(
            "contestant:N",
            title=None,
            scale=alt.Scale(domain=names, range=[[1, 0], *REFERENCE_DASHES][: len(names)]),
            legend=alt.Legend() if len(names) > 1 else None,
        ),
        tooltip=[
            alt.Tooltip("contestant:N", title="method"),
            alt.Tooltip("epsilon:Q", title="target ε"),
            alt.Tooltip("step:Q", title="step"),
            alt.Tooltip("learning_rate:Q", title="learning rate", format=".3g"),
            alt.Tooltip("loss_bound:Q", title="loss bound", format=".3g"),
        ],
    ).properties(width=300, height=240)  # fmt: skip
    scale = alt.Scale(type="log", nice=False)
    ticks = log_ticks((value["learning_rate"] for value in values), most=6)
    panels = [base.encode(y=alt.Y("learning_rate:Q", title="learning rate (log scale)", scale=scale,
                                  axis=alt.Axis(format="~g", values=ticks)))]  # fmt: skip
    bounds = {value["loss_bound"] for value in values if value["loss_bound"] is not None}
    if len(bounds) > 1:
        bounded = base.transform_filter("isValid(datum.loss_bound)")
        panels.append(bounded.encode(y=alt.Y("loss_bound:Q", title="bound on the losses")))
    constant = f" The bound on the losses stays at {min(bounds):g}." if len(bounds) == 1 else ""
    note = best_note(looks, present)
    who = names[0] if len(names) == 1 else f"{len(names)} contestants"
    yield make_chart(
        alt.hconcat(*panels, data=inline_data(values), spacing=36),
        f"What {who} released while training, in one run at each ε.{constant}{note}",
        name=f"paths {setting}",
        title=f"Learning rate while training, {setting}",
        description=f"Learning rate and bound on the losses over the steps of training on {setting} "
        f"at ε = {', '.join(f'{epsilon:g}' for epsilon in epsilons)}, as released by {', '.join(names)}."
        f"{constant}{note}",
        kind="paths",
        subject=setting,
    )
