"""What names published results stays as it is: modules of models, fingerprints of built-in tasks, keys of features.

A record's identity holds a hash of the model's structure, and with it the module paths of its classes. Moving or
renaming such a class, or a route to features, would split published results into those before and those after.
"""

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.training.structure import published_name
from dphpo_bench.zoo.published import Gpt2, Roberta
from dphpo_bench.zoo.scattering import ScatteringFeatures
from dphpo_bench.zoo.texts import TextFeatures, WordPieces
from dphpo_bench.zoo.vision import SMALL_VIT, PictureFeatures, VisionTransformer

FROZEN: dict[str, Any] = json.loads(Path(__file__).with_name("fingerprints.json").read_text())
TASKS = {
    point.name: point.load() for point in entry_points(group="dphpo_bench.tasks") if point.dist.name == "dphpo-bench"
}
BY_FILE = ("gtsrb",)
"""A file of it has to be hashed for the fingerprint."""

ROUTES = (
    *(ScatteringFeatures(), ScatteringFeatures(symmetric=True), ScatteringFeatures(normalisation="group_norm")),
    *(PictureFeatures(), PictureFeatures(side=224), TextFeatures(), TextFeatures(longest=48)),
    *(VisionTransformer(), SMALL_VIT, Roberta(), Roberta(longest=64), Gpt2(), WordPieces()),
)


def names_of_own_classes(task: Task) -> list[str]:
    """The classes of this package in a model, by module path; without its weights."""
    with torch.device("meta"):
        model = task.build_model()
    names = {published_name(type(module)) for module in model.modules()}
    return sorted(name for name in names if name.startswith("dphpo_bench."))


def test_module_paths_of_models_stay() -> None:
    found = {
        f"{name} {model}": classes
        for name in ("cifar10", "e2e", "sst2")  # which have all models between them
        for model in TASKS[name].models
        if (classes := names_of_own_classes(TASKS[name](model)))
    }
    assert found == FROZEN["classes"]


@pytest.mark.parametrize("name", sorted(TASKS))
def test_fingerprints_of_built_in_tasks_stay(name: str, tmp_path: Path) -> None:
    """And the facts. Fingerprints of structures hold paths of transformers, which another version may change."""
    source = DataSource.resolve(tmp_path, tmp_path)
    frozen = FROZEN["tasks"][name]
    assert set(frozen) == set(TASKS[name].models)
    for model, (facts, records, structure) in frozen.items():
        task = TASKS[name](model)
        assert {**facts, "search_space": task.facts.to_json()["search_space"]} == task.facts.to_json()
        if name not in BY_FILE:
            assert task.fingerprint(source) == records
        if transformers.__version__ == FROZEN["transformers"]:
            assert task.model_fingerprint() == structure


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: type(route).__name__)
def test_keys_of_features_stay(route: Any) -> None:
    assert route.key in FROZEN["keys"]
    assert (route.key.get("features") or route.key["tokens"]) == type(route).__name__
