"""What holds for every method in the registry: its contract, plans without waste, and the variants' accounting."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

import dphpo_bench as bench
from dphpo_bench.contract import registry
from dphpo_bench.harness.cache import Cache
from dphpo_bench.testing import MethodContract
from dphpo_bench.testing.runs import DELTA, EPSILON
from dphpo_bench.testing.small_tasks import blobs_for
from tests.touched import module, quick, skeleton, touched

METHODS = sorted(registry.methods())
TOUCHED = touched("methods")
ONE_OF_EACH = {"dp_sgd", "hyfreedp", "hyfreedp_paper", "linear_scaling", "objective_perturbation"}
ONE_OF_EACH |= {"papernot_steinke", "prodigy", "propose_test", "random_search"}
# A search is as well shown by few trials.
FEW_TRIALS: dict[str, dict[str, Any]] = {
    "dp_hype": {"points": 3, "partitions": 5},
    "linear_scaling": {"runs": 2, "steps": 20},
    "papernot_steinke": {"mean": 4.0},
    "propose_test": {"candidates": 4, "partitions": 3},
    "synthetic_proxy": {"points": 3},
}
# Settings under which a method accounts differently from its default.
VARIANTS = {
    "liu_talwar": [{"accounting": "rdp"}, {"threshold": "0.9"}],
    "papernot_steinke": [
        {"accounting": "rdp"},
        {"accounting": "layer_cake"},
        {"distribution": "negative_binomial", "shape": "0", "mean": "10"},
        {"distribution": "poisson", "mean": "8"},
        {"distribution": "binomial", "mean": "4.5"},
        {"distribution": "uniform", "accounting": "layer_cake"},
    ],
    "hyfreedp": [{"optimizer": "AdamW"}],
    "hyfreedp_paper": [{"loss_batch": "same"}, {"rule": "paper"}],
    "auto_clipping": [{"clipping": "auto_v"}, {"clipping": "psac"}],
    "subsampled_tuning": [{"optimizer": "SGD"}],
    "banded_mf": [{"bands": "4"}],
    "public_proxy": [{"space": "grid", "points": "2"}],
}
# Of these, one a method is enough where time is short; ε of each is computed by tests of the accountants, too.
SLOW_VARIANTS = {"accounting=rdp", "distribution=uniform,accounting=layer_cake", "optimizer=SGD"}
SLOW_VARIANTS |= {"optimizer=AdamW", "rule=paper"}
ALL = [(name, options) for name, variants in VARIANTS.items() for options in variants]
LEAST_SHARE = 0.9
NUMBERS = {"diabetes", "diamonds", "e2e", "friedman", "heavy_tails", "housing", "visits"}
NOT_LINEAR = NUMBERS | {"digits_by_writer", "readmissions_by_hospital", "reviews", "stays", "synthetic"}
# Methods for linear classifiers refuse these: no classification, units of several records, or a network by default.
WIDE = {"cifar10", "cifar100", "fashion_mnist", "gtsrb", "mnist", "svhn"}
REFUSED = {"naive_bayes": NUMBERS, "synthetic_proxy": {"e2e"}, "marginals": {"e2e"} | WIDE}
REFUSED["dp_ebm"] = REFUSED["marginals"] | {"food101", "mnli", "qnli", "qqp", "sst2", "topics", "wide"}


def label(value: Any) -> str:
    return ",".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else str(value)


def test_each_skeleton_has_a_method_that_runs_its_contract() -> None:
    skeletons = {name: skeleton(entry.cls, "dphpo_bench.methods") for name, entry in registry.methods().items()}
    assert {skeletons[name] for name in ONE_OF_EACH} == set(skeletons.values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the contract its methods, by class, so that the tests of one follow one another."""
    if metafunc.cls is TestContract:
        quickly = {name: name in ONE_OF_EACH or module(registry.methods()[name].cls) in TOUCHED for name in METHODS}
        params = [quick(metafunc.config, name, quickly[name]) for name in METHODS]
        metafunc.parametrize("method", params, indirect=True, scope="class")


@pytest.fixture(scope="class")
def method(request: pytest.FixtureRequest) -> bench.Method:
    few = {} if request.config.getoption("markexpr") == "slow" else FEW_TRIALS.get(request.param, {})
    return bench.make_method(request.param, few)


class TestContract(MethodContract):
    """Of methods at their defaults. What takes seconds for each of them is slow, as are the other ε."""

    epsilons: ClassVar[tuple[float, ...]] = (3.0,)
    tiny_epsilons: ClassVar[tuple[float, ...]] = (0.05,)
    least_epsilon_share: ClassVar[float] = LEAST_SHARE

    @pytest.mark.slow
    def test_earlier_runs_change_nothing(self, method: bench.Method) -> None:
        super().test_earlier_runs_change_nothing(method)

    @pytest.mark.slow  # the kept plan's run is repeated below, and after other runs
    def test_seed_repeats_a_run(self, method: bench.Method) -> None:
        super().test_seed_repeats_a_run(method)

    @pytest.mark.slow
    def test_trials_that_lost_change_nothing(self, method: bench.Method) -> None:
        super().test_trials_that_lost_change_nothing(method)

    def test_learns_something_also_from_a_kept_plan(self, method: bench.Method, tmp_path: Path) -> None:
        """Three classes; some methods choose nearly at random. A plan that was kept changes nothing."""
        kept, task, budget = Cache(tmp_path), blobs_for(method), bench.PrivacyBudget(EPSILON, DELTA)
        kept.plan(method, task, budget)
        assert len(list(tmp_path.glob("*.json"))) == 1
        one, two = (
            bench.run(method, task, budget, seed=3, execution=bench.ExecutionOptions(cache=cache)).record
            for cache in (None, kept)
        )
        assert one.metrics["accuracy"] > 0.2
        assert (one.metrics, one.released, one.privacy) == (two.metrics, two.released, two.privacy)


class ContractOfOneEpsilon(MethodContract):
    """Plans that waste nothing, in a third of the time."""

    epsilons: ClassVar[tuple[float, ...]] = (3.0,)
    least_epsilon_share: ClassVar[float] = LEAST_SHARE


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=pytest.mark.slow if label(options) in SLOW_VARIANTS else ())
        for name, options in ALL
    ],
    ids=label,
)
def test_a_variant_costs_what_it_may(name: str, options: dict[str, str]) -> None:
    """What the contract says about ε, where a method accounts otherwise than by default."""
    contract, method = ContractOfOneEpsilon(), bench.make_method(name, options)
    contract.test_runs_keep_to_the_plan_and_the_plan_to_the_budget(method)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in METHODS), *ALL], ids=label)
def test_every_epsilon_is_kept(name: str, options: dict[str, str]) -> None:
    MethodContract().test_runs_keep_to_the_plan_and_the_plan_to_the_budget(bench.make_method(name, options))


@pytest.mark.slow
@pytest.mark.parametrize("target", MethodContract.epsilons)
@pytest.mark.parametrize("task", sorted(registry.tasks()))
@pytest.mark.parametrize("method", METHODS)
def test_plan_on_every_task(method: str, task: str, target: float) -> None:
    if task in (NOT_LINEAR if registry.methods()[method].cls.linear_only else REFUSED.get(method, ())):
        words = r"Expected (a linear classifier|a binary task|vectors of numbers|at most [0-9,]+ inputs)"
        with pytest.raises(bench.errors.InvalidValueError, match=words):
            bench.plan(method, task, bench.PrivacyBudget(target, 1e-5))
        return
    if registry.methods()[method].cls.needs_sibling and bench.make_task(task).sibling is None:
        pytest.skip("the task declares no public sibling")
    if registry.methods()[method].cls.needs_units and bench.make_task(task).facts.unit == "record":
        pytest.skip("the task has no clients")
    if (method, task, target) == ("adaptive_clipping", "digits_by_writer", 1.0):
        pytest.skip("250 writers are too few to count at this ε, which the plan says")
    checked = bench.plan(method, task, bench.PrivacyBudget(target, 1e-5))
    if checked.method.end_to_end_private:
        found = bench.events.epsilon(checked.plan.event, 1e-5, accountant=checked.plan.accountant).epsilon
        assert LEAST_SHARE * target <= found <= target
        assert found == pytest.approx(checked.epsilon.epsilon, rel=1e-9)
