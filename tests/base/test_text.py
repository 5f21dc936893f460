"""Unknown names get help."""

import pytest

from dphpo_bench.base.text import plainly, rounded_up, unknown_name_message

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
    ("theirs", "ours"),
    [
        ("Input should be a valid number, unable to parse string as a number", "expected a valid number"),
        ("Value error, 'x' is not one of 'process', 'serial'", "'x' is not one of 'process', 'serial'"),
        ("Invalid value for '-n': Input should be a valid integer", "Invalid value for '-n': expected a valid integer"),
        ("Input should be greater than 0", "expected a value greater than 0"),
        ("Expected 0 <= averaging < 1, got averaging=2.0.", "Expected 0 <= averaging < 1, got averaging=2.0."),
    ],
)
def test_what_a_value_should_be_is_said_plainly(theirs: str, ours: str) -> None:
    assert plainly(theirs) == ours


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
