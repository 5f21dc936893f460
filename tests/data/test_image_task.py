"""The machinery of image tasks on a small dataset."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from dphpo_bench.base.errors import UnknownNameError
from dphpo_bench.data.datasets import Images
from dphpo_bench.data.source import DataSource
from dphpo_bench.recipes import scattering
from dphpo_bench.recipes.image_task import ImageTask, Schedule
from dphpo_bench.recipes.scattering import ScatteringFeatures
from tests.data.conftest import ROWS, write_records


@pytest.fixture(autouse=True)
def few_synthetic_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they are for is tested with the features; here they would take seconds for each extraction."""
    monkeypatch.setattr(scattering, "_SYNTHETIC_IMAGES", 50)


@pytest.fixture
def task_class(dataset: Images) -> type[ImageTask]:
    class Small(ImageTask):
        name = "small"
        summary = "A small dataset."
        datasets = (dataset,)
        linear_schedule = Schedule(batch_size=10, epochs=2)
        cnn_schedule = Schedule(batch_size=5, epochs=1)

    return Small


def test_facts_of_each_model(task_class: type[ImageTask]) -> None:
    linear, cnn = task_class().facts, task_class("cnn").facts
    assert (linear.model, linear.inputs.shape, linear.batch_size) == ("linear", (3 * 81 * 2 * 2,), 10)
    assert (cnn.model, cnn.inputs.shape, cnn.batch_size) == ("cnn", (3, 8, 8), 5)
    assert linear.n_records == cnn.n_records == ROWS
    assert (linear.optimizer, linear.learning_rate) == ("AdamW", 1e-3)


def test_unknown_model(task_class: type[ImageTask]) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'cnn'"):
        task_class("cn")


def test_inputs_match_the_facts(task_class: type[ImageTask], mirror: DataSource) -> None:
    for model in task_class.models:
        task = task_class(model)
        for split in (task.load_train(mirror), task.load_test(mirror)):
            assert split.inputs.shape == (ROWS, *task.facts.inputs.shape)
            assert split.targets.dtype == torch.int64


def test_pixels_are_scaled_by_public_constants(
    task_class: type[ImageTask], mirror: DataSource, records: np.ndarray
) -> None:
    inputs = task_class("cnn").load_train(mirror).inputs
    restored = (inputs * 127.5 + 127.5).round().numpy().astype(np.uint8)
    assert sorted(one.tobytes() for one in restored) == sorted(one.tobytes() for one in records["pixels"])


def test_linear_model_starts_from_zero(task_class: type[ImageTask], mirror: DataSource) -> None:
    task = task_class()
    model = task.build_model()
    outputs = model(task.load_train(mirror).inputs.float())
    assert outputs.shape == (ROWS, 10)
    assert not outputs.any()


def test_features_are_cached_and_belong_to_their_labels(
    task_class: type[ImageTask], mirror: DataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = task_class().load_train(mirror)
    again = torch.cat(list(ScatteringFeatures().extract(restore_pixels(task_class, mirror))))
    assert torch.equal(first.inputs, again)
    monkeypatch.setattr(ScatteringFeatures, "extract", None)
    assert torch.equal(task_class().load_train(mirror).inputs, again)


def restore_pixels(task_class: type[ImageTask], source: DataSource) -> torch.Tensor:
    return task_class("cnn").load_train(source).inputs.mul(127.5).add(127.5).round().to(torch.uint8)


def test_other_features_are_another_file_and_another_fingerprint(
    task_class: type[ImageTask], mirror: DataSource
) -> None:
    class Symmetric(task_class):  # type: ignore[valid-type, misc]
        features = ScatteringFeatures(symmetric=True)

    assert Symmetric().load_train(mirror).inputs.shape != task_class().load_train(mirror).inputs.shape
    fingerprints = {t.fingerprint(mirror) for t in (Symmetric(), task_class(), task_class("cnn"))}
    assert len(fingerprints) == 3


def test_truncated_features_are_extracted_again(
    task_class: type[ImageTask], mirror: DataSource, caplog: pytest.LogCaptureFixture
) -> None:
    before = task_class().load_train(mirror).inputs.clone()
    (file,) = (mirror.cache_dir / "features").glob("*.npy")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-2])
    with caplog.at_level(logging.WARNING):
        assert torch.equal(task_class().load_train(mirror).inputs, before)
    assert caplog.text.count("is damaged; computing it again") == 1


def test_interrupted_extraction_goes_on(
    task_class: type[ImageTask], mirror: DataSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattering, "_IMAGES_PER_BLOCK", 8)
    whole = task_class().load_train(mirror).inputs
    extract, extracted = ScatteringFeatures.extract, []

    def interrupted(features: ScatteringFeatures, pixels: torch.Tensor, source: DataSource) -> Iterator[torch.Tensor]:
        extracted.append(len(pixels))
        yield from islice(extract(features, pixels, source), 2)
        raise KeyboardInterrupt

    other = DataSource.resolve(mirror.data_dir, tmp_path / "other cache")
    monkeypatch.setattr(ScatteringFeatures, "extract", interrupted)
    with pytest.raises(KeyboardInterrupt):
        task_class().load_train(other)
    with pytest.raises(KeyboardInterrupt):
        task_class().load_train(other)
    monkeypatch.setattr(ScatteringFeatures, "extract", extract)
    assert extracted == [ROWS, ROWS - 16]
    assert torch.equal(task_class().load_train(other).inputs, whole)


@pytest.mark.slow
def test_results_do_not_depend_on_the_mirrors_row_order(
    task_class: type[ImageTask], mirror: DataSource, records: np.ndarray, tmp_path: Path
) -> None:
    write_records(tmp_path / "other/small/train.parquet", records[::-1])
    other = DataSource.resolve(tmp_path / "other", tmp_path / "cache of the other")
    first, second = (task_class().load_train(source) for source in (mirror, other))
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
