"""What kinds of task a setting is of, by its public facts and names: what its records are, and what is trained on them.

Kinds group tables for readers; nobody's rank depends on them.
"""

from collections.abc import Mapping
from typing import Any

VECTORS = {
    **dict.fromkeys(("adult", "diabetes"), "tables"),
    **dict.fromkeys(("mnli", "qnli", "qqp", "sst2"), "texts"),
    **dict.fromkeys(
        ("cifar10", "cifar100", "digits", "digits_eight", "fashion_mnist", "food101", "gtsrb", "mnist", "svhn"),
        "pictures from features",
    ),
}
"""What the numbers of a record are made from, in this project's tasks: facts tell their count only."""

LINEAR = frozenset({"linear", "pretrained", "vit_head"})
"""Models that are linear in the numbers of a record."""


def kinds_of(task: str, model: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds, of the records first; none if the facts are of another form."""
    match facts.get("inputs"):
        case {"shape": [_]} if task in VECTORS:
            records = VECTORS[task]
        case {"shape": [_], "dtype": "int"}:
            records = "texts"
        case {"shape": [_]}:
            records = "tables and fixed features"
        case {"shape": [_, _]} if task in VECTORS:
            records = VECTORS[task]  # such as the words of a text, each as a vector
        case {"shape": [_, _, *_]}:
            records = "pictures"
        case _:
            return ()
    return records, "linear models" if model in LINEAR else "networks"
