"""Kinds of task–model pairs: what records and models are, and which data constants were settled on."""

import re
from collections.abc import Mapping
from typing import Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.recipes.synthetic import SyntheticDraw

VECTORS = {
    **dict.fromkeys(("adult", "adult_few", "diabetes", "readmissions"), "tables"),
    **dict.fromkeys(("mnli", "qnli", "qqp", "sst2"), "texts"),
    **dict.fromkeys(
        ("cifar10", "cifar100", "digits", "digits_eight", "fashion_mnist", "food101", "gtsrb", "mnist", "svhn"),
        "pictures from features",
    ),
}
"""Sources of a record's numbers in this project's tasks; facts tell only how many there are."""

LINEAR_MODELS, NETWORKS = "linear models", "networks"

LINEAR = frozenset({"linear", "gaussian", "pretrained", "vit_head", "small_vit_head"})
"""Models that are linear in the numbers of a record. A number at the end, as in linear_300, is of records."""

FINE_TUNED = frozenset(
    {"block", "bitfit", "lora"}
    | {f"{base}{part}" for base in ("gpt2", "roberta", "small_vit", "vit") for part in ("", "_bitfit", "_lora")}
)
"""Models that start from a pretrained network and train some or all of it. All others are networks from scratch."""

DEVELOPMENT = frozenset({"adult", "adult_few", "diabetes", "digits", "digits_eight", "fashion_mnist"})
DEVELOPMENT_MODELS = frozenset({("cifar10", "pretrained")})
"""Tasks, and models of other tasks, on which this project settled constants of its methods; all others are tests."""

FIRST_TEST = 10_000
"""Made-up tasks from this number on are tests."""

TEST_RECORDS = {"cifar10": 10_000, "digits": 359, "fashion_mnist": 10_000, "mnist": 10_000, "sst2": 872}
"""Numbers of test records of tasks that are ranked by accuracy."""


def kinds_of(task: str, model: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds, of the records first; none if the facts are of another form."""
    if task == "synthetic":
        try:
            return "made-up records", NETWORKS if SyntheticDraw.of(model).hidden != () else LINEAR_MODELS
        except InvalidValueError:  # of a draw that this version does not know
            return ()
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
    return records, LINEAR_MODELS if base_name(model) in LINEAR else NETWORKS


def base_name(model: str) -> str:
    """Return a model's name without the number that says of how many records it is."""
    return re.sub(r"_\d+$", "", model)
