"""Small plots of characters."""

import math
from collections.abc import Callable, Sequence

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character: four rows of two dots."""

LOGARITHMIC = 10.0
"""The axis is logarithmic if the largest value is more than this many times the smallest one."""


def step_plot(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Draw a line that keeps each value until the next point: lines of text with the plot, its axis, and its ends."""
    values = [value for _, value in points]
    low, high = min(values), max(values)
    is_log = low > 0 and high / low > LOGARITHMIC
    there, back = (math.log, math.exp) if is_log else (float, float)
    labels = {height // 2: f"{back((there(low) + there(high)) / 2):.3g}"}
    if high > low:
        labels |= {0: f"{high:.3g}", height - 1: f"{low:.3g}"}
    margin = max(map(len, labels.values()))
    columns = max(width - margin - 2, 1)
    span = there(high) - there(low)

    def row_of(value: float) -> int:
        share = (there(value) - there(low)) / span if span > 0 else 0.5
        return round((1 - share) * (4 * height - 1))

    cells = _drawn(_rows_of_columns(points, 2 * columns, row_of), columns, height)
    lines = [
        f"{labels.get(line, ''):>{margin}} {'┤' if line in labels else '│'}{text}" for line, text in enumerate(cells)
    ]
    first, last = f"{points[0][0]:g}", f"{points[-1][0]:g}"
    lines.append(f"{'':{margin}} └{'─' * columns}")
    lines.append(f"{'':{margin}}  {first}{last:>{max(columns - len(first), len(last) + 1)}}")
    return [line.rstrip() for line in lines]


def bar(share: float, width: int) -> str:
    """Draw a bar of which a share, in [0, 1], is full; only 0 looks empty, and only 1 full."""
    full = min(max(round(share * width), 1 if share > 0 else 0), width - 1 if share < 1 else width)
    return "█" * full + "░" * (width - full)


def _rows_of_columns(
    points: Sequence[tuple[float, float]], columns: int, row_of: Callable[[float], int]
) -> list[tuple[int, int]]:
    start, end = points[0][0], points[-1][0]
    spans = []
    index, before = 0, row_of(points[0][1])
    for column in range(columns):
        at = end if column == columns - 1 else start + (end - start) * column / (columns - 1)
        seen = [before]
        while index < len(points) and points[index][0] <= at:
            seen.append(row_of(points[index][1]))
            index += 1
        before = seen[-1]
        spans.append((min(seen), max(seen)))
    return spans


def _drawn(rows: Sequence[tuple[int, int]], columns: int, height: int) -> list[str]:
    cells = [[0] * columns for _ in range(height)]
    for column, (first, last) in enumerate(rows):
        for row in range(first, last + 1):
            cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(chr(BRAILLE + cell) if cell else " " for cell in line) for line in cells]
