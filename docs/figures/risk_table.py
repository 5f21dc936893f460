"""The table of research/risk.md: proven risk of every method at the same ε. Plans only; no data are read.

python docs/figures/risk_table.py [TASK]
"""

import sys
from dataclasses import astuple
from itertools import groupby

import dphpo_bench as bench
from dphpo_bench.base.text import rounded_up
from dphpo_bench.contract.registry import methods

EPSILONS = (1.0, 3.0, 8.0)
OTHERS = {"replay"}  # an extra run of `explain`, which needs a record


def row_of(method: str, task: bench.Task) -> tuple[str, ...]:
    """Return hits at 1 % false alarms and advantage in percent, and μ, for each ε, rounded up."""
    cells = []
    for epsilon in EPSILONS:
        risk = bench.plan(method, task, bench.PrivacyBudget(epsilon, task.facts.default_delta)).risk
        advantage, hits, _, mu, _ = astuple(risk)
        cells += [rounded_up(100 * hits, 3), rounded_up(100 * advantage, 3), rounded_up(mu, 3)]
    return tuple(cells)


def main() -> None:
    """Print the table, with methods of equal risk on one line, the least risk at the largest ε first."""
    task = bench.make_task(sys.argv[1] if len(sys.argv) > 1 else "adult")
    rows = sorted((row_of(name, task), name) for name in methods() if name not in OTHERS)
    lines = [(cells, [name for _, name in same]) for cells, same in groupby(rows, key=lambda row: row[0])]
    head = [f"ε = {epsilon:g}: found at 1 %, % | advantage, % | μ" for epsilon in EPSILONS]
    table = [["method", *head], ["---", *["--:"] * 3 * len(EPSILONS)]]
    for cells, names in sorted(lines, key=lambda line: float(line[0][-3])):
        table.append([", ".join(f"`{name}`" for name in names), *cells])
    sys.stdout.writelines(f"| {' | '.join(row)} |\n" for row in table)


if __name__ == "__main__":
    main()
