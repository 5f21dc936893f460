"""The scattering transform against kymatio's, of pictures and of their mirror images."""

import pytest
import torch
from kymatio.torch import Scattering2D

from dphpo_bench.zoo.scattering import scattering_transform


@pytest.mark.parametrize(
    ("scales", "angles", "shape"),
    [
        (2, 8, (32, 32)),
        (1, 8, (8, 8)),
        (3, 8, (16, 24)),  # maps between that are subsampled before they are transformed again
        (2, 5, (12, 8)),
        (2, 3, (10, 14)),  # padded by three pixels
        (2, 8, (8, 9)),  # padded by a column more on one side
        (2, 4, (4, 4)),  # padded by as much as there is
    ],
)
def test_coefficients_of_kymatio(scales: int, angles: int, shape: tuple[int, int]) -> None:
    images = torch.rand(3, 2, *shape, generator=torch.Generator().manual_seed(0))
    reference = Scattering2D(J=scales, L=angles, shape=shape)
    wanted = [reference(images), reference(images.flip(-1).contiguous())]
    for mirrored in (False, True):
        found = scattering_transform(scales, angles, shape, mirrored)(images)
        assert len(found) == 1 + mirrored
        for ours, theirs in zip(found, wanted, strict=False):
            assert ours.shape == theirs.shape
            scale = theirs.abs().amax((0, 1, 3, 4), keepdim=True)  # of each path by itself
            torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=1e-5)
