"""Choosing by name: `--only method=hyfreedp,task=mnist`."""

import pytest

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.records.filters import Only

AVAILABLE = {
    "method": ["hyfreedp", "liu_talwar"],
    "task": ["digits", "mnist"],
    "epsilon": [1.0, 0.5, 8.0],
    "seed": [0, 1, None],
}


def values(
    method: str = "hyfreedp", task: str = "mnist", epsilon: float = 1.0, seed: int | None = 0
) -> dict[str, object]:
    return {"method": method, "task": task, "epsilon": epsilon, "seed": seed}


def test_nothing_wanted_matches_everything() -> None:
    assert Only.parse([], AVAILABLE).matches(values())
    assert Only.parse([], {}).accepted == {}


def test_any_value_of_a_field_and_all_fields() -> None:
    only = Only.parse(["method=hyfreedp,method=liu_talwar", "task=mnist"], AVAILABLE)
    assert only.accepted == {"method": {"hyfreedp", "liu_talwar"}, "task": {"mnist"}}
    assert only.matches(values())
    assert only.matches(values(method="liu_talwar"))
    assert not only.matches(values(task="digits"))
    assert not only.matches(values(method="other"))


@pytest.mark.parametrize("text", ["epsilon=1", "epsilon=1.0", "epsilon=1e0", " epsilon = 1 "])
def test_numbers_are_compared_as_numbers(text: str) -> None:
    only = Only.parse([text], AVAILABLE)
    assert only.matches(values(epsilon=1.0))
    assert only.matches(values(epsilon=1))
    assert not only.matches(values(epsilon=8.0))


def test_a_missing_seed_has_a_name() -> None:
    only = Only.parse(["seed=None"], AVAILABLE)
    assert only.matches(values(seed=None))
    assert not only.matches(values(seed=0))
    assert not Only.parse(["seed=0"], AVAILABLE).matches(values(seed=None))


@pytest.mark.parametrize("text", ["", "method", "method=", "=mnist", "task=mnist,", "task=mnist,,seed=0", ","])
def test_what_has_not_the_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="Expected --only FIELD=VALUE,FIELD=VALUE, got"):
        Only.parse([text], AVAILABLE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metod=hyfreedp", "Unknown field 'metod'. Did you mean 'method'? Available: epsilon, method, seed, task."),
        ("method=hyfree", "Unknown method 'hyfree'. Did you mean 'hyfreedp'? Available: hyfreedp, liu_talwar."),
        ("epsilon=3", "Unknown epsilon '3'. Available: 0.5, 1, 8."),
        ("seed=7", "Unknown seed '7'. Available: 0, 1, None."),
        ("task=Mnist", "Unknown task 'Mnist'. Did you mean 'mnist'? Available: digits, mnist."),
    ],
)
def test_unknown_names_get_help(text: str, message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        Only.parse([text], AVAILABLE)
    assert str(caught.value) == message


def test_a_value_may_hold_an_equals_sign() -> None:
    assert Only.parse(["task=a=b"], {"task": ["a=b"]}).matches({"task": "a=b"})
