"""Choosing by name: `--only method=hyfreedp,task=mnist`."""

import pytest

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.records.reading import Only

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


@pytest.mark.parametrize("text", ["epsilon=1", " epsilon = 1e0 "])
def test_numbers_are_compared_as_numbers(text: str) -> None:
    only = Only.parse([text], AVAILABLE)
    assert only.matches(values(epsilon=1.0))
    assert only.matches(values(epsilon=1))
    assert not only.matches(values(epsilon=8.0))


@pytest.mark.parametrize("text", ["", "method=", "task=mnist,,seed=0"])
def test_what_has_not_the_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="Expected --only FIELD=VALUE,FIELD=VALUE, got"):
        Only.parse([text], AVAILABLE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metod=hyfreedp", "Unknown field 'metod'. Did you mean 'method'? Available: epsilon, method, seed, task."),
        ("epsilon=3", "Unknown epsilon '3'. Available: 0.5, 1, 8."),
    ],
)
def test_unknown_names_get_help(text: str, message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        Only.parse([text], AVAILABLE)
    assert str(caught.value) == message
