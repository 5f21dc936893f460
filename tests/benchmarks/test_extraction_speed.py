"""Speed of ScatterNet features, on one thread, against kymatio's transform of a picture and of its mirror image."""

import pytest
import torch
from kymatio.torch import Scattering2D

from dphpo_bench.recipes import scattering
from dphpo_bench.recipes.scattering import ScatteringFeatures
from tests.benchmarks.test_training_speed import interleaved, record

PICTURES = 64


@pytest.mark.parametrize("symmetric", [False, True], ids=["plain", "symmetric"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)], ids=["grey", "colour"])
def test_scattering(benchmark, monkeypatch, shape, symmetric):
    monkeypatch.setattr(scattering, "_SYNTHETIC_IMAGES", 50)
    pixels = torch.randint(0, 256, (PICTURES, *shape), dtype=torch.uint8)
    kymatio = Scattering2D(J=2, L=8, shape=shape[1:])
    features = ScatteringFeatures(symmetric=symmetric).float_features(shape)
    few = ScatteringFeatures.per_call

    def by_kymatio() -> None:
        for part in pixels.split(few):
            for images in [part, part.flip(-1)][: 1 + symmetric]:
                kymatio(images.float().div(255))

    def by_ours() -> None:
        for part in pixels.split(few):
            features(part)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        times = interleaved({"kymatio, coefficients only": by_kymatio, "features": by_ours}, 5)
    torch.set_num_threads(before)
    ratios = record(benchmark, times, "kymatio, coefficients only")
    assert ratios["features"] < (0.6 if symmetric else 0.9)
