"""Events: what equals what, what is written down, and what is refused when read back."""

import json
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from dphpo_bench.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.privacy import events
from dphpo_bench.privacy.events import (
    compose,
    describe,
    from_json,
    gaussian,
    laplace,
    no_op,
    non_private,
    poisson_sampled,
    repeat,
    repeat_and_select,
    simplify,
    to_json,
)

NOISE = st.floats(0.02, 1e6)
LEAF = st.one_of(NOISE.map(gaussian), NOISE.map(laplace), st.just(no_op()), st.just(non_private()))
TREE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: compose(*parts)),
        st.builds(repeat, inner, st.integers(0, 1000)),
        st.builds(poisson_sampled, st.floats(0, 1), inner),
        st.builds(repeat_and_select, inner, st.floats(1, 100), st.sampled_from([0.0, 1.0, 2.5, math.inf])),
    ),
    max_leaves=8,
)


class TestConstructors:
    @pytest.mark.parametrize("noise", [2, np.int64(2), np.float32(2.0), 2.0])
    def test_noise_multipliers_become_floats(self, noise: float) -> None:
        assert type(gaussian(noise).noise_multiplier) is float
        assert type(laplace(noise).noise_multiplier) is float

    @pytest.mark.parametrize("noise", [-1.0, math.nan, math.inf, "1", True, None])
    def test_bad_noise_is_refused(self, noise: object) -> None:
        with pytest.raises(InvalidValueError, match=r"Expected a finite noise_multiplier >= 0, got"):
            gaussian(noise)  # type: ignore[arg-type]

    @pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
    def test_bad_rate_is_refused(self, rate: float) -> None:
        with pytest.raises(InvalidValueError, match=r"Expected 0 <= sample_rate <= 1"):
            poisson_sampled(rate, gaussian(1))

    @pytest.mark.parametrize("count", [-1, 1.5, True, 10**10])
    def test_bad_count_is_refused(self, count: int) -> None:
        with pytest.raises(InvalidValueError, match="whole count"):
            repeat(gaussian(1), count)

    @pytest.mark.parametrize(("mean", "shape"), [(0.5, 1), (10, -1), (math.nan, 1), (10, math.nan)])
    def test_bad_selection_is_refused(self, mean: float, shape: float) -> None:
        with pytest.raises(InvalidValueError):
            repeat_and_select(gaussian(1), mean, shape)


class TestSimplify:
    def test_a_shared_batch_is_one_gaussian_of_the_joint_multiplier(self) -> None:
        # (1/σg² + 3/σl²)^(-1/2), computed by hand for σg=0.9735, σl=2.422.
        batch = poisson_sampled(0.02, compose(gaussian(0.9735), repeat(gaussian(2.422), 3)))
        simple = simplify(batch)
        assert simple.sampling_probability == 0.02
        assert simple.event.noise_multiplier == pytest.approx(0.7989529292, rel=1e-9)

    def test_integer_multipliers_are_all_counted(self) -> None:
        raw = dp_event.PoissonSampledDpEvent(
            0.02, dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1), dp_event.GaussianDpEvent(1)])
        )
        assert simplify(raw).event.noise_multiplier == pytest.approx(math.sqrt(0.5))

    def test_gaussians_on_everybody_join_wherever_they_stand(self) -> None:
        tree = compose(gaussian(3), repeat(compose(poisson_sampled(1, gaussian(4)), no_op()), 2))
        assert simplify(tree).noise_multiplier == pytest.approx((1 / 9 + 2 / 16) ** -0.5)

    @pytest.mark.parametrize(
        ("event", "simple"),
        [
            (no_op(), no_op()),
            (compose(), no_op()),
            (repeat(gaussian(1), 0), no_op()),
            (poisson_sampled(0, non_private()), no_op()),
            (poisson_sampled(0.5, compose()), no_op()),
            (repeat_and_select(no_op(), 10, 1), no_op()),
            (gaussian(0), non_private()),
            (laplace(0), non_private()),
            (repeat(gaussian(1), 10**9), non_private()),
            (compose(laplace(1), repeat(non_private(), 2)), non_private()),
            (poisson_sampled(0.1, compose(gaussian(1), non_private())), non_private()),
            (repeat_and_select(poisson_sampled(0.1, gaussian(0)), 10, 1), non_private()),
            (poisson_sampled(1, laplace(2)), laplace(2)),
            (repeat(repeat(laplace(2), 3), 4), repeat(laplace(2), 12)),
            (compose(laplace(2), laplace(2)), repeat(laplace(2), 2)),
        ],
    )
    def test_limits(self, event: dp_event.DpEvent, simple: dp_event.DpEvent) -> None:
        assert simplify(event) == simple

    def test_without_a_rule_a_sample_stays_as_it_is(self) -> None:
        mixed = poisson_sampled(0.1, compose(gaussian(1), laplace(1)))
        assert simplify(mixed) == mixed

    def test_numbers_of_foreign_trees_are_checked_too(self) -> None:
        with pytest.raises(InvalidValueError):
            simplify(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(-1.0), 2))

    def test_events_that_cannot_be_compared_are_refused_by_name(self) -> None:
        with pytest.raises(UnsupportedEventError, match="SingleEpochTreeAggregationDpEvent"):
            simplify(dp_event.SingleEpochTreeAggregationDpEvent(1.0, [1, 2]))

    @settings(derandomize=True, max_examples=100, deadline=None)
    @given(TREE)
    def test_is_idempotent_and_blind_to_order(self, event: dp_event.DpEvent) -> None:
        simple = simplify(event)
        assert simplify(simple) == simple
        assert simplify(compose(event, gaussian(2), laplace(3))) == simplify(compose(laplace(3), gaussian(2), event))


class TestJson:
    @settings(derandomize=True, max_examples=200, deadline=None)
    @given(TREE)
    def test_round_trip(self, event: dp_event.DpEvent) -> None:
        assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event

    @pytest.mark.parametrize(
        "obj",
        [
            None,
            [],
            "gaussian",
            {},
            {"type": "os.system"},
            {"type": ["gaussian"]},
            {"type": "dp_accounting.dp_event.GaussianDpEvent", "noise_multiplier": 1.0},
            {"type": "gaussian"},
            {"type": "gaussian", "noise_multiplier": 1.0, "extra": 1},
            {"type": "gaussian", "noise_multiplier": "1.0"},
            {"type": "gaussian", "noise_multiplier": True},
            {"type": "gaussian", "noise_multiplier": math.nan},
            {"type": "gaussian", "noise_multiplier": -1},
            {"type": "gaussian", "noise_multiplier": 10**400},
            {"type": "repeated", "count": 2.0, "event": {"type": "no_op"}},
            {"type": "repeated", "count": -2, "event": {"type": "no_op"}},
            {"type": "repeated", "count": 10**12, "event": {"type": "no_op"}},
            {"type": "poisson_sampled", "sample_rate": 2, "event": {"type": "no_op"}},
            {"type": "composed", "events": {"type": "no_op"}},
            {"type": "composed", "events": [1]},
            {"type": "repeat_and_select", "mean": 0, "shape": 1, "event": {"type": "no_op"}},
            {"type": "repeat_and_select", "mean": 10, "shape": "inf", "event": {"type": "no_op"}},
            {"type": "repeat_and_select", "mean": 10, "shape": math.inf, "event": {"type": "no_op"}},
        ],
    )
    def test_anything_else_is_refused(self, obj: object) -> None:
        with pytest.raises(InvalidValueError, match="Expected"):
            from_json(obj)

    def test_depth_and_size_are_limited(self) -> None:
        deep: dict[str, object] = {"type": "no_op"}
        for _ in range(events.MAX_DEPTH):
            deep = {"type": "repeated", "count": 1, "event": deep}
        wide = {"type": "composed", "events": [{"type": "no_op"}] * events.MAX_NODES}
        for obj in (deep, wide):
            with pytest.raises(InvalidValueError, match="levels"):
                from_json(obj)

    def test_unknown_events_have_no_written_form(self) -> None:
        with pytest.raises(UnsupportedEventError, match="ZCDpEvent"):
            to_json(dp_event.ZCDpEvent(0.1))


class TestDescribe:
    def test_equal_events_are_counted_together(self) -> None:
        step = poisson_sampled(0.16384, gaussian(2.41))
        loss_step = poisson_sampled(0.16384, compose(gaussian(2.41), repeat(gaussian(31), 3)))
        assert describe(compose(repeat(step, 292), loss_step, step, repeat(loss_step, 72))) == (
            "293 × Poisson(q=0.1638; Gaussian σ=2.41) + 73 × Poisson(q=0.1638; Gaussian σ=2.41, 3 × Gaussian σ=31)"
        )

    @pytest.mark.parametrize(
        ("event", "text"),
        [
            (no_op(), "nothing"),
            (non_private(), "non-private access"),
            (repeat(laplace(2), 3), "3 × Laplace b=2"),
            (repeat_and_select(gaussian(1), 10, 1), "BestOf(mean=10, shape=1; Gaussian σ=1)"),
            (dp_event.ZCDpEvent(0.1), "ZCDpEvent"),
        ],
    )
    def test_single_events(self, event: dp_event.DpEvent, text: str) -> None:
        assert describe(event) == text
