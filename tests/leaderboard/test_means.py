"""Means: against scipy, and by how often their intervals hold the truth, with and without collapses."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dphpo_bench.leaderboard.means import (
    NO_FALLS,
    Falls,
    Mean,
    Rate,
    Sample,
    collapses,
    fall_limit,
    holm,
    mean_of,
    means_of,
    over_tasks,
    ratio_interval,
)
from dphpo_bench.records.measure import ACCURACY, Measure, mean_interval, metric_mean

SAME = [range(5)] * 10
OTHERS = [range(5 * task, 5 * task + (5 if task < 6 else 3)) for task in range(10)]

scores = st.floats(0, 1).map(lambda value: round(value, 6))


def sample(values: Sequence[float], start: int = 0, falls: Falls = NO_FALLS, task_model: str = "") -> Sample:
    return Sample(dict(enumerate(values, start)), falls, task_model)


# ------------------------------------------------------------------------------------------------- against scipy


@given(st.lists(scores, min_size=2, max_size=20).filter(lambda values: len(set(values)) > 1))
def test_an_interval_of_one_table_is_students(values: list[float]) -> None:
    ours = mean_interval(values)
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert ours.mean == pytest.approx(np.mean(values))
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_a_difference_is_tested_by_welch() -> None:
    first, second = [0.1, 0.3, 0.2, 0.4], [0.5, 0.45, 0.49]
    ours = mean_of([sample(first)], [sample(second)])
    theirs = stats.ttest_ind(first, second, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert (ours.p_value, (-ours).p_value) == pytest.approx((theirs.pvalue,) * 2)
    assert (ours.estimate.low, ours.estimate.high) == pytest.approx((interval.low, interval.high))


def test_tables_of_the_same_seeds_are_averaged_seed_by_seed() -> None:
    ours = mean_of([sample([0.1, 0.3, 0.2]), sample([0.5, 0.4, 0.9])])
    assert ours.p_value == pytest.approx(stats.ttest_1samp([0.3, 0.35, 0.55], 0).pvalue)


def test_metrics_stay_in_their_range() -> None:
    assert metric_mean([0.99, 0.97, 1.0], ACCURACY).high == 1.0
    perplexity = metric_mean([1.01, 1.5, 1.02], Measure("perplexity", higher_is_better=False))
    assert perplexity.low == 1.0
    assert metric_mean([0.1, 0.9], Measure("mean_squared_error", higher_is_better=False)).low == 0.0
    assert metric_mean([0.99, 0.97], Measure("r2")).high == 1.0
    assert metric_mean([0.1, 0.9], Measure("bleu")).low < 0  # type: ignore[operator]  # a range that nobody stated


@given(st.integers(0, 60), st.integers(0, 60))
def test_rates_have_the_intervals_of_clopper_and_pearson(count: int, others: int) -> None:
    rate = Rate(count, count + others)
    if rate.runs:
        theirs = stats.binomtest(count, rate.runs).proportion_ci(0.95, "exact")
        assert (rate.low, rate.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize(("design", "tables_in_block"), [(SAME[:1], 1), (SAME[:3], 3), (OTHERS[:3], 1)])
def test_fiellers_interval_holds_what_a_t_test_does_not_reject(design: Sequence[range], tables_in_block: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        mine, start, end = (level + 0.2 * rng.standard_normal((len(design), 5)) for level in (0.6, 0.0, 1.0))
        interval = ratio_interval(
            *(
                [sample(values.tolist(), seeds.start) for values, seeds in zip(tables, design, strict=True)]
                for tables in (mine, start, end)
            )
        )
        if interval is None:
            continue
        # A block of tables with equal seeds is one sample of the means by seed.
        blocks = [side.reshape(-1, tables_in_block, 5).mean(1) for side in (mine, start, end)]
        parts = [np.var(block, axis=1, ddof=1) / 5 / len(block) ** 2 for block in blocks]
        variances = [part.sum() for part in parts]
        dof = sum(variances) ** 2 / sum((part**2).sum() / 4 for part in parts)
        for ratio in (interval.low, interval.high):  # the p-value of a ratio at an end is 5 %
            distance = mine.mean() - start.mean() - ratio * (end.mean() - start.mean())
            error = math.sqrt(variances[0] + ratio**2 * variances[2] + (1 - ratio) ** 2 * variances[1])
            assert 2 * stats.t.sf(abs(distance) / error, dof) == pytest.approx(0.05, rel=1e-6)


def test_a_ratio_has_the_variance_of_collapsed_runs_too_and_none_without_a_gap() -> None:
    falls = Falls(limit=0.1, deepest=0.5)
    start, end = [0.8, 0.81, 0.2, 0.79, 0.4], [0.9, 0.91, 0.9, 0.92, 0.9]
    with_falls, without = (
        ratio_interval([sample([0.85, 0.86])], [sample(start, 0, falls)], [sample(end, 0, falls)])
        for falls in (falls, NO_FALLS)
    )
    assert with_falls == without
    assert with_falls is None  # .3 of a gap, with an error of .13 at four degrees of freedom
    clear = ratio_interval([sample([0.85, 0.86])], [sample([0.6, 0.61, 0.59])], [sample(end)])
    assert clear is not None
    assert clear.mean == pytest.approx((0.855 - 0.6) / (0.906 - 0.6))
    assert ratio_interval([sample([0.85, 0.86])], [sample([0.6])], [sample(end)]) is None


def test_tasks_at_random() -> None:
    values = {"one": [0.1], "two": [0.3], "three": [0.2], "four": [0.6]}
    theirs = stats.ttest_1samp([0.1, 0.3, 0.2, 0.6], 0).confidence_interval(0.95)
    ours = over_tasks(values)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    # Two task–model pairs of one task are not two tasks.
    twice = over_tasks({"one": [0.1, 0.1], "two": [0.3, 0.3]})
    assert (twice.low, twice.high) == pytest.approx((over_tasks({"one": [0.1], "two": [0.3]}).low, twice.high))


def test_holms_procedure() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert holm(p_values, [1] * 4) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.02, 0.5], [1] * 2) == pytest.approx([0.04, 0.5])
    # Half of the error for the first test, half for the other four.
    assert holm([0.02, 0.001, 0.9, 0.9, 0.9], [1 / 2, *[1 / 8] * 4])[:2] == pytest.approx([0.04 * 7 / 8, 0.008])


# ---------------------------------------------------------------------------------------------------- coverage


@pytest.mark.parametrize(("design", "shared"), [(SAME, 0.0), (SAME, 0.5), (OTHERS, 0.0)])
def test_intervals_over_tables_hold_the_truth(design: Sequence[range], shared: float) -> None:
    """About 95 % in each design; fewer than 1,080 of 1,200 have a chance below 1e-6 at 94 %."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1200):
        common = math.sqrt(shared) * rng.standard_normal(60)
        tables = [Sample({seed: common[seed] + math.sqrt(1 - shared) * rng.standard_normal() for seed in seeds})
                  for seeds in design]  # fmt: skip
        estimate = mean_of(tables).estimate
        assert estimate.low is not None
        assert estimate.high is not None
        hits += estimate.low <= 0 <= estimate.high
    assert hits >= 1080
    assert stats.binom.cdf(1079, 1200, 0.94) < 1e-6


def test_collapses_stand_apart_from_the_noise() -> None:
    falls = Falls(fall_limit(ACCURACY), deepest=0.4, lowest=0.1)
    fallen = sample([0.9, 0.92, 0.5], falls=falls)
    assert (fallen.collapsed, fallen.sound) == ([pytest.approx(0.4)], [0.9, 0.92])
    assert (fallen.lost, fallen.depth) == pytest.approx((0.91 - fallen.mean, 0.4))
    assert sample([0.9, 0.5], falls=falls).collapsed == []  # of two, either may be the odd one
    assert sample([0.9, 0.92, 0.5]).collapsed == []  # a metric without a limit
    later = sample([0.5, 0.51], falls=replace(falls, expected=0.9))  # at a larger ε
    assert (later.collapsed, later.sound) == ([pytest.approx(0.4), pytest.approx(0.39)], [0.5, 0.51])
    steady = sample([0.9, 0.92, 0.91], falls=falls)
    below, above = collapses([steady], [steady, fallen])
    assert (below, above) == (pytest.approx(0.4 * Rate(1, 6).high), 0.0)
    below, above = collapses([fallen], [steady, fallen])
    assert below == pytest.approx(0.4 * Rate(1, 6).high - fallen.lost)
    assert above == pytest.approx(fallen.lost - 0.4 * Rate(1, 6).low)
    assert collapses([sample([0.9, 0.8])], [sample([0.9, 0.8])]) == (0.0, 0.0)


def test_a_p_value_is_5_percent_where_the_interval_ends_at_zero() -> None:
    mean = Mean(0.3, 0.05, 7.0, below=0.3 - 0.05 * stats.t.ppf(0.975, 7), above=0.1)
    assert mean.estimate.low == pytest.approx(0.0)
    assert mean.p_value == pytest.approx(0.05)
    assert Mean(0.05, 0.001, 7.0, below=0.06).p_value == 1.0
    assert (-mean).estimate.high == pytest.approx(0.0)


def covered(rate: float, depth: float, tables: int, seeds: int, trials: int, together: bool) -> tuple[float, float]:
    """Return how often intervals of one of the tables, or of the mean of all, hold the truth: plain, and as shown."""
    rng = np.random.default_rng([round(1000 * rate), tables, seeds])
    plain = shown = 0
    for _ in range(trials):
        values = 0.9 + 0.005 * rng.standard_normal((tables, seeds)) - depth * (rng.random((tables, seeds)) < rate)
        known = [sample(row, falls=Falls(fall_limit(ACCURACY))) for row in values.tolist()]
        drops = [drop for each in known for drop in each.collapsed]
        falls = Falls(fall_limit(ACCURACY), max([0.0, *drops]), values.min())
        samples = [sample(row, seeds * at, falls, str(at // 3)) for at, row in enumerate(values.tolist())]
        asked = samples if together else samples[:1]
        truth = 0.9 - rate * depth
        before = mean_of([sample(list(each.by_seed.values()), min(each.by_seed)) for each in asked]).estimate
        mean = mean_of(asked)
        below, above = collapses(asked, samples)
        after = Mean(mean.value, mean.error, mean.dof, below, above).estimate
        plain += before.low <= truth <= before.high
        shown += after.low <= truth <= after.high
    return plain / trials, shown / trials


@pytest.mark.parametrize(("together", "most_before"), [(False, 0.5), (True, 0.96)])
def test_intervals_hold_where_one_run_of_ten_collapses(together: bool, most_before: float) -> None:
    """Three seeds on each of thirty tables. Fewer than 345 of 400 have a chance below 1e-6 at 93 %."""
    before, after = covered(0.1, 0.4, 30, 3, 400, together)
    assert before < most_before
    assert after >= 345 / 400
    assert stats.binom.cdf(344, 400, 0.93) < 1e-6


def test_other_epsilons_count_for_the_error() -> None:
    steady, wild = [0.5, 0.501, 0.502], [0.4, 0.5, 0.6]
    means = means_of({1.0: [sample(steady)], 8.0: [sample(wild, 10)]})
    together = math.sqrt(np.mean([np.var(values, ddof=1) / 3 for values in (steady, wild)]))
    assert means[1.0].error == pytest.approx(together)
    assert means[8.0].error == pytest.approx(math.sqrt(np.var(wild, ddof=1) / 3))
    assert means[None].value == pytest.approx((0.501 + 0.5) / 2)
