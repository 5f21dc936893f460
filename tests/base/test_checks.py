"""Numbers from outside become Python's own, or are refused."""

from typing import Any

import numpy as np
import pytest
import torch

from dphpo_bench.base.checks import whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.methods.grid_composed import GridComposed


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)])
def test_whole_numbers_of_any_library_become_pythons_own(value: Any) -> None:
    found = whole("count", value, low=1, high=9)
    points = GridComposed(points=value).points
    assert (found, type(found)) == (3, int)
    assert (points, type(points)) == (3, int)


@pytest.mark.parametrize(
    "value",
    [
        *(3.0, "3", True, None, 10, 0, np.float32(2.5), np.float64(3), np.float32("inf"), np.bool_(True)),
        *(torch.tensor(2.7), torch.tensor(True), torch.tensor([[3]]), torch.tensor(3, device="meta")),
    ],
)
def test_what_is_no_whole_number_by_its_type_is_refused_whatever_its_value(value: Any) -> None:
    """A count that is rounded silently would be charged for fewer releases than its text says."""
    with pytest.raises(InvalidValueError, match="Expected a whole count from 1 to 9, got count="):
        whole("count", value, low=1, high=9)
    if not (type(value) is int and value):
        with pytest.raises(InvalidValueError, match="points >= 1"):
            GridComposed(points=value)
