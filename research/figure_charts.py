"""Pictures of research/data/figure_NAME.csv; docs/figures/draw.py draws them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dphpo_bench.records.charts import (
    GRID,
    INK,
    MARK,
    QUIET,
    TOP,
    WIDTH,
    Axis,
    Group,
    Panel,
    drawn,
    estimates_axis,
    forest,
    log_axis,
)
from dphpo_bench.records.measure import Estimate, mean_interval
from research.published import PUBLISHED

DATA = Path(__file__).parent / "data"
DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3))
LEFT, RIGHT, FALL = 44, 110, 10.0


def table(name: str) -> pd.DataFrame:
    """The numbers of a figure."""
    return pd.read_csv(DATA / f"figure_{name}.csv")


def on_one_axis(
    estimates: Mapping[str, Mapping[str, Estimate]], axis: Axis | None = None, lines: Mapping[str, float] | None = None
) -> list[Panel]:
    """Return a panel for each title, all with the same axis: by default that of all these estimates."""
    axis = axis or estimates_axis([each for panel in estimates.values() for each in panel.values()])
    return [Panel(title, panel, axis, (lines or {}).get(title)) for title, panel in estimates.items()]


class Curves(NamedTuple):
    """A panel of lines, by their names, each with points (x, y)."""

    title: str
    x: Axis
    y: Axis
    lines: Mapping[str, Sequence[tuple[float, float]]]


def curves(panels: Sequence[Curves], *, title: str, note: str, columns: int = 3, height: int = 190) -> str:
    """Draw small panels of lines; names stand where lines end."""
    whole, step = Group(), (WIDTH - 12) / columns
    for number, panel in enumerate(panels):
        left, top = 12 + step * (number % columns), TOP + (height + 56) * (number // columns)
        whole.text(left, top - 16, panel.title)
        group = Group(left + LEFT, top, step - LEFT - RIGHT, height)
        group.axis("x", panel.x, "bottom", 4)
        group.axis("y", panel.y, "left", 5)
        ends: list[float] = []
        for at, (name, points) in enumerate(panel.lines.items()):
            colour = f"var(--shade{1 + at % 4})"
            inside = [{"x": x, "y": panel.y.inside(y)} for x, y in points]
            group.stroke("line", inside, colour, 1.5, DASHES[at % 4], x="x.x", y="y.y")
            share = scaled(panel.y, inside[-1]["y"])
            place = height * (1 - share) + 4
            while any(abs(place - other) < 13 for other in ends):
                place += 1
            ends.append(place)
            group.text(group.width + 6, round(place, 1), name, colour)
        whole.put(group)
    rows = math.ceil(len(panels) / columns)
    description = f"{title}. {'; '.join(panel.title for panel in panels)}. {note}"
    return drawn(whole, TOP + rows * (height + 56) - 20, title, note, description)


def scaled(axis: Axis, value: float) -> float:
    """Place of a value on an axis, from 0 to 1."""
    low, high, value = (math.log(each) if axis.log else each for each in (axis.low, axis.high, value))
    return (value - low) / (high - low)


class Heatmap(NamedTuple):
    """A panel of values, by (row, column); `lines` go through places (column, row), which may be fractions."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: np.ndarray
    best: Sequence[tuple[int, int]] = ()
    lines: Sequence[Sequence[tuple[float, float]]] = ()


def heatmaps(panels: Sequence[Heatmap], *, title: str, note: str, cell: int = 17) -> str:
    """Draw two panels a row; the shade falls to nothing `FALL` below the best value of a panel."""
    whole, step, top = Group(), (WIDTH - 12) / 2, float(TOP)
    for number, panel in enumerate(panels):
        left, height = 12 + step * (number % 2), cell * len(panel.rows)
        whole.text(left, top - 16, panel.title)
        width = round((step - LEFT - 24) / len(panel.columns), 1)
        group = Group(left + LEFT, top, width * len(panel.columns), height)
        peak = panel.values.max()
        cells = [
            {"x": width * j, "y": cell * i, "shade": round(0.7 * max(0.0, 1 - (peak - value) / FALL), 2),
             "text": f"{value:.0f}", "middle": width * (j + 0.5), "foot": cell * (i + 1) - 5}
            for (i, j), value in np.ndenumerate(panel.values)
        ]  # fmt: skip
        group.add("rect", cells, x="x", y="y", width=width, height=cell, fill={"value": MARK}, fillOpacity="shade",
                  stroke={"value": GRID})  # fmt: skip
        group.add("text", cells, x="middle", y="foot", text="text", fontSize=9, align={"value": "center"},
                  fill={"value": INK})  # fmt: skip
        marks = [{"x": width * j + 1, "y": cell * i + 1} for i, j in panel.best]
        group.add("rect", marks, x="x", y="y", width=width - 2, height=cell - 2, fill={"value": "none"},
                  stroke={"value": INK}, strokeWidth=2)  # fmt: skip
        for at, line in enumerate(panel.lines):
            places = [{"x": width * (x + 0.5), "y": cell * (y + 0.5)} for x, y in line]
            group.stroke("line", places, INK, 1.5, DASHES[at % 4], x="x", y="y")
        for i, name in enumerate(panel.rows):
            label(group, -6, cell * (i + 1) - 4, name, "right")
        for j, name in enumerate(panel.columns):
            label(group, width * (j + 0.5), height + 13, name, "center")
        whole.put(group)
        if number % 2 or number == len(panels) - 1:
            top += height + 56
    description = f"{title}. {'; '.join(panel.title for panel in panels)}. {note}"
    return drawn(whole, top - 20, title, note, description)


def label(group: Group, x: float, y: float, words: str, align: str) -> None:
    """Write the name of a row or a column."""
    group.add("text", [{"words": words}], x=x, y=y, text="words", fontSize=10, align={"value": align},
              fill={"value": QUIET})  # fmt: skip


def span(values: Sequence[float]) -> Axis:
    """An axis for these values, and some room."""
    low, high = min(values), max(values)
    room = (high - low) / 25
    return Axis(low - room, high + room)


def rounds() -> str:
    """Draw Figures 1 and 2 of Ding and Wu, and what the search chooses."""
    rows = table("rounds")
    paths = {
        f"k ε₀ = {k:g}": [*zip(part.asked, part.step, strict=True)]
        for k, part in rows[(rows.figure == "1") & (rows.share >= 0.5)].groupby("k_epsilon")
    }
    by_g, chosen = rows[rows.figure == "2"], rows[rows.figure == "choice"]
    return curves(
        [
            Curves("Step by the utility asked for (means)", Axis(0, 1.7), Axis(0, 70), paths),
            Curves(
                "Rounds by 1/g, k ε₀ = 1",
                log_axis([10, 1000]),
                Axis(3, 11),
                {"simulated": [(1 / g, n) for g, n in zip(by_g.g, by_g.rounds, strict=True)]},
            ),
            Curves(
                "Utility chosen, by k ε₀",
                log_axis(list(chosen.k_epsilon)),
                Axis(0.4, 1.02),
                {
                    name: [*zip(chosen.k_epsilon, chosen[column], strict=True)]
                    for name, column in (("best", "best"), ("chosen", "chosen"))
                },
            ),
        ],
        title="Propose-test with doubling, simulated as Ding and Wu do",
        note="Means of 4,000 searches among 100 uniform utilities, g = .01. The paper's setting is k ε₀ = 1, "
        "where the chosen utility is that of a random candidate.",
    )


def noise() -> str:
    """Draw Figures 3 and 6 of HyFreeDP, beside joint accounting."""
    rows = table("noise")
    by_k = rows[(rows.inflation == 1.01) & (rows.epsilon == 3)]
    by_gamma = rows[(rows.interval == 5) & (rows.epsilon == 3)].sort_values("inflation")
    names = {"sigma_l_joint": "losses, joint", "sigma_l_paper": "losses, paper", "equal_joint": "both equal, joint",
             "sigma_g_paper": "gradients, paper"}  # fmt: skip
    return curves(
        [
            Curves(
                "Noise multipliers by K, ε = 3, γ = 1.01",
                log_axis(list(by_k.interval), list(by_k.interval)),
                log_axis([0.9, 20], (1, 2, 5, 10, 20)),
                {name: [*zip(by_k.interval, by_k[column], strict=True)] for column, name in names.items()},
            ),
            Curves(
                "The same by γ, K = 5",
                Axis(1, 1.052),
                log_axis([0.9, 20], (1, 2, 5, 10, 20)),
                {name: [*zip(by_gamma.inflation, by_gamma[column], strict=True)] for column, name in names.items()},
            ),
            Curves(
                "ε of the paper's noise, by K",
                log_axis(list(by_k.interval), list(by_k.interval)),
                log_axis([0.8, 16], (1, 3, 8, 15)),
                {
                    f"claimed: {claimed:g}": [*zip(part.interval, part.epsilon_of_paper, strict=True)]
                    for claimed, part in rows[rows.inflation == 1.01].groupby("epsilon")
                },
            ),
        ],
        title="HyFreeDP: noise on gradients and losses, as its paper accounts it and jointly",
        note="N = 50,000, B = 1,000, T = 500, δ = 1e-5. Paper: RDP of separate samples. Joint: PLD, losses on the "
        "gradient's own batch.",
    )


def bias() -> str:
    """Draw Figure 7 of HyFreeDP."""
    rows = table("bias")
    return curves(
        [
            Curves(
                "Bias by α, in standard deviations of the loss",
                Axis(-3, 3),
                Axis(0, 3.05),
                {"φ(α) − α (1 − Φ(α))": [*zip(rows.alpha, rows.bias, strict=True)]},
            )
        ],
        title="HyFreeDP: bias of a clipped loss",
        note="α is the distance from the mean loss to its bound R, in standard deviations. At α = 0 it is .399.",
        columns=2,
    )


def dp_hyper() -> str:
    """Draw what 85 % of ε loses without a search."""
    rows = table("dp_hyper")
    names = [f"{row.model}, ε = {row.epsilon:g}" for row in rows.itertuples()]
    panels = {}
    for title, column in (("best of three rates", "lost_at_best"), ("one of three, by chance", "lost_at_any")):
        ends = rows[[column, f"{column}_low", f"{column}_high"]].itertuples(index=False)
        panels[title] = dict(zip(names, (Estimate(*map(float, values)) for values in ends), strict=True))
    axis = estimates_axis([each for panel in panels.values() for each in panel.values()])
    return forest(
        [Panel(title, panel, axis) for title, panel in panels.items()],
        dict.fromkeys(names, ""),
        title="What 85 % of ε loses, at a rate from a narrow range around the best one",
        note="Points below ε at the best rate. Digits, AUTO-S, AdamW, means and 95 % intervals of five seeds.",
    )


ENCODINGS = {"encoding": "3 encodings", "clipping": "threshold × ¼, 4", "rate": "rate × ⅓, 3", "batch": "batch × ¼, 4",
             "chance": "chance alone"}  # fmt: skip


def encodings() -> str:
    """Draw how far the best of three values is above the worst, by table and by what changes."""
    rows = table("encodings")
    rows = rows[rows.value == "range"]
    names = [*dict.fromkeys(rows.table)]
    panels = {}
    for what, title in ENCODINGS.items():
        ends = rows[rows.what == what][["points", "points_low", "points_high"]].clip(lower=0.1)
        panels[title] = dict(zip(names, (Estimate(*map(float, row)) for row in ends.to_numpy()), strict=True))
    return forest(
        on_one_axis(panels, log_axis([0.1, 50], (0.1, 1, 10))),
        dict.fromkeys(names, ""),
        title="What encoding, clipping, rate and batch are worth on a table",
        note="Points from the worst of three values to the best, ε = 1, linear models, three seeds. Logarithmic; 0.1 "
        "stands for 0.1 or less.",
    )


def intervals() -> str:
    """Draw the learning rate and the loss bound of runs at three intervals K."""
    rows = table("intervals")
    paths = rows[rows.what == "path"]
    panels = []
    for title, column in (("Learning rate by step", "rate"), ("Bound R of the losses by step", "bound")):
        lines = {f"K = {k:g}": [*zip(part.step, part[column], strict=True)] for k, part in paths.groupby("interval")}
        panels.append(Curves(title, span(list(paths.step)), log_axis(list(paths[column])), lines))
    return curves(
        panels,
        title="HyFreeDP: what one run releases at K = 1, 5 and 10",
        note="Digits, linear model, ε = 3, losses on batches of their own. Logarithmic.",
        columns=2,
    )


def ablations() -> str:
    """Draw what each choice of the linear scaling rule is worth at the best r."""
    rows = table("ablations")
    rows = rows[(rows.table.astype(str) == "1") & rows.best_lost.notna() & (rows.choice != "as published")]
    names = dict.fromkeys(rows.choice, "")
    published = {name: "" if pd.isna(value) else f"{value:.2f}"
                 for name, value in zip(rows.choice, rows.published, strict=True)}  # fmt: skip
    ends = rows[["best_lost", "best_lost_low", "best_lost_high"]]
    lost = [Estimate(*map(float, values)) for values in ends.itertuples(index=False)]
    axis, targets = estimates_axis(lost), [*dict.fromkeys(rows.epsilon)]
    panels = [
        Panel(
            f"ε = {target:g}",
            {name: each for name, each, at in zip(rows.choice, lost, rows.epsilon, strict=True) if at == target},
            axis,
            texts=published if target == targets[-1] else {},
            space=60 if target == targets[-1] else 0,
        )
        for target in targets
    ]
    return forest(
        panels,
        names,
        title="Linear scaling: points that a choice of its paper is worth, digits",
        note="Lost by undoing it, each at its best r; ten seeds, 95 % intervals. Right: printed for CIFAR-100, ε = .1.",
    )


def blur() -> str:
    """Draw what blur costs, by its severity, with and without privacy."""
    rows = table("blur")
    lost = [Estimate(*map(float, values)) for values in rows[["lost", "lost_low", "lost_high"]].to_numpy()]
    axis, names = estimates_axis(lost), dict.fromkeys(rows.severity, "")
    return forest(
        [
            Panel(method, dict(zip(names, (lost[at] for at in part.index), strict=True)), axis)
            for method, part in rows.groupby("method", sort=False)
        ],
        names,
        title="Points lost to Gaussian blur by its severity, CIFAR-10, pretrained features, ε = 1",
        note="Each severity on 2,000 test pictures, with and without blur; three seeds, 95 % intervals.",
    )


def steps() -> str:
    """Draw rate by steps, with r of the best cell and the rule's."""
    return of_steps("steps", "digits", "mean of five seeds")


def steps_fashion_mnist() -> str:
    """Draw the same for features of Fashion-MNIST."""
    return of_steps("steps_fashion_mnist", "Fashion-MNIST, features of a small ViT", "one seed")


def steps_cifar10() -> str:
    """Draw the same for pretrained features of CIFAR-10."""
    return of_steps("steps_cifar10", "CIFAR-10, pretrained features", "mean of three seeds")


def of_steps(name: str, task: str, seeds: str) -> str:
    """Draw a panel for each ε."""
    rows = table(name)
    panels = []
    for target, part in rows.groupby("epsilon"):
        values = part[part.what == "cell"].pivot(index="rate", columns="steps", values="accuracy").iloc[::-1]
        (best,), (rule,) = (part[part.what == name].itertuples() for name in ("best", "rule"))
        logs = np.log(values.index.to_numpy())[::-1]

        def line(r: float, logs: np.ndarray = logs, values: pd.DataFrame = values) -> list[tuple[float, float]]:
            wanted = [(j, math.log(r / count)) for j, count in enumerate(values.columns)]
            inside = [(j, at) for j, at in wanted if logs[0] <= at <= logs[-1]]
            return [(j, len(logs) - 1 - float(np.interp(at, logs, np.arange(len(logs))))) for j, at in inside]

        place = [*values.index].index(best.rate), [*values.columns].index(best.steps)
        panels.append(
            Heatmap(
                f"ε = {target:g}: best r = {best.r:g}, the rule's {rule.r:.3g}",
                [f"{rate:g}" for rate in values.index],
                [f"{count:g}" for count in values.columns],
                values.to_numpy(),
                [place],
                [line(best.r), line(rule.r)],
            )
        )
    return heatmaps(
        panels,
        title=f"Linear scaling: accuracy by learning rate (rows) and steps (columns), {task}",
        note=f"Full batches, momentum .9, {seeds}. Solid: rate x steps of the best cell, framed. Broken: the "
        "r that the rule takes (median).",
    )


def thresholds() -> str:
    """Draw Figure 1 of automatic clipping."""
    rows = table("thresholds")
    panels = []
    for optimizer in ("SGD", "AdamW"):
        part = rows[rows.optimizer == optimizer]
        values = part.pivot(index="rate", columns="clipping", values="accuracy").iloc[::-1]
        values = values[[*dict.fromkeys(part.clipping)]]
        numbers = [name.partition(":")[2] for name in values.columns]
        names = [f"{math.log10(float(number)):g}" if number else "V" for number in numbers]
        peaks = [(int(values[name].to_numpy().argmax()), j) for j, name in enumerate(values.columns)]
        panels.append(
            Heatmap(
                f"{optimizer}: by log₁₀ R, then AUTO-S by log₁₀ γ, and AUTO-V",
                [f"{rate:g}" for rate in values.index],
                names,
                values.to_numpy(),
                peaks,
            )
        )
    return heatmaps(
        panels,
        title="Automatic clipping: accuracy by learning rate (rows) and clipping (columns), digits, ε = 3",
        note="The last weights, mean of five seeds. Framed: the best rate of a column.",
    )


def thresholds_e2e() -> str:
    """Draw the same for a language model on E2E."""
    rows = table("thresholds_e2e")
    columns = [*sorted({*rows.clipping} - {"auto_s"}), "auto_s"]
    panels = []
    for metric, values in (("BLEU, %", rows.bleu), ("-10 ln(perplexity)", -10 * np.log(rows.perplexity))):
        cells = rows.assign(value=values).pivot(index="rate", columns="clipping", values="value").iloc[::-1][columns]
        peaks = [(int(cells[name].to_numpy().argmax()), j) for j, name in enumerate(columns)]
        names = [name.partition(":")[2] or "AUTO-S" for name in columns]
        panels.append(Heatmap(metric, [f"{rate:g}" for rate in cells.index], names, cells.to_numpy(), peaks))
    return heatmaps(
        panels,
        title="Automatic clipping: a language model by learning rate (rows) and threshold (columns), E2E, ε = 3",
        note="A small GPT-2 from nothing, AdamW, the last weights, one seed. Framed: the best rate of a column.",
    )


def table_1() -> str:
    """Draw Table 1 of automatic clipping on two data sets, five seeds."""
    rows = table("table_1")
    names = {"AUTO-S": "_cnn_auto_s", "a threshold": "_cnn", "without privacy": " without privacy"}
    panels = []
    for title, task in (("MNIST", "mnist"), ("Fashion-MNIST", "fashion_mnist")):
        found = {name: mean_interval([*rows[rows.setting == task + end].accuracy]) for name, end in names.items()}
        printed = {name: f"{PUBLISHED[task + end].accuracy}" for name, end in names.items() if task + end in PUBLISHED}
        panels.append(Panel(title, found, estimates_axis(found.values()), texts=printed, space=60))
    return forest(
        panels,
        dict.fromkeys(names, ""),
        title="Automatic clipping: accuracy of its Table 1, networks on pictures, ε = 3",
        note="Five seeds, 95 % intervals. Right: printed.",
    )


FIGURES = {
    "rounds": rounds,
    "noise": noise,
    "bias": bias,
    "intervals": intervals,
    "encodings": encodings,
    "dp_hyper": dp_hyper,
    "steps": steps,
    "steps_fashion_mnist": steps_fashion_mnist,
    "steps_cifar10": steps_cifar10,
    "ablations": ablations,
    "blur": blur,
    "thresholds": thresholds,
    "thresholds_e2e": thresholds_e2e,
    "table_1": table_1,
}
