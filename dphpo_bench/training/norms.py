"""Norms of per-sample gradients and their sums, in float64, which the sensitivity relies on.

In float32 one more record changes how all later ones are rounded, and moves the sum by more than its own gradient
(Casacuberta et al. 2022): by 1.001 times the clipping norm where 50,000 are nearly equal. In float64 the excess is 5e8
times smaller.

Converting a whole matrix would cost more than the sums, so it is done in tiles that stay in cache.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

_TILE = 2**18
_TILE_COLUMNS = 2**12
_GPU_TILE = 2**25


def row_norms(rows: Tensor) -> Tensor:
    """L2 norm of each row of a matrix (n, d) with a relative error below 1e-11: shape (n,), float64.

    Not finite where a row is not, or where a square overflows.
    """
    squares = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for records, _, tile in _tiles(rows):
        squares[records] += torch.linalg.vector_norm(tile, dim=1).square_()
    return squares.sqrt_()


def add_product(total: Tensor, weights: Tensor, rows: Tensor) -> None:
    """Add weights · rows to a total, in place. No product or sum is rounded to less than float64.

    `total` has shape (m, d) and `weights` (m, n), both float64; `rows` has shape (n, d), any floating dtype.
    """
    for records, columns, tile in _tiles(rows):
        total[:, columns].addmm_(weights[:, records], tile)


def _tiles(rows: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Tiles of a matrix in float64, each with its rows and columns. Each overwrites the one before."""
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
