"""The declared scale of regression targets."""

import math
import pickle
from typing import Any

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.training.target_scale import TargetScale


@pytest.mark.parametrize(
    ("declared", "scaled"),
    [
        ((10, 5), [-2.0, 0.0, 18.0]),
        (bench.Number(typical=10, spread=5), [-2.0, 0.0, 18.0]),
        (bench.Number(typical=0, spread=2, logarithmic=True), [0.0, math.log(11) / 2, math.log(101) / 2]),
    ],
)
def test_targets_and_outputs_change_units_and_back(declared: Any, scaled: list[float]) -> None:
    scale = TargetScale.of(declared)
    assert scale is not None
    targets = torch.tensor([0.0, 10.0, 100.0])
    torch.testing.assert_close(scale.apply(targets), torch.tensor(scaled))
    torch.testing.assert_close(scale.invert(scale.apply(targets)), targets, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scale.invert({"logits": scale.apply(targets)})["logits"], targets, rtol=1e-5, atol=1e-5)
    assert pickle.loads(pickle.dumps(scale)) == scale


@pytest.mark.parametrize(
    "declared",
    [3.0, (1, 2, 3), (1, 0), (math.nan, 1), [], [(1, 2), 3]],
)
def test_anything_else_is_refused_in_a_line(declared: Any) -> None:
    with pytest.raises(InvalidValueError, match="Expected target_scale to be"):
        TargetScale.of(declared)


@pytest.mark.parametrize("declared", [(1e9, 1), (-1e9, 1), [(0, 1), (1e9, 1)]])
def test_a_spread_that_float32_does_not_tell_apart_is_refused(declared: Any) -> None:
    """Labels are float32: 1e9 + 3 is 1e9."""
    with pytest.raises(InvalidValueError, match=r"typical of target_scale within 2\^20 spreads of 0"):
        TargetScale.of(declared)
    assert TargetScale.of((1.7e9, 86_400)) is not None
