import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.training.clipping import Abadi, AutoS, AutoV, Psac, parse_clipping
from dphpo_bench.training.layers import Dense
from dphpo_bench.training.norms import norm_bounds, row_norms

RULES = (Abadi(1.0), Abadi(3e-7), Abadi(50.0), AutoS(), AutoS(1e-6), AutoV(), Psac(), Psac(1e-6), Psac(1e6))


@given(norm=st.floats(min_value=0, width=32), rule=st.sampled_from(RULES))
@example(norm=3e38, rule=Abadi(3e-7))  # a factor of 1e-45 was rounded to 1.4e-45, the smallest number there is
def test_clipped_norm_is_within_the_sensitivity(norm, rule):
    factor = rule.factors(torch.tensor([norm]))
    assert 0 <= factor.item() < math.inf
    if math.isfinite(norm):
        assert norm * factor.item() <= rule.sensitivity * (1 + 1e-6)
    else:
        assert factor.item() == 0


def test_factors_are_those_of_the_papers():
    norms = torch.tensor([0.5, 2.0])
    assert Abadi(1.0).factors(norms).tolist() == [1.0, 0.5]
    torch.testing.assert_close(AutoS(0.01).factors(norms), torch.tensor([1 / 0.51, 1 / 2.01]))
    assert AutoV().factors(norms).tolist() == [2.0, 0.5]
    torch.testing.assert_close(Psac(0.1).factors(norms), torch.tensor([1.5, 21 / 43]))
    torch.testing.assert_close(Psac(0.1).factors(torch.tensor([0.0, 1e9])), torch.tensor([1.0, 1e-9]))


def test_names():
    assert parse_clipping("abadi:0.5") == Abadi(0.5)
    assert parse_clipping("AUTO-S") == AutoS(0.01)
    assert parse_clipping("auto_s:0.1") == AutoS(0.1)
    assert parse_clipping("auto_v") == AutoV()
    assert parse_clipping("psac:0.01") == Psac(0.01)
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


LONG = 2**15 + 200  # norms of rows as long as this are bounded in float32; the last block is not whole


def length(row: torch.Tensor) -> float:
    """L2 norm of float32 or float64 numbers, rounded once: squares of float32 numbers are float64 numbers."""
    return math.sqrt(math.fsum(row.double().square().tolist()))


def lossy(large: int, small: float) -> list[float]:
    """A block whose first squares are 1: in float32, all that is added to them in the same register is lost."""
    return [1.0] * large + [small] * (128 - large)


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=128),
    scale=st.sampled_from([1.0, 2.0**-60, 2.0**-140, 2.0**70]),
    rule=st.sampled_from(RULES),
)
@example(values=lossy(1, 2**-12), scale=1.0, rule=Abadi(1.0))
@example(values=lossy(8, 2**-12), scale=1.0, rule=Abadi(1.0))
@example(values=lossy(16, 2**-12), scale=1.0, rule=AutoV())
@example(values=lossy(32, 2**-12.1), scale=1.0, rule=Abadi(3e-7))
@example(values=lossy(64, 2**-12.1), scale=1.0, rule=Abadi(3e-7))
@example(values=[2.0**-64 * 0.9999], scale=1.0, rule=AutoV())  # squares that are lost, or rounded to a few bits
@example(values=[2.0**-75, 2.0**-74.6], scale=1.0, rule=Abadi(1e-18))
@example(values=[1e-45], scale=1.0, rule=Abadi(1e-43))
@example(values=[48266956.0], scale=1.0, rule=Abadi(1.0))  # squares that are all rounded upwards
@example(values=[1.8e19], scale=1.0, rule=Abadi(1.0))  # squares that overflow, one alone or together
@example(values=[3.4e38, 0.0, 1e-45], scale=1.0, rule=Abadi(3e-7))
def test_bounds_of_norms_are_never_below_them(values, scale, rule):
    """Nor far above, nor is any long gradient that is clipped longer than its rule says."""
    block = (torch.tensor(values) * scale).clamp(-3.4e38, 3.4e38)
    row = block.repeat(LONG // len(block) + 1)[:LONG]
    norm, (bound,) = length(row), norm_bounds(row[None]).tolist()
    assert norm <= bound <= norm * (1 + 8.1e-6) + math.sqrt(LONG) * 2.2e-19
    gradients, total = Dense(row[None]), torch.zeros(LONG, dtype=torch.float64)
    factors = rule.factors(gradients.norms)
    assert factors > 0 or norm > 1e31 or norm < 1e-11  # huge ones are clipped, too, rather than dropped
    gradients.add_to(total, factors, None)
    assert length(total) <= rule.sensitivity


@pytest.mark.parametrize("width", [2**15, LONG + 1])
def test_bounds_depend_on_nothing_but_their_row(width):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(37, width, generator=generator) * 10 ** torch.linspace(-3, 3, 37)[:, None]
    alone = [norm_bounds(row[None]).item() for row in rows]
    assert [length(row) for row in rows] <= alone
    for n in (1, 2, 3, 8, 32, 37):
        for first in (0, 37 - n):
            assert norm_bounds(rows[first : first + n]).tolist() == alone[first : first + n]
    assert norm_bounds(rows.t().contiguous().t()).tolist() == alone
    rows[3, 5], rows[7], rows[11, 0] = math.nan, 3e38, -math.inf
    beside = norm_bounds(rows)
    assert beside.isfinite().tolist() == [place not in (3, 11) for place in range(37)]
    assert all(beside[place] == alone[place] for place in range(37) if place not in (3, 7, 11))
    assert length(rows[7]) <= beside[7] <= length(rows[7]) * (1 + 8.1e-6)


@pytest.mark.parametrize("flushed", [False, True], ids=["as usual", "flushed to zero"])
@pytest.mark.parametrize("width", [1, 7, 1000])
@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-310, 1e-200, 1.7e-162, 1e-154, 3e-154, 1e-153, 1e-140, 1.0])
def test_row_norms_are_no_shorter_where_squares_underflow(size: float, width: int, flushed: bool) -> None:
    """A gradient of 1e-165 passed as one of length 0, which a rule that divides by lengths made very long."""
    rows = torch.full((2, width), size, dtype=torch.float64)
    true = size * math.sqrt(width)
    was_set = torch.set_flush_denormal(flushed)
    try:
        norms = row_norms(rows)
    finally:
        torch.set_flush_denormal(False)
    assert was_set or not flushed
    assert all(true <= norm * (1 + 1e-11) for norm in norms.tolist())
    assert all(norm <= true * (1 + 1e-11) + math.sqrt(width) * 2.0**-509 for norm in norms.tolist())


@pytest.mark.parametrize("stability", [0.0, 1e-300, 1e31, math.nan])
def test_a_stability_that_is_no_number_of_use_is_refused(stability: float) -> None:
    with pytest.raises(InvalidValueError, match="1e-30 <= stability <= 1e\\+30"):
        AutoS(stability)
    with pytest.raises(InvalidValueError, match="1e-30 <= r <= 1e\\+30"):
        Psac(stability)
