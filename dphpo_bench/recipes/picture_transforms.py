"""Random transforms of pictures, for `Augmentation`: a draw for each picture.

De et al. 2022 take both for CIFAR-10: `Augmentation((RandomShift(4), RandomFlip()), copies=16)`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from dphpo_bench.base.checks import check_fields
from dphpo_bench.base.errors import InvalidValueError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class RandomFlip:
    """Mirrors a picture left to right with probability 1/2."""

    def __call__(self, pictures: "Tensor", generator: "torch.Generator") -> "Tensor":
        """Return the pictures, shape (n, ..., height, width), each mirrored or not."""
        import torch

        coins = torch.rand(len(pictures), generator=generator, device=pictures.device) < 0.5
        return torch.where(coins.view(-1, *[1] * (pictures.dim() - 1)), pictures.flip(-1), pictures)


@dataclass(frozen=True)
class RandomShift:
    """Moves a picture by up to so many pixels in both directions: a random crop of the picture with a margin.

    Attributes:
        pixels: the most pixels to move by, smaller than the picture.
        margin: what comes in from outside: the picture "reflected", or "zeros".

    Raises:
        InvalidValueError: if `pixels` is no whole number above 0, or there is no such margin.
    """

    pixels: Annotated[int, Interval(ge=1, le=10**4)] = 4
    margin: Literal["reflected", "zeros"] = "reflected"

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, pictures: "Tensor", generator: "torch.Generator") -> "Tensor":
        """Return the pictures, shape (n, ..., height, width), each moved."""
        import torch

        n, (height, width) = len(pictures), pictures.shape[-2:]
        if min(height, width) <= self.pixels:
            raise InvalidValueError(
                f"Expected pictures larger than the shift of {self.pixels} pixels, got {height}×{width}."
            )
        moves = torch.randint(-self.pixels, self.pixels + 1, (2, n, 1), generator=generator, device=pictures.device)
        planes = pictures.reshape(n, -1, height, width)
        places = []
        for size, move in zip((height, width), moves, strict=True):
            place = torch.arange(size, device=pictures.device) + move
            last = size - 1
            places.append((last - (last - place.abs()).abs(), (place >= 0) & (place <= last)))
        (rows, rows_inside), (columns, columns_inside) = places
        moved = planes[
            torch.arange(n, device=pictures.device)[:, None, None, None],
            torch.arange(planes.shape[1], device=pictures.device)[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        if self.margin == "zeros":
            moved = moved * (rows_inside[:, None, :, None] & columns_inside[:, None, None, :])
        return moved.view(pictures.shape)
