"""Vision transformers, and tasks on them, with a tiny network of random weights."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import dphpo_bench as bench
from dphpo_bench.data.images import content_hash, record_type
from dphpo_bench.data.source import Images, Split
from dphpo_bench.testing import TaskContract
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.structure import structure_hash
from dphpo_bench.zoo.dataset_task import ImageTask, Schedule
from dphpo_bench.zoo.vision import VisionTransformer
from tests.data.conftest import write_records
from tests.recipes.published import published as put_weights
from tests.training.models import BACKENDS, brute_force, engine_by, flat

FILE = "model.safetensors"
TUNED = ("vit", "vit_bitfit", "vit_lora")
SIDE, WIDTH, LAYERS, CLASSES, RECORDS = 12, 8, 2, 5, 24


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def published(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Weights under the names of the published file, its unused pooler among them."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / 3

    def linear(name: str, outputs: int, inputs: int) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": random(outputs, inputs), f"{name}.bias": random(outputs)}

    def norm(name: str) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": 1 + random(WIDTH), f"{name}.bias": random(WIDTH)}

    found = {
        "embeddings.cls_token": random(1, 1, WIDTH),
        "embeddings.position_embeddings": random(1, 10, WIDTH),
        "embeddings.patch_embeddings.projection.weight": random(WIDTH, 3, 4, 4),
        "embeddings.patch_embeddings.projection.bias": random(WIDTH),
        **norm("layernorm"),
        **linear("pooler.dense", WIDTH, WIDTH),
    }
    for n in range(LAYERS):
        block = f"encoder.layer.{n}"
        for name in ("query", "key", "value"):
            found |= linear(f"{block}.attention.attention.{name}", WIDTH, WIDTH)
        found |= linear(f"{block}.attention.output.dense", WIDTH, WIDTH)
        found |= linear(f"{block}.intermediate.dense", 2 * WIDTH, WIDTH)
        found |= linear(f"{block}.output.dense", WIDTH, 2 * WIDTH)
        found |= norm(f"{block}.layernorm_before") | norm(f"{block}.layernorm_after")
    return found


def class_token(weights: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
    """What the network puts out for one picture, shape (3, SIDE, SIDE) in -1 to 1, written down once more."""
    from torch.nn import functional

    def linear(name: str, values: torch.Tensor) -> torch.Tensor:
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, values: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(values, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    projection = "embeddings.patch_embeddings.projection"
    kernel = weights[f"{projection}.weight"].flatten(1)
    patches = [image[:, y : y + 4, x : x + 4].flatten() for y in range(0, SIDE, 4) for x in range(0, SIDE, 4)]
    tokens = torch.stack(patches) @ kernel.T + weights[f"{projection}.bias"]
    tokens = torch.cat([weights["embeddings.cls_token"][0], tokens]) + weights["embeddings.position_embeddings"][0]
    for n in range(LAYERS):
        block = f"encoder.layer.{n}"
        before, heads = norm(f"{block}.layernorm_before", tokens), []
        query, key, value = (
            linear(f"{block}.attention.attention.{name}", before) for name in ("query", "key", "value")
        )
        for head in (slice(0, WIDTH // 2), slice(WIDTH // 2, WIDTH)):
            scores = query[:, head] @ key[:, head].T / (WIDTH // 2) ** 0.5
            heads.append(scores.softmax(1) @ value[:, head])
        tokens = tokens + linear(f"{block}.attention.output.dense", torch.cat(heads, 1))
        inner = functional.gelu(linear(f"{block}.intermediate.dense", norm(f"{block}.layernorm_after", tokens)))
        tokens = tokens + linear(f"{block}.output.dense", inner)
    return norm("layernorm", tokens)[0]


@pytest.fixture
def transformer(tmp_path: Path) -> VisionTransformer:
    """A network of two layers, whose weights are in the mirror."""
    path = tmp_path / "mirror/weights/tiny" / FILE
    path.parent.mkdir(parents=True)
    save_file(published(torch.Generator().manual_seed(0)), path)
    weights = put_weights("tiny", path.parent, (FILE,))
    return VisionTransformer(side=SIDE, patch=4, width=WIDTH, layers=LAYERS, heads=2, inner=2 * WIDTH, weights=weights)


@pytest.fixture
def mirror(tmp_path: Path, transformer: VisionTransformer, monkeypatch: pytest.MonkeyPatch) -> bench.DataSource:
    """A mirror with weights and records. The environment knows of none."""
    for name, seed in (("train", 0), ("test", 1)):
        write_records(tmp_path / f"mirror/signs/{name}.parquet", records(seed))
    monkeypatch.setenv("DPHPO_BENCH_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "cache elsewhere"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    return bench.DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


def records(seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    found = np.empty(RECORDS, record_type((1, 6, 8)))
    found["pixels"] = generator.integers(0, 256, (RECORDS, 1, 6, 8), dtype=np.uint8)
    found["label"] = np.arange(RECORDS) % CLASSES
    return found


@pytest.fixture
def task_class(transformer: VisionTransformer) -> type[ImageTask]:
    splits = tuple(
        Split(name, name, RECORDS, content_hash(records(seed))) for name, seed in (("train", 0), ("test", 1))
    )

    class Signs(ImageTask):
        name = "signs"
        summary = "Grey signs."
        models: ClassVar[tuple[str, ...]] = ("vit_head", *TUNED)
        datasets: ClassVar[tuple[Images, ...]] = (
            Images("signs", "someone/signs", splits, "", "", "img", (1, 6, 8), CLASSES),  # type: ignore[arg-type]
        )
        linear_schedule = vit_schedule = vit_part_schedule = Schedule(batch_size=12, epochs=1)

    Signs.transformers = {"vit": transformer}
    return Signs


def images(pixels: torch.Tensor) -> torch.Tensor:
    """Grey pictures as the network takes them."""
    large = torch.nn.functional.interpolate(pixels.float(), size=(SIDE, SIDE), mode="bilinear")
    return (large / 255 - 0.5).div(0.5).expand(-1, 3, -1, -1)


def loaded(task: ImageTask, source: bench.DataSource) -> tuple[torch.Tensor, torch.Tensor]:
    found = task.load_train(source)
    assert isinstance(found.inputs, torch.Tensor)
    assert isinstance(found.targets, torch.Tensor)
    return found.inputs, found.targets


def shaken(network: torch.nn.Module) -> torch.nn.Module:
    """With other values where weights are trained: the head starts from zero, and so does half of LoRA."""
    generator = torch.Generator().manual_seed(3)
    for weight in network.parameters():
        if weight.requires_grad:
            weight.data.add_(torch.randn(weight.shape, generator=generator), alpha=0.1)
    return network


class TestFeatures:
    def test_they_are_the_class_tokens_of_the_published_network(
        self, task_class: type[ImageTask], mirror: bench.DataSource, transformer: VisionTransformer
    ) -> None:
        task = task_class("vit_head")
        task.prepare(mirror)
        found, _ = loaded(task, mirror)
        pixels, _ = loaded(task_class("vit"), mirror)
        weights = published(torch.Generator().manual_seed(0))
        tokens = torch.stack([class_token(weights, image) for image in images(pixels)])
        assert found.shape == (RECORDS, *task.facts.inputs.shape) == (RECORDS, WIDTH)  # type: ignore[union-attr]
        expected = torch.nn.functional.layer_norm(tokens, (WIDTH,))
        torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0)  # a step of bfloat16


class TestModels:
    @pytest.mark.parametrize("model", TUNED)
    def test_they_start_from_the_published_network(
        self, task_class: type[ImageTask], mirror: bench.DataSource, model: str
    ) -> None:
        task = task_class(model)
        task.prepare(mirror)
        pixels, _ = loaded(task, mirror)
        network = task.build_model()
        assert pixels.dtype == torch.uint8
        assert not network(pixels).any()
        network.head = torch.nn.Identity()
        weights = published(torch.Generator().manual_seed(0))
        expected = torch.stack([class_token(weights, image) for image in images(pixels)])
        torch.testing.assert_close(network(pixels).detach(), expected, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("model", TUNED)
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_gradients_of_records_are_those_of_a_loop(
        self, task_class: type[ImageTask], mirror: bench.DataSource, model: str, backend: str
    ) -> None:
        task = task_class(model)
        task.prepare(mirror)
        pixels, labels = (tensor[:7] for tensor in loaded(task, mirror))
        network = shaken(task.build_model())
        expected = brute_force(copy.deepcopy(network).double(), pixels, labels, Abadi(0.1))
        engine = engine_by(backend, network, 3)
        found = engine.clipped_sum(pixels, labels, Abadi(0.1))
        assert (flat(found).double() - flat(expected)).norm() < 1e-5 * flat(expected).norm()

    @pytest.mark.parametrize("model", ["vit_head", "vit_lora"])
    def test_what_holds_for_every_task(
        self, task_class: type[ImageTask], mirror: bench.DataSource, monkeypatch: pytest.MonkeyPatch, model: str
    ) -> None:
        monkeypatch.setenv("DPHPO_BENCH_DATA", str(mirror.data_dir))
        contract = TaskContract()
        names = [name for name in dir(contract) if name.startswith("test_")]
        for name in sorted(set(names) - {"test_fingerprint_is_stable"}):  # the class is of this test alone
            getattr(contract, name)(task_class(model))


class TestIdentity:
    @pytest.mark.parametrize("model", TUNED)
    def test_a_plan_and_the_structure_need_no_weights(
        self, task_class: type[ImageTask], mirror: bench.DataSource, tmp_path: Path, model: str
    ) -> None:
        task = task_class(model)
        without = task.model_fingerprint()
        assert bench.plan("dp_sgd", task, bench.PrivacyBudget(8, 1e-3)).facts == task.facts
        assert not (tmp_path / "cache elsewhere").exists()
        task.prepare(mirror)
        assert structure_hash(task.build_model()) == without
        assert len({task_class(other).model_fingerprint() for other in TUNED}) == 3

    def test_the_checksum_of_the_weights_is_part_of_it(
        self, task_class: type[ImageTask], mirror: bench.DataSource, transformer: VisionTransformer
    ) -> None:
        def fingerprints() -> set[str]:
            return {task_class(model).fingerprint(mirror) for model in ("vit_head", "vit")}

        before = fingerprints()
        assert len(before) == 2
        other = replace(transformer, weights=replace(transformer.weights, files=((FILE, "ab" * 32),)))
        task_class.transformers = {"vit": other}
        assert not before & fingerprints()
        for model in task_class.models:
            assert task_class(model).pretrained_models == (other.weights,)

    def test_published_facts(self) -> None:
        """Of the real network, without its weights."""
        sizes = {}
        for tuning in ("all", "bitfit", "lora"):
            with torch.device("meta"):
                network = VisionTransformer().classifier(10, tuning)
            sizes[tuning] = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
        head = 10 * 769
        biases = 12 * (4 * 768 + 3072 + 768 + 2 * 768) + 768 + 768
        assert sizes == {"all": 85_798_656 + head, "bitfit": biases + head, "lora": 12 * 2 * 2 * 4 * 768 + head}
