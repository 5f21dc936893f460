"""Events: what equals what, what is written down, and what is refused when read back."""

import json
import math
from collections.abc import Callable

import pytest
from dp_accounting import dp_event
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dphpo_bench.base.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.event_trees import (
    children,
    describe,
    exposures,
    from_json,
    partitions,
    restrict,
    simplify,
    to_json,
)
from dphpo_bench.privacy.events import (
    PartDpEvent,
    best_of,
    compose,
    gaussian,
    laplace,
    no_op,
    non_private,
    objective_perturbation,
    on_part,
    one_of,
    poisson_sampled,
    pure_dp,
    repeat,
    threshold_search,
)
from dphpo_bench.privacy.run_counts import (
    Binomial,
    CappedGeometric,
    Poisson,
    TruncatedNegativeBinomial,
    UniformCount,
    geometric,
)

NOISE = st.floats(0.02, 1e6)
LEAF = st.one_of(
    NOISE.map(gaussian),
    NOISE.map(laplace),
    st.floats(0, 50).map(pure_dp),
    st.builds(objective_perturbation, NOISE, st.floats(0.01, 100), st.integers(1, 20)),
    st.just(no_op()),
    st.just(non_private()),
)
RUNS = st.one_of(
    st.builds(TruncatedNegativeBinomial, st.floats(1.01, 100), st.sampled_from([0.0, 1.0, 2.5])),
    st.builds(Poisson, st.floats(0.1, 100)),
    st.builds(Binomial, st.floats(0.1, 9), st.integers(10, 200)),
    st.builds(UniformCount, st.integers(1, 5), st.integers(6, 20)),
    st.builds(CappedGeometric, st.floats(1.5, 100), st.integers(2, 200)),
)
TREE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: compose(*parts)),
        st.builds(repeat, inner, st.integers(0, 1000)),
        st.builds(poisson_sampled, st.floats(0, 1), inner),
        st.builds(best_of, inner, RUNS, st.floats(0.1, 1), st.floats(1, 10)),
        st.builds(threshold_search, inner, st.floats(0.001, 1)),
        st.builds(on_part, st.sampled_from(["split", "fold"]), st.sampled_from(["a", "b"]), inner),
        st.builds(lambda one, other: one_of([one, other]), inner, inner),
        st.builds(lambda one, other, weight: one_of([one, other], [weight, 1]), inner, inner, st.floats(0.01, 10)),
    ),
    max_leaves=8,
)


def _nests_parts(event: dp_event.DpEvent, within: tuple[str, ...] = ()) -> bool:
    """Whether an event of one partition is within another one of it, which is not read back."""
    if isinstance(event, PartDpEvent):
        if event.partition in within:
            return True
        within = (*within, event.partition)
    return any(_nests_parts(one, within) for one in children(event))


def best_of_json(**changes: object) -> dict[str, object]:
    runs = {"type": "negative_binomial", "mean": 10.0, "shape": 1.0}
    return {"type": "best_of", "runs": runs, "low": 1.0, "high": 1.0, "event": {"type": "no_op"}, **changes}


class TestConstructors:
    @pytest.mark.parametrize(
        ("build", "message"),
        [
            *((lambda noise=noise: gaussian(noise), "noise_multiplier >= 0") for noise in (-1.0, math.nan, "1", True)),
            *((lambda rate=rate: poisson_sampled(rate, gaussian(1)), "0 <= sample_rate <= 1") for rate in (-0.1, 1.1)),
            *((lambda count=count: repeat(gaussian(1), count), "whole count") for count in (-1, 1.5, True, 10**10)),
            (lambda: best_of(gaussian(1), 10), "Expected"),
            (lambda: best_of(gaussian(1), geometric(10), low=1.1), "Expected"),
            (lambda: threshold_search(gaussian(1), 0), "Expected"),
            (lambda: on_part("", "a", gaussian(1)), "Expected"),
            (lambda: pure_dp(-0.1), "Expected"),
        ],
    )
    def test_bad_values_are_refused(self, build: Callable[[], object], message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            build()


class TestSimplify:
    def test_a_shared_batch_is_one_gaussian_of_the_joint_multiplier(self) -> None:
        # (1/σg² + 3/σl²)^(-1/2), computed by hand for σg=0.9735, σl=2.422.
        batch = poisson_sampled(0.02, compose(gaussian(0.9735), repeat(gaussian(2.422), 3)))
        simple = simplify(batch)
        assert simple.sampling_probability == 0.02
        assert simple.event.noise_multiplier == pytest.approx(0.7989529292, rel=1e-9)

    def test_selections_of_dp_accounting_become_ours(self) -> None:
        raw = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(2), 10, 1)
        assert simplify(raw) == best_of(gaussian(2.0), geometric(10))
        assert simplify(dp_event.RepeatAndSelectDpEvent(laplace(2), 10, math.inf)) == best_of(laplace(2), Poisson(10))

    def test_gaussians_on_everybody_join_wherever_they_stand(self) -> None:
        tree = compose(gaussian(3), repeat(compose(poisson_sampled(1, gaussian(4)), no_op()), 2))
        assert simplify(tree).noise_multiplier == pytest.approx((1 / 9 + 2 / 16) ** -0.5)

    @pytest.mark.parametrize(
        ("event", "simple"),
        [
            (no_op(), no_op()),
            (compose(), no_op()),
            (poisson_sampled(0, non_private()), no_op()),
            (best_of(no_op(), geometric(10), 0.5, 2), no_op()),
            (on_part("a", "b", no_op()), no_op()),
            (pure_dp(0), no_op()),
            (pure_dp(1.1e6), non_private()),
            (threshold_search(gaussian(0), 0.1), non_private()),
            (gaussian(0), non_private()),
            (compose(laplace(1), repeat(non_private(), 2)), non_private()),
            (poisson_sampled(0.1, compose(gaussian(1), non_private())), non_private()),
            (poisson_sampled(1, laplace(2)), laplace(2)),
            (repeat(repeat(laplace(2), 3), 4), repeat(laplace(2), 12)),
            (compose(laplace(2), laplace(2)), repeat(laplace(2), 2)),
        ],
    )
    def test_limits(self, event: dp_event.DpEvent, simple: dp_event.DpEvent) -> None:
        assert simplify(event) == simple

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


TRAIN = repeat(poisson_sampled(0.1, gaussian(2)), 5)
VALID = gaussian(25)


class TestParts:
    def test_a_part_of_another_part_is_empty(self) -> None:
        nested = on_part("split", "a", compose(VALID, on_part("split", "b", non_private())))
        assert simplify(nested) == on_part("split", "a", VALID)
        assert simplify(on_part("split", "a", on_part("split", "a", VALID))) == on_part("split", "a", VALID)

    def test_restriction_opens_own_parts_and_closes_the_others(self) -> None:
        tree = compose(laplace(3), on_part("split", "train", TRAIN), on_part("split", "valid", VALID))
        assert simplify(restrict(tree, {"split": "train"})) == simplify(compose(laplace(3), TRAIN))
        assert simplify(restrict(tree, {"split": "valid"})) == simplify(compose(laplace(3), VALID))
        assert simplify(restrict(tree, {"split": "test"})) == laplace(3)
        assert restrict(tree, {"other": "train"}) == tree

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda e: best_of(e, geometric(10)),
            lambda e: poisson_sampled(0.5, e),
            lambda e: repeat(compose(e, laplace(2)), 3),
            lambda e: dp_event.RepeatAndSelectDpEvent(e, 10.0, 1.0),
        ],
    )
    def test_restriction_reaches_inside(self, wrap: Callable[[dp_event.DpEvent], dp_event.DpEvent]) -> None:
        tree = wrap(compose(on_part("split", "train", TRAIN), on_part("split", "valid", VALID)))
        assert partitions(tree) == {"split": {"train", "valid"}}
        assert simplify(restrict(tree, {"split": "valid"})) == simplify(wrap(VALID))
        assert set(exposures(tree)) == {simplify(wrap(TRAIN)), simplify(wrap(VALID))}

    def test_partitions_cross(self) -> None:
        tree = compose(
            on_part("split", "a", laplace(2)), on_part("split", "b", laplace(3)), on_part("fold", "1", laplace(4))
        )
        assert set(exposures(tree)) == {compose(laplace(2.0), laplace(4.0)), compose(laplace(3.0), laplace(4.0))}

    def test_too_many_combinations_are_refused(self) -> None:
        folds = compose(*(on_part(f"p{i}", part, VALID) for i in range(7) for part in "ab"))
        with pytest.raises(UnsupportedEventError, match="128 combinations"):
            exposures(folds)

    @settings(derandomize=True, max_examples=60, deadline=None)
    @given(TREE)
    def test_no_part_is_left_in_an_exposure(self, event: dp_event.DpEvent) -> None:
        assert all(not partitions(tree) for tree in exposures(event))


class TestJson:
    @settings(derandomize=True, max_examples=200, deadline=None)
    @given(TREE)
    def test_round_trip(self, event: dp_event.DpEvent) -> None:
        assume(not _nests_parts(event))
        assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event

    @pytest.mark.parametrize(
        "obj",
        [
            [],
            {},
            {"type": "os.system"},
            {"type": "gaussian", "noise_multiplier": 1.0, "extra": 1},
            {"type": "gaussian", "noise_multiplier": math.nan},
            {"type": "repeated", "count": 10**12, "event": {"type": "no_op"}},
            {"type": "poisson_sampled", "sample_rate": 2, "event": {"type": "no_op"}},
            {"type": "pure", "epsilon": -1},
            {"type": "part", "partition": "split", "part": "", "event": {"type": "no_op"}},
            {"type": "first_above", "stop_probability": 0, "event": {"type": "no_op"}},
            best_of_json(low=2),
            best_of_json(runs={"type": "fixed", "runs": 10}),
            best_of_json(runs={"type": "poisson", "mean": math.inf}),
        ],
    )
    def test_anything_else_is_refused(self, obj: object) -> None:
        with pytest.raises(InvalidValueError, match="Expected"):
            from_json(obj)

    def test_depth_and_size_are_limited(self) -> None:
        deep: dict[str, object] = {"type": "no_op"}
        for _ in range(event_trees.MAX_DEPTH):
            deep = {"type": "repeated", "count": 1, "event": deep}
        wide = {"type": "composed", "events": [{"type": "no_op"}] * event_trees.MAX_NODES}
        for obj in (deep, wide):
            with pytest.raises(InvalidValueError, match="levels"):
                from_json(obj)


class TestDescribe:
    def test_equal_events_are_counted_together(self) -> None:
        step = poisson_sampled(0.16384, gaussian(2.41))
        loss_step = poisson_sampled(0.16384, compose(gaussian(2.41), repeat(gaussian(31), 3)))
        assert describe(compose(repeat(step, 292), loss_step, step, repeat(loss_step, 72))) == (
            "293 × Poisson(q=0.1638; Gaussian σ=2.41) + 73 × Poisson(q=0.1638; Gaussian σ=2.41, 3 × Gaussian σ=31)"
        )
