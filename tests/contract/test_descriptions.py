"""What methods and tasks say of themselves."""

from dataclasses import dataclass
from typing import Literal

import pytest

import dphpo_bench as bench
from dphpo_bench.contract import descriptions, registry


@dataclass(frozen=True)
class Parent(bench.recipes.TrainingMethod[None]):
    """A parent.

    Attributes:
        share: of what it has, which
            takes two lines.
    """

    share: bench.parameters.Share = 0.5


@dataclass(frozen=True)
class Child(Parent):
    """A child: does this, too.

    It says more: of this,
    and of that. The other parameters are those of every `Parent`.

    - An item.
    - Another.

    Attributes:
        way: of going.

    Raises:
        InvalidValueError: never.
    """

    way: Literal["left", "right"] = "left"
    silent: int | None = 3


def test_parameters_are_told_by_declarations_and_docstrings() -> None:
    told = {one.name: one for one in descriptions.parameters(Child)}
    assert list(told) == ["way", "silent", "share", "batch_size", "epochs", "averaging"]
    assert told["share"] == descriptions.Parameter(
        "share", "0 < number < 1", 0.5, "of what it has, which takes two lines."
    )
    assert told["way"].kind == "left, right"
    assert (told["silent"].kind, told["silent"].default, told["silent"].meaning) == ("whole number or none", 3, "")
    assert told["batch_size"].kind == "whole number ≥ 1 or none"
    assert told["batch_size"].meaning == "expected batch size; default: the task's."


def test_the_docstring_above_its_sections() -> None:
    expected = ["A child: does this, too.", "It says more: of this, and of that.", "- An item.", "- Another."]
    assert descriptions.explanation(Child) == expected


@pytest.mark.parametrize("name", registry.methods())
def test_every_parameter_of_a_method_here_has_a_meaning(name: str) -> None:
    told = descriptions.parameters(registry.methods()[name].cls)
    assert [one.name for one in told if not one.meaning] == []


def test_none_can_be_asked_for_in_words() -> None:
    assert registry.make_method("hyfreedp_paper", {"noise_inflation": "none"}).parameters["noise_inflation"] is None
    with pytest.raises(bench.errors.InvalidValueError, match="averaging='none'"):
        registry.make_method("hyfreedp_paper", {"averaging": "none"})
