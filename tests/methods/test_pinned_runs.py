"""Results of a method do not change under its version: a seeded run of each comes to what is pinned."""

from typing import Any

import pytest

from dphpo_bench import make_method
from dphpo_bench.contract import registry
from tests.pinned_runs import differences, read, result_of

PINS = read()
COMMAND = "`python -m tests.pinned_runs`"


@pytest.mark.parametrize("name", sorted(registry.methods()))
def test_results_change_with_the_version_only(name: str) -> None:
    pinned = PINS.get(name)
    assert pinned is not None, f"{name} has no pinned run. Make it with {COMMAND}."
    version = make_method(name).version
    assert pinned["version"] == version, f"{name} has version {version}, pinned is {pinned['version']}. Run {COMMAND}."
    changed = differences(pinned, result_of(name))
    assert not changed, (
        f"A seeded run of {name} changed: {'; '.join(changed)}. If that is meant, raise the `version` of its class, "
        f"which tells its records from older ones, and run {COMMAND}. If not, it is a bug."
    )


def test_no_pin_is_left_of_a_method_that_is_gone() -> None:
    assert set(PINS) == set(registry.methods()), f"Run {COMMAND}."


PIN: dict[str, Any] = {"version": 1, "epsilon": 2.9, "accuracy": 0.8, "cross_entropy": 0.5, "learning_rate": 0.01}


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({"epsilon": 2.9 * (1 + 1e-7), "accuracy": 0.8067, "cross_entropy": 0.5001, "version": 2}, []),
        ({"epsilon": 2.9 * (1 + 1e-5)}, ["epsilon is 2.900029, was 2.9"]),
        ({"cross_entropy": 0.505, "learning_rate": 0.0101}, ["cross_entropy is 0.505", "learning_rate is 0.0101"]),
    ],
)
def test_rounding_is_no_change_and_another_rule_is(changes: dict[str, Any], starts: list[str]) -> None:
    found = differences(PIN, {**PIN, **changes})
    assert len(found) == len(starts)
    assert all(line.startswith(start) for line, start in zip(found, starts, strict=True))
