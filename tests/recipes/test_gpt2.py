"""The published GPT-2, by a tiny one: values, per-sample gradients, prompts, writing."""

from pathlib import Path

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.losses import IGNORED, token_cross_entropy
from dphpo_bench.zoo.language_models import TestTexts
from dphpo_bench.zoo.networks import Which
from dphpo_bench.zoo.published import Gpt2
from tests.recipes.published import loop, put_gpt2, shaken
from tests.training.models import flat

transformers = pytest.importorskip("transformers")
LENGTH = 24
PROMPTS = ("name : A ||", "name : Bees ||", "x" * 50, "||")
TEXTS = (" A it is.", " Bees serve food and more of it.", " lost", "")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mirror")


@pytest.fixture(scope="module")
def gpt2(mirror: Path) -> Gpt2:
    return put_gpt2(mirror / "weights/tiny-gpt2", LENGTH)


@pytest.fixture(scope="module")
def source(gpt2: Gpt2, mirror: Path) -> bench.DataSource:
    return bench.DataSource.resolve(mirror, mirror / "cache")


def records(gpt2: Gpt2, source: bench.DataSource) -> TestTexts:
    return TestTexts(*gpt2.records(PROMPTS, TEXTS, source), PROMPTS, TEXTS)


def test_its_values_are_those_of_transformers(gpt2: Gpt2, source: bench.DataSource, mirror: Path) -> None:
    """With the embedding's weights in the last layer, too."""
    original = transformers.GPT2LMHeadModel.from_pretrained(mirror / "weights/tiny-gpt2").eval()
    ours = gpt2.network("all", source).eval()
    inputs = records(gpt2, source).inputs
    torch.testing.assert_close(ours(inputs), original(inputs).logits)
    weights = ours.network.lm_head.weight, ours.network.transformer.wte.weight
    assert torch.equal(*weights)
    assert weights[0].data_ptr() != weights[1].data_ptr()
    assert len(ours.network.transformer.wpe.weight) == LENGTH


@pytest.mark.parametrize("engine", [LoopEngine, LayerwiseEngine], ids=["loop", "layerwise"])
@pytest.mark.parametrize("which", ["all", "lora"])
def test_clipped_sums_are_those_of_a_loop(
    gpt2: Gpt2, source: bench.DataSource, which: Which, engine: type[GradientEngine]
) -> None:
    model, some = shaken(gpt2.network(which, source)), records(gpt2, source)
    found = flat(engine(model, token_cross_entropy).clipped_sum(some.inputs, some.targets, Abadi(0.5))).float()
    wanted = loop(model, some, token_cross_entropy, Abadi(0.5))
    assert wanted.norm() > 0.5
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def test_records(gpt2: Gpt2, source: bench.DataSource) -> None:
    inputs, targets = gpt2.records(PROMPTS, TEXTS, source)
    assert inputs.shape == targets.shape == (4, LENGTH)
    assert inputs.dtype == targets.dtype == torch.int64
    end = 0  # the one token that is no byte
    size, text = len(PROMPTS[0]), len(TEXTS[0])
    assert targets[0, : size - 1].tolist() == (size - 1) * [IGNORED]
    assert targets[0, size - 1 : size + text - 1].tolist() == inputs[0, size : size + text].tolist()
    assert targets[0, size + text - 1] == end
    assert bool((targets[0, size + text :] == IGNORED).all())
    assert end not in targets[1]  # cut
    assert (targets[2] != IGNORED).sum() == 1  # of a prompt that is too long
    assert targets[3, :2].tolist() == [IGNORED, end]


def test_a_model_that_knows_the_texts_writes_them(gpt2: Gpt2, source: bench.DataSource) -> None:
    some = records(gpt2, source).rows(torch.tensor([0, 1, 3]))
    torch.manual_seed(0)
    model = gpt2.network("all", source)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        token_cross_entropy(model(some.inputs), some.targets).sum().backward()
        optimizer.step()
    fits = LENGTH + 1 - len(PROMPTS[1])
    assert gpt2.written(model, some, source) == [TEXTS[0].strip(), TEXTS[1][:fits].strip(), ""]
