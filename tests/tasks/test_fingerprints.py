"""What names published settings stays as it is: modules of models, fingerprints of built-in tasks, keys of features.

A record's identity holds a hash of the model's structure, and with it the module paths of its classes. Moving or
renaming such a class, or a route to features, would split published settings into those before and those after.
"""

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes.gpt2 import Gpt2
from dphpo_bench.recipes.image_task import TUNED_VITS
from dphpo_bench.recipes.language_models import CausalModel, PublishedCausalModel
from dphpo_bench.recipes.picture_features import PictureFeatures
from dphpo_bench.recipes.pooling_block import PoolingBlock
from dphpo_bench.recipes.recurrent_network import GruClassifier
from dphpo_bench.recipes.roberta import Roberta
from dphpo_bench.recipes.roberta_network import RobertaClassifier
from dphpo_bench.recipes.scattering import ScatteringFeatures
from dphpo_bench.recipes.text_features import TextFeatures
from dphpo_bench.recipes.vision_networks import PictureClassifier
from dphpo_bench.recipes.vision_transformers import SMALL_VIT, VisionTransformer
from dphpo_bench.recipes.word_pieces import WordPieces

FROZEN: dict[str, Any] = json.loads(Path(__file__).with_name("fingerprints.json").read_text())
TASKS = {
    point.name: point.load() for point in entry_points(group="dphpo_bench.tasks") if point.dist.name == "dphpo-bench"
}
BY_FILE = ("gtsrb",)
"""A file of it has to be hashed for the fingerprint."""

PLACES = {
    "dphpo_bench.recipes.language_models.CausalModel": CausalModel,
    "dphpo_bench.recipes.language_models.PublishedCausalModel": PublishedCausalModel,
    "dphpo_bench.recipes.vision_networks.PictureClassifier": PictureClassifier,
    "dphpo_bench.recipes.pooling_block.PoolingBlock": PoolingBlock,
    "dphpo_bench.recipes.recurrent_network.GruClassifier": GruClassifier,
    "dphpo_bench.recipes.roberta_network.RobertaClassifier": RobertaClassifier,
}
ROUTES = (
    *(ScatteringFeatures(), ScatteringFeatures(symmetric=True), ScatteringFeatures(normalisation="group_norm")),
    *(PictureFeatures(), PictureFeatures(side=224), TextFeatures(), TextFeatures(longest=48)),
    *(VisionTransformer(), SMALL_VIT, Roberta(), Roberta(longest=64), Gpt2(), WordPieces()),
)


def names_of_own_classes(task: Task) -> list[str]:
    """The classes of this package in a model, by module path; of fine-tuned ones without their weights."""
    model: nn.Module
    if task.model_name in TUNED_VITS:
        model = task.transformer.structure(2, "all")  # type: ignore[attr-defined]
    elif "roberta" in task.model_name:
        model = task.roberta.structure(2, "all")  # type: ignore[attr-defined]
    elif task.model_name in ("block", "bitfit", "lora"):
        with torch.device("meta"):
            model = task._with_head(task.tuned_features.block_structure(), "bitfit")  # type: ignore[attr-defined]
    elif task.model_name == "gru":
        model = task._structure("all")  # type: ignore[attr-defined]
    elif task.model_name.startswith("gpt2"):
        model = task.gpt2.structure("all")  # type: ignore[attr-defined]
    else:
        model = task.build_model()
    names = {f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()}
    return sorted(name for name in names if name.startswith("dphpo_bench."))


def test_module_paths_of_models_stay() -> None:
    assert {f"{one.__module__}.{one.__qualname__}" for one in PLACES.values()} == set(PLACES)
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
