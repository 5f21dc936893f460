"""Accountants never ask for more memory than a bound that is known beforehand, or say so in one line."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, pld

from dphpo_bench.base.errors import UnsupportedEventError
from dphpo_bench.privacy import event_rules
from dphpo_bench.privacy.accountants import long_compositions, profiles, refusals, report, tilted
from dphpo_bench.privacy.accountants import pld as distributions
from dphpo_bench.privacy.events import compose, gaussian, poisson_sampled, pure_dp, repeat

LIMIT = 3 * 2**30
"""Bytes that a process may take beyond what it has after its imports."""

UNDER_A_LIMIT = """
import json, resource
import dphpo_bench as bench
from dphpo_bench.privacy.accountants.report import epsilon

def steps(rate, noise, count):
    return bench.events.repeat(bench.events.poisson_sampled(rate, bench.events.gaussian(noise)), count)

epsilon(steps(0.01, 1.0, 10), 1e-5)  # imports the rest
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * (pages * resource.getpagesize() + LIMIT,))
few = bench.events.best_of(steps(1e-6, 0.35, 10**6), bench.search.geometric(10.0))
print(json.dumps({
    "steps": [dict(epsilon(steps(*case), 1e-5).by_accountant) for case in CASES],
    "best of": dict(epsilon(few, 1e-5).by_accountant),
    "noise": bench.events.calibrate(lambda noise: steps(1e-6, noise, 10**6), bench.PrivacyBudget(3.0, 1e-5)),
}))
"""
CASES = [(1e-6, 0.35, 10**6), (1e-8, 0.35, 10**7), (1e-4, 0.35, 10**6)]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce the limit")
def test_rare_large_losses_fit_into_little_memory() -> None:
    """The first case asked for 54 GiB, the second for 118."""
    code = f"LIMIT, CASES = {LIMIT}, {CASES}\n{UNDER_A_LIMIT}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for case, by_accountant in zip(CASES, found["steps"], strict=True):
        rate, noise, count = case
        finer = tilted.epsilon(repeat(poisson_sampled(rate, gaussian(noise)), count), 1e-5)
        assert finer <= by_accountant["pld"] <= 1.01 * finer + 3e-3
        assert by_accountant["pld"] < by_accountant["rdp"]
    assert found["best of"]["layer_cake"] < found["best of"]["rdp"]
    assert 0.3 < found["noise"] < 0.35


NOISES = (
    gaussian(1.3),
    poisson_sampled(0.01, gaussian(0.8)),
    dp_event.LaplaceDpEvent(5.0),
    dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(2.0)),
)


@pytest.mark.parametrize("counts", [(1, 1, 1), (30, 2, 700)])
@pytest.mark.parametrize("parts", [*itertools.combinations(NOISES, 1), *itertools.combinations(NOISES, 3)])
def test_distributions_are_the_librarys_to_the_last_bit(parts: Any, counts: Any) -> None:
    """They are composed here, since the library does not tell beforehand how many points it will ask for."""
    multiset = dict(zip(parts, counts, strict=False))
    ours = distributions._native(tuple(sorted(multiset.items(), key=repr)), 3e-3)
    accountant = pld.PLDAccountant(value_discretization_interval=3e-3)
    theirs = accountant.compose(event_rules.from_multiset(multiset))._pld
    for one, two in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        assert type(one) is type(two)
        assert one._infinity_mass == two._infinity_mass
        one, two = one.to_dense_pmf(), two.to_dense_pmf()
        assert one._lower_loss == two._lower_loss
        assert np.array_equal(one._probs, two._probs)


def forget() -> None:
    """Let no answer from here be known elsewhere, or the other way round."""
    for known in (report._report, report._of_tree):
        known.cache_clear()


class TestRefusals:
    """With a lower bound than the real one, which nothing within reach of a test exceeds."""

    @pytest.fixture(autouse=True)
    def _few_points(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for module in (refusals, long_compositions):
            monkeypatch.setattr(module, "MOST_POINTS", 2000)
        forget()
        yield
        forget()

    @pytest.mark.parametrize(
        "event",
        [
            repeat(poisson_sampled(0.1, gaussian(1.0)), 1000),
            repeat(poisson_sampled(0.1, gaussian(1.0)), 1_000_000),
            compose(gaussian(1.0), poisson_sampled(0.1, gaussian(1.0)), dp_event.LaplaceDpEvent(2.0)),
            repeat(pure_dp(0.1), 1000),
        ],
    )
    def test_other_accountants_answer(self, event: dp_event.DpEvent) -> None:
        found = report.epsilon(event, 1e-5)
        assert "would need a grid of" in found.refused["pld"]
        assert found.quoted == "rdp"
        with pytest.raises(UnsupportedEventError, match=r"pld would need a grid of [\d,]+ privacy losses") as error:
            report.epsilon(event, 1e-5, accountant="pld")
        assert "\n" not in str(error.value)

    def test_profiles_are_refused_before_they_are_made(self) -> None:
        profile = profiles.from_distribution(distributions._native(((gaussian(1.0), 1),), 3e-2), 0.0)
        with pytest.raises(refusals.RefusedError, match="would need a grid"):
            profiles.to_distribution(profile, 1e-4, negligible=1e-9, size=100)


def test_little_memory_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a machine has less than what the bound allows."""

    def fail(*_: object) -> float:
        raise MemoryError

    event = repeat(poisson_sampled(0.0123, gaussian(1.2)), 321)
    monkeypatch.setattr(distributions, "epsilon", fail)
    assert report.epsilon(event, 1e-5).refused == {"pld": "ran out of memory"}
    with pytest.raises(UnsupportedEventError, match="This accountant does not bound this event: pld ran out of memory"):
        report.epsilon(event, 1e-5, accountant="pld")
    forget()


def test_many_distinct_releases_share_the_memory_of_a_few() -> None:
    """Coarser grids for each of them are an upper bound still, and close to the ε of all at their mean."""
    parts = [poisson_sampled(0.5, gaussian(50.0 + index / 1000)) for index in range(48)]
    alike = tilted.epsilon(repeat(poisson_sampled(0.5, gaussian(50.1)), 48), 1e-15)
    found = tilted.epsilon(compose(*parts), 1e-15)
    assert alike == pytest.approx(found, rel=1e-2)
