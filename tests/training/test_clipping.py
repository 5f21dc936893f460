import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.training.clipping import Abadi, AutoS, AutoV, parse_clipping
from dphpo_bench.training.norms import add_product, row_norms

RULES = (Abadi(1.0), Abadi(3e-7), Abadi(50.0), AutoS(), AutoS(1e-6), AutoV())


@given(norm=st.floats(min_value=0, width=32), rule=st.sampled_from(RULES))
@example(norm=3e38, rule=Abadi(3e-7))  # a factor of 1e-45 was rounded to 1.4e-45, the smallest number there is
def test_clipped_norm_is_within_the_sensitivity(norm, rule):
    factor = rule.factors(torch.tensor([norm]))
    assert 0 <= factor.item() < math.inf
    if math.isfinite(norm):
        assert norm * factor.item() <= rule.sensitivity * (1 + 1e-6)
    else:
        assert factor.item() == 0


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_factor_of_a_norm_that_is_not_finite_is_zero(rule):
    assert rule.factors(torch.tensor([math.nan, math.inf, -math.inf])).tolist() == [0, 0, 0]
    assert rule.factors(torch.empty(0)).shape == (0,)


def test_factors_are_those_of_the_papers():
    norms = torch.tensor([0.5, 2.0])
    assert Abadi(1.0).factors(norms).tolist() == [1.0, 0.5]
    torch.testing.assert_close(AutoS(0.01).factors(norms), torch.tensor([1 / 0.51, 1 / 2.01]))
    assert AutoV().factors(norms).tolist() == [2.0, 0.5]


def test_names():
    assert parse_clipping("abadi:0.5") == Abadi(0.5)
    assert parse_clipping("AUTO-S") == AutoS(0.01)
    assert parse_clipping("auto_s:0.1") == AutoS(0.1)
    assert parse_clipping("auto_v") == AutoV()
    with pytest.raises(UnknownNameError, match="Did you mean 'auto_s'"):
        parse_clipping("autos")
    for text in ("abadi:x", "abadi:-1", "abadi:nan", "auto_v:1", "abadi:"):
        with pytest.raises(InvalidValueError):
            parse_clipping(text)


@pytest.mark.parametrize("width", [0, 1, 255, 256, 257, 5000, 70_000, 1_000_000])
@pytest.mark.parametrize("kind", ["equal", "normal"])
def test_row_norms_are_accurate_at_any_width(width, kind):
    rows = torch.full((2, width), 0.1)
    if kind == "normal":
        rows.normal_(generator=torch.Generator().manual_seed(0))
    expected = [math.sqrt(math.fsum(row.double().square().tolist())) for row in rows]
    torch.testing.assert_close(row_norms(rows).tolist(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("n", "width"), [(0, 5), (3, 1), (300, 9000), (5000, 70)])
def test_products_are_rounded_to_float64_only(n, width, dtype):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n, width, generator=generator).to(dtype)
    weights = torch.randn(2, n, dtype=torch.float64, generator=generator)
    total = torch.full((2, width), 7.0, dtype=torch.float64)
    add_product(total, weights, rows)
    torch.testing.assert_close(total, 7 + weights @ rows.double(), rtol=1e-12, atol=1e-12)
