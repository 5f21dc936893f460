"""Print the board of rules: `python -m dphpo_bench.curves`."""

import sys

from dphpo_bench.curves import RULES, score


def board() -> str:
    """Return a table of the rules' scores on the third edition, and their means on the second."""
    lines = [
        "| rule | mean regret | within a point | 90th percentile | worst | second edition |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for name, rule in RULES.items():
        result, before = score(rule, edition=3), score(rule, edition=2)
        third, second = (
            f"{each.mean:.1f} \\[{each.low:.1f}, {each.high:.1f}\\]" for each in (result.mean, before.mean)
        )
        lines.append(
            f"| `{name}` | {third} | {100 * result.within_point:.0f} % | {result.quantile(0.9):.1f} "
            f"| {result.quantile(1):.0f} | {second} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(board() + "\n")
