"""Rows of records: slices, indices and masks of any library, or a line."""

from typing import Any

import numpy as np
import pytest
import torch

import dphpo_bench as bench

RECORDS = bench.Records(torch.arange(5.0)[:, None], {"label": torch.arange(5)})
SOME = np.array([True, False, True, False, True])


@pytest.mark.parametrize(
    "rows",
    [
        SOME,
        [0, 2, 4],
        np.array([0, 2, 4], "i4"),
        torch.tensor([0, 2, 4]),
        slice(0, None, 2),
    ],
)
def test_rows(rows: Any) -> None:
    some = RECORDS.rows(rows)
    assert isinstance(some.inputs, torch.Tensor)
    assert some.inputs[:, 0].tolist() == [0, 2, 4]
    assert len(RECORDS.rows([])) == 0


@pytest.mark.parametrize("rows", [SOME[:3], np.ones((5, 1), bool), [5], [0.5], 3, "mask", [[0, 1]]])
def test_what_are_no_rows(rows: Any) -> None:
    with pytest.raises((IndexError, TypeError)):
        RECORDS.rows(rows)
