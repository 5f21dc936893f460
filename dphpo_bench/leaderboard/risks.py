"""Risks as the board has shown them before: processors compute them with differences up to a millionth.

Records of version 2 state no risk, so each build computes it from their ledgers. Where a computed risk equals one of
the file but for such a difference, the file's is shown, lest a board be stale on another machine.
"""

import math
from dataclasses import astuple, fields, replace
from pathlib import Path

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.leaderboard.requirements import ROUNDING
from dphpo_bench.leaderboard.submissions import Submissions
from dphpo_bench.privacy.risk import Risk

FILE = "risks.csv"
_HEADER = ",".join(field.name for field in fields(Risk))


def settled(submissions: Submissions, folder: Path) -> tuple[Submissions, str]:
    """Return the submissions with the risks of the board's file, and that file's new content."""
    shown = _read(folder / FILE)
    chosen: dict[Risk, Risk] = {}
    for risk in sorted({run.risk for run in submissions.runs if run.risk}, key=astuple):
        # Ledgers that differ in rounding share a line as well, in the first build as in later ones.
        chosen[risk] = next((known for known in (*shown, *chosen.values()) if _equal(known, risk)), risk)
    runs = tuple(replace(run, risk=chosen[run.risk]) if run.risk else run for run in submissions.runs)
    lines = (",".join(map(repr, values)) for values in sorted({*map(astuple, chosen.values())}))
    return replace(submissions, runs=runs), "\n".join([_HEADER, *lines, ""])


def _equal(first: Risk, second: Risk) -> bool:
    pairs = zip(astuple(first), astuple(second), strict=True)
    return all(math.isclose(*pair, rel_tol=ROUNDING, abs_tol=ROUNDING) for pair in pairs)


def _read(path: Path) -> list[Risk]:
    if not path.is_file():
        return []
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        if header != _HEADER:
            raise ValueError
        return [Risk(*map(float, line.split(","))) for line in lines]
    except (OSError, ValueError, TypeError):
        raise InvalidValueError(
            f"Expected risks as a build writes them in {path}. Remove it and build again."
        ) from None
