"""Corrupted pictures, against their formulas and other libraries."""

import colorsys
import io

import numpy as np
import pytest
from PIL import Image, ImageFilter

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.zoo.dataset_task import CORRUPTIONS, Corruptions

PICTURES = np.random.RandomState(1).randint(0, 256, (20, 3, 32, 32)).astype(np.uint8)
PLACES = {name: place for place, name in enumerate(CORRUPTIONS)}


def corrupted(name: str, severity: int = 3, pictures: np.ndarray = PICTURES) -> tuple[np.ndarray, np.ndarray]:
    """The pictures whose turn it is, before and after, in [0, 255]."""
    turn = slice(PLACES[name], None, len(CORRUPTIONS))
    return pictures[turn].astype(float), Corruptions(severity).apply(pictures)[turn].astype(float)


def test_noise_has_the_stated_deviation() -> None:
    grey = np.full((500, 3, 32, 32), 128, np.uint8)
    before, after = corrupted("Gaussian noise", 3, grey)
    # 307,200 draws: the standard error of the deviation is 0.08 / √614,400 = 1e-4, and nothing is clipped within 5 σ.
    assert np.std((after - before) / 255) == pytest.approx(0.08, abs=6e-4)
    assert np.mean((after - before) / 255) == pytest.approx(0, abs=9e-4)


def test_blur_is_that_of_pillow_but_for_its_approximation() -> None:
    smooth = np.linspace(0, 255, 32)[None, None, :, None] * np.ones((5, 3, 1, 32))
    smooth[..., 16:] = 255 - smooth[..., 16:]
    before, after = corrupted("Gaussian blur", 5, smooth.astype(np.uint8))
    theirs = Image.fromarray(before[0].transpose(1, 2, 0).astype(np.uint8)).filter(ImageFilter.GaussianBlur(1.0))
    difference = np.abs(np.asarray(theirs, float).transpose(2, 0, 1) - after[0])
    assert difference.max() < 8
    assert np.abs(after - before).max() > 60


@pytest.mark.parametrize(("severity", "share"), [(1, 0.75), (3, 0.4), (5, 0.15)])
def test_contrast_keeps_the_mean_and_shrinks_the_rest(severity: int, share: float) -> None:
    before, after = corrupted("contrast", severity)
    means = before.mean((2, 3), keepdims=True)
    np.testing.assert_allclose(after, means + share * (before - means), atol=0.5 + 1e-9)


def test_brightness_raises_the_value_of_hsv() -> None:
    pictures = PICTURES.copy()
    pictures[PLACES["brightness"], :, 0, 0] = 0  # black
    before, after = corrupted("brightness", 3, pictures)
    for old, new in zip(before[0].reshape(3, -1).T / 255, after[0].reshape(3, -1).T / 255, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*old)
        expected = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.15, 1))
        np.testing.assert_allclose(new, expected, atol=0.5 / 255 + 1e-9)


def test_jpeg_is_that_of_pillow() -> None:
    before, after = corrupted("JPEG")
    file = io.BytesIO()
    Image.fromarray(before[1].transpose(1, 2, 0).astype(np.uint8)).save(file, "JPEG", quality=58)
    assert np.array_equal(np.asarray(Image.open(file)).transpose(2, 0, 1), after[1])


def test_each_picture_has_the_corruption_of_its_turn_alone_and_always_the_same() -> None:
    ours = Corruptions().apply(PICTURES)
    assert ours.shape == PICTURES.shape
    assert ours.dtype == np.uint8
    assert all((ours[place] != PICTURES[place]).any() for place in range(len(PICTURES)))
    assert np.array_equal(ours, Corruptions().apply(PICTURES))
    assert np.array_equal(ours[:5], Corruptions().apply(PICTURES[:5]))


def test_turns_say_each_corruption_and_its_severity() -> None:
    blurs = Corruptions(turns=(("Gaussian blur", 2), ("Gaussian blur", 5)))
    alone = Corruptions(turns=(("Gaussian blur", 2),)).apply(PICTURES)
    assert np.array_equal(alone[1::5], Corruptions(2).apply(PICTURES)[1::5])
    assert np.array_equal(blurs.apply(PICTURES)[::2], alone[::2])
    assert (blurs.apply(PICTURES)[1::2] != alone[1::2]).any((1, 2, 3)).all()
    assert "in turn: Gaussian blur 0.6, Gaussian blur 1 (" in blurs.about
    assert blurs.key == {"corruptions": 1, "turns": blurs.turns}
    with pytest.raises(InvalidValueError, match="Expected a severity from 1 to 5, got 0"):
        Corruptions(turns=(("contrast", 0),))


def test_what_records_hold_of_the_usual_corruptions_stays() -> None:
    """Their features in caches, too."""
    assert Corruptions().key == {"corruptions": 1, "severity": 3}
    assert Corruptions().about == (
        "each test picture under a corruption, in turn: Gaussian noise 0.08, Gaussian blur 0.7, contrast 0.4, "
        "brightness 0.15, JPEG 58 (version 1)"
    )


def test_grey_pictures_and_no_pictures() -> None:
    grey = PICTURES[:, :1]
    assert Corruptions().apply(grey).shape == grey.shape
    assert Corruptions().apply(grey[:2]).shape == (2, 1, 32, 32)
    assert len(Corruptions().apply(grey[:0])) == 0


@pytest.mark.parametrize("severity", [0, 6])
def test_a_severity_that_is_none(severity: int) -> None:
    with pytest.raises(InvalidValueError, match="Expected a severity from 1 to 5"):
        Corruptions(severity)
