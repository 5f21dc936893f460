"""`hyfreedp` and `noise_scaled` as methods: what queries cost, that both learn, and that they begin at one rate."""

from dataclasses import replace

import pytest

import dphpo_bench as bench
from dphpo_bench.methods.hyfreedp import HyFreeDP
from dphpo_bench.methods.noise_scaled import NoiseScaled
from tests.conftest import TinyTask, session_on

METHODS = (HyFreeDP, NoiseScaled)


class Sized(TinyTask):
    """The tiny task with another number of records; only its facts are read."""

    def __init__(self, records: int, batch: int, epochs: int) -> None:
        super().__init__()
        self.sizes = {"n_records": records, "batch_size": batch, "epochs": epochs}

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, **self.sizes)  # type: ignore[arg-type]


def share_of(method: bench.Method, task: bench.Task | str, epsilon: float = 3.0) -> float:
    return bench.plan(method, task, bench.PrivacyBudget(epsilon, 1e-5)).tuning_share


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("sizes", "epsilon"),
    [
        *[((128, 32, 10), 3), ((60_000, 1_024, 20), 3), ((10_000, 256, 20), 3)],
        *[((5_000, 5_000, 40), 1), ((1_000, 1_000, 5), 8), ((10_000, 10_000, 40), 0.3), ((2_000, 500, 40), 3)],
    ],
)
def test_queries_take_two_percent_at_most(
    method: type[bench.Method], sizes: tuple[int, int, int], epsilon: float
) -> None:
    """The last four are the worst of 168 plans: seven N, three batch sizes, two lengths, four ε."""
    assert 0 < share_of(method(), Sized(*sizes), epsilon) <= 0.02


@pytest.mark.parametrize("method", METHODS)
def test_queries_take_two_percent_on_the_digits(method: type[bench.Method]) -> None:
    assert 0 < share_of(method(), "digits") <= 0.02


@pytest.mark.parametrize("method", METHODS)
def test_queries_take_little_of_a_small_budget_on_many_records(method: type[bench.Method]) -> None:
    """Queries to one batch are one Gaussian together: eight of multiplier 2 had taken more than all of ε = 1 here."""
    assert share_of(method(), "cifar10", 1.0) <= 0.02


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_where_the_untuned_rate_does_not(method: type[bench.Method], plain_run) -> None:
    tuned = plain_run(method()).record.metrics["accuracy"]
    untuned = plain_run(bench.make_method("auto_clipping", {"learning_rate": "1e-4"})).record.metrics["accuracy"]
    assert tuned > 0.75 > untuned


def test_both_begin_at_the_same_rate_where_their_plans_agree() -> None:
    """In a regression neither queries after the last step."""
    task, budget = TinyTask(), bench.PrivacyBudget(3.0, 1e-4)
    regression = replace(task.facts, kind="regression", error_bound=1.0)
    plans = [method().plan(regression, budget) for method in METHODS]
    assert plans[0].parameters == plans[1].parameters
    records = task.load_train(bench.DataSource.resolve())
    first, second = (
        method().run(plan, session_on(task, records)).released for method, plan in zip(METHODS, plans, strict=True)
    )
    assert first == second
    assert set(first) == {"learning_rate"}


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_refuses_an_optimizer_of_matrices(method: type[bench.Method]) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="got 'muon'"):
        bench.plan(method(optimizer="muon"), "digits", bench.PrivacyBudget(3, 1e-5))
