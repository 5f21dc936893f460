"""ScatterNet features: a fixed wavelet transform of pictures, on which linear models train well in private.

Source: Tramèr and Boneh, "Differentially private learning needs better features (or much more data)", ICLR
2021. Nothing here depends on a dataset: no means, no variances of it, only constants and the picture at hand.
Features may therefore be computed before any privacy is spent.

Filters and padding are kymatio's, and so are the coefficients, up to rounding. Two things are faster here:

- The low-pass filter is separable, so two products with small matrices filter, subsample and crop.
- A mirror image needs no wavelet transform of its own. Its moduli are the picture's, mirrored, with the angles
  permuted, as long as nothing is subsampled. Subsampling starts at opposite ends of a row, so columns are
  subsampled only when both images are read from them; rows are the same in both, and subsampled at once.

Source of the transform: Bruna and Mallat, "Invariant scattering convolution networks", IEEE PAMI 2013.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dphpo_bench.zoo.features import PictureRoute, in_parallel

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.source import DataSource


_SYNTHETIC_IMAGES = 2000


@dataclass(frozen=True)
class ScatteringFeatures(PictureRoute):
    """Second-order scattering coefficients, normalised without reading the data.

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


def scattering_transform(
    scales: int, angles: int, shape: tuple[int, int], mirrored: bool
) -> "Callable[[torch.Tensor], list[torch.Tensor]]":
    """Build the transform of pictures of one shape.

    Args:
        scales: J; the coefficients' grid is 2^J times coarser than the pixels'.
        angles: L, the number of orientations of the wavelets.
        shape: (height, width) of the pictures.
        mirrored: whether the coefficients of the mirror images are wanted too.

    Returns:
        A function of pictures, float32, shape (n, channels, height, width). It returns their coefficients, shape
        (n, channels, paths, height >> J, width >> J), paths in kymatio's order, and then those of the mirror images.
    """
    import torch
    from kymatio.torch import Scattering2D

    reference = Scattering2D(J=scales, L=angles, shape=shape)
    if mirrored and shape[1] % 2:  # padded by a column more on one side, so that the mirror image is a case of its own
        plain = scattering_transform(scales, angles, shape, mirrored=False)
        return lambda images: plain(images) + plain(images.flip(-1))

    low_pass = [
        _low_pass(torch.from_numpy(spectrum), 2 ** (scales - scale))
        for scale, spectrum in enumerate(reference.phi["levels"])
    ]
    readings = [_of_both(columns, 2**scale) if mirrored else columns for scale, (_, columns) in enumerate(low_pass)]
    wavelets: dict[tuple[int, int], list[torch.Tensor]] = {}  # by the scale of the maps, and their own
    for psi in reference.psi:
        for level in range(max(1, min(psi["j"], scales - 1))):
            step = 2 ** (psi["j"] - level)
            spectrum = torch.from_numpy(psi["levels"][level])
            prepared = _folding(spectrum, step, 1 if mirrored and level == 0 else step)
            wavelets.setdefault((level, psi["j"]), []).append(prepared)
    order = _mirrored_paths(scales, angles)

    def averages(maps: torch.Tensor, level: int, scale: int) -> torch.Tensor:
        """Return coefficients of maps of shape (..., images, rows, columns)."""
        rows, columns = low_pass[scale]
        reading = readings[scale] if level == 0 else columns
        values = torch.unflatten(rows @ (maps @ reading.t()), -1, (-1, len(columns)))
        return values.transpose(-3, -2).flatten(-4, -3)

    def transform(images: torch.Tensor) -> list[torch.Tensor]:
        padded = reference.pad(images.contiguous()).movedim(-1, -3)  # kymatio's last dimension is left to the images
        spectrum = torch.fft.fft2(padded)
        first, second = [averages(padded, 0, 0)[:, :, None]], []
        for scale in range(scales):
            moduli = torch.stack([_modulus(spectrum, wavelet) for wavelet in wavelets[0, scale]], 2)
            first.append(averages(moduli, 0, scale))
            coarser = [(to, wavelet) for to in range(scale + 1, scales) for wavelet in wavelets[scale, to]]
            if coarser:
                if mirrored and scale:
                    moduli = torch.cat([moduli, moduli.flip(-1)], -3)[..., :: 2**scale]
                spectra = torch.fft.fft2(moduli)
                values = [averages(_modulus(spectra, wavelet), scale, to) for to, wavelet in coarser]
                second.append(torch.stack(values, 3).flatten(2, 3))
        plain, *mirror = torch.cat(first + second, 2).unbind(3)
        return [plain, *(image[:, :, order] for image in mirror)]

    return transform


def _of_both(columns: "torch.Tensor", step: int) -> "torch.Tensor":
    """Return a low-pass matrix that reads the grids of a picture and its mirror image from columns not subsampled."""
    import torch

    spread = torch.stack([columns, *[torch.zeros_like(columns)] * (step - 1)], -1).flatten(1)
    return torch.cat([spread, spread.flip(1)])


def _modulus(spectrum: "torch.Tensor", wavelet: "torch.Tensor") -> "torch.Tensor":
    """Return the modulus of the convolution with a wavelet, subsampled as the wavelet was prepared for.

    Args:
        spectrum: of real maps, complex64, shape (..., rows, columns).
    """
    import torch

    down, rows, across, columns, _ = wavelet.shape
    spectrum = torch.unflatten(torch.view_as_real(spectrum), -3, (down, rows))
    spectrum = torch.unflatten(spectrum, -2, (across, columns))
    folded = spectrum[..., 0, :, 0, :, :] * wavelet[0, :, 0]
    for i, j in list(product(range(down), range(across)))[1:]:
        folded.addcmul_(spectrum[..., i, :, j, :, :], wavelet[i, :, j])
    real, imaginary = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(folded))).unbind(-1)
    return torch.addcmul(real * real, imaginary, imaginary).sqrt_()


def _folding(spectrum: "torch.Tensor", down: int, across: int) -> "torch.Tensor":
    """Prepare the spectrum of a wavelet, which is real, to subsample rows and columns by `down` and `across`.

    Returns:
        Shape (down, rows / down, across, columns / across, 2), every number twice: torch is faster at multiplying
        real numbers of equal shape. Subsampling adds the parts up, and divides by their number.
    """
    import torch

    twice = spectrum[..., None].repeat(1, 1, 2) / (down * across)
    return torch.unflatten(torch.unflatten(twice, 1, (across, -1)), 0, (down, -1)).contiguous()


def _low_pass(spectrum: "torch.Tensor", step: int) -> "list[torch.Tensor]":
    """Return matrices that filter, subsample and crop the rows of a map, and its columns.

    The filter is a Gaussian, so its spectrum is the product of its first column and its first row.
    """
    import torch

    spectrum = spectrum.double()
    matrices = []
    for factor in (spectrum[:, 0], spectrum[0]):
        kernel = torch.fft.ifft(factor / spectrum[0, 0].sqrt()).real
        size = len(kernel)
        centres = torch.arange(step, size - step, step)  # all but the first and the last: padding
        matrices.append(kernel[(centres[:, None] - torch.arange(size)) % size].float())
    return matrices


def _mirrored_paths(scales: int, angles: int) -> list[int]:
    """Return which of a picture's paths each path of its mirror image is."""
    turned = [(2 * (angles // 2 - 1) - angle) % angles for angle in range(angles)]
    order = [0] + [1 + scale * angles + angle for scale in range(scales) for angle in turned]
    for scale in range(scales):
        finer = turned if scale == 0 else range(angles)  # coarser maps are transformed for each image by itself
        start, width = len(order), (scales - scale - 1) * angles
        order += [
            start + first * width + coarser * angles + second
            for first in turned
            for coarser in range(scales - scale - 1)
            for second in finer
        ]
    return order
