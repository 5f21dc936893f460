"""Ask for advice about each table of the board as if its task had never been measured.

    python -m research.advice [BOARD]

Prints, by kind of model, how often the distance of the advised method lies in the stated interval, and how many points
each rule is behind the best method of the table: the advice, one method for all tables, the table's own best.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dphpo_bench.leaderboard.advice import KINDS, Measured, Question, advise, read_board
from dphpo_bench.records.measure import Measure

Table = tuple[str, str, int, float, str]


@dataclass(frozen=True)
class Trial:
    """A table and the advice about it without its task.

    Attributes:
        distances: of every method that was measured there, in points behind the oracle.
        label: the method advised; empty if it was not known.
        covered: whether the method's distance lies in the interval; None without an interval.
        covered_all: the same of all options.
    """

    kind: str
    table: Table
    distances: Mapping[str, float]
    label: str
    covered: bool | None
    covered_all: tuple[bool, ...]

    def regret(self, label: str) -> float:
        return self.distances[label] - min(self.distances.values())


def trials(rows: Iterable[Measured]) -> list[Trial]:
    tables: defaultdict[Table, list[Measured]] = defaultdict(list)
    for row in rows:
        if Measure(row.metric).share:
            tables[row.table].append(row)
    shares = [row for inside in tables.values() for row in inside]
    return [_trial(table, inside, shares) for table, inside in tables.items()]


def _trial(table: Table, inside: Sequence[Measured], rows: Sequence[Measured]) -> Trial:
    _, _, records, epsilon, _ = table
    kind = inside[0].kind
    distances = {row.label: row.distance for row in inside}
    advice = advise([row for row in rows if row.data != inside[0].data], Question(records, kind, epsilon))
    covered = {
        option.label: option.distance.low <= distances[option.label] <= option.distance.high
        for option in advice.options
        if option.label in distances and option.distance.low is not None and option.distance.high is not None
    }
    label = next((option.label for option in advice.options if option.label in distances), "")
    return Trial(kind, table, distances, label, covered.get(label), tuple(covered.values()))


def report(all_trials: Sequence[Trial]) -> list[str]:
    answered = [trial for trial in all_trials if trial.label]
    everywhere = set.intersection(*({*trial.distances} for trial in answered))
    single = min(everywhere, key=lambda label: (fmean(trial.distances[label] for trial in answered), label))
    usual = "hyfreedp" if "hyfreedp" in everywhere else single
    lines = [
        f"Of {len(all_trials)} tables, {len(answered)} have an answer without their task. "
        f"The best single method for all of these, chosen with hindsight: {single}.",
        "",
        f"| models | tables | answered | inside | all methods inside | advice | always {usual} | one for all | worst |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in (*KINDS, "all"):
        of_kind = [trial for trial in all_trials if kind in (trial.kind, "all")]
        known = [trial for trial in of_kind if trial.label]
        if not known:
            lines.append(f"| {kind} | {len(of_kind)} | 0 | – | – | – | – | – | – |")
            continue
        inside = [trial.covered for trial in known if trial.covered is not None]
        of_all = [covered for trial in known for covered in trial.covered_all]
        regrets = [trial.regret(trial.label) for trial in known]
        others = [fmean(trial.regret(label) for trial in known) for label in (usual, single)]
        lines.append(
            f"| {kind} | {len(of_kind)} | {len(known)} | {sum(inside)} of {len(inside)} | "
            f"{sum(of_all)} of {len(of_all)} | {fmean(regrets):.2f} | {others[0]:.2f} | {others[1]:.2f} | "
            f"{max(regrets):.1f} |"
        )
    return lines


def main() -> None:
    rows, _ = read_board(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    done = trials(rows)
    lines = report(done)
    for trial in done:
        task, model, records, epsilon, _ = trial.table
        regret = f"{trial.label}, {trial.regret(trial.label):.1f} behind the best" if trial.label else "not known"
        lines.append(f"{task} ({model}), N = {records:,}, ε = {epsilon:g}: {regret}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
