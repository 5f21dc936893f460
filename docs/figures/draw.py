"""Draw every chart of the documents: `python docs/figures/draw.py`.

Charts show what leaderboard/leaderboard.csv says, which `dphpo-bench leaderboard build` makes from the records, and
those of research/figure_charts.py what `python -m research.figures` has computed. The same table gives the same bytes
on every machine; tests/docs/test_figures.py draws them again and compares.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd

from dphpo_bench.records.charts import forest, log_axis
from dphpo_bench.records.measure import Estimate

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from research import figure_charts  # noqa: E402
from research.figure_charts import on_one_axis  # noqa: E402

TABLE = HERE.parents[1] / "leaderboard/leaderboard.csv"
SETTING = "digits (linear)"
EPSILONS = (1, 3, 8)


def rows_of_defaults() -> pd.DataFrame:
    """Return the rows of methods with default parameters, numbers as on the board."""
    rows = pd.read_csv(TABLE)
    return rows[rows.label == rows.method]


def table() -> pd.DataFrame:
    """Return the rows of methods by their defaults in the tables of the core suite that count."""
    rows = rows_of_defaults()
    return rows[rows.counted & (rows.stage != "untouched")]


def board() -> pd.DataFrame:
    """Return the rows of one task and model."""
    rows = table()
    return rows[rows.setting == SETTING]


def _points(rows: pd.DataFrame, column: str) -> dict[str, Estimate]:
    """Return hundredths of a column with their intervals, by method."""
    names = [column, f"{column}_low", f"{column}_high"]
    return {
        method: Estimate(*(None if pd.isna(value) else 100 * value for value in values))
        for method, *values in rows[["method", *names]].itertuples(index=False)
    }


def untouched() -> str:
    """Draw how far below the oracle each private method ends: on average, at best and at worst.

    On the tables that came after every constant, where classes are predicted.
    """
    rows = rows_of_defaults()
    rows = rows[rows.counted & (rows.stage == "untouched") & (rows.metric != "r2")]
    panels = {f"ε = {epsilon:g}": rows[rows.epsilon_target == epsilon] for epsilon in (0.3, *EPSILONS)}
    title = "What private tuning loses on untouched tables: points below the oracle"
    return _distances(panels, rows.setting.nunique(), title, "tables and models")


def _distances(tables: dict[str, pd.DataFrame], settings: int, title: str, kind: str) -> str:
    """Draw a panel for each group of tables, with private methods on so many tasks and models."""
    rows = pd.concat(tables, names=["panel"]).reset_index("panel")
    rows = rows[rows.end_to_end_private & ~rows.reference & rows.gap_to_oracle.notna()]
    by = rows.groupby(["method", "panel"]).gap_to_oracle
    seen = 100 * by.agg(["mean", "min", "max"])[by.count() == settings].round(6).unstack().dropna()
    order = seen["mean"].mean(axis=1).round(6).sort_values(kind="stable").index
    several = set(rows[rows.runs > 1].method)
    panels = {
        name: {who: Estimate(*(seen.loc[who, (of, name)] for of in ("mean", "min", "max"))) for who in order}
        for name in tables
    }
    return forest(
        on_one_axis(panels),
        {method: "worse" if method in several else "better" for method in order},
        title=title,
        note=f"Mean over {settings} {kind}. Lines: the best of them to the worst. Dots: one training run. "
        "Squares: several.",
    )


def sizes() -> str:
    """Draw the distance to the oracle by the number of training records, of the same tasks."""
    rows = rows_of_defaults()
    of_sizes = rows.task.isin(("adult_few", "synthetic")) & (rows.metric != "r2")
    rows = rows[of_sizes & (rows.epsilon_target == 1)]
    panels = {f"N = {records:,}": rows[rows.n_records == records] for records in (300, 1_000, 3_000, 10_000)}
    return _distances(panels, 3, "Points below an oracle that has as many records", "tasks and models, ε = 1")


def losses() -> str:
    """Draw the parts of the distance that are noise and choice, for methods that spend ε on tuning."""
    rows = board()
    rows = rows[(rows.epsilon_target == 1) & (rows.tuning_share > 0) & rows.lost_to_noise.notna()]
    panels = {f"lost to {part}": _points(rows, f"lost_to_{part}") for part in ("noise", "choice")}
    return forest(
        on_one_axis(panels),
        dict.fromkeys(rows.sort_values(["gap_to_oracle", "method"]).method, ""),
        title="Why methods that pay for tuning lose: points of accuracy",
        note="Digits, linear model, ε = 1, mean of five seeds, 95 % intervals. Best method first.",
    )


OFTEN_MEASURED = ("digits (linear)", "adult (linear)", "adult (mlp)", "sst2 (linear)", "cifar10 (pretrained)")


def privacy() -> str:
    """Draw the distance to the oracle by ε, also below 1 and above 8, on what the suite `epsilons` runs on."""
    rows = rows_of_defaults()
    rows = rows[rows.setting.isin(OFTEN_MEASURED)]
    panels = {f"ε = {epsilon:g}": rows[rows.epsilon_target == epsilon] for epsilon in (0.1, 0.3, 1, 16)}
    return _distances(panels, len(OFTEN_MEASURED), "Points below an oracle that has the same ε", "tasks and models")


TARGETS = (0.87, 0.9, 0.925)
NEVER = 100.0


def utility() -> str:
    """Draw the least ε of the board at which a method's mean reaches an accuracy, for methods that reach one.

    The interval runs from where the upper end of the mean's interval reaches it to where the lower end does.
    """
    rows = board()
    rows = rows[rows.end_to_end_private & ~rows.reference]
    several = set(rows[rows.runs > 1].method)
    panels, total = {}, dict.fromkeys(sorted(set(rows.method)), 0.0)
    for target in TARGETS:
        panel = panels.setdefault(f"{100 * target:g} %", {})
        for method, of_method in rows.groupby("method"):
            ends = ("mean", "mean_high", "mean_low")
            least = [of_method.epsilon_target[of_method[end] >= target].min() for end in ends]
            mean, low, high = (NEVER if pd.isna(epsilon) else float(epsilon) for epsilon in least)
            total[method] += mean
            if mean < NEVER:
                panel[method] = Estimate(mean, low, high)
    order = sorted((method for method in total if total[method] < NEVER * len(TARGETS)), key=total.__getitem__)
    return forest(
        on_one_axis(panels, log_axis(EPSILONS, EPSILONS)),
        {method: "worse" if method in several else "better" for method in order},
        title="What an accuracy costs: the least ε of 1, 3 and 8 that reaches it",
        note="Digits, linear model, mean of five seeds; lines: by the ends of its 95 % interval. No dot: not by ε = 8. "
        "Squares: several runs.",
    )


def audits() -> str:
    """Draw the ε that attacks have shown, beside the claimed ε."""
    rows = board()
    rows = rows[rows.audited.notna() & rows.end_to_end_private]
    panels, claims = {}, {}
    for epsilon in EPSILONS:
        there = rows[rows.epsilon_target == epsilon]
        title = f"claimed: ε = {epsilon}"
        panels[title] = dict(zip(there.method, map(Estimate, there.audited), strict=True))
        claims[title] = float(epsilon)
    return forest(
        on_one_axis(panels, log_axis([0.2, 10], (0.3, 1, 3, 8)), claims),
        dict.fromkeys(sorted(set(rows.method)), ""),
        title="What attacks show of the ε that is claimed",
        note="Digits, linear model. Dots: what ten runs show, 0 at the left edge. Dashed: the claim. Logarithmic.",
    )


NUS = (1 / 16, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 64)
WORST = 20.0


def law() -> str:
    """Draw what a fixed rate loses, by the noise ν of the whole run on the outputs, for kinds of tasks."""
    from dphpo_bench.curves import OPTIMIZERS
    from research.development_runs import regret_at
    from research.development_set import read

    lost: dict[str, list[list[list[float]]]] = defaultdict(list)  # for each ν and task, at each ε
    sgd = OPTIMIZERS.index("SGD")
    for task in read():
        at_one = task.rates[sgd][:, 0] / task.nus[sgd][0]  # the rates of ν = 1
        lost[task.kind].append([regret_at(task, sgd, [nu * rate for rate in at_one]) for nu in NUS])
    panels = {}
    for kind in sorted(lost):
        values = np.minimum(np.array(lost[kind]).swapaxes(0, 1).reshape(len(NUS), -1), WORST)
        quartiles = np.quantile(values, (0.5, 0.25, 0.75), axis=1).round(2).T
        panels[kind] = {f"ν = {nu:g}": Estimate(*map(float, row)) for nu, row in zip(NUS, quartiles, strict=True)}
    return forest(
        on_one_axis(panels),
        dict.fromkeys((f"ν = {nu:g}" for nu in NUS), ""),
        title="What a fixed rate loses to the best rate, by the noise of the run",
        note="Points; medians and quartiles over tasks and ε. SGD. 20 stands for 20 or more.",
    )


WAYS = {
    "public_proxy": "",
    "recommended": "better",
    "dp_sgd": "better",
    "hyfreedp": "worse",
    "subsampled_tuning": "worse",
    "liu_talwar": "worse",
}


def public() -> str:
    """Draw tuning on public data beside no tuning and beside tuning that is paid for, on three linear tasks."""
    rows = table()
    panels = {
        f"{name}, ε = {epsilon}": _points(
            rows[(rows.setting == f"{name} (linear)") & (rows.epsilon_target == epsilon) & rows.method.isin(WAYS)],
            "gap_to_oracle",
        )
        for name in ("digits", "adult", "sst2")
        for epsilon in (1, 8)
    }
    return forest(
        on_one_axis(panels),
        WAYS,
        title="Why pay? Points below the oracle by where rates come from",
        note="Black: from public records, made up but for sst2. Green: from the literature. Orange: paid for out of ε. "
        "Linear models, 95 % intervals of five seeds.",
    )


LEAST_FALL = 0.1


def worst() -> str:
    """Draw how far the worst run of a method ends below its mean: the median task and model, and both extremes."""
    rows = table()
    rows = rows[(rows.metric != "perplexity") & rows.end_to_end_private & ~rows.reference & rows.worst.notna()]
    rows = rows.assign(fall=(100 * (rows["mean"] - rows.worst)).round(6).clip(LEAST_FALL))
    complete = rows.groupby("method").fall.transform("count") == rows.setting.nunique() * len(EPSILONS)
    by = rows[complete].groupby(["method", "epsilon_target"]).fall
    seen = by.agg(["median", "min", "max"]).unstack()
    order = seen["max"].max(axis=1).sort_values(kind="stable").index
    several = set(rows[rows.runs > 1].method)
    panels = {
        f"ε = {epsilon}": {
            who: Estimate(*(seen.loc[who, (of, epsilon)] for of in ("median", "min", "max"))) for who in order
        }
        for epsilon in EPSILONS
    }
    return forest(
        on_one_axis(panels, log_axis([LEAST_FALL, 50], (0.1, 1, 10))),
        {method: "worse" if method in several else "better" for method in order},
        title="What an unlucky run loses: points of the worst run below the mean of its method",
        note=f"Median over {rows.setting.nunique()} tasks and models. Lines: the mildest to the worst. Dots: one "
        "training run. Squares: several. Logarithmic; 0.1 stands for 0.1 or less.",
    )


FIGURES = {
    "untouched": untouched,
    "sizes": sizes,
    "privacy": privacy,
    "losses": losses,
    "utility": utility,
    "public": public,
    "audits": audits,
    "law": law,
    "worst": worst,
    **figure_charts.FIGURES,
}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (HERE / f"{name}.svg").write_text(draw(), encoding="utf-8")
