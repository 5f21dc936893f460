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


def test_parameters_are_described_by_declarations_and_docstrings() -> None:
    described = {parameter["name"]: parameter for parameter in descriptions.parameters(Child)}
    assert list(described) == ["way", "silent", "share", "batch_size", "epochs", "averaging"]
    meaning = "of what it has, which takes two lines."
    assert described["share"] == {"name": "share", "type": "0 < number < 1", "default": 0.5, "meaning": meaning}
    assert described["way"]["type"] == "left, right"
    assert described["silent"] == {"name": "silent", "type": "whole number or none", "default": 3, "meaning": ""}
    assert described["batch_size"]["type"] == "whole number >= 1 or none"


def test_the_docstring_above_its_sections() -> None:
    expected = ["A child: does this, too.", "It says more: of this, and of that.", "- An item.", "- Another."]
    assert descriptions.explanation(Child) == expected


@pytest.mark.parametrize("name", registry.methods())
def test_every_parameter_of_a_method_here_has_a_meaning(name: str) -> None:
    described = descriptions.parameters(registry.methods()[name].cls)
    assert all(parameter["meaning"] for parameter in described)


def test_none_can_be_asked_for_in_words() -> None:
    assert registry.make_method("hyfreedp_paper", {"noise_inflation": "none"}).parameters["noise_inflation"] is None
    with pytest.raises(bench.errors.InvalidValueError, match="averaging='none'"):
        registry.make_method("hyfreedp_paper", {"averaging": "none"})
