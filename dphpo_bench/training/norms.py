"""Norms of per-sample gradients and their sums, rounded so that the sensitivity holds: in float64, or upwards.

In float32 one more record changes how all later ones are rounded, and moves the sum by more than its own gradient
(Casacuberta et al. 2022): by 1.001 times the clipping norm where 50,000 are nearly equal. In float64 the excess is 5e8
times smaller.

Converting a whole matrix would cost more than the sums, so it is done in tiles that stay in cache.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 128
_LONG = 2**15
_TILE = 2**18
_TILE_COLUMNS = 2**12
_GPU_TILE = 2**25
_LOST = 2.0**-510
"""Largest loss of a row's norm to the underflow of squares, for a row of a single number."""


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norms of rows (n, d): shape (n,), float64; not finite where a row or a square is not.

    A norm is too small by 1e-11 of itself at most, whatever underflows: else a gradient of 1e-165, whose square is 0,
    would pass as one of length 0. It is too large by √d · 2^-510 and 1e-11 of itself at most.

    Proof. A square, and each sum of two, loses 2^-1022 at most if it underflows, even if flushed to zero: together less
    than 4 d · 2^-1022 of N², with the squares of tiles' norms. So N ≤ (1 + 1e-11) √(computed + d · 2^-1020), which is
    at most the root of what was computed and √d · 2^-510.
    """
    of_tiles = [(records, torch.linalg.vector_norm(tile, dim=1)) for records, _, tile in _tiles(rows)]
    norms: Tensor = of_tiles[0][1] if len(of_tiles) == 1 else rows.new_zeros(len(rows), dtype=torch.float64)
    if len(of_tiles) != 1:
        for records, part in of_tiles:
            norms[records] += part.square_()
        norms.sqrt_()
    return norms.add_(math.sqrt(rows.shape[1]) * _LOST)


def norm_bounds(rows: Tensor) -> Tensor:
    """Return upper bounds of the L2 norms of rows (n, d), too large by 8.1e-6 of them and √d · 2.2e-19 at most.

    Shape (n,), float64; not finite where a row is not. On a CPU, long rows in float32 take a third of the time that
    `row_norms` does, which all others are left to.

    What float32 rounds in a bound depends on its own row alone, whatever rows are beside it: else one record would move
    the clipped gradients of all others, together by more than its own. So the blocks are the same for every n, and
    where a square overflows, that row only is computed anew.

    Proof. Let u = 2^-24, L = `_BLOCK`, N² the sum of squares in a row and S that in one of its blocks, of which there
    are (d + L) / L at most. In float32, in whatever order, with or without fused operations, a square is rounded L + 1
    times at most, and 2 L operations that may underflow lose 2^-126 each at most, even if flushed to zero. So the root
    r of a block, as computed, has r² ≥ (1 - u)^(L + 3) S - (2 L + 1) 2^-125.9. Summed up over blocks:
    N ≤ (1 - u)^(-(L + 3) / 2) (√Σr² + √(2.01 (d + L)) 2^-62.9) ≤ (1 + (L / 2 + 2) u) √Σr² + √(d + L) 2^-62.3.
    What is returned is larger by u N; the float64 numbers behind it are rounded by less than 1e-11, as u > 5e-8.
    Rounded upwards, r² ≤ (1 + u)^(L + 3) S, so it is (1 + (L + 7) u) N and that constant at most.
    """
    n, d = rows.shape
    if rows.dtype != torch.float32 or rows.device.type != "cpu" or d < _LONG:
        return row_norms(rows)
    rows = rows.contiguous()  # strides choose the order of summation
    whole = d - d % _BLOCK
    blocks = torch.linalg.vector_norm(rows[:, :whole].view(n, -1, _BLOCK), dim=2)
    if whole < d:
        blocks = torch.cat([blocks, torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)], dim=1)
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=1, dtype=torch.float64)
    if not math.isfinite(norms.sum().item()):
        overflown = ~norms.isfinite()
        norms[overflown] = row_norms(rows[overflown])
    return norms.mul_(1 + (_BLOCK / 2 + 4) * 2.0**-24).add_(math.sqrt(d + _BLOCK) * 2.0**-62)


def add_product(total: Tensor, weights: Tensor, rows: Tensor) -> None:
    """Add weights · rows to a total, in place. No product or sum is rounded to less than float64.

    `total` has shape (m, d) and `weights` (m, n), both float64; `rows` has shape (n, d), any floating dtype.
    """
    for records, columns, tile in _tiles(rows):
        total[:, columns].addmm_(weights[:, records], tile)


def _tiles(rows: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield tiles of a matrix in float64, each with its rows and columns. Each overwrites the tile before."""
    if rows.dtype == torch.float64:
        yield slice(None), slice(None), rows
        return
    n, d = rows.shape
    tile = _TILE if rows.device.type == "cpu" else _GPU_TILE
    width = max(1, min(d, max(_TILE_COLUMNS, tile // max(1, n))))
    height = max(1, tile // width)
    memory = torch.empty(min(n, height) * width, dtype=torch.float64, device=rows.device)
    for i in range(0, n, height):
        for j in range(0, d, width):
            part = rows[i : i + height, j : j + width]
            yield slice(i, i + height), slice(j, j + width), memory[: part.numel()].view(part.shape).copy_(part)
