"""The report that research/untouched.md has promised: distances to the oracle on the untouched tables, and how sure.

    python -m research.untouched [FOLDER]    # prints the tables from the records of a leaderboard

All metrics count in %, R² too, which is held to −100 % at least. Tables are drawn with replacement, a task with both of
its models; then seeds within each table, the oracle's as well. `first` is the share of draws in which a method has the
best mean.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dphpo_bench.data.source import DataSource
from dphpo_bench.leaderboard.answers import UNTOUCHED, by_stage
from dphpo_bench.leaderboard.entries import THE_ORACLE, Contest, Standard, compared, contests_of
from dphpo_bench.leaderboard.reruns import read_checked
from dphpo_bench.leaderboard.tables import counted_contests

DRAWS = 4_000
LOWEST = -100.0
Values = NDArray[np.float64]


def untouched(folder: Path) -> list[Contest]:
    """The tables that count."""
    submissions = read_checked([folder / "results"], DataSource.resolve(None).cache_dir / "epsilons")
    standard = Standard.of_suites(folder / "suites" / "untouched.toml")
    contests = contests_of(compared(submissions.runs, standard), standard)
    return by_stage(counted_contests(contests, standard)).get(UNTOUCHED, [])


def distances(contests: list[Contest]) -> tuple[dict[str, Values], dict[str, Values]]:
    """By method, in points, above zero is better: of each table, and of draws of tables and seeds, (draws, tables)."""
    generator = np.random.default_rng(0)
    observed, drawn = defaultdict[str, list[float]](list), defaultdict[str, list[Values]](list)
    for contest in contests:
        scores = {
            who.label: np.maximum(100 * np.array(list(member.by_seed().values())), LOWEST)
            for who, member in contest.by_entry.items()
            if contest.compares(who) and (who == THE_ORACLE or not who.reference)
        }
        draws = {who: generator.choice(of_who, (DRAWS, len(of_who))).mean(1) for who, of_who in scores.items()}
        for who, of_who in scores.items():
            observed[who].append(of_who.mean() - scores[THE_ORACLE.label].mean())
            drawn[who].append(draws[who] - draws[THE_ORACLE.label])
    complete = [who for who, each in observed.items() if len(each) == len(contests) and who != THE_ORACLE.label]
    return {who: np.array(observed[who]) for who in complete}, {who: np.stack(drawn[who], 1) for who in complete}


def report(contests: list[Contest]) -> str:
    """Two tables in Markdown: means over kinds of models and all, at each ε; how likely each method is first."""
    tasks = sorted({contest.task_model.task for contest in contests})
    of_task = np.array([tasks.index(contest.task_model.task) for contest in contests])
    observed, drawn = distances(contests)
    epsilons = np.array([contest.target for contest in contests])
    linear = np.array([contest.task_model.model == "linear" for contest in contests])
    numbers = np.array([contest.task_model.measure.name == "r2" for contest in contests])
    parts = {"all": linear | True, "linear": linear, "networks": ~linear, "classes": ~numbers, "numbers": numbers}
    parts |= {f"ε = {epsilon:g}": epsilons == epsilon for epsilon in sorted({*epsilons.tolist()})}
    first, ends = {}, {}
    for name, part in parts.items():
        there = np.unique(of_task[part])
        times = np.random.default_rng(1).multinomial(len(there), np.full(len(there), 1 / len(there)), DRAWS)
        weights = times[:, np.searchsorted(there, of_task[part])]
        means = {who: (weights * each[:, part]).sum(1) / weights.sum(1) for who, each in drawn.items()}
        best = np.argmax(np.stack([*means.values()]), axis=0)
        first[name] = {who: float((best == at).mean()) for at, who in enumerate(means)}
        ends[name] = {who: np.quantile(each, (0.025, 0.975)) for who, each in means.items()}
    order = sorted(observed, key=lambda who: -observed[who].mean())
    lines = [f"| {' | '.join(['method', *parts, 'first'])} |", f"| :-- |{' --: |' * (len(parts) + 1)}"]
    for who in order:
        cells = [f"{observed[who][part].mean():.1f}" for part in parts.values()]
        low, high = ends["all"][who]
        cells[0] += f" \\[{low:.1f}, {high:.1f}\\]"
        lines.append(f"| `{who}` | {' | '.join(cells)} | {100 * first['all'][who]:.0f} % |".replace("-", "−"))
    lines[1] = lines[1].replace("−", "-")
    firsts = []
    for name, shares in first.items():
        likely = sorted(shares.items(), key=lambda item: -item[1])[:3]
        firsts.append(f"{name}: {', '.join(f'`{who}` {100 * share:.0f} %' for who, share in likely)}")
    return "\n".join([*lines, "", *(f"- {line}" for line in firsts)])


if __name__ == "__main__":
    sys.stdout.write(report(untouched(Path(sys.argv[1] if len(sys.argv) > 1 else "leaderboard"))) + "\n")
