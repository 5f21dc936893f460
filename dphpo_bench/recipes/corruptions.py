"""Corrupted pictures: test records that differ from what a model was trained on.

Source of the corruptions, their severities and constants, which are those for pictures of 32x32: Hendrycks and
Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations", ICLR 2019. The published
files hold other noise, and blur and colours of another library; compare no value here with theirs.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dphpo_bench.base.errors import InvalidValueError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Pictures: TypeAlias = "NDArray[np.float64]"
"""Pictures in [0, 1], shape (n, channels, height, width)."""

VERSION = 1
"""Raise it when the same constants give other pictures."""
_SEED = 0


def _noisy(pictures: "Pictures", deviation: float) -> "Pictures":
    """Return x + deviation · z, z standard normal in each pixel and channel.

    NumPy's legacy generator, because its numbers never change between versions.
    """
    import numpy as np

    noise: Pictures = np.random.RandomState(_SEED).standard_normal(pictures.shape)
    return pictures + deviation * noise


def _blurred(pictures: "Pictures", deviation: float) -> "Pictures":
    """Return x convolved with a Gaussian in height and width, the border repeated outwards."""
    import numpy as np
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(pictures, deviation, mode="nearest", axes=(2, 3)))


def _flattened(pictures: "Pictures", share: float) -> "Pictures":
    """Return m + share · (x − m), m the mean of each channel of a picture."""
    means = pictures.mean((2, 3), keepdims=True)
    flat: Pictures = means + share * (pictures - means)
    return flat


def _brighter(pictures: "Pictures", more: float) -> "Pictures":
    """Return pictures whose value V = max(R, G, B) is min(V + more, 1), of the same hue and saturation.

    Hue and saturation stay if all channels are multiplied by the ratio of the values. Black becomes grey.
    """
    import numpy as np

    value = pictures.max(1, keepdims=True)
    target = np.minimum(value + more, 1.0)
    scaled = pictures * (target / np.where(value > 0, value, 1.0))
    brighter: Pictures = np.where(value > 0, scaled, target)
    return brighter


def _compressed(pictures: "Pictures", quality: float) -> "Pictures":
    """Return pictures as a JPEG of this quality keeps them. Last bits may differ between versions of Pillow."""
    import numpy as np
    from PIL import Image

    def through_jpeg(picture: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
        file = io.BytesIO()
        Image.fromarray(picture.transpose(1, 2, 0).squeeze()).save(file, "JPEG", quality=int(quality))
        return np.asarray(Image.open(file)).reshape(*picture.shape[1:], picture.shape[0]).transpose(2, 0, 1)

    return np.stack([through_jpeg(picture) for picture in (pictures * 255).round().astype(np.uint8)]) / 255


CORRUPTIONS: "dict[str, tuple[Callable[[Pictures, float], Pictures], tuple[float, ...]]]" = {
    "Gaussian noise": (_noisy, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "Gaussian blur": (_blurred, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (_flattened, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brighter, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "JPEG": (_compressed, (80, 65, 58, 50, 40)),
}
"""The corruptions: a function, and its constant at severity 1 to 5."""


@dataclass(frozen=True)
class Corruptions:
    """All corruptions in turn: the first picture has the first, the second the second, and so on.

    In the canonical order of the records, that of their hashes, the turn is independent of what a picture shows. So one
    number is the mean over corruptions, at the price of a single test.

    Attributes:
        severity: 1 to 5.
    """

    severity: int = 3

    def __post_init__(self) -> None:
        if self.severity not in range(1, 6):
            raise InvalidValueError(f"Expected a severity from 1 to 5, got {self.severity}.")

    @property
    def key(self) -> dict[str, int]:
        """Identity of the corrupted pictures, given the pictures."""
        return {"corruptions": VERSION, "severity": self.severity}

    @property
    def about(self) -> str:
        """Constants of all corruptions, in a line."""
        constants = (f"{name} {values[self.severity - 1]:g}" for name, (_, values) in CORRUPTIONS.items())
        return f"each test picture under a corruption, in turn: {', '.join(constants)} (version {VERSION})"

    def apply(self, pixels: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
        """Return corrupted pictures.

        Args:
            pixels: shape (n, 1 or 3, height, width), in canonical order.
        """
        import numpy as np

        corrupted = np.empty_like(pixels)
        for first, (corrupt, values) in enumerate(CORRUPTIONS.values()):
            turn = slice(first, None, len(CORRUPTIONS))
            if len(some := pixels[turn]):
                changed = corrupt(some / 255, values[self.severity - 1])
                corrupted[turn] = (np.clip(changed, 0, 1) * 255).round().astype(np.uint8)
        return corrupted
