"""ScatterNet features against kymatio itself, and the properties that the variants promise."""

import numpy as np
import pytest
import torch
from kymatio.numpy import Scattering2D
from kymatio.torch import Scattering2D as TorchScattering2D

from dphpo_bench.recipes.scattering import ScatteringFeatures, _pink_noise


def pictures(n: int, channels: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


@pytest.fixture(autouse=True)
def few_synthetic_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for everything but good features."""
    monkeypatch.setattr("dphpo_bench.recipes.scattering._SYNTHETIC_IMAGES", 50)


def extract(features: ScatteringFeatures, pixels: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(features.extract(pixels)))


@pytest.mark.parametrize(("channels", "size", "expected"), [(3, 32, 15_552), (1, 28, 3_969)])
def test_group_normalised_coefficients_of_kymatio(channels: int, size: int, expected: int) -> None:
    """The set-up of Tramèr and Boneh: 81 paths per channel at a quarter of the size, 27 groups."""
    pixels = pictures(3, channels, size)
    found = extract(ScatteringFeatures(normalisation="group_norm"), pixels)
    assert found.shape == (3, expected)
    assert found.dtype == torch.bfloat16
    coefficients = Scattering2D(J=2, shape=(size, size), L=8)(pixels.numpy() / 255)
    grouped = coefficients.reshape(3, 27, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found.float().numpy(), wanted.reshape(3, -1), rtol=2**-8, atol=2e-3)


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
    wanted = normalised(images)
    if symmetric:
        wanted = (wanted + normalised(images.flip(-1))) / 2
        wanted = wanted[..., wanted.shape[-1] // 2 :]
    features = ScatteringFeatures(normalisation=normalisation, symmetric=symmetric)  # type: ignore[arg-type]
    found = features.float_features(shape)(pixels)
    torch.testing.assert_close(found, wanted.flatten(1), rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("normalisation", ["group_norm", "pink_noise"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 12, 12)])
def test_size_is_what_comes_out(normalisation: str, symmetric: bool, shape: tuple[int, int, int]) -> None:
    features = ScatteringFeatures(normalisation=normalisation, groups=3, symmetric=symmetric)  # type: ignore[arg-type]
    found = extract(features, pictures(5, shape[0], shape[1]))
    assert found.shape == (5, features.size(shape))
    assert found.isfinite().all()


def test_a_picture_does_not_depend_on_the_others() -> None:
    pixels = pictures(40, 1, 8)
    features = ScatteringFeatures()
    together = extract(features, pixels)
    torch.testing.assert_close(extract(features, pixels[33:34]), together[33:34])


def test_symmetric_features_cannot_tell_left_from_right() -> None:
    pixels = pictures(4, 1, 8)
    features = ScatteringFeatures(symmetric=True)
    assert features.size((3, 32, 32)) == ScatteringFeatures().size((3, 32, 32)) // 2
    torch.testing.assert_close(extract(features, pixels), extract(features, pixels.flip(-1)))


def test_pink_noise_has_amplitudes_of_one_over_frequency() -> None:
    noise = _pink_noise(400, 1, 32, 32)
    assert 0 <= noise.min() <= noise.max() <= 1
    assert torch.equal(noise, _pink_noise(400, 1, 32, 32))
    window = torch.hann_window(32, periodic=True)
    power = torch.fft.rfft2((noise - noise.mean()) * window * window[:, None]).abs().square().mean((0, 1))
    slope = (power[0, 12] / power[0, 3]).log() / torch.log(torch.tensor(12 / 3))
    assert -2.4 < float(slope) < -1.6  # power falls as 1/f²


def test_the_number_of_threads_is_given_back() -> None:
    before = torch.get_num_threads()
    extract(ScatteringFeatures(), pictures(1, 1, 8))
    assert torch.get_num_threads() == before
