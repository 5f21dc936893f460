"""ScatterNet features: a fixed wavelet transform of pictures, on which linear models train well in private.

Source: Tramèr and Boneh, "Differentially private learning needs better features (or much more data)", ICLR
2021. Nothing here depends on a dataset: no means, no variances of it, only constants and the picture at hand.
Features may therefore be computed before any privacy is spent.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dphpo_bench.recipes.features import PictureRoute, in_parallel

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.source import DataSource

_SYNTHETIC_IMAGES = 2000


@dataclass(frozen=True)
class ScatteringFeatures(PictureRoute):
    """Second-order scattering coefficients, normalised without a look at the data.

    Attributes:
        scales: J; the picture shrinks by 2^J in each direction.
        angles: L, the number of orientations of the wavelets.
        normalisation: "group_norm" normalises each picture by itself, in groups of consecutive channels.
            "pink_noise" takes square roots of all but the averages and standardises every channel by its mean
            and deviation over synthetic pictures of 1/f noise, a public model of natural pictures.
        groups: number of groups of "group_norm".
        symmetric: average the features of a picture and of its mirror image, and keep the right half of the
            columns; the left half says the same again. Half the dimensions need half the noise.
    """

    per_block: ClassVar[int] = 1024
    any_channels: ClassVar[bool] = True

    scales: int = 2
    angles: int = 8
    normalisation: Literal["group_norm", "pink_noise"] = "pink_noise"
    groups: int = 27
    symmetric: bool = False

    @property
    def _parameters(self) -> dict[str, Any]:
        return asdict(self)

    def size(self, image_shape: tuple[int, int, int]) -> int:
        """Return the number of features of a picture of shape (channels, height, width)."""
        channels, height, width = image_shape
        paths = 1 + self.scales * self.angles + self.angles**2 * self.scales * (self.scales - 1) // 2
        columns = width >> self.scales
        used = columns - columns // 2 if self.symmetric else columns
        return channels * paths * (height >> self.scales) * used

    def _function(
        self, image_shape: tuple[int, int, int], source: "DataSource | None" = None
    ) -> "Callable[[torch.Tensor], torch.Tensor]":
        del source
        features = self.float_features(image_shape)
        return lambda few: features(few).bfloat16()

    def float_features(self, image_shape: tuple[int, int, int]) -> "Callable[[torch.Tensor], torch.Tensor]":
        """Return a function from a few pictures to features in float32."""
        from dphpo_bench.recipes.wavelets import scattering_transform

        transform = scattering_transform(self.scales, self.angles, image_shape[1:], self.symmetric)
        normalise = self._normaliser(image_shape)

        def features(few: "torch.Tensor") -> "torch.Tensor":
            values, *mirrored = (normalise(image) for image in transform(few.float().div(255)))
            if mirrored:
                values = (values + mirrored[0]) / 2
                values = values[..., values.shape[-1] // 2 :]
            return values.flatten(1)

        return features

    def _normaliser(self, image_shape: tuple[int, int, int]) -> "Callable[[torch.Tensor], torch.Tensor]":
        """Return the normalisation of coefficients of shape (n, channels, paths, height, width)."""
        import torch
        from torch.nn.functional import group_norm

        from dphpo_bench.recipes.wavelets import scattering_transform

        if self.normalisation == "group_norm":
            return lambda values: group_norm(values.flatten(1, 2), self.groups).view_as(values)
        transform = scattering_transform(self.scales, self.angles, image_shape[1:], mirrored=False)
        synthetic = _pink_noise(_SYNTHETIC_IMAGES, *image_shape)
        blocks = in_parallel(lambda few: _root(transform(few)[0]), synthetic, self.per_block, self.per_call)
        values = torch.cat(list(blocks))
        deviation, mean = torch.std_mean(values, dim=(0, 3, 4), keepdim=True)
        return lambda values: (_root(values) - mean) / deviation


def _root(coefficients: "torch.Tensor") -> "torch.Tensor":
    """Take square roots, which tame long tails, of all but the first path, the local averages."""
    import torch

    averages, rest = coefficients[:, :, :1], coefficients[:, :, 1:]
    return torch.cat([averages, rest.clamp(min=0).add(1e-3).sqrt()], 2)


def _pink_noise(n: int, channels: int, height: int, width: int) -> "torch.Tensor":
    """Draw synthetic pictures with amplitudes 1/frequency and channels that correlate, float32 in [0, 1].

    Amplitudes fall as 1/f in natural pictures too: Field, "Relations between the statistics of natural images
    and the response properties of cortical cells", JOSA A 1987.
    """
    import numpy as np
    import torch

    # Twice the size, then cropped, because a Fourier series joins opposite edges. NumPy's legacy generator
    # because its numbers never change between versions.
    tall, wide = 2 * height, 2 * width
    white = np.random.RandomState(0).standard_normal((n, channels, tall, wide)).astype(np.float32)
    frequency = torch.hypot(torch.fft.fftfreq(tall)[:, None], torch.fft.rfftfreq(wide)[None])
    frequency[0, 0] = 1 / max(tall, wide)
    spectrum = torch.fft.rfft2(torch.from_numpy(white)) / frequency
    noise = torch.fft.irfft2(spectrum, s=(tall, wide))[..., :height, :width]
    noise = noise / noise.std()
    if channels > 1:
        noise = 0.95 * noise[:, :1] + 0.3 * noise
        noise = noise / noise.std()
    pictures: torch.Tensor = (0.5 + 0.22 * noise).clamp(0, 1)
    return pictures.contiguous()
