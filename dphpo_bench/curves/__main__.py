"""Print the board of rules: `python -m dphpo_bench.curves`."""

import sys

from dphpo_bench.curves import RULES, score


def board() -> str:
    """Return a table of the rules' scores on the second edition."""
    lines = ["| rule | mean regret | within a point | 90th percentile | worst |", "| :-- | --: | --: | --: | --: |"]
    for name, rule in RULES.items():
        result = score(rule, edition=2)
        mean = result.mean
        lines.append(
            f"| `{name}` | {mean.mean:.1f} \\[{mean.low:.1f}, {mean.high:.1f}\\] | {100 * result.within_point:.0f} % "
            f"| {result.quantile(0.9):.1f} | {result.quantile(1):.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(board() + "\n")
