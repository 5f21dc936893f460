"""ScatterNet features against kymatio itself, and the properties that the variants promise."""

import pytest
import torch
from kymatio.torch import Scattering2D as TorchScattering2D

from dphpo_bench.zoo.scattering import ScatteringFeatures, _pink_noise


def pictures(n: int, channels: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


@pytest.fixture(autouse=True)
def few_synthetic_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for everything but good features."""
    monkeypatch.setattr("dphpo_bench.zoo.scattering._SYNTHETIC_IMAGES", 50)


def extract(features: ScatteringFeatures, pixels: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(features.extract(pixels)))


@pytest.mark.parametrize("normalisation", ["group_norm", "pink_noise"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_features_from_kymatio(normalisation: str, symmetric: bool, shape: tuple[int, int, int]) -> None:
    """The definition, with a scattering transform for each mirror image; before rounding to bfloat16."""
    pixels = pictures(3, shape[0], shape[1])
    transform = TorchScattering2D(J=2, L=8, shape=shape[1:])

    def rooted(images: torch.Tensor) -> torch.Tensor:
        values = transform(images.contiguous())
        values[:, :, 1:] = values[:, :, 1:].clamp(min=0).add(1e-3).sqrt()
        return values

    def normalised(images: torch.Tensor) -> torch.Tensor:
        if normalisation == "group_norm":
            grouped = transform(images.contiguous()).reshape(3, 27, -1)
            variance, mean = torch.var_mean(grouped, -1, keepdim=True, correction=0)
            return ((grouped - mean) / (variance + 1e-5).sqrt()).view(3, shape[0], 81, shape[1] // 4, -1)
        deviation, mean = torch.std_mean(rooted(_pink_noise(50, *shape)), dim=(0, 3, 4), keepdim=True)
        return (rooted(images) - mean) / deviation

    images = pixels / 255
    features = ScatteringFeatures(normalisation=normalisation, symmetric=symmetric)  # type: ignore[arg-type]
    if not symmetric:
        assert features.size(shape) == {3: 15_552, 1: 3_969}[shape[0]]  # as Tramèr and Boneh have it
    wanted = normalised(images)
    if symmetric:
        wanted = (wanted + normalised(images.flip(-1))) / 2
        wanted = wanted[..., wanted.shape[-1] // 2 :]
    found = features.float_features(shape)(pixels)
    assert found.shape == (3, features.size(shape))
    torch.testing.assert_close(found, wanted.flatten(1), rtol=0, atol=1e-5 * float(wanted.abs().max()))


def test_a_picture_does_not_depend_on_the_others() -> None:
    pixels = pictures(40, 1, 8)
    features = ScatteringFeatures()
    together = extract(features, pixels)
    torch.testing.assert_close(extract(features, pixels[33:34]), together[33:34])


def test_pink_noise_has_amplitudes_of_one_over_frequency() -> None:
    noise = _pink_noise(400, 1, 32, 32)
    assert 0 <= noise.min() <= noise.max() <= 1
    assert torch.equal(noise, _pink_noise(400, 1, 32, 32))
    window = torch.hann_window(32, periodic=True)
    power = torch.fft.rfft2((noise - noise.mean()) * window * window[:, None]).abs().square().mean((0, 1))
    slope = (power[0, 12] / power[0, 3]).log() / torch.log(torch.tensor(12 / 3))
    assert -2.4 < float(slope) < -1.6  # power falls as 1/f²
