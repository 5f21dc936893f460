"""Unknown names get help."""

import pytest

from dphpo_bench.base.text import rounded_up, unknown_name_message

AVAILABLE = ["cifar10", "digits", "fashion_mnist", "mnist"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("cifar", "cifar10"), ("CIFAR10", "cifar10"), ("minst", "mnist"), ("fash", "fashion_mnist")],
)
def test_close_names_are_suggested(name: str, meant: str) -> None:
    assert f"Did you mean {meant!r}?" in unknown_name_message("task", name, AVAILABLE)


def test_far_names_only_get_the_list() -> None:
    message = unknown_name_message("task", "zzzz", AVAILABLE)
    assert message == "Unknown task 'zzzz'. Available: cifar10, digits, fashion_mnist, mnist."


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0"),
        (7.36826, 3, "7.37"),
        (7.3601, 3, "7.37"),
        (1e-7, 2, "0.00000010"),
    ],
)
def test_a_bound_is_rounded_up(value: float, digits: int, text: str) -> None:
    assert rounded_up(value, digits) == text
